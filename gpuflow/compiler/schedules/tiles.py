"""Tiled transposes: maps that read an operand across its rows, through tiles in a local array.

    for i:                          strips of i and j:
        for j:                          copy tile x: tile[i, j] = x[j, i] for all i and j
            y[i, j] = f(x[j, i])        for i: for j: y[i, j] = f(tile[i, j])

While the output advances along a row, a transposed operand advances down a column. Its tile is
stored in the order of the output. The target decides how it copies tiles.

Tests: tests/targets/cuda/test_gpu_tiles.py, tests/targets/cpu/test_cpu_orders.py.
"""

from __future__ import annotations

from dataclasses import replace

from gpuflow.compiler.lowering.argument_block import StrideSource, stride_sources_of
from gpuflow.kir.nodes import (
    Block,
    Copy,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Role,
    Statement,
    Store,
    Stride,
    Strip,
)
from gpuflow.kir.rewrite import substituted
from gpuflow.kir.walk import is_plain_access, statements


def tile_innermost(kernel: Kernel, side: int, band: int = 0) -> Kernel:
    """Tile the innermost two axes of a kernel.

    Args:
        kernel: a kernel for which ``can_be_tiled`` holds.
        side: points of a tile along each axis, a power of two. Extents need not be multiples of it.
        band: rows of points that are completed before the next band, a power of two and a multiple
            of ``side``; 0 for one row of tiles.
    """
    row_axis, column_axis = (axis.name for axis in kernel.axes[-2:])
    operands = transposed_operands(kernel)
    shape = ((row_axis, side), (column_axis, side))
    tiles = tuple([Local(f"{o.name}_tile", o.dtype, shape) for o in operands])
    names = {o.name: tile.name for o, tile in zip(operands, tiles, strict=True)}
    copies = [Copy(tile, operand) for operand, tile in names.items()]

    def in_nest(block: Block) -> Block:
        *before, loop = block.body
        assert isinstance(loop, For)  # by can_be_tiled
        if loop.axis != row_axis:
            return replace(block, body=(*before, replace(loop, body=in_nest(loop.body))))
        work = replace(loop, body=substituted(loop.body, {}, names))
        return replace(
            block, body=(*before, _strips(row_axis, column_axis, (*copies, work), side, band))
        )

    return replace(kernel, body=in_nest(kernel.body), locals=(*kernel.locals, *tiles))


def _strips(
    row_axis: str, column_axis: str, body: tuple[Statement, ...], side: int, band: int
) -> Strip:
    if band:
        tile = Strip(row_axis, side, Block(body=body))
        return Strip(row_axis, band, Block(body=(Strip(column_axis, side, Block(body=(tile,))),)))
    return Strip(row_axis, side, Block(body=(Strip(column_axis, side, Block(body=body)),)))


def transposed_operands(kernel: Kernel) -> tuple[Operand, ...]:
    """The inputs that may be transposed: read only at the map's index, at runtime strides.

    Whether one is transposed depends on the strides of a call, see ``transposed_strides``.
    """
    accesses = [s for s in statements(kernel.body) if isinstance(s, Load | Store)]
    at_other_index = {s.operand for s in accesses if not is_plain_access(s)}
    return tuple(
        operand
        for operand in kernel.operands
        if operand.mode is Mode.IN
        and operand.name not in at_other_index
        and operand.strides[-2:] == (Stride.ANY, Stride.ANY)
    )


def can_be_tiled(kernel: Kernel) -> bool:
    """Whether a kernel is a map of one nest of parallel loops, and may have transposed inputs."""
    if kernel.kind != "map" or len(kernel.axes) < 2 or kernel.segmented:
        return False
    if any(axis.role is not Role.PARALLEL for axis in kernel.axes):
        return False
    block, depth = kernel.body, 0
    while depth < len(kernel.axes) and block.body and isinstance(block.body[-1], For):
        if block.body[-1].axis != kernel.axes[depth].name:
            return False
        block, depth = block.body[-1].body, depth + 1
    loops = [s for s in statements(kernel.body) if isinstance(s, For)]
    return depth == len(kernel.axes) == len(loops) and bool(transposed_operands(kernel))


def transposed_strides(kernel: Kernel) -> list[tuple[StrideSource, StrideSource]]:
    """The strides of each possibly transposed input along the innermost two axes, outer first."""
    stride_sources = stride_sources_of(kernel)
    row_axis, column_axis = (axis.name for axis in kernel.axes[-2:])
    return [
        (stride_sources[operand.name, row_axis], stride_sources[operand.name, column_axis])
        for operand in transposed_operands(kernel)
    ]
