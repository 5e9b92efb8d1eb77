"""Schedule: split long reductions into partial reductions of chunks.

``compiler/schedules/split_reduction.py`` has the kernels.

    total = sum(x)      partial[k] = sum(x of chunk k), for k in range(chunks)    <- all threads
                        total = sum(partial)

The number of chunks must depend on the shape only, so that results do not depend on the number of
threads. The remainder is one more call of the partial kernel, for a chunk of another length.

Here, a "row" is an index of the axis that is split (``SplitKernels.split_axis``); "columns" are
the points of the axes that are not reduced.

Tests: tests/compiler/test_split_reductions.py.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split_reduction import SplitKernels, split_kernel
from gpuflow.compiler.schedules.split_reduction_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_reduction_slots import SlotMaps, slot_maps_of
from gpuflow.kir.nodes import Kernel, memoized

MIN_SPLIT = 1 << 16  # points; fewer take about as long as a second launch and waking a thread
MAX_CHUNKS = 64
MIN_CHUNK = 1 << 14  # points
MIN_CHUNK_ROWS = 32  # rows of a column kernel: a chunk stores a result for each column
# If the axis that a launch splits among threads has this many points, chunks are not needed.
ENOUGH_POINTS = 64
ENOUGH_COLUMNS = 8192  # the same if it is the innermost axis: threads reduce their own columns
GROUPED_COLUMNS = 256  # rows of at most half as many columns are grouped to about this many
_ALIGNED_ROWS = 64  # the rows of large chunks are a multiple of it


def _applies(kernel: Kernel) -> bool:
    return kernel.kind != "map"


def _choose(call: KernelCall) -> Cut | None:
    """The number and the size of chunks; None if the call has enough parallelism, or is small."""
    split = split_kernel(call.kernel) if call.points >= MIN_SPLIT else None
    if split is None:
        return None
    sizes = extents_of(call)
    columns = prod([sizes[axis] for axis in split.retained])
    rows = sizes[split.split_axis]
    if split.retained:
        is_outer = memoized(call.kernel, _is_retained_outer)
        enough_points = ENOUGH_POINTS if is_outer else ENOUGH_COLUMNS
        if call.extent >= enough_points or columns >= ENOUGH_COLUMNS:
            return None
    group_rows = 1
    is_narrow = len(split.retained) == 1 and columns * 2 <= GROUPED_COLUMNS
    if split.partial.kind == "column" and is_narrow:
        slot_maps = slot_maps_of(call.kernel)
        group_rows = (
            GROUPED_COLUMNS // columns if _are_rows_adjacent(call, split, columns, slot_maps) else 1
        )
    group_count = rows // group_rows
    smallest_chunk = -(-MIN_CHUNK * rows // (call.points * group_rows))
    if split.partial.kind == "column":
        smallest_chunk = max(smallest_chunk, MIN_CHUNK_ROWS)
    chunks = min(MAX_CHUNKS, group_count // max(smallest_chunk, 1))
    if chunks < 2:
        return None
    chunk_groups = group_count // chunks
    if chunk_groups >= _ALIGNED_ROWS * _ALIGNED_ROWS:
        chunk_groups -= chunk_groups % _ALIGNED_ROWS
    return Cut(chunks, chunk_groups, group_rows, rows - chunks * chunk_groups * group_rows)


def _is_retained_outer(kernel: Kernel) -> bool:
    """Whether the loop over a retained axis encloses the loop that is split."""
    split = split_kernel(kernel)
    assert split is not None  # the caller has it
    order = [axis.name for axis in kernel.axes]
    return order.index(split.retained[0]) < order.index(split.split_axis)


def _are_rows_adjacent(
    call: KernelCall, split: SplitKernels, columns: int, slot_maps: SlotMaps
) -> bool:
    """Whether the rows of each operand follow each other in memory, or it does not vary.

    Then several rows can be reduced as one longer row.
    """
    if split.partial.axes[-1].name != split.retained[0]:
        return False
    slots = call.slots
    return all(
        row_stride.value_in(slots) == column_stride.value_in(slots) * columns
        for row_stride, column_stride in slot_maps.operand_strides
    )


def _rewrite(call: KernelCall, cut: Cut, allocate: Allocate) -> tuple[KernelCall, ...]:
    split = split_kernel(call.kernel)
    assert split is not None  # there is a cut
    return split_calls(call, split, cut, extents_of(call), slot_maps_of(call.kernel), allocate)


SPLIT_REDUCTIONS = Schedule("split reductions", _applies, _choose, _rewrite)
