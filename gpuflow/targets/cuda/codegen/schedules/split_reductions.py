"""Schedule: split reductions of few columns or rows into chunks of the reduced axis.

A block computes 32 columns, or a row. If that leaves most of a GPU idle, the reduction is split
(``compiler/schedules/split_reduction.py``): the chunks, their remainder, and their combination are
separate launches. The number of chunks depends on the shape alone, so that results do not depend on
the device. All thresholds are guesses: nothing was measured on a GPU.

Tests: tests/targets/cuda/test_gpu_splits.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split_reduction import split_kernel
from gpuflow.compiler.schedules.split_reduction_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_reduction_slots import slot_maps_of
from gpuflow.kir.nodes import Kernel, memoized
from gpuflow.targets.cuda.codegen.schedules.launch_config import WARP, schedule_cuda

MIN_SPLIT = 1 << 18  # elements; fewer take about as long as another launch
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
    """The cut of a call's reduced axis; None if blocks are many or the reduction is small."""
    split = split_kernel(call.kernel) if call.points >= MIN_SPLIT else None
    if split is None or not split.retained:
        return None
    sizes, strategy = extents_of(call), _strategy(call.kernel)
    # Results of the reduction, each a column or a row, and the extent of the axis that is split.
    result_count = prod([sizes[axis] for axis in split.retained])
    split_extent = sizes[split.split_axis]
    target, max_chunks = TARGET_BLOCKS // result_count, MAX_CHUNKS
    if strategy == "column":
        target = TARGET_BLOCKS // -(-result_count // WARP)
        if result_count < WARP:
            target = TARGET_BLOCKS * WARP // result_count
        max_chunks = max(MAX_CHUNKS, MAX_NARROW_CHUNKS // result_count)
    long_enough_chunks = call.points // result_count // MIN_CHUNK[strategy]
    limit = min(target, long_enough_chunks, split_extent, max_chunks)
    if limit < 2:
        return None
    # Chunks without a remainder save a launch.
    divisors = (count for count in range(limit, limit // 2, -1) if split_extent % count == 0)
    chunks = next((count for count in divisors if count > 1), limit)
    chunk_rows = split_extent // chunks
    return Cut(chunks, chunk_rows, 1, split_extent - chunks * chunk_rows)


def _rewrite(call: KernelCall, cut: Cut, allocate: Allocate) -> tuple[KernelCall, ...]:
    split = split_kernel(call.kernel)
    assert split is not None  # there is a cut
    return split_calls(call, split, cut, extents_of(call), slot_maps_of(call.kernel), allocate)


def _strategy(kernel: Kernel) -> str:
    """The strategy of the launch configuration, see ``launch_config``."""
    return memoized(kernel, schedule_cuda, False).strategy


SPLIT_REDUCTIONS = Schedule("split reductions", _applies, _choose, _rewrite, is_last=True)
