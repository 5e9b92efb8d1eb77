"""Lowering: one group of equations to one KernelIR kernel, whose arguments are size expressions.

``loops.py`` chooses the loop nest, ``access.py`` the operands, ``emit.py`` writes the body.

Tests: tests/compiler/test_new_sizes.py, tests/compiler/test_fuse.py,
tests/compiler/test_donation.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import DimKey, FusionProgram, IterationSpace
from gpuflow.compiler.lowering.access import Access, Accesses
from gpuflow.compiler.lowering.donation import InPlace
from gpuflow.compiler.lowering.emit import Emitter
from gpuflow.compiler.lowering.loops import extent, loop_nest
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs, SizeQueries
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.kir.nodes import Kernel, Mode, Operand, Role, Stride, arguments, memoized

NO_BUFFER = -1  # the buffer of an operand without memory, such as a scalar


class KernelCall(NamedTuple):
    """A kernel with its arguments, bound to sizes.

    Attributes:
        kernel: the kernel to run.
        slots: the argument block, in the order of ``kir.nodes.arguments``: 64-bit values; for an
            address, the byte offset from the start of its buffer.
        buffers: the buffer id of each operand of ``kernel``, in order, or NO_BUFFER. The argument
            slots of operands come first, so ``slots[k]`` is relative to ``buffers[k]``.
        extent: extent of the axis that a launch splits between workers; 1 if there is none.
        points: count of points of the iteration space, all axes multiplied.
    """

    kernel: Kernel
    slots: tuple[int, ...]
    buffers: tuple[int, ...]
    extent: int
    points: int


@record
class LoweredGroup:
    """The kernel of a group, and its arguments as size expressions.

    Attributes:
        kernel: the kernel.
        slots: the argument block, in the order of ``KernelCall.slots``.
        buffers: the variable that owns each operand's memory; None for an operand without memory.
        extent, points: see ``KernelCall``.
        reads: variables whose buffers the kernel loads from.
        writes: variables whose buffers it stores to. An output that reuses memory of an input is
            listed under its own name.
        overwrites: buffers whose earlier contents are destroyed: memory that outputs reuse, and
            arrays that are updated.
        in_place: pairs (output, donated input or temporary whose memory it reuses).
        operands: the accesses of the kernel's operands.
    """

    kernel: Kernel
    slots: tuple[SizeExpr, ...]
    buffers: tuple[Var | None, ...]
    extent: SizeExpr
    points: SizeExpr
    reads: tuple[Var, ...]
    writes: tuple[Var, ...]
    overwrites: tuple[Var, ...]
    in_place: tuple[tuple[Var, Var], ...]
    operands: Accesses


def lower_group(
    exprs: SizeExprs, space: IterationSpace, in_place: InPlace, queries: SizeQueries
) -> LoweredGroup:
    """Lower a group to a kernel and its arguments.

    Equal keys and equal answers of ``queries`` must give equal kernels: nothing here may depend on
    the value of a size in another way.

    Args:
        exprs: the size expressions of the program.
        space: the iteration space of the group.
        in_place: the outputs that reuse memory of inputs or temporaries.
        queries: records the queries of sizes that the kernel depends on.
    """
    program = exprs.program
    nest = loop_nest(exprs, space, queries)
    keys_of = {axis.name: keys for keys, axis in zip(nest.collapsed, nest.axes, strict=True)}
    axis_of = {key: name for name, keys in keys_of.items() for key in keys}
    operands = Accesses(
        lambda name, access: _operand(name, access, nest.collapsed, exprs.one),
        in_place.buffer_of,
        in_place.read_strides,
    )
    emitter = Emitter(
        exprs,
        space,
        queries,
        operands,
        tuple(axis.name for axis in nest.axes),
        axis_of,
    )
    body = emitter.emit()
    kernel = Kernel(
        emitter.name(),
        nest.axes,
        tuple(operands.operand_of.values()),
        body,
        kind=space.kind.value,
    )
    parallel = [keys_of[axis.name] for axis in kernel.axes if axis.role is Role.PARALLEL]
    return LoweredGroup(
        kernel,
        tuple(_slots(kernel, operands, keys_of, exprs, space)),
        tuple(operands.access_of[operand.name].buffer for operand in kernel.operands),
        extent(exprs, space, parallel[0] if parallel else ()),
        extent(exprs, space, space.loop_order),
        _reads(kernel, operands),
        tuple(program.storage(var).buffer for var in space.escaping),
        (*in_place.buffer_of.values(), *_updated(program, space)),
        tuple(in_place.buffer_of.items()),
        operands,
    )


def _updated(program: FusionProgram, space: IterationSpace) -> list[Var]:
    return [program.storage(var).buffer for var in space.escaping if var in program.views]


def _operand(
    name: str, access: Access, loops: Sequence[tuple[DimKey, ...]], unit_stride: SizeExpr
) -> Operand:
    """The KernelIR operand of an access: its strides are classified as 0, 1 or any.

    The stride along a loop is that of the innermost axis in it (``LoopNest.collapsed``). Only the
    innermost loop may have a unit stride.
    """
    if access.mode is Mode.SCALAR:
        return Operand(name, access.dtype, access.mode, (Stride.ZERO,) * len(loops))
    stride_of = dict(access.strides)
    classes = []
    for position, keys in enumerate(loops):
        if keys[-1] not in stride_of:
            classes.append(Stride.ZERO)
        elif position == len(loops) - 1 and stride_of[keys[-1]] == unit_stride:
            classes.append(Stride.UNIT)
        else:
            classes.append(Stride.ANY)
    return Operand(name, access.dtype, access.mode, tuple(classes))


def _slots(
    kernel: Kernel,
    operands: Accesses,
    keys_of: Mapping[str, tuple[DimKey, ...]],
    exprs: SizeExprs,
    space: IterationSpace,
) -> Iterator[SizeExpr]:
    """The argument block of a kernel, in the order of ``kir.nodes.arguments``."""
    for argument in arguments(kernel):
        if argument.kind == "extent":
            yield extent(exprs, space, keys_of[argument.axis])
            continue
        access = operands.access_of[argument.operand]
        if argument.kind == "stride":
            yield dict(access.strides)[keys_of[argument.axis][-1]]
        elif argument.kind in ("base", "scalar"):
            yield access.offset
        else:
            assert access.buffer is not None
            itemsize = storage_dtype(access.buffer.aval.dtype).itemsize
            yield exprs.bytes(access.offset, itemsize)


def _reads(kernel: Kernel, operands: Accesses) -> tuple[Var, ...]:
    buffers = [
        operands.access_of[operand.name].buffer
        for operand in kernel.operands
        if operand.mode in (Mode.IN, Mode.INOUT)
    ]
    return tuple(dict.fromkeys(buffer for buffer in buffers if buffer is not None))


# --- segmented kernels ---------------------------------------------------------------------
def segmented(kernel: Kernel) -> Kernel:
    """The variant of a one-axis kernel that runs over a table of argument blocks.

    ``can_be_segmented`` must hold for the kernel.
    """
    return memoized(kernel, _segmented)


def _segmented(kernel: Kernel) -> Kernel:
    return replace(kernel, segmented=True, name=f"{kernel.name}_segments")


def can_be_segmented(kernel: Kernel) -> bool:
    """Whether calls of the kernel can be merged: its only axis is parallel, or fully reduced."""
    (axis,) = kernel.axes if len(kernel.axes) == 1 else (None,)
    role = {"map": Role.PARALLEL, "full": Role.REDUCE}.get(kernel.kind)
    return axis is not None and axis.exact is None and axis.role is role
