"""In place: outputs of kernels that take the memory of donated inputs.

An output takes a donated input's buffer if both have one type and nothing reads the input later. If
the kernel itself reads it, then only at the index it writes, so that one operand serves for both,
and only if every load of an element comes before its store. How loads and stores follow each other
is the emitter's choice, so that is asked of the kernel that it makes (``kir.in_place``), and what
fails is lowered again without:

    map     each point loads all that it overwrites before its first store
    row     the phases of a row read it, the last one stores; a value for each row is stored between
            them, and what it overwrites is loaded before
    column, what is stored beside a sum is stored in the turn of the loop that reads it; results are
    full    stored after all loops

Whatever a platform makes of such a kernel keeps the order within a point and gives a point to one
worker, or puts a barrier where its members change from reading to writing (cuda_groups). A split
reduction (split) has all its parts done before it combines them. Turned loops, tiles and blocks
change the order of points, not that within one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import Program, Space, is_stored_inside, operands_in_memory
from gpuflow.compiler.lowering.access import read_access, write_access
from gpuflow.compiler.lowering.symbols import Numbers
from gpuflow.core.jaxpr import Literal, Var


@record
class InPlace:
    """Outputs that one kernel writes into donated inputs.

    Attributes:
        buffer_of: by output, the donated input.
        read: those that the kernel reads as well.
    """

    buffer_of: Mapping[Var, Var] = field(default_factory=dict)
    read: frozenset[Var] = frozenset()

    def without(self, buffers: Collection[Var | None]) -> InPlace:
        """The same, but some inputs stay as they are."""
        left = {out: var for out, var in self.buffer_of.items() if var not in buffers}
        return InPlace(left, self.read.difference(buffers))


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
    numbers: Numbers,
    space: Space,
    number: int,
    last: Mapping[Var, int],
    free: dict[Var, Var | None],
) -> InPlace:
    """Which outputs of group ``number`` take which of the ``free`` donated inputs.

    Chosen inputs are removed from ``free``, which tells for each the one output that may take it,
    or None for any.
    """
    program = numbers.program
    chosen: dict[Var, Var] = {}
    read: set[Var] = set()
    for out in space.escaping:
        if out not in program.outputs or out in program.views:
            continue
        if is_stored_inside(program.jaxpr.eqns[program.producer[out]], out):
            continue  # in an order of its own
        for var in sorted(free, key=program.jaxpr.invars.index):
            same = (var.aval.shape, var.aval.dtype) == (out.aval.shape, out.aval.dtype)
            if not same or last.get(var, -1) > number or free[var] not in (None, out):
                continue
            is_read = last.get(var, -1) == number
            if is_read and not _reads_where_it_writes(numbers, space, var, out):
                continue
            chosen[out] = var
            del free[var]
            if is_read:
                read.add(var)
            break
    return InPlace(chosen, frozenset(read))


def _reads_where_it_writes(numbers: Numbers, space: Space, var: Var, out: Var) -> bool:
    program, wanted = numbers.program, write_access(numbers, space, out)
    for e in space.members:
        eqn = program.jaxpr.eqns[e]
        for k, atom in enumerate(eqn.inputs):
            if type(atom) is Literal or program.place(atom)[0] is not var:
                continue
            if k < operands_in_memory(eqn):
                return False
            access = read_access(numbers, space, e, k)
            if (access.offset, access.strides) != (wanted.offset, wanted.strides):
                return False
    return True
