"""The argument blocks of a split reduction: of its parts, and of their combination.

Which word of the whole call a word follows from is worked out once for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.lowering.call_layout import Distance, distances_of
from gpuflow.compiler.lowering.recipes import taker
from gpuflow.compiler.schedules.split import PART, SplitKernels, split_kernel
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments, remembered


@record
class _Block:
    """How the words of one of the two kernels follow from those of the whole call.

    Attributes:
        buffers_of: takes its buffers from those of the whole call and the scratch memory.
        same: takes words from the whole call, and any for those that follow.
        extents: place and axis, where the whole call has another one or none.
        grouped: places of the extent that gets longer as rows are taken together.
        scratch: place of an operand's address, and bytes of an element.
        strides: of scratch memory; place and axis.
        down: place, how far apart rows are, and whether it is asked of parts.
        moved: addresses and indices that start at a part's first row: place, how far apart rows
            are, and bytes of an element.
    """

    buffers_of: Callable[[Sequence[int]], tuple[int, ...]]
    same: Callable[[Sequence[int]], tuple[int, ...]]
    extents: tuple[tuple[int, str], ...]
    grouped: tuple[int, ...]
    scratch: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, str], ...]
    down: tuple[tuple[int, Distance, bool], ...]
    moved: tuple[tuple[int, Distance, int], ...]


@record
class Blocks:
    """The blocks of both kernels, and the strides of the operands of the chunks.

    Attributes:
        layouts: of each operand except scratch, the strides of rows, and along the last kept axis.
        itemsizes: of each scratch operand.
    """

    parts: _Block
    combine: _Block
    layouts: tuple[tuple[Distance, Distance], ...]
    itemsizes: tuple[int, ...]


def blocks_of(kernel: Kernel) -> Blocks:
    """How the blocks of the two kernels of a reduction that can be split follow from its own."""
    return remembered(kernel, _blocks_of)


def _blocks_of(kernel: Kernel) -> Blocks:
    split = split_kernel(kernel)
    assert split is not None  # it can be split
    places = {argument: place for place, argument in enumerate(arguments(kernel))}
    parts, scratch = split.parts, {operand.name for operand in split.scratch}
    distances = distances_of(kernel)
    last = split.kept[-1] if split.kept else split.rows
    layouts = [
        (distances[operand.name, split.rows], distances[operand.name, last])
        for operand in parts.operands
        if operand.name not in scratch
    ]
    return Blocks(
        _block(parts, split, kernel, places, distances),
        _block(split.combine, split, kernel, places, None),
        tuple(layouts),
        tuple([storage_dtype(operand.dtype).itemsize for operand in split.scratch]),
    )


def _block(
    kernel: Kernel, split: SplitKernels, whole: Kernel, places: Mapping[Argument, int],
    distances: Mapping[tuple[str, str], Distance] | None,
) -> _Block:  # fmt: skip
    """The block of one of the kernels of ``whole``; only parts have ``distances``."""
    order = [operand.name for operand in (*whole.operands, *split.scratch)]
    buffers = [order.index(operand.name) for operand in kernel.operands]
    scratch_names = {operand.name for operand in split.scratch}
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    same: list[int] = []
    extents, grouped, scratch, strides, down, moved = [], [], [], [], [], []
    for place, argument in enumerate(arguments(kernel)):
        name, axis = argument.operand, argument.axis
        same.append(places.get(argument, 0))
        if argument.kind == "extent":
            if axis in (PART, split.rows) or argument not in places:
                extents.append((place, axis))
            if axis in split.kept[:1]:
                grouped.append(place)
        elif name in scratch_names and argument.kind == "stride":
            strides.append((place, axis))
        elif name in scratch_names:
            scratch.append((place, itemsize[name]))
        elif distances is None or argument.kind == "scalar":
            continue
        elif argument.kind != "stride":
            size = 1 if argument.kind == "base" else itemsize[name]
            moved.append((place, distances[name, split.rows], size))
        elif axis in (PART, split.rows):
            down.append((place, distances[name, split.rows], axis == PART))
    return _Block(
        taker(buffers), taker(same), tuple(extents), tuple(grouped), tuple(scratch),
        tuple(strides), tuple(down), tuple(moved),
    )  # fmt: skip


class PartWords(NamedTuple):
    """Writes the argument blocks of one call.

    Attributes:
        split: the kernels.
        sizes: of the whole call's axes.
        words: the arguments of the whole call.
        blocks: see ``blocks_of``.
    """

    split: SplitKernels
    sizes: Mapping[str, int]
    words: Sequence[int]
    blocks: Blocks

    def parts(
        self, count: int, rows: int, group: int, first_row: int, first_result: int
    ) -> tuple[int, ...]:
        """``count`` chunks of ``rows`` grouped rows, starting at a row and a scratch offset."""
        block, whole = self.blocks.parts, self.words
        extents = {**self.sizes, PART: count, self.split.rows: rows}
        words = self._start(block, extents, group, first_result)
        if group > 1:
            for place in block.grouped:
                words[place] *= group
        for place, distance, is_part in block.down:
            step = distance.within(whole) * group
            words[place] = step * rows if is_part else step
        if first_row:
            for place, distance, size in block.moved:
                words[place] += first_row * distance.within(whole) * group * size
        return tuple(words)

    def combine(self, results: int) -> tuple[int, ...]:
        """The argument block of the combination."""
        return tuple(self._start(self.blocks.combine, {**self.sizes, PART: results}, 1, 0))

    def _start(
        self, block: _Block, extents: Mapping[str, int], group: int, first_result: int
    ) -> list[int]:
        """Arguments of the whole call, extents, and scratch memory, which is row-major."""
        words = list(block.same(self.words))
        for place, axis in block.extents:
            words[place] = extents[axis]
        for place, size in block.scratch:
            words[place] = first_result * size
        if block.strides:
            strides, step = {}, 1
            for axis in reversed(self.split.kept):
                strides[axis] = step
                step *= self.sizes[axis]
            strides[PART] = step * group
            for place, axis in block.strides:
                words[place] = strides[axis]
        return words
