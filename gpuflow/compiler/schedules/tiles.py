"""Maps that read an operand across its rows, in tiles, through a local array.

    for i:                          strips of i and j:
        for j:                          copy tile x: tile[i, j] = x[j, i] for all i and j
            y[i, j] = f(x[j, i])        for i: for j: y[i, j] = f(tile[i, j])

While the output advances along a row, a transposed operand advances down a column. The tile of such
an operand is in the output's order; the copy is up to the target.
"""

from __future__ import annotations

from dataclasses import replace

from gpuflow.compiler.lowering.call_layout import Distance, distances_of
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
from gpuflow.kir.rewrite import renamed
from gpuflow.kir.walk import is_whole, statements


def tiled(kernel: Kernel, side: int, band: int = 0) -> Kernel:
    """The kernel in tiles of its innermost two axes.

    Args:
        kernel: for which ``can_be_tiled`` holds.
        side: points of a tile along both axes.
        band: rows whose tiles are computed before the next ones, if not one row of tiles.
    """
    down, along = (axis.name for axis in kernel.axes[-2:])
    operands = across_operands(kernel)
    shape = ((down, side), (along, side))
    tiles = tuple([Local(f"{o.name}_tile", o.dtype, shape) for o in operands])
    names = {o.name: tile.name for o, tile in zip(operands, tiles, strict=True)}
    copies = [Copy(tile, operand) for operand, tile in names.items()]

    def in_nest(block: Block) -> Block:
        *before, loop = block.body
        assert isinstance(loop, For)  # or the kernel is no nest
        if loop.axis != down:
            return replace(block, body=(*before, replace(loop, body=in_nest(loop.body))))
        work = replace(loop, body=renamed(loop.body, {}, names))
        return replace(block, body=(*before, _strips(down, along, (*copies, work), side, band)))

    return replace(kernel, body=in_nest(kernel.body), locals=tiles)


def _strips(down: str, along: str, body: tuple[Statement, ...], side: int, band: int) -> Strip:
    if band:
        tile = Strip(down, side, Block(body=body))
        return Strip(down, band, Block(body=(Strip(along, side, Block(body=(tile,))),)))
    return Strip(down, side, Block(body=(Strip(along, side, Block(body=body)),)))


def across_operands(kernel: Kernel) -> tuple[Operand, ...]:
    """The operands that may be transposed relative to a map, by their use in the kernel."""
    accesses = [s for s in statements(kernel.body) if isinstance(s, Load | Store)]
    elsewhere = {s.operand for s in accesses if not is_whole(s)}
    return tuple(
        operand
        for operand in kernel.operands
        if operand.mode is Mode.IN
        and operand.name not in elsewhere
        and operand.strides[-2:] == (Stride.ANY, Stride.ANY)
    )


def can_be_tiled(kernel: Kernel) -> bool:
    """Whether a map is a nest of loops with all of its work in the innermost two."""
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
    return depth == len(kernel.axes) == len(loops) and bool(across_operands(kernel))


def distances_across(kernel: Kernel) -> list[tuple[Distance, Distance]]:
    """The strides of each operand that tiles may transpose, down and along."""
    distances = distances_of(kernel)
    down, along = (axis.name for axis in kernel.axes[-2:])
    return [(distances[o.name, down], distances[o.name, along]) for o in across_operands(kernel)]
