"""Calls of a split reduction: one for whole chunks, one for the remainder, one to combine.

Tests: tests/compiler/test_split_reductions.py, tests/targets/cuda/test_gpu_splits.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate
from gpuflow.compiler.schedules.split_reduction import SplitKernels
from gpuflow.compiler.schedules.split_reduction_slots import SlotMaps, SlotWriter


class Cut(NamedTuple):
    """How a call's reduction is split into chunks.

    A "row" is one index of the axis that is split. The extent of that axis is
    ``chunks * rows * group + remainder``. ``explain`` prints the names of this record.

    Attributes:
        chunks: count of chunks, at least 1.
        rows: rows of a chunk, where a group counts as one row.
        group: count of adjacent rows that are treated as one long row; 1 if there are no groups.
        remainder: count of rows after the last chunk.
    """

    chunks: int
    rows: int
    group: int
    remainder: int


def split_calls(
    call: KernelCall,
    split: SplitKernels,
    cut: Cut,
    sizes: Mapping[str, int],
    slot_maps: SlotMaps,
    allocate: Allocate,
) -> tuple[KernelCall, ...]:
    """The calls that replace the call of a reduction, in the order in which they must run.

    Args:
        call: the call.
        split: the kernels of its kernel.
        cut: the chunks.
        sizes: the extent of each axis of the call.
        slot_maps: the slot maps of its kernel.
        allocate: allocates scratch buffers; the calls share them.
    """
    retained = prod([sizes[axis] for axis in split.retained])
    results = cut.chunks * cut.group + (cut.remainder > 0)
    scratch = [allocate(results * retained * itemsize) for itemsize in slot_maps.itemsizes]
    whole_rows = cut.chunks * cut.rows * cut.group
    writer = SlotWriter(split, sizes, call.slots, slot_maps)
    points_per_row = call.points // max(sizes[split.split_axis], 1)
    partial_buffers, combine_buffers = slot_maps.partial.buffers_of, slot_maps.combine.buffers_of
    buffers = (*call.buffers, *scratch)
    slots = writer.partial(cut.chunks, cut.rows, cut.group, 0, 0)
    points = whole_rows * points_per_row
    calls = [KernelCall(split.partial, slots, partial_buffers(buffers), cut.chunks, points)]
    if cut.remainder:
        slots = writer.partial(1, cut.remainder, 1, whole_rows, cut.chunks * cut.group * retained)
        points = cut.remainder * points_per_row
        calls.append(KernelCall(split.partial, slots, partial_buffers(buffers), 1, points))
    extent = sizes[split.retained[0]] if split.retained else 1
    slots, points = writer.combine(results), results * retained
    calls.append(KernelCall(split.combine, slots, combine_buffers(buffers), extent, points))
    return tuple(calls)
