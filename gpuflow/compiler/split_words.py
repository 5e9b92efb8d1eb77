"""The argument blocks of a split reduction: of its parts, and of their combination.

Which word of the whole call a word follows from is worked out once for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from gpuflow.compiler.lower import Word
from gpuflow.compiler.orders import Distance, distances_of
from gpuflow.compiler.split import PART, SplitKernels
from gpuflow.core.jaxpr import Var
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments, remembered


@dataclass(frozen=True)
class _Block:
    """How the words of one of the two kernels follow from those of the whole call.

    Attributes:
        same: takes them from the whole call, and any for those that follow.
        extents: place and axis.
        scratch: place, which scratch operand, and bytes of an element.
        strides: of scratch memory; place and axis.
        down: place, how far apart rows are, and whether it is asked of parts.
        moved: addresses and indices that start at a part's first row: place, how far apart rows
            are, and bytes of an element.
    """

    same: Callable[[Sequence[Word]], tuple[Word, ...]]
    extents: tuple[tuple[int, str], ...]
    scratch: tuple[tuple[int, int, int], ...]
    strides: tuple[tuple[int, str], ...]
    down: tuple[tuple[int, Distance, bool], ...]
    moved: tuple[tuple[int, Distance, int], ...]


@dataclass(frozen=True)
class Blocks:
    """The blocks of both kernels, and the strides of what the parts read and write.

    Attributes:
        layouts: of each operand but scratch, how far apart rows are, and neighbours along the
            last axis that is kept.
    """

    parts: _Block
    combine: _Block
    layouts: tuple[tuple[Distance, Distance], ...]


def blocks_of(kernel: Kernel, split: SplitKernels) -> Blocks:
    """How the blocks of a kernel's parts follow from its own."""
    return remembered(kernel, "blocks of parts", lambda: _blocks_of(kernel, split))


def _blocks_of(kernel: Kernel, split: SplitKernels) -> Blocks:
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
        _block(parts, split, places, distances),
        _block(split.combine, split, places, None),
        tuple(layouts),
    )


def _block(
    kernel: Kernel, split: SplitKernels, places: Mapping[Argument, int],
    distances: Mapping[tuple[str, str], Distance] | None,
) -> _Block:  # fmt: skip
    """The block of one of the kernels; only parts have ``distances``."""
    numbers = {operand.name: k for k, operand in enumerate(split.scratch)}
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    same: list[int] = []
    extents, scratch, strides, down, moved = [], [], [], [], []
    for place, argument in enumerate(arguments(kernel)):
        name, axis = argument.operand, argument.axis
        same.append(places.get(argument, 0))
        if argument.kind == "extent":
            extents.append((place, axis))
        elif name in numbers and argument.kind == "stride":
            strides.append((place, axis))
        elif name in numbers:
            scratch.append((place, numbers[name], itemsize[name]))
        elif distances is None or argument.kind == "scalar":
            continue
        elif argument.kind != "stride":
            size = 1 if argument.kind == "base" else itemsize[name]
            moved.append((place, distances[name, split.rows], size))
        elif axis in (PART, split.rows):
            down.append((place, distances[name, split.rows], axis == PART))
    return _Block(
        _taker(same), tuple(extents), tuple(scratch), tuple(strides), tuple(down), tuple(moved)
    )


def _taker(places: Sequence[int]) -> Callable[[Sequence[Word]], tuple[Word, ...]]:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda words: tuple([words[place] for place in places])


@dataclass(frozen=True)
class PartWords:
    """Writes the argument blocks of one call.

    Attributes:
        split: the kernels.
        sizes: of the whole call's axes.
        words: the whole call's.
        blocks: see ``blocks_of``.
        places: the scratch memory.
    """

    split: SplitKernels
    sizes: Mapping[str, int]
    words: Sequence[Word]
    blocks: Blocks
    places: Sequence[Var | None]

    def parts(
        self, count: int, rows: int, group: int, first_row: int, first_result: int
    ) -> tuple[Word, ...]:
        """``count`` parts of ``rows`` grouped rows, from a row and a place in the scratch on."""
        block, whole = self.blocks.parts, self.words
        extents = {**self.sizes, PART: count, self.split.rows: rows}
        if group > 1:
            extents[self.split.kept[0]] *= group
        words = self._start(block, extents, group, first_result)
        for place, distance, is_part in block.down:
            step = distance.within(whole) * group
            words[place] = Word(None, step * rows if is_part else step)
        if first_row:
            for place, distance, size in block.moved:
                buffer, value = words[place]
                moved = first_row * distance.within(whole) * group * size
                words[place] = Word(buffer, value + moved)
        return tuple(words)

    def combine(self, results: int) -> tuple[Word, ...]:
        """The argument block of the combination."""
        return tuple(self._start(self.blocks.combine, {**self.sizes, PART: results}, 1, 0))

    def _start(
        self, block: _Block, extents: Mapping[str, int], group: int, first_result: int
    ) -> list[Word]:
        """What is as in the whole call, extents, and scratch memory, which is row-major."""
        words = list(block.same(self.words))
        for place, axis in block.extents:
            words[place] = Word(None, extents[axis])
        for place, number, size in block.scratch:
            words[place] = Word(self.places[number], first_result * size)
        if block.strides:
            strides, step = {}, 1
            for axis in reversed(self.split.kept):
                strides[axis] = step
                step *= self.sizes[axis]
            strides[PART] = step * group
            for place, axis in block.strides:
                words[place] = Word(None, strides[axis])
        return words
