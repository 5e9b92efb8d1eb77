"""Loop tiling of maps that read a transposed operand: tiles are copied through the stack.

A loop over a transposed operand touches a cache line for each element. In a tile
(``compiler/schedules/tiles``) all elements of a line are used.
"""

from __future__ import annotations

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.tiles import can_be_tiled, distances_across, tiled
from gpuflow.kir.nodes import (
    remembered,
)

TILE = 64  # points of a tile along both axes
BAND = 256  # rows of a band of tiles, whose pages stay in the TLB
SMALLEST_TILED = 1 << 12  # points of a call
SHORTEST_TILED = 16  # points along both axes: a cache line of 4-byte elements


def _choose(call: KernelCall) -> bool | None:
    if call.points < SMALLEST_TILED:
        return None
    kernel, sizes, slots = call.kernel, sizes_of(call), call.slots
    down, along = (axis.name for axis in kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < SHORTEST_TILED:
        return None
    for one, other in remembered(kernel, distances_across):
        if abs(one.within(slots)) == 1 and abs(other.within(slots)) >= SHORTEST_TILED:
            return True
    return None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=remembered(call.kernel, tiled, TILE, BAND)),)


TILED_MAPS = Schedule("tiles", can_be_tiled, _choose, _rewrite)
