"""Legality of in-place updates: which updates may overwrite the memory of their operand.

An update may overwrite its operand if the old values are not needed afterwards:

- the program computes the operand, or the operand is a donated input;
- neither the operand nor an alias of it is an output;
- all its other readers come before the update.

Otherwise the update gets a separate buffer, into which the operand is copied. A loop or branch
whose programs update an operand in place is an update of that operand, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var

# Donated inputs, each with the one output that may reuse its memory; None: any output may.
Donations = Mapping[Var, Var | None]
Pairs = tuple[tuple[int, int], ...]  # (index of an operand, index of the output in its memory)
InnerAliases = Mapping[Eqn, Pairs]  # operands that programs of loops and branches update in place
NO_INNER_ALIASES: InnerAliases = MappingProxyType({})


def carry_donations(program: Jaxpr, first: int, count: int) -> dict[Var, Var | None]:
    """The carries of a loop's body as donations, each to its next value.

    A carry whose next value is an input, or that of an earlier carry, is not donated.
    """
    donations: dict[Var, Var | None] = {}
    seen: set[Atom] = set(program.invars)
    pairs = zip(program.invars[first : first + count], program.outvars, strict=False)
    for var, out in pairs:
        if type(out) is Var and out not in seen:
            donations[var] = out
            seen.add(out)
    return donations


def updated_pairs(eqn: Eqn, inner_aliases: InnerAliases) -> Pairs:
    """The operands that an equation updates, with their outputs; in place only if legal."""
    rule = eqn.primitive.lower
    if rule.is_update:
        return ((0, 0),)
    return inner_aliases.get(eqn, ()) if rule.updates is None else rule.updates(eqn.params)


class InMemory(NamedTuple):
    """The in-place updates of an equation.

    Attributes:
        pairs: indices of the operands that are updated in place, and of their outputs.
        earlier: other equations that read these operands. They must run before the update.
    """

    pairs: Pairs
    earlier: tuple[int, ...]


class UpdateRule:
    """Decides which updates of a program are in place.

    Call ``in_memory`` in program order, and ``add_alias`` for each view that precedes.

    Args:
        jaxpr: the program.
        readers: for each variable the positions of the equations that read it.
        donations: donated inputs, each with the one output that may reuse its memory, or None for
            any output.
        inner_aliases: the operands that programs of loops and branches update in place.
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
        self.names: dict[Var, list[Var]] = {}

    def add_alias(self, alias: Var, var: Var) -> None:
        """Note that ``alias`` is a view of ``var``."""
        self.names.setdefault(var, []).append(alias)

    def in_memory(self, position: int) -> InMemory | None:
        """The in-place updates of an equation; None if all updated operands must be copied."""
        eqn = self.jaxpr.eqns[position]
        pairs: list[tuple[int, int]] = []
        earlier: dict[int, None] = {}
        for operand, out in updated_pairs(eqn, self.inner_aliases):
            readers = self._earlier_readers(position, eqn.inputs[operand], eqn.outputs[out])
            if readers is not None:
                pairs.append((operand, out))
                earlier.update(dict.fromkeys(readers))
        return InMemory(tuple(pairs), tuple(earlier)) if pairs else None

    def _earlier_readers(self, position: int, operand: Atom, out: Var) -> list[int] | None:
        """Other readers of an operand, all before the update; None if it must be copied."""
        if type(operand) is Literal or not self._is_free(operand, out):
            return None
        aliases = self._all_names(operand)
        if any(var in self.outputs for var in aliases):
            return None
        readers = [reader for var in aliases for reader in self.readers.get(var, ())]
        if readers.count(position) != 1 or any(reader > position for reader in readers):
            return None
        return [reader for reader in readers if reader != position]

    def _is_free(self, operand: Var, out: Var) -> bool:
        """Whether an operand may be overwritten: not a view, and not an input unless donated."""
        if any(operand in aliases for aliases in self.names.values()):
            return False
        if operand not in self.inputs:
            return True
        if operand not in self.donations:
            return False
        end = self._end_of_chain(out)
        return end is not None and self.donations[operand] in (None, end)

    def _end_of_chain(self, var: Var) -> Var | None:
        """The output that ``var`` becomes by updates alone, each of which may be in place."""
        while var not in self.outputs:
            readers = self.readers.get(var, ())
            last = max(readers, default=-1)
            if readers.count(last) != 1 or self._is_read_after(var, last):
                return None
            after = self._updated(last, var)
            if after is None:
                return None
            var = after
        return var

    def _is_read_after(self, var: Var, position: int) -> bool:
        """Whether a view of ``var`` is an output, or is read after an equation."""
        names = [var]
        for name in names:
            readers = self.readers.get(name, ())
            if name in self.outputs or any(reader > position for reader in readers):
                return True
            for reader in filter(self._may_alias, readers):
                names += self.jaxpr.eqns[reader].outputs
        return False

    def _updated(self, position: int, var: Var) -> Var | None:
        """The output of an equation that is the updated value of ``var``; None if it has none."""
        eqn = self.jaxpr.eqns[position]
        for operand, out in updated_pairs(eqn, self.inner_aliases):
            if eqn.inputs[operand] is var:
                return eqn.outputs[out]
        return None

    def _may_alias(self, position: int) -> bool:
        """Whether the output of an equation may alias its operand."""
        return self.jaxpr.eqns[position].primitive.lower.may_alias

    def _all_names(self, var: Var) -> list[Var]:
        """A variable and all its aliases, transitively."""
        names = [var]
        for name in names:
            names += self.names.get(name, ())
        return names
