"""What is cheaper to compute again than to store: its equations join the groups that read it.

The gradient of an activation reads half a dozen arrays that the forward pass would have to store,
all of them a few additions and products away from two. So after fusion, a value that leaves its
group is looked at once more: where every reader's kernel can get it from what lies in memory
anyway, by a few cheap operations, each reader has them, and it is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base.records import record
from gpuflow.compiler.space import (
    NotOneKernelError,
    Program,
    Space,
    operands_in_memory,
    space_of,
)
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.core.lowering import Elementwise, Indexed, Layout, Update

MOST_OPERATIONS = 4


def compute_again(program: Program, spaces: Sequence[Space | None]) -> list[Space | None]:
    """The spaces of a program's groups after its cheap values are no longer stored.

    Args:
        program: the program.
        spaces: of the groups in order; None for a group that is no kernel.

    Returns:
        The new spaces. One that stores nothing any more is no longer needed.
    """
    work = _Work(program, list(spaces))
    for number, space in enumerate(spaces):
        if space is not None and not any(_is_update(program, e) for e in space.members):
            work.look_at(number)
    return work.spaces


def _is_update(program: Program, position: int) -> bool:
    return isinstance(program.jaxpr.eqns[position].primitive.lower, Update)


@record(frozen=False)
class _Work:
    """The groups so far.

    Attributes:
        spaces: one for each group.
        changing: arrays that equations update in place.
    """

    program: Program
    spaces: list[Space | None]

    def __post_init__(self) -> None:
        self.group_of = {
            e: number
            for number, space in enumerate(self.spaces)
            for e in (space.members if space is not None else ())
        }
        # What is updated in place is another array later on.
        eqns, place = self.program.jaxpr.eqns, self.program.place
        self.changing = {place(eqns[e].outputs[0])[0] for e in self.program.before}

    def look_at(self, number: int) -> None:
        """Let the readers of one group's values compute them, where that is cheap."""
        space = self.spaces[number]
        assert space is not None
        in_memory = self._arrays_read(space.members)
        free = []
        for var in space.escaping:
            if self._must_be_stored(var, number):
                in_memory.add(var)
            else:
                free.append(var)
        for var in free:
            if not self._move(var, number, in_memory):
                in_memory.add(var)

    def _must_be_stored(self, var: Var, number: int) -> bool:
        """Whether somebody needs it in memory: a caller, a library, or a kernel that chooses."""
        if var in self.program.outputs:
            return True
        for reader in self.program.readers.get(var, ()):
            if reader not in self.group_of:
                return True
            eqn = self.program.jaxpr.eqns[reader]
            if var in eqn.inputs[: operands_in_memory(eqn)]:
                return True
        return not self._readers(var, number)

    def _readers(self, var: Var, number: int) -> list[int]:
        """The other groups that read a value."""
        groups = {self.group_of[reader] for reader in self.program.readers.get(var, ())}
        return sorted(groups - {number})

    def _move(self, var: Var, number: int, in_memory: set[Var]) -> bool:
        """Let all readers compute ``var``; whether they can."""
        chain = self._chain(var, in_memory)
        if chain is None or self._reads_what_changes(chain):
            return False
        position = self.program.producer[var]
        changed: dict[int, Space] = {}
        try:
            for reader in self._readers(var, number):
                space = self.spaces[reader]
                assert space is not None
                if self._new_arrays(chain, var, space) > 1:
                    return False
                copied = frozenset(chain) - frozenset(space.members)
                members = sorted({*space.members, *chain})
                made = space_of(self.program, members, space.unstored | copied)
                if made.kind is not space.kind:
                    return False
                changed[reader] = made
            space = self.spaces[number]
            assert space is not None
            changed[number] = space_of(self.program, space.members, space.unstored | {position})
        except NotOneKernelError:
            return False
        if changed[number].kind is not space.kind:
            return False
        for group, made in changed.items():
            self.spaces[group] = made
        return True

    def _chain(self, var: Var, in_memory: set[Var]) -> list[int] | None:
        """The equations that make ``var`` from what is in memory; None if they cost too much."""
        found: set[int] = set()
        cost = 0
        stack = [var]
        while stack:
            wanted = stack.pop()
            if wanted in in_memory or wanted in self.program.views:
                continue
            position = self.program.producer.get(wanted)
            if position is None:
                return None  # an input that the group did not read itself
            if position in found:
                continue
            eqn = self.program.jaxpr.eqns[position]
            price = _price(eqn.primitive.lower)
            if price is None or len(eqn.outputs) != 1 or self.program.iterations[position] is None:
                return None
            found.add(position)
            cost += price
            if cost > MOST_OPERATIONS:
                return None
            stack += [atom for atom in eqn.inputs if type(atom) is not Literal]
        return sorted(found)

    def _reads_what_changes(self, chain: Sequence[int]) -> bool:
        place = self.program.place
        return any(place(atom)[0] in self.changing for atom in self._arrays_read(chain))

    def _new_arrays(self, chain: Sequence[int], var: Var, reader: Space) -> int:
        """How many arrays of the value's rank a reader would have to read in its place."""
        place = self.program.place
        known = {place(atom)[0] for atom in self._arrays_read(reader.members)}
        needed = {place(atom)[0] for atom in self._arrays_read(chain)}
        return sum(buffer.aval.ndim >= var.aval.ndim for buffer in needed - known)

    def _arrays_read(self, members: Sequence[int]) -> set[Var]:
        """What equations take from outside."""
        inside = set(members)
        return {
            atom
            for e in members
            for atom in self.program.jaxpr.eqns[e].inputs
            if type(atom) is not Literal and self.program.producer.get(atom) not in inside
        }


def _price(rule: object) -> int | None:
    """Operations that an equation costs for each element; None for one that is not cheap."""
    if isinstance(rule, Layout):
        return 0
    if isinstance(rule, Elementwise | Indexed):
        return 1 if rule.cheap else None
    return None
