"""Schedule: transpose tiles in shared memory, in maps that read an operand down its columns.

    each thread a point:            each block a tile of 32 x 32:
        y[i, j] = f(x[j, i])            threads along i: tile[j, i] = x[j, i]
                                        threads along j: y[i, j] = f(tile[j, i])

Neighboring threads that read down a column load a whole sector of memory for each element. With
tiles (``compiler/schedules/tiles``), loads and stores of a warp are coalesced. A thread then
accesses one element at a time, without vectors. The sizes from which tiles pay off are guesses:
nothing was measured on a GPU.

Tests: tests/targets/cuda/test_gpu_tiles.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.tiles import (
    can_be_tiled,
    tile_innermost,
    transposed_operands,
    transposed_strides,
)
from gpuflow.kir.nodes import Kernel, memoized

SIDE = 32  # points of a tile along both axes: the lanes of a warp; a power of two
MIN_TILED_SIZE = 1 << 14  # points; fewer fit into caches
MIN_TILED_DIM = 16  # least extent of both axes, and least stride along a row
MAX_TILES = 4  # local arrays, of at most 8.25 KiB each


def _applies(kernel: Kernel) -> bool:
    return can_be_tiled(kernel) and len(transposed_operands(kernel)) <= MAX_TILES


def _choose(call: KernelCall) -> bool | None:
    """True if more operands are contiguous along columns than along rows."""
    if call.points < MIN_TILED_SIZE:
        return None
    kernel, sizes, slots = call.kernel, extents_of(call), call.slots
    row_axis, column_axis = (axis.name for axis in kernel.axes[-2:])
    if min(sizes[row_axis], sizes[column_axis]) < MIN_TILED_DIM:
        return None
    contiguous_columns = contiguous_rows = 0  # numbers of operands
    for sources in memoized(kernel, transposed_strides):
        stride_down, stride_along = [abs(source.value_in(slots)) for source in sources]
        if stride_down == 1 and stride_along >= MIN_TILED_DIM:
            contiguous_columns += 1
        elif stride_along <= stride_down:
            contiguous_rows += 1
    return True if contiguous_columns > contiguous_rows else None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=memoized(call.kernel, tile_innermost, SIDE)),)


TILED_MAPS = Schedule("tiles", _applies, _choose, _rewrite, is_last=True)
