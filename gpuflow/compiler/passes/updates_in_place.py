"""Legality of in-place updates: which updates may overwrite the memory of their operand.

An update may overwrite its operand if the old values are not needed afterwards:

- the program computes the operand, or the operand is a donated input;
- neither the operand nor an alias of it is an output;
- all its other readers come before the update.

Otherwise the update gets a separate buffer, into which the operand is copied. A loop or branch
whose programs update an operand in place is an update of that operand, too.

Tests: tests/compiler/test_updates.py, tests/compiler/test_known_indices.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var

# Donated inputs, each with the one output that may reuse its memory; None: any output may.
Donations = Mapping[Var, Var | None]
AliasPairs = tuple[tuple[int, int], ...]  # (index of an operand, index of the output in its memory)
InnerAliases = Mapping[
    Eqn, AliasPairs
]  # operands that programs of loops and branches update in place
NO_INNER_ALIASES: InnerAliases = MappingProxyType({})


def carry_donations(program: Jaxpr, first: int, count: int) -> dict[Var, Var | None]:
    """The carries of a loop's body as donations, each to its next value.

    A carry whose next value is an input, or that of an earlier carry, is not donated.

    Args:
        program: the body. Its first outputs are the next values of the carries, in order.
        first: index of the first carry among its inputs.
        count: count of carries.
    """
    donations: dict[Var, Var | None] = {}
    unavailable: set[Atom] = set(program.invars)
    pairs = zip(program.invars[first : first + count], program.outvars, strict=False)
    for var, out in pairs:
        if type(out) is Var and out not in unavailable:
            donations[var] = out
            unavailable.add(out)
    return donations


def updated_pairs(eqn: Eqn, inner_aliases: InnerAliases) -> AliasPairs:
    """The operands that an equation updates, with their outputs; in place only if legal."""
    lowering = eqn.primitive.lower
    if lowering.is_update:
        return ((0, 0),)
    return inner_aliases.get(eqn, ()) if lowering.updates is None else lowering.updates(eqn.params)


class InPlaceUpdates(NamedTuple):
    """The in-place updates of an equation.

    Attributes:
        pairs: indices of the operands that are updated in place, and of their outputs.
        earlier_readers: positions of other equations that read these operands. They must run before
            the update, so fusion must not merge them into it or move them after it.
    """

    pairs: AliasPairs
    earlier_readers: tuple[int, ...]


class InPlaceAnalysis:
    """Decides which updates of a program are in place.

    Call ``in_place_updates`` in program order, and ``add_alias`` for each view that precedes.

    Args:
        jaxpr: the program.
        readers: for each variable the positions of the equations that read it.
        donations: donated inputs, each with the one output that may reuse its memory, or None for
            any output.
        inner_aliases: the operands that programs of loops and branches update in place.

    Attributes:
        aliases_of: for each variable the views of it that were added, without views of views.
    """

    def __init__(
        self,
        jaxpr: Jaxpr,
        readers: Mapping[Var, Sequence[int]],
        donations: Donations,
        inner_aliases: InnerAliases,
    ) -> None:
        self.jaxpr, self.readers = jaxpr, readers
        self.donations, self.inner_aliases = donations, inner_aliases
        self.outputs = frozenset(atom for atom in jaxpr.outvars if type(atom) is not Literal)
        self.inputs = frozenset(jaxpr.invars)
        self.aliases_of: dict[Var, list[Var]] = {}

    def add_alias(self, alias: Var, var: Var) -> None:
        """Note that ``alias`` is a view of ``var``."""
        self.aliases_of.setdefault(var, []).append(alias)

    def in_place_updates(self, position: int) -> InPlaceUpdates | None:
        """The in-place updates of an equation; None if it has none.

        An update that is not in place needs a copy of its operand.
        """
        eqn = self.jaxpr.eqns[position]
        pairs: list[tuple[int, int]] = []
        earlier: dict[int, None] = {}
        for operand, out in updated_pairs(eqn, self.inner_aliases):
            readers = self._earlier_readers(position, eqn.inputs[operand], eqn.outputs[out])
            if readers is not None:
                pairs.append((operand, out))
                earlier.update(dict.fromkeys(readers))
        return InPlaceUpdates(tuple(pairs), tuple(earlier)) if pairs else None

    def _earlier_readers(self, position: int, operand: Atom, out: Var) -> list[int] | None:
        """Other readers of an operand, all before the update; None if it must be copied."""
        if type(operand) is Literal or not self._may_be_overwritten(operand, out):
            return None
        aliases = self._with_aliases(operand)
        if any(var in self.outputs for var in aliases):
            return None
        readers = [reader for var in aliases for reader in self.readers.get(var, ())]
        if readers.count(position) != 1 or any(reader > position for reader in readers):
            return None
        return [reader for reader in readers if reader != position]

    def _may_be_overwritten(self, operand: Var, out: Var) -> bool:
        """Whether an operand may be overwritten: not a view, and not an input unless donated."""
        if any(operand in aliases for aliases in self.aliases_of.values()):
            return False
        if operand not in self.inputs:
            return True
        if operand not in self.donations:
            return False
        output = self._final_output(out)
        return output is not None and self.donations[operand] in (None, output)

    def _final_output(self, var: Var) -> Var | None:
        """The output that ``var`` becomes by updates alone, each of which may be in place."""
        while var not in self.outputs:
            readers = self.readers.get(var, ())
            last = max(readers, default=-1)
            if readers.count(last) != 1 or self._is_read_after(var, last):
                return None
            updated = self._updated_output(last, var)
            if updated is None:
                return None
            var = updated
        return var

    def _is_read_after(self, var: Var, position: int) -> bool:
        """Whether a view of ``var`` is an output, or is read after an equation."""
        aliases = [var]
        for alias in aliases:  # grows while it is iterated
            readers = self.readers.get(alias, ())
            if alias in self.outputs or any(reader > position for reader in readers):
                return True
            for reader in filter(self._may_alias, readers):
                aliases += self.jaxpr.eqns[reader].outputs
        return False

    def _updated_output(self, position: int, var: Var) -> Var | None:
        """The output of an equation that is the updated value of ``var``; None if it has none."""
        eqn = self.jaxpr.eqns[position]
        for operand, out in updated_pairs(eqn, self.inner_aliases):
            if eqn.inputs[operand] is var:
                return eqn.outputs[out]
        return None

    def _may_alias(self, position: int) -> bool:
        """Whether the output of an equation may alias its operand."""
        return self.jaxpr.eqns[position].primitive.lower.may_alias

    def _with_aliases(self, var: Var) -> list[Var]:
        """A variable and all its aliases, transitively."""
        aliases = [var]
        for alias in aliases:  # grows while it is iterated
            aliases += self.aliases_of.get(alias, ())
        return aliases
