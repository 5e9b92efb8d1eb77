"""Calls of a split reduction: one for whole chunks, one for the remainder, one to combine."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate
from gpuflow.compiler.schedules.split import SplitKernels
from gpuflow.compiler.schedules.split_slots import SlotMaps, SlotWriter


class Cut(NamedTuple):
    """How a call's reduction is split into chunks.

    A "row" is one index of the axis that is split.

    Attributes:
        chunks: count of chunks.
        rows: rows of a chunk, where a group counts as one row.
        group: count of adjacent rows that are treated as one long row.
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
    blocks: SlotMaps,
    allocate: Allocate,
) -> tuple[KernelCall, ...]:
    """The calls that replace the call of a reduction.

    Args:
        call: the call.
        split: the kernels of its kernel.
        cut: the chunks.
        sizes: the extent of each axis of the call.
        blocks: the slot maps of its kernel.
        allocate: allocates scratch buffers.
    """
    retained = prod([sizes[axis] for axis in split.retained])
    results = cut.chunks * cut.group + (cut.remainder > 0)
    scratch = [allocate(results * retained * itemsize) for itemsize in blocks.itemsizes]
    done = cut.chunks * cut.rows * cut.group
    writer = SlotWriter(split, sizes, call.slots, blocks)
    per_row = call.points // max(sizes[split.rows], 1)
    partial, combine = blocks.partial.buffers_of, blocks.combine.buffers_of
    buffers = (*call.buffers, *scratch)
    slots = writer.partial(cut.chunks, cut.rows, cut.group, 0, 0)
    calls = [KernelCall(split.partial, slots, partial(buffers), cut.chunks, done * per_row)]
    if cut.remainder:
        slots = writer.partial(1, cut.remainder, 1, done, cut.chunks * cut.group * retained)
        calls.append(KernelCall(split.partial, slots, partial(buffers), 1, cut.remainder * per_row))
    extent = sizes[split.retained[0]] if split.retained else 1
    slots = writer.combine(results)
    calls.append(KernelCall(split.combine, slots, combine(buffers), extent, results * retained))
    return tuple(calls)
