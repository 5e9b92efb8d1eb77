"""Reductions of few columns or rows on a GPU: more blocks, each with a part of the reduced axis.

A launch gives 32 columns, or a row, to a block. If that leaves most of a GPU idle, the reduction is
split (``split``): the chunks, their remainder, and their combination are separate launches. The
number of chunks follows from the shape alone, so that results do not depend on the device. All
thresholds are guesses: nothing was measured on a GPU.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split import split_kernel
from gpuflow.compiler.schedules.split_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_words import blocks_of
from gpuflow.kir.nodes import Kernel, remembered
from gpuflow.targets.cuda.codegen.schedules.spread import WARP, schedule_cuda

SMALLEST_SPLIT = 1 << 18  # points; fewer take about as long as another launch
WANTED_BLOCKS = 1024  # several for each of some 132 multiprocessors
# Their combination is a launch in which a thread adds up to an eighth of them. Columns that fill no
# warp share one with other parts, so that there may be more of them.
MOST_PARTS = 512
MOST_IN_NARROW = 1 << 12  # columns times parts
# Elements that a part of one column, or row, has at least.
SMALLEST_PART = {"column": 64, "row": 1 << 11}


def _applies(kernel: Kernel) -> bool:
    if kernel.kind not in ("column", "row") or kernel.segmented:
        return False
    return _strategy(kernel) in SMALLEST_PART


def _choose(call: KernelCall) -> Cut | None:
    split = split_kernel(call.kernel) if call.points >= SMALLEST_SPLIT else None
    if split is None or not split.kept:
        return None
    sizes, strategy = sizes_of(call), _strategy(call.kernel)
    kept, rows = prod([sizes[axis] for axis in split.kept]), sizes[split.rows]
    wanted, most_parts = WANTED_BLOCKS // kept, MOST_PARTS
    if strategy == "column":
        wanted = WANTED_BLOCKS * WARP // kept if kept < WARP else WANTED_BLOCKS // -(-kept // WARP)
        most_parts = max(MOST_PARTS, MOST_IN_NARROW // kept)
    parts_of_one = call.points // kept // SMALLEST_PART[strategy]
    most = min(wanted, parts_of_one, rows, most_parts)
    if most < 2:
        return None
    # Parts that leave nothing over save a launch.
    even = (parts for parts in range(most, most // 2, -1) if rows % parts == 0)
    parts = next((parts for parts in even if parts > 1), most)
    each = rows // parts
    return Cut(parts, each, 1, rows - parts * each)


def _rewrite(call: KernelCall, cut: Cut, allocate: Allocate) -> tuple[KernelCall, ...]:
    split = split_kernel(call.kernel)
    assert split is not None  # there is a cut
    return split_calls(call, split, cut, sizes_of(call), blocks_of(call.kernel), allocate)


def _strategy(kernel: Kernel) -> str:
    return remembered(kernel, schedule_cuda, False).strategy


SPLIT_REDUCTIONS = Schedule("split reductions", _applies, _choose, _rewrite, is_last=True)
