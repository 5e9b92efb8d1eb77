"""Splits long reductions into partial reductions of chunks (``compiler/schedules/split.py``).

    total = sum(x)      partial[k] = sum(x of chunk k), for k in range(chunks)    <- all threads
                        total = sum(partial)

The number of chunks must depend on the shape only, so that results do not depend on the number of
threads. The remainder is one more call of the partial kernel, for a chunk of another length.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split import SplitKernels, split_kernel
from gpuflow.compiler.schedules.split_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_slots import SlotMaps, slot_maps_of
from gpuflow.kir.nodes import Kernel, remembered

SMALLEST_SPLIT = 1 << 16  # points; fewer take about as long as a second launch and waking a thread
MOST_CHUNKS = 64
SMALLEST_CHUNK = 1 << 14  # points
SMALLEST_CHUNK_ROWS = 32  # rows of a column kernel: a chunk stores a result for each column
# If the axis that a launch splits among threads has this many points, chunks are not needed.
ENOUGH_POINTS = 64
ENOUGH_COLUMNS = 8192  # the same if it is the innermost axis: threads reduce their own columns
GROUPED_COLUMNS = 256  # rows of few columns are grouped to about this many elements
_ALIGNED_ROWS = 64  # the rows of large chunks are a multiple of it


def _applies(kernel: Kernel) -> bool:
    return kernel.kind != "map"


def _choose(call: KernelCall) -> Cut | None:
    """The number and the size of chunks; None if the call has enough parallelism, or is small."""
    split = split_kernel(call.kernel) if call.points >= SMALLEST_SPLIT else None
    if split is None:
        return None
    sizes = sizes_of(call)
    retained = prod([sizes[axis] for axis in split.retained])
    rows = sizes[split.rows]
    if split.retained:
        is_outer = remembered(call.kernel, _is_retained_outer)
        enough = ENOUGH_POINTS if is_outer else ENOUGH_COLUMNS
        if call.extent >= enough or retained >= ENOUGH_COLUMNS:
            return None
    group = 1
    is_narrow = len(split.retained) == 1 and retained * 2 <= GROUPED_COLUMNS
    if split.partial.kind == "column" and is_narrow:
        blocks = slot_maps_of(call.kernel)
        group = GROUPED_COLUMNS // retained if _is_dense(call, split, retained, blocks) else 1
    grouped = rows // group
    smallest = -(-SMALLEST_CHUNK * rows // (call.points * group))
    if split.partial.kind == "column":
        smallest = max(smallest, SMALLEST_CHUNK_ROWS)
    chunks = min(MOST_CHUNKS, grouped // max(smallest, 1))
    if chunks < 2:
        return None
    each = grouped // chunks
    if each >= _ALIGNED_ROWS * _ALIGNED_ROWS:
        each -= each % _ALIGNED_ROWS
    return Cut(chunks, each, group, rows - chunks * each * group)


def _is_retained_outer(kernel: Kernel) -> bool:
    """Whether the loop over a retained axis encloses the loop that is split."""
    split = split_kernel(kernel)
    assert split is not None  # the caller has it
    order = [axis.name for axis in kernel.axes]
    return order.index(split.retained[0]) < order.index(split.rows)


def _is_dense(call: KernelCall, split: SplitKernels, columns: int, blocks: SlotMaps) -> bool:
    """Whether rows of each operand are contiguous to each other, or it does not vary."""
    if split.partial.axes[-1].name != split.retained[0]:
        return False
    slots = call.slots
    for down, along in blocks.layouts:
        if down.within(slots) != along.within(slots) * columns:
            return False
    return True


def _rewrite(call: KernelCall, cut: Cut, allocate: Allocate) -> tuple[KernelCall, ...]:
    split = split_kernel(call.kernel)
    assert split is not None  # there is a cut
    return split_calls(call, split, cut, sizes_of(call), slot_maps_of(call.kernel), allocate)


SPLIT_REDUCTIONS = Schedule("split reductions", _applies, _choose, _rewrite)
