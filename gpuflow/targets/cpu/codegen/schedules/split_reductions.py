"""Long reductions on the CPU, in parts and their combination (``compiler/schedules/split.py``).

    total = sum(x)      part[k] = sum(x of part k), for k in range(parts)    <- all threads
                        total = sum(part)

The number of chunks follows from the shape alone, so that results do not depend on threads. The
remainder is one more call of their kernel, for a chunk of another length.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split import SplitKernels, split_kernel
from gpuflow.compiler.schedules.split_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_words import Blocks, blocks_of
from gpuflow.kir.nodes import Kernel, remembered

SMALLEST_SPLIT = 1 << 16  # points; fewer take about as long as a second launch and waking a thread
MOST_PARTS = 64
SMALLEST_PART = 1 << 14  # points
SMALLEST_PART_ROWS = 32  # rows of a column kernel: its part stores a result for each column
ENOUGH_POINTS = 64  # of the axis that a launch splits: more need no parts
ENOUGH_COLUMNS = 8192  # when that axis is the innermost one: threads walk down their own columns
GROUPED_COLUMNS = 256
_ALIGNED_ROWS = 64


def _applies(kernel: Kernel) -> bool:
    return kernel.kind != "map"


def _choose(call: KernelCall) -> Cut | None:
    split = split_kernel(call.kernel) if call.points >= SMALLEST_SPLIT else None
    if split is None:
        return None
    sizes = sizes_of(call)
    kept = prod([sizes[axis] for axis in split.kept])
    rows = sizes[split.rows]
    if split.kept:
        is_outer = remembered(call.kernel, _keeps_first)
        enough = ENOUGH_POINTS if is_outer else ENOUGH_COLUMNS
        if call.extent >= enough or kept >= ENOUGH_COLUMNS:
            return None
    group = 1
    if split.parts.kind == "column" and len(split.kept) == 1 and kept * 2 <= GROUPED_COLUMNS:
        blocks = blocks_of(call.kernel)
        group = GROUPED_COLUMNS // kept if _is_dense(call, split, kept, blocks) else 1
    grouped = rows // group
    smallest = -(-SMALLEST_PART * rows // (call.points * group))
    if split.parts.kind == "column":
        smallest = max(smallest, SMALLEST_PART_ROWS)
    parts = min(MOST_PARTS, grouped // max(smallest, 1))
    if parts < 2:
        return None
    each = grouped // parts
    if each >= _ALIGNED_ROWS * _ALIGNED_ROWS:
        each -= each % _ALIGNED_ROWS
    return Cut(parts, each, group, rows - parts * each * group)


def _keeps_first(kernel: Kernel) -> bool:
    """Whether the loop over an axis that is kept is outside of the one that is split."""
    split = split_kernel(kernel)
    assert split is not None  # it was asked for
    order = [axis.name for axis in kernel.axes]
    return order.index(split.kept[0]) < order.index(split.rows)


def _is_dense(call: KernelCall, split: SplitKernels, columns: int, blocks: Blocks) -> bool:
    """Whether each operand goes on in the next row where a row ends, or never changes."""
    if split.parts.axes[-1].name != split.kept[0]:
        return False
    words = call.words
    for down, along in blocks.layouts:
        if down.within(words) != along.within(words) * columns:
            return False
    return True


def _rewrite(call: KernelCall, cut: Cut, allocate: Allocate) -> tuple[KernelCall, ...]:
    split = split_kernel(call.kernel)
    assert split is not None  # there is a cut
    return split_calls(call, split, cut, sizes_of(call), blocks_of(call.kernel), allocate)


SPLIT_REDUCTIONS = Schedule("split reductions", _applies, _choose, _rewrite)
