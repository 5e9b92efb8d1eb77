"""Schedule: transpose tiles in shared memory, in maps that read an operand down its columns.

    each thread a point:            each block a tile of 32 x 32:
        y[i, j] = f(x[j, i])            threads along i: tile[j, i] = x[j, i]
                                        threads along j: y[i, j] = f(tile[j, i])

Neighboring threads that read down a column load a whole sector of memory for each element. With
tiles (``compiler/schedules/tiles``), loads and stores of a warp are coalesced. A thread then
accesses one element at a time, without vectors. The sizes from which tiles pay off are guesses:
nothing was measured on a GPU.
"""

from __future__ import annotations

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.tiles import (
    across_operands,
    can_be_tiled,
    distances_across,
    tiled,
)
from gpuflow.kir.nodes import Kernel, remembered

SIDE = 32  # points of a tile along both axes: the lanes of a warp
SMALLEST_TILED = 1 << 14  # points; fewer fit into caches
SHORTEST_TILED = 16  # least extent of both axes, and least stride along a row
MOST_TILES = 4  # local arrays, of at most 8.25 KiB each


def _applies(kernel: Kernel) -> bool:
    return can_be_tiled(kernel) and len(across_operands(kernel)) <= MOST_TILES


def _choose(call: KernelCall) -> bool | None:
    """True if more operands are contiguous along columns than along rows."""
    if call.points < SMALLEST_TILED:
        return None
    kernel, sizes, slots = call.kernel, sizes_of(call), call.slots
    down, along = (axis.name for axis in kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < SHORTEST_TILED:
        return None
    balance = 0
    for one, other in remembered(kernel, distances_across):
        steps = abs(one.within(slots)), abs(other.within(slots))
        if steps[0] == 1 and steps[1] >= SHORTEST_TILED:
            balance += 1
        elif steps[1] <= steps[0]:
            balance -= 1
    return True if balance > 0 else None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=remembered(call.kernel, tiled, SIDE)),)


TILED_MAPS = Schedule("tiles", _applies, _choose, _rewrite, is_last=True)
