"""Copies of strided views to row-major memory as map kernels, which schedules then optimize.

Native programs call them for the views that their steps copy (``runtime/native/copies.py``).

Tests: tests/targets/cpu/test_cpu_orders.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gpuflow.base.caches import lru_cache
from gpuflow.base.util import row_major_strides
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.lowering.size_table import MAX_EXACT
from gpuflow.compiler.schedules.schedule import scheduled
from gpuflow.kir.nodes import (
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Role,
    Store,
    Stride,
    Value,
    arguments,
    memoized,
)
from gpuflow.targets.cpu.codegen.schedules.known_strides import KNOWN_STRIDES_OF_COPIES
from gpuflow.targets.cpu.codegen.schedules.tiled_maps import TILED_MAPS

MIN_COPY = 1 << 12  # points; for fewer, a C function of the runtime copies


def copy_kernel_call(axes: Sequence[tuple[int, int]], itemsize: int) -> KernelCall | None:
    """Return the kernel call of a copy to row-major memory; None if a kernel is not faster.

    A kernel is faster if it transposes in tiles, or if its vectors load contiguous elements or
    elements with a small stride.

    Args:
        axes: size and stride, in elements, of the source's axes, at least one. Sizes are positive.
        itemsize: bytes of an element.

    Returns:
        The call, in which the caller must set the first two slots: addresses of source and target.
    """
    sizes = tuple([size for size, _ in axes])
    if itemsize not in (1, 2, 4, 8) or prod(sizes) < MIN_COPY:
        return None
    *outer, (_, last_stride) = axes
    stride_kinds = [Stride.ANY if stride else Stride.ZERO for _, stride in outer]
    stride_kinds.append({0: Stride.ZERO, 1: Stride.UNIT}.get(last_stride, Stride.ANY))
    exact_last_size = sizes[-1] if outer and sizes[-1] <= MAX_EXACT else None
    kernel = _copy_kernel(itemsize, tuple(stride_kinds), exact_last_size)
    table = (0,), sizes, tuple([stride for _, stride in axes]), row_major_strides(sizes)
    slots = tuple([table[row][column] for row, column in memoized(kernel, _slot_sources)])
    call = KernelCall(kernel, slots, (NO_BUFFER,) * 2, sizes[0], prod(sizes))
    (launch,) = scheduled(call, lambda size: NO_BUFFER, (TILED_MAPS, KNOWN_STRIDES_OF_COPIES))
    return None if launch is call and stride_kinds[-1] is Stride.ANY else launch


def _slot_sources(kernel: Kernel) -> list[tuple[int, int]]:
    """For each argument slot, the row and column of a table that has its value.

    Row 0 is a zero: a pointer, whose byte offset the caller sets. Rows 1 to 3 are sizes, source
    strides and target strides, with a column for each axis.
    """
    columns = {axis.name: column for column, axis in enumerate(kernel.axes)}
    row_of = {("extent", ""): 1, ("stride", "x0"): 2, ("stride", "o0"): 3}
    return [
        (row_of.get((argument.kind, argument.operand), 0), columns.get(argument.axis, 0))
        for argument in arguments(kernel)
    ]


@lru_cache(64)
def _copy_kernel(
    itemsize: int, stride_kinds: tuple[Stride, ...], exact_last_size: int | None
) -> Kernel:
    """The copy kernel for the source's stride classes.

    Args:
        itemsize: 1, 2, 4 or 8 bytes; elements are copied as unsigned integers.
        stride_kinds: stride class of the source along each axis.
        exact_last_size: size of the last axis if the text has it, else None.
    """
    names = [f"i{k}" for k in range(len(stride_kinds))]
    dtype = f"uint{8 * itemsize}"
    value = Value(0, dtype)
    body = Block(body=(Load(value, "x0"), Store("o0", value)))
    for name in reversed(names):
        body = Block(body=(For(name, body),))
    operands = (
        Operand("x0", dtype, Mode.IN, stride_kinds),
        Operand("o0", dtype, Mode.OUT, (*[Stride.ANY] * (len(stride_kinds) - 1), Stride.UNIT)),
    )
    axes = tuple(Axis(name, Role.PARALLEL) for name in names[:-1])
    axes = (*axes, Axis(names[-1], Role.PARALLEL, exact_last_size))
    return Kernel("map_copy", axes, operands, body)
