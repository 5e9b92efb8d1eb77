"""Meaning of the arguments of a kernel call: sizes of its axes, and strides of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Argument, Kernel, Stride, arguments, remembered


def values_of(call: KernelCall) -> dict[Argument, int]:
    """The arguments of a call by their meaning."""
    return dict(zip(arguments(call.kernel), call.words, strict=True))


def sizes_of(call: KernelCall) -> dict[str, int]:
    """The extents of a call's axes."""
    places = remembered(call.kernel, _extents)
    return {
        axis: call.words[place] if exact is None else exact
        for axis, exact, place in places
    }


def _extents(kernel: Kernel) -> list[tuple[str, int | None, int]]:
    """For each axis its exact size, or None and the place of its extent among the words."""
    place_of = {argument: place for place, argument in enumerate(arguments(kernel))}
    return [
        (axis.name, axis.exact, place_of.get(Argument("extent", axis=axis.name), -1))
        for axis in kernel.axes
    ]


class Distance(NamedTuple):
    """Stride along an axis: the index of an argument slot, or a constant."""

    place: int | None
    number: int = 0

    def within(self, words: Sequence[int]) -> int:
        """The distance in elements; 0 where the operand does not change."""
        return self.number if self.place is None else words[self.place]


def distances_of(kernel: Kernel) -> dict[tuple[str, str], Distance]:
    """The stride of each operand along each axis."""
    return remembered(kernel, _distances)


def _distances(kernel: Kernel) -> dict[tuple[str, str], Distance]:
    table: dict[tuple[str, str], Distance] = {}
    place_of = {argument: place for place, argument in enumerate(arguments(kernel))}
    for operand in kernel.operands:
        for place, axis in enumerate(kernel.axes):
            kind = operand.strides[place] if place < len(operand.strides) else Stride.ZERO
            known = kind.number
            stride = Argument("stride", operand.name, axis.name)
            table[operand.name, axis.name] = (
                Distance(place_of[stride]) if known is None else Distance(None, known)
            )
    return table
