"""Buffer donation: kernel outputs that reuse the memory of donated inputs or of temporaries.

An output may reuse the buffer of a donated input under these conditions:

- both have the same shape and dtype, and no later group reads the input;
- if the kernel itself reads the input, then only at the index that it writes: one INOUT operand
  serves for both;
- every load of an element precedes its store.

The same holds for a temporary whose last reader is the kernel. Its producer, a product or a loop,
then writes into the memory of the output, and half as much goes through the caches.

The emitter determines the order of loads and stores, so the kernel is checked afterwards
(``kir.in_place``). If the check fails, it is lowered again without the reuse. The order by kind:

    map     each point loads all elements that it overwrites before its first store
    row     the phases of a row read it, and the last phase stores. A value for each row is stored
            between phases; the elements that it overwrites are loaded before
    column, a value stored next to a sum is stored in the iteration that reads it; results are
    full    stored after all loops

Schedules must preserve this. They keep the order within a point, and assign a point to one worker
or put a barrier between its reads and writes (cuda_groups). Split reductions complete all chunks
before they combine them. Interchanged loops, tiles and blocks only change the order of points.

Tests: tests/compiler/test_donation.py, tests/compiler/test_in_temporaries.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import FusionProgram, IterationSpace
from gpuflow.compiler.lowering.access import Strides, read_access, write_access
from gpuflow.compiler.lowering.size_exprs import SizeExprs
from gpuflow.compiler.passes.updates_in_place import NO_INNER_ALIASES, updated_pairs
from gpuflow.core.jaxpr import Literal, Var


@record
class InPlace:
    """Outputs of one kernel that reuse memory of donated inputs or temporaries.

    Attributes:
        buffer_of: for each such output the donated input or temporary.
        read_strides: of those that the kernel also reads, the strides of the output. Along axes of
            size 1 these differ from the strides of the read.
    """

    buffer_of: Mapping[Var, Var] = field(default_factory=dict)
    read_strides: Mapping[Var, Strides] = field(default_factory=dict)

    def without(self, buffers: Collection[Var | None]) -> InPlace:
        """The same without the reuse of some buffers."""
        remaining = {out: var for out, var in self.buffer_of.items() if var not in buffers}
        strides = {var: pairs for var, pairs in self.read_strides.items() if var not in buffers}
        return InPlace(remaining, strides)


@record
class BufferUses:
    """Last uses of buffers.

    Attributes:
        last_reader: for each buffer the index of the last group that reads it; the count of groups
            for an output of the program.
        read_by_groups: the buffers that some group reads.
    """

    last_reader: Mapping[Var, int]
    read_by_groups: Collection[Var]


def buffer_uses(program: FusionProgram, groups: Sequence[Sequence[int]]) -> BufferUses:
    """The last uses of the buffers of a program, whose groups are in execution order."""
    last_reader: dict[Var, int] = {}
    for group, members in enumerate(groups):
        for e in members:
            for atom in program.jaxpr.eqns[e].inputs:
                if type(atom) is not Literal:
                    last_reader[program.storage(atom).buffer] = group
    read_by_groups = frozenset(last_reader)
    for atom in program.jaxpr.outvars:
        if type(atom) is not Literal:
            last_reader[program.storage(atom).buffer] = len(groups)
    return BufferUses(last_reader, read_by_groups)


def choose_in_place(
    exprs: SizeExprs,
    space: IterationSpace,
    group: int,
    uses: BufferUses,
    unused_donations: dict[Var, Var | None],
    may_reuse_temporaries: bool,
) -> InPlace:
    """Choose outputs of a group that reuse memory of donated inputs or temporaries.

    Call it in the order of groups. The caller must lower the group and check the order of its loads
    and stores (``kir.in_place``), because the conditions here do not cover it.

    Args:
        exprs: the size expressions of the program.
        space: the iteration space of the group.
        group: index of the group.
        uses: the last uses of buffers.
        unused_donations: donated inputs that are not reused yet, each with the one output that may
            reuse it, or None for any. Chosen inputs are removed: pass a copy if the choice may be
            reverted.
        may_reuse_temporaries: whether temporaries may be reused, too.
    """
    program, last = exprs.program, uses.last_reader
    reused: dict[Var, Var] = {}
    for out in space.escaping:
        if out in program.views:
            continue
        eqn = program.jaxpr.eqns[program.producer[out]]
        if eqn.primitive.lower.stores(eqn, out):
            continue  # a lane program stores it, in its own order
        if any(eqn.outputs[k] is out for _, k in updated_pairs(eqn, NO_INNER_ALIASES)):
            continue  # its operand is copied into its buffer before the kernel reads inputs
        donated = unused_donations if out in program.outputs else ()
        for var in sorted(donated, key=program.jaxpr.invars.index):
            fits = (var.aval.shape, var.aval.dtype) == (out.aval.shape, out.aval.dtype)
            if not fits or last.get(var, -1) > group or unused_donations[var] not in (None, out):
                continue
            if last.get(var, -1) == group and not _reads_where_it_writes(exprs, space, var, out):
                continue
            reused[out] = var
            del unused_donations[var]
            break
        if out not in reused and may_reuse_temporaries:
            temporary = _temporary(exprs, space, out, group, uses, reused.values())
            if temporary is not None:
                reused[out] = temporary
    strides = {
        var: write_access(exprs, space, out).strides
        for out, var in reused.items()
        if last.get(var, -1) == group
    }
    return InPlace(reused, strides)


def _temporary(
    exprs: SizeExprs,
    space: IterationSpace,
    out: Var,
    group: int,
    uses: BufferUses,
    reused: Collection[Var],
) -> Var | None:
    """A temporary whose last reader is ``group``, and whose memory ``out`` may reuse.

    None if a group reads ``out``: the arguments of its kernel refer to the buffer id of ``out``.
    """
    program = exprs.program
    if out in uses.read_by_groups:
        return None
    updated = {program.storage(var).buffer for var in program.updated()}
    for e in space.members:
        for atom in program.jaxpr.eqns[e].inputs:
            if type(atom) is Literal:
                continue
            var = program.storage(atom).buffer
            position = program.producer.get(var)
            if (
                position is not None
                and position not in space.members
                and var not in reused
                and var not in updated
                and uses.last_reader[var] == group
                and (var.aval.size, var.aval.dtype) == (out.aval.size, out.aval.dtype)
                and _reads_where_it_writes(exprs, space, var, out)
            ):
                return var
    return None


def _reads_where_it_writes(exprs: SizeExprs, space: IterationSpace, var: Var, out: Var) -> bool:
    """Whether a group reads ``var`` only at the index at which it writes ``out``."""
    program, write = exprs.program, write_access(exprs, space, out)
    for e in space.members:
        eqn = program.jaxpr.eqns[e]
        for k, atom in enumerate(eqn.inputs):
            if type(atom) is Literal or program.storage(atom).buffer is not var:
                continue
            if k < eqn.primitive.lower.operands_in_memory(eqn):
                return False
            access = read_access(exprs, space, e, k)
            if access.offset != write.offset:
                return False
            if not _same_strides(access.strides, write.strides, space):
                return False
    return True


def _same_strides(a: Strides, b: Strides, space: IterationSpace) -> bool:
    """Whether strides have the same axes, and are equal for axes larger than 1."""
    return [key for key, _ in a] == [key for key, _ in b] and all(
        space.sizes[key] == 1 or stride_a == stride_b
        for (key, stride_a), (_, stride_b) in zip(a, b, strict=True)
    )
