"""In place: outputs of maps that take the memory of donated inputs.

An output takes a donated input's buffer if both have one type and nothing reads the input later. If
the map itself reads it, then only at the index it writes, so that one operand serves for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuflow.compiler.access import read_access, write_access
from gpuflow.compiler.space import Kind, Program, Space, operands_in_memory
from gpuflow.core.jaxpr import Literal, Var


@dataclass(frozen=True)
class InPlace:
    """Outputs that one kernel writes into donated inputs.

    Attributes:
        buffer_of: by output, the donated input.
        read: those that the kernel reads as well.
    """

    buffer_of: Mapping[Var, Var] = field(default_factory=dict)
    read: frozenset[Var] = frozenset()


def last_readers(program: Program, groups: Sequence[Sequence[int]]) -> dict[Var, int]:
    """For each buffer the last group that reads it; the number of groups if an output does."""
    last: dict[Var, int] = {}
    for number, members in enumerate(groups):
        for e in members:
            for atom in program.jaxpr.eqns[e].inputs:
                if type(atom) is not Literal:
                    last[program.place(atom)[0]] = number
    for atom in program.jaxpr.outvars:
        if type(atom) is not Literal:
            last[program.place(atom)[0]] = len(groups)
    return last


def choose_in_place(
    program: Program,
    space: Space,
    number: int,
    last: Mapping[Var, int],
    free: dict[Var, Var | None],
) -> InPlace:
    """Which outputs of group ``number`` take which of the ``free`` donated inputs.

    Chosen inputs are removed from ``free``, which tells for each the one output that may take it,
    or None for any.
    """
    if space.kind is not Kind.MAP:
        return InPlace()
    chosen: dict[Var, Var] = {}
    read: set[Var] = set()
    for out in space.escaping:
        if out not in program.outputs or out in program.views:
            continue
        for var in sorted(free, key=program.jaxpr.invars.index):
            same = (var.aval.shape, var.aval.dtype) == (out.aval.shape, out.aval.dtype)
            if not same or last.get(var, -1) > number or free[var] not in (None, out):
                continue
            is_read = last.get(var, -1) == number
            if is_read and not _reads_where_it_writes(program, space, var, out):
                continue
            chosen[out] = var
            del free[var]
            if is_read:
                read.add(var)
            break
    return InPlace(chosen, frozenset(read))


def _reads_where_it_writes(program: Program, space: Space, var: Var, out: Var) -> bool:
    wanted = write_access(program, space, out)
    for e in space.members:
        eqn = program.jaxpr.eqns[e]
        for k, atom in enumerate(eqn.inputs):
            if type(atom) is Literal or program.place(atom)[0] is not var:
                continue
            if k < operands_in_memory(eqn):
                return False
            access = read_access(program, space, e, k)
            if access.offset or access.strides != wanted.strides:
                return False
    return True
