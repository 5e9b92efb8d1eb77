"""Decode the argument block of a kernel call: extents of axes, strides of operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Argument, Kernel, Stride, arguments, remembered


def values_of(call: KernelCall) -> dict[Argument, int]:
    """The value of each argument of a call."""
    return dict(zip(arguments(call.kernel), call.slots, strict=True))


def sizes_of(call: KernelCall) -> dict[str, int]:
    """The extent of each axis of a call."""
    extents = remembered(call.kernel, _extents)
    return {axis: call.slots[slot] if exact is None else exact for axis, exact, slot in extents}


def _extents(kernel: Kernel) -> list[tuple[str, int | None, int]]:
    """For each axis (name, exact extent or None, argument slot of the extent or -1)."""
    slot_of = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    return [
        (axis.name, axis.exact, slot_of.get(Argument("extent", axis=axis.name), -1))
        for axis in kernel.axes
    ]


class Distance(NamedTuple):
    """The stride of an operand along an axis, in elements.

    Attributes:
        slot: the argument slot with the stride; None for a constant.
        number: the constant.
    """

    slot: int | None
    number: int = 0

    def within(self, slots: Sequence[int]) -> int:
        """The stride for the arguments ``slots``; 0 if the operand is invariant along the axis."""
        return self.number if self.slot is None else slots[self.slot]


def distances_of(kernel: Kernel) -> dict[tuple[str, str], Distance]:
    """The stride of each operand along each axis, by their names."""
    return remembered(kernel, _distances)


def _distances(kernel: Kernel) -> dict[tuple[str, str], Distance]:
    table: dict[tuple[str, str], Distance] = {}
    slot_of = {argument: index for index, argument in enumerate(arguments(kernel))}
    for operand in kernel.operands:
        for index, axis in enumerate(kernel.axes):
            kind = operand.strides[index] if index < len(operand.strides) else Stride.ZERO
            constant = kind.number
            stride = Argument("stride", operand.name, axis.name)
            table[operand.name, axis.name] = (
                Distance(slot_of[stride]) if constant is None else Distance(None, constant)
            )
    return table
