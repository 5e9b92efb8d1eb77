"""Maps that read an operand across its rows: in tiles, by way of the stack.

    for i:                          strips of i and j:
        for j:                          for j: for i: tile[j, i] = x[j, i]
            y[i, j] = f(x[j, i])        for i: for j: y[i, j] = f(tile[j, i])

Where the output goes along a row, a transposed operand goes down a column, and touches a cache line
for each element. In a tile, all of a line is used: the tile of such an operand is copied to the
stack in its own order, and read in the output's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from gpuflow.base.util import row_major_strides
from gpuflow.compiler.lowering.call_layout import Distance, distances_of, sizes_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule, scheduled
from gpuflow.kir.nodes import (
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Operand,
    Role,
    Store,
    Stride,
    Strip,
    Value,
    arguments,
    remembered,
)
from gpuflow.kir.rewrite import renamed
from gpuflow.kir.scalar import compute_dtype
from gpuflow.kir.walk import is_whole, statements, unused_number

TILE = 64  # points of both axes
BAND = 256  # rows that are done before the next: their memory pages stay known
SMALLEST_TILED = 1 << 12  # points
SHORTEST_TILED = 16  # of both axes: a cache line of 4-byte elements


def _choose(call: KernelCall) -> bool | None:
    if call.points < SMALLEST_TILED:
        return None
    kernel, sizes, words = call.kernel, sizes_of(call), call.words
    down, along = (axis.name for axis in kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < SHORTEST_TILED:
        return None
    for one, other in remembered(kernel, _across):
        if abs(one.within(words)) == 1 and abs(other.within(words)) >= SHORTEST_TILED:
            return True
    return None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=remembered(call.kernel, _tiled)),)


def _tiled(kernel: Kernel) -> Kernel:
    """The kernel in tiles of its innermost two axes."""
    down, along = (axis.name for axis in kernel.axes[-2:])
    operands = _across_operands(kernel)
    tiles = tuple([
        Local(f"{o.name}_tile", compute_dtype(o.dtype), ((along, TILE), (down, TILE)))
        for o in operands
    ])  # fmt: skip
    names = {o.name: tile.name for o, tile in zip(operands, tiles, strict=True)}
    first = unused_number(kernel.body)
    copies = []
    for number, (operand, tile) in enumerate(names.items(), first):
        value = Value(number, compute_dtype(operands[number - first].dtype))
        copy = Block(body=(Load(value, operand), Store(tile, value)))
        copies.append(For(along, Block(body=(For(down, copy),))))

    def in_nest(block: Block) -> Block:
        *before, loop = block.body
        assert isinstance(loop, For)  # or the kernel is no nest
        if loop.axis != down:
            return replace(block, body=(*before, replace(loop, body=in_nest(loop.body))))
        work = replace(loop, body=renamed(loop.body, {}, names))
        tile = Strip(down, TILE, Block(body=(*copies, work)))
        band = Strip(down, BAND, Block(body=(Strip(along, TILE, Block(body=(tile,))),)))
        return replace(block, body=(*before, band))

    return replace(kernel, body=in_nest(kernel.body), locals=tiles)


def _across_operands(kernel: Kernel) -> tuple[Operand, ...]:
    """The operands that may lie across the rows of a map, by what the kernel does with them."""
    accesses = [s for s in statements(kernel.body) if isinstance(s, Load | Store)]
    elsewhere = {s.operand for s in accesses if not is_whole(s)}
    return tuple(
        operand
        for operand in kernel.operands
        if operand.mode is Mode.IN
        and operand.name not in elsewhere
        and operand.strides[-2:] == (Stride.ANY, Stride.ANY)
    )


def _can_be_tiled(kernel: Kernel) -> bool:
    """Whether a map is a nest of loops with all of its work in the innermost two."""
    if kernel.kind != "map" or len(kernel.axes) < 2 or kernel.segmented:
        return False
    if any(axis.role is not Role.PARALLEL for axis in kernel.axes):
        return False
    block, depth = kernel.body, 0
    while block.body and isinstance(block.body[-1], For):
        if block.body[-1].axis != kernel.axes[depth].name:
            return False
        block, depth = block.body[-1].body, depth + 1
    loops = [s for s in statements(kernel.body) if isinstance(s, For)]
    return depth == len(kernel.axes) == len(loops) and bool(_across_operands(kernel))


TILED_MAPS = Schedule("tiles", _can_be_tiled, _choose, _rewrite)


def _across(kernel: Kernel) -> list[tuple[Distance, Distance]]:
    """For each operand that tiles may turn how it lies down and along."""
    distances = distances_of(kernel)
    down, along = (axis.name for axis in kernel.axes[-2:])
    return [(distances[o.name, down], distances[o.name, along]) for o in _across_operands(kernel)]


def transposing_copy(axes: Sequence[tuple[int, int]], itemsize: int) -> KernelCall | None:
    """A copy to row-major memory that goes through tiles, or None where that is no help.

    Args:
        axes: size and stride, in elements, of the source's axes.
        itemsize: bytes of an element.

    Returns:
        The call; its first two words are to be the addresses of the source and of the target.
    """
    if itemsize not in (1, 2, 4, 8) or len(axes) < 2:
        return None
    kernel = _copy_kernel(itemsize, tuple([stride != 0 for _, stride in axes]))
    places = remembered(kernel, _copy_places)
    sizes = tuple([size for size, _ in axes])
    rows = (0,), sizes, tuple([stride for _, stride in axes]), row_major_strides(sizes)
    words = tuple([rows[row][column] for row, column in places])
    call = KernelCall(kernel, words, (NO_BUFFER,) * 2, sizes[0], prod(sizes))
    (launch,) = scheduled(call, lambda size: NO_BUFFER, (TILED_MAPS,))
    return None if launch is call else launch


def _copy_places(kernel: Kernel) -> list[tuple[int, int]]:
    """Where the words of a copy stand: nowhere, or among sizes, strides, and the target's strides.

    These are rows 0 to 3, with a column for each axis.
    """
    columns = {axis.name: column for column, axis in enumerate(kernel.axes)}
    row_of = {("extent", ""): 1, ("stride", "x0"): 2, ("stride", "o0"): 3}
    return [
        (row_of.get((argument.kind, argument.operand), 0), columns.get(argument.axis, 0))
        for argument in arguments(kernel)
    ]


@lru_cache(64)
def _copy_kernel(itemsize: int, changes: tuple[bool, ...]) -> Kernel:
    """The copy of an array that changes along some of its axes."""
    names = [f"i{k}" for k in range(len(changes))]
    dtype = f"uint{8 * itemsize}"
    value = Value(0, dtype)
    body = Block(body=(Load(value, "x0"), Store("o0", value)))
    for name in reversed(names):
        body = Block(body=(For(name, body),))
    across = tuple(Stride.ANY if changing else Stride.ZERO for changing in changes)
    operands = (
        Operand("x0", dtype, Mode.IN, across),
        Operand("o0", dtype, Mode.OUT, (*[Stride.ANY] * (len(changes) - 1), Stride.UNIT)),
    )
    axes = tuple(Axis(name, Role.PARALLEL) for name in names)
    return Kernel("map_copy", axes, operands, body)
