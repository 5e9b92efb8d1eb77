"""Loop interchange of full reductions: the contiguous axis becomes the innermost loop.

    for i: for j: total += x[j, i]      for j: for i: total += x[j, i]

The sum over a transposed array is the sum over the array itself, because the order of additions is
free. The strides of a call determine the order of loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from gpuflow.compiler.lowering.call_layout import Distance, distances_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split import is_one_pass
from gpuflow.kir.argmax import finds_first_largest
from gpuflow.kir.nodes import Kernel, Mode, Operand, Reduce, Stride, remembered
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.schedules.memory_order import all_values, are_unit, exchanged_call


class _Order(NamedTuple):
    """A new order of loops.

    Attributes:
        axes: indices of the axes, outermost first.
        is_unit: for each operand, whether it is contiguous along the innermost one.
    """

    axes: tuple[int, ...]
    is_unit: tuple[bool, ...]


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "full" and _reads(kernel) is not None


def _reads(kernel: Kernel) -> list[list[Distance]] | None:
    return remembered(kernel, _reads_of_full)


def _choose(call: KernelCall) -> _Order | None:
    reads = _reads(call.kernel)
    assert reads is not None  # it applies
    order = _order_of_memory([[d.within(call.slots) for d in row] for row in reads])
    if order is None:
        return None
    return _Order(order, are_unit(call.kernel, all_values(call), call.kernel.axes[order[-1]]))


def _rewrite(call: KernelCall, order: _Order, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (exchanged_call(call, remembered(call.kernel, _ordered_kernel, *order)),)


FULL_MEMORY_ORDER = Schedule("loops in the order of memory", _applies, _choose, _rewrite)


def _reads_of_full(kernel: Kernel) -> list[list[Distance]] | None:
    """Strides of the operands of a full reduction; None if its loops cannot be reordered."""
    if len(kernel.axes) < 2 or not is_one_pass(kernel):
        return None
    if any(isinstance(s, Reduce) and finds_first_largest(s) for s in statements(kernel.body)):
        return None
    memory = [o for o in kernel.operands if o.mode in (Mode.IN, Mode.OUT, Mode.INOUT)]
    varying = [o for o in memory if any(kind is not Stride.ZERO for kind in o.strides)]
    if any(operand.mode is not Mode.IN for operand in varying):
        return None  # the kernel also stores an array, which is row-major
    distances = distances_of(kernel)
    return [[distances[o.name, axis.name] for axis in kernel.axes] for o in varying]


def _order_of_memory(steps: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Order axes by descending stride, with the contiguous axis innermost.

    None: the innermost axis is contiguous already, or no axis is contiguous in all operands.

    Args:
        steps: strides of each operand.
    """
    if not any(abs(row[-1]) > 1 for row in steps):
        return None
    lead = max(steps, key=lambda row: sum(step != 0 for step in row))
    order = sorted(range(len(lead)), key=lambda k: -abs(lead[k]) if lead[k] else -inf)
    if any(abs(row[order[-1]]) > 1 for row in steps):
        return None
    return tuple(order)


def _ordered_kernel(kernel: Kernel, order: Sequence[int], is_unit: Sequence[bool]) -> Kernel:
    """Reorder the loops of a full reduction; ``is_unit`` has the operands contiguous then."""
    *outer, innermost = (kernel.axes[k] for k in order)
    axes = (*[replace(axis, exact=None) for axis in outer], innermost)

    def ordered(operand: Operand, unit: bool) -> Operand:
        if not operand.strides:
            return operand
        *strides, last = (operand.strides[k] for k in order)
        strides = [Stride.ANY if kind is Stride.UNIT else kind for kind in strides]
        return replace(operand, strides=(*strides, Stride.UNIT if unit else last))

    body = tuple(
        replace(s, axes=tuple(axis.name for axis in axes if axis.name in s.axes))
        if isinstance(s, Reduce)
        else s
        for s in kernel.body.body
    )
    return replace(
        kernel,
        axes=axes,
        operands=tuple(map(ordered, kernel.operands, is_unit)),
        body=replace(kernel.body, body=body),
    )
