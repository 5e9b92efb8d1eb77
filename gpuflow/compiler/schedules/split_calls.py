"""The calls of a split reduction: its chunks, their remainder, and their combination."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate
from gpuflow.compiler.schedules.split import SplitKernels
from gpuflow.compiler.schedules.split_words import Blocks, PartWords


class Cut(NamedTuple):
    """How a reduction of one size is split.

    Attributes:
        parts: their number.
        rows: of a part; those of a group count as one.
        group: neighbouring rows that are taken as one long row.
        left: rows that the parts leave over.
    """

    parts: int
    rows: int
    group: int
    left: int


def split_calls(
    call: KernelCall, split: SplitKernels, cut: Cut, sizes: Mapping[str, int], blocks: Blocks,
    allocate: Allocate,
) -> tuple[KernelCall, ...]:  # fmt: skip
    """The calls of the two kernels of a reduction that is split."""
    kept = prod([sizes[axis] for axis in split.kept])
    results = cut.parts * cut.group + (cut.left > 0)
    places = [allocate(results * kept * itemsize) for itemsize in blocks.itemsizes]
    done = cut.parts * cut.rows * cut.group
    writer = PartWords(split, sizes, call.words, blocks)
    per_row = call.points // max(sizes[split.rows], 1)
    parts, combine = blocks.parts.buffers_of, blocks.combine.buffers_of
    buffers = (*call.buffers, *places)
    words = writer.parts(cut.parts, cut.rows, cut.group, 0, 0)
    calls = [KernelCall(split.parts, words, parts(buffers), cut.parts, done * per_row)]
    if cut.left:
        words = writer.parts(1, cut.left, 1, done, cut.parts * cut.group * kept)
        calls.append(KernelCall(split.parts, words, parts(buffers), 1, cut.left * per_row))
    extent = sizes[split.kept[0]] if split.kept else 1
    words = writer.combine(results)
    calls.append(KernelCall(split.combine, words, combine(buffers), extent, results * kept))
    return tuple(calls)
