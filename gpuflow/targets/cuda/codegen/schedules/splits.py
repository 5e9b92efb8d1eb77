"""Schedule: split reductions of few columns or rows into chunks of the reduced axis.

A block computes 32 columns, or a row. If that leaves most of a GPU idle, the reduction is split
(``compiler/schedules/split``): the chunks, their remainder, and their combination are separate
launches. The number of chunks depends on the shape alone, so that results do not depend on the
device. All thresholds are guesses: nothing was measured on a GPU.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split import split_kernel
from gpuflow.compiler.schedules.split_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_slots import slot_maps_of
from gpuflow.kir.nodes import Kernel, remembered
from gpuflow.targets.cuda.codegen.schedules.launch_config import WARP, schedule_cuda

SMALLEST_SPLIT = 1 << 18  # elements; fewer take about as long as another launch
TARGET_BLOCKS = 1024  # several for each of some 132 multiprocessors
# Most chunks: in the launch that combines them, a thread adds up to an eighth of them. If there are
# fewer columns than lanes of a warp, chunks share warps, and there may be more of them.
MAX_CHUNKS = 512
MAX_NARROW_CHUNKS = 1 << 12  # columns times chunks
# Fewest elements in a chunk of one column or row.
MIN_CHUNK = {"column": 64, "row": 1 << 11}


def _applies(kernel: Kernel) -> bool:
    if kernel.kind not in ("column", "row") or kernel.segmented:
        return False
    return _strategy(kernel) in MIN_CHUNK


def _choose(call: KernelCall) -> Cut | None:
    split = split_kernel(call.kernel) if call.points >= SMALLEST_SPLIT else None
    if split is None or not split.retained:
        return None
    sizes, strategy = sizes_of(call), _strategy(call.kernel)
    outs, rows = prod([sizes[axis] for axis in split.retained]), sizes[split.rows]
    target, max_chunks = TARGET_BLOCKS // outs, MAX_CHUNKS
    if strategy == "column":
        target = TARGET_BLOCKS * WARP // outs if outs < WARP else TARGET_BLOCKS // -(-outs // WARP)
        max_chunks = max(MAX_CHUNKS, MAX_NARROW_CHUNKS // outs)
    chunks_of_one = call.points // outs // MIN_CHUNK[strategy]
    limit = min(target, chunks_of_one, rows, max_chunks)
    if limit < 2:
        return None
    # Chunks without a remainder save a launch.
    even = (chunks for chunks in range(limit, limit // 2, -1) if rows % chunks == 0)
    chunks = next((chunks for chunks in even if chunks > 1), limit)
    each = rows // chunks
    return Cut(chunks, each, 1, rows - chunks * each)


def _rewrite(call: KernelCall, cut: Cut, allocate: Allocate) -> tuple[KernelCall, ...]:
    split = split_kernel(call.kernel)
    assert split is not None  # there is a cut
    return split_calls(call, split, cut, sizes_of(call), slot_maps_of(call.kernel), allocate)


def _strategy(kernel: Kernel) -> str:
    return remembered(kernel, schedule_cuda, False).strategy


SPLIT_REDUCTIONS = Schedule("split reductions", _applies, _choose, _rewrite, is_last=True)
