"""Which updates happen in the memory of their operand.

An update may overwrite its operand if nobody needs the old values afterwards: the operand was
computed by this program, or its memory was given away; it is no output; and whatever else reads it
comes before. Otherwise the update gets a buffer of its own, into which the operand is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Barrier, Layout, Update

Donations = Mapping[Var, Var | None]


class UpdateRule:
    """Decides about the updates of a program, in its order.

    Args:
        jaxpr: the program.
        readers: for each variable the positions of equations that read it.
        donations: inputs whose memory was given away; each with the one output that may take it, or
            None for any output.
    """

    def __init__(
        self, jaxpr: Jaxpr, readers: Mapping[Var, Sequence[int]], donations: Donations
    ) -> None:
        self.jaxpr, self.readers, self.donations = jaxpr, readers, donations
        self.outputs = frozenset(atom for atom in jaxpr.outvars if type(atom) is not Literal)
        self.inputs = frozenset(jaxpr.invars)
        self.names: dict[Var, list[Var]] = {}

    def add_alias(self, alias: Var, var: Var) -> None:
        """Note that ``alias`` is ``var`` or a part of it under another name."""
        self.names.setdefault(var, []).append(alias)

    def earlier_readers(self, position: int) -> tuple[int, ...] | None:
        """What reads the operand besides, all before the update; None if it must be copied."""
        eqn = self.jaxpr.eqns[position]
        operand = eqn.inputs[0]
        if type(operand) is Literal or not self._is_free(operand, eqn):
            return None
        every = self._all_names(operand)
        if any(var in self.outputs for var in every):
            return None
        readers = [reader for var in every for reader in self.readers.get(var, ())]
        if readers.count(position) != 1 or any(reader > position for reader in readers):
            return None
        return tuple(dict.fromkeys(reader for reader in readers if reader != position))

    def _is_free(self, operand: Var, eqn: Eqn) -> bool:
        if any(operand in aliases for aliases in self.names.values()):
            return False
        if operand not in self.inputs:
            return True
        if operand not in self.donations:
            return False
        end = self._end_of_chain(eqn.outputs[0])
        return end is not None and self.donations[operand] in (None, end)

    def _end_of_chain(self, var: Var) -> Var | None:
        """The output that ``var`` becomes by updates alone, each of which may be in place."""
        while var not in self.outputs:
            readers = self.readers.get(var, ())
            last = max(readers, default=-1)
            eqn = self.jaxpr.eqns[last]
            if readers.count(last) != 1 or not isinstance(eqn.primitive.lower, Update):
                return None
            if eqn.inputs[0] is not var or any(self._names(reader) for reader in readers):
                return None
            var = eqn.outputs[0]
        return var

    def _names(self, position: int) -> bool:
        """Whether an equation may only give what it reads another name."""
        return isinstance(self.jaxpr.eqns[position].primitive.lower, (Layout, Barrier))

    def _all_names(self, var: Var) -> list[Var]:
        names = [var]
        for name in names:
            names += self.names.get(name, ())
        return names
