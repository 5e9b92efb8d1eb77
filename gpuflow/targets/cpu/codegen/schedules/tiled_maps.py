"""Loop tiling of maps that read a transposed operand: tiles are copied through the stack.

A loop over a transposed operand touches a cache line for each element. In a tile
(``compiler/schedules/tiles``) all elements of a line are used.

Tests: tests/targets/cpu/test_cpu_orders.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.tiles import can_be_tiled, tile_innermost, transposed_strides
from gpuflow.kir.nodes import (
    memoized,
)

TILE = 64  # points of a tile along both axes; a power of two
BAND = 256  # rows of a band of tiles, whose pages stay in the TLB; a multiple of TILE
MIN_TILED_SIZE = 1 << 12  # points of a call
MIN_TILED_DIM = 16  # points along both axes: a cache line of 4-byte elements


def _choose(call: KernelCall) -> bool | None:
    """True if an input is contiguous along the outer axis and not along the inner one."""
    if call.points < MIN_TILED_SIZE:
        return None
    kernel, sizes, slots = call.kernel, extents_of(call), call.slots
    down, along = (axis.name for axis in kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < MIN_TILED_DIM:
        return None
    for down_stride, along_stride in memoized(kernel, transposed_strides):
        if (
            abs(down_stride.value_in(slots)) == 1
            and abs(along_stride.value_in(slots)) >= MIN_TILED_DIM
        ):
            return True
    return None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=memoized(call.kernel, tile_innermost, TILE, BAND)),)


TILED_MAPS = Schedule("tiles", can_be_tiled, _choose, _rewrite)
