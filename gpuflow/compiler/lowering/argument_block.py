"""Decode the argument block of a kernel call: extents of axes, strides of operands.

``kir.nodes.arguments`` defines the order of the slots. Tables that depend on the kernel alone are
computed once and cached with it.

Tests: tests/compiler/test_schedules.py, tests/compiler/test_split_reductions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Argument, Kernel, Stride, arguments, memoized


def argument_values(call: KernelCall) -> dict[Argument, int]:
    """The value of each argument of a call; not of extents and strides in the kernel's text."""
    return dict(zip(arguments(call.kernel), call.slots, strict=True))


def extents_of(call: KernelCall) -> dict[str, int]:
    """The extent of each axis of a call, by name, from the outermost."""
    sources = memoized(call.kernel, _extent_sources)
    return {axis: call.slots[slot] if exact is None else exact for axis, exact, slot in sources}


def _extent_sources(kernel: Kernel) -> list[tuple[str, int | None, int]]:
    """For each axis (name, exact extent or None, argument slot of the extent or -1)."""
    slot_of = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    return [
        (axis.name, axis.exact, slot_of.get(Argument("extent", axis=axis.name), -1))
        for axis in kernel.axes
    ]


class StrideSource(NamedTuple):
    """Where the stride of an operand along an axis comes from; strides are in elements.

    Attributes:
        slot: the argument slot that holds the stride; None if the kernel's text has it.
        constant: the stride in the text; unused if there is a slot.
    """

    slot: int | None
    constant: int = 0

    def value_in(self, slots: Sequence[int]) -> int:
        """The stride in an argument block of the kernel; 0 if the operand does not vary."""
        return self.constant if self.slot is None else slots[self.slot]


def stride_sources_of(kernel: Kernel) -> dict[tuple[str, str], StrideSource]:
    """For each (operand name, axis name) the source of the stride."""
    return memoized(kernel, _stride_sources)


def _stride_sources(kernel: Kernel) -> dict[tuple[str, str], StrideSource]:
    sources: dict[tuple[str, str], StrideSource] = {}
    slot_of = {argument: index for index, argument in enumerate(arguments(kernel))}
    for operand in kernel.operands:
        for index, axis in enumerate(kernel.axes):
            stride = operand.strides[index] if index < len(operand.strides) else Stride.ZERO
            argument, constant = Argument("stride", operand.name, axis.name), stride.static_value
            sources[operand.name, axis.name] = (
                StrideSource(slot_of[argument])
                if constant is None
                else StrideSource(None, constant)
            )
    return sources
