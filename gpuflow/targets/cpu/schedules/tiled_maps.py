"""Maps that read an operand across its rows: in tiles, by way of the stack.

A transposed operand touches a cache line for each element. In a tile (``compiler/schedules/tiles``)
all of a line is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from gpuflow.base.util import row_major_strides
from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule, scheduled
from gpuflow.compiler.schedules.tiles import can_be_tiled, distances_across, tiled
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
    remembered,
)

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
    for one, other in remembered(kernel, distances_across):
        if abs(one.within(words)) == 1 and abs(other.within(words)) >= SHORTEST_TILED:
            return True
    return None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=remembered(call.kernel, tiled, TILE, BAND)),)


TILED_MAPS = Schedule("tiles", can_be_tiled, _choose, _rewrite)


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
