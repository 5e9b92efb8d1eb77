"""The launches that do the work of one kernel call on the CPU, from its sizes and strides.

A long reduction is split (``split``): the number of parts follows from the shape alone, so that
results do not depend on threads. What the parts leave over is one more call of their kernel, for a
part of another length. Transposed operands are for ``orders`` and ``full_memory_order``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from gpuflow.compiler.lowering.call_layout import sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.split import SplitKernels, split_kernel
from gpuflow.compiler.schedules.split_calls import Cut, split_calls
from gpuflow.compiler.schedules.split_words import Blocks, blocks_of
from gpuflow.compiler.target import Allocate
from gpuflow.kir.nodes import Kernel, Role, remembered
from gpuflow.targets.cpu.printing.loop_printer import NARROW_ROWS, SHORT_ROWS
from gpuflow.targets.cpu.printing.narrow_rows import is_narrow
from gpuflow.targets.cpu.printing.tiles import can_be_tiled
from gpuflow.targets.cpu.schedules.full_memory_order import full_in_memory_order
from gpuflow.targets.cpu.schedules.memory_order import in_memory_order, in_tiles
from gpuflow.targets.cpu.schedules.row_phases import in_phases

LONGEST_SHORT_ROW = 128  # elements: two turns of a loop over four vectors
# Points; with fewer, turning narrow rows saves less than it costs to build so large a kernel.
SMALLEST_TURNED = 1 << 13
SMALLEST_SPLIT = 1 << 16  # points; fewer take about as long as a second launch and waking a thread
MOST_PARTS = 64
SMALLEST_PART = 1 << 14  # points
SMALLEST_PART_ROWS = 32  # rows of a column kernel: its part stores a result for each column
ENOUGH_POINTS = 64  # of the axis that a launch splits: more need no parts
ENOUGH_COLUMNS = 8192  # when that axis is the innermost one: threads walk down their own columns
GROUPED_COLUMNS = 256
_ALIGNED_ROWS = 64


def launches(call: KernelCall, allocate: Allocate) -> tuple[KernelCall, ...]:
    """The calls that do the work of one: itself, or those of its two kernels.

    Args:
        call: of any kernel.
        allocate: gives a buffer of so many bytes.
    """
    if call.kernel.kind == "map":
        return (in_tiles(call),)
    is_full = call.kernel.kind == "full"
    call = full_in_memory_order(call) if is_full else in_memory_order(call)
    phases = in_phases(call, allocate)
    if phases:
        return tuple(launch for phase in phases for launch in launches(phase, allocate))
    sizes = sizes_of(call)
    split = split_kernel(call.kernel) if call.points >= SMALLEST_SPLIT else None
    if split is None:
        return (_with_short_rows(call, sizes),)
    blocks = blocks_of(call.kernel, split)
    cut = _cut(call, split, sizes, blocks)
    if cut is None:
        return (_with_short_rows(call, sizes),)
    return split_calls(call, split, cut, sizes, blocks, allocate)


def is_plain(kernel: Kernel) -> bool:
    """Whether ``launches`` never gives anything but the call of a kernel itself."""
    return kernel.kind == "map" and not can_be_tiled(kernel)


def _with_short_rows(call: KernelCall, sizes: Mapping[str, int]) -> KernelCall:
    """The call of a kernel for rows of a few elements or vectors, if that is what it has."""
    kernel = call.kernel
    last = kernel.axes[-1] if kernel.axes else None
    if kernel.kind != "row" or last is None:
        return call
    if last.exact is not None:
        is_turned = call.points >= SMALLEST_TURNED and is_narrow(kernel)
        return call._replace(kernel=_narrow(kernel)) if is_turned else call
    is_row = last.role is Role.ROW and sizes[last.name] < LONGEST_SHORT_ROW
    if not is_row:
        return call
    short = remembered(kernel, SHORT_ROWS, lambda: replace(kernel, kind=SHORT_ROWS))
    return call._replace(kernel=short)


def _narrow(kernel: Kernel) -> Kernel:
    return remembered(kernel, NARROW_ROWS, lambda: replace(kernel, kind=NARROW_ROWS))


def _cut(
    call: KernelCall, split: SplitKernels, sizes: Mapping[str, int], blocks: Blocks
) -> Cut | None:
    kept = prod([sizes[axis] for axis in split.kept])
    rows = sizes[split.rows]
    if split.kept:
        is_outer = remembered(call.kernel, "kept first", lambda: _keeps_first(call.kernel, split))
        enough = ENOUGH_POINTS if is_outer else ENOUGH_COLUMNS
        if call.extent >= enough or kept >= ENOUGH_COLUMNS:
            return None
    group = 1
    if split.parts.kind == "column" and len(split.kept) == 1 and kept * 2 <= GROUPED_COLUMNS:
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


def _keeps_first(kernel: Kernel, split: SplitKernels) -> bool:
    """Whether the loop over an axis that is kept is outside of the one that is split."""
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
