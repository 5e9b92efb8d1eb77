"""Loop interchange of full reductions: the contiguous axis becomes the innermost loop.

    for i: for j: total += x[j, i]      for j: for i: total += x[j, i]

The sum over a transposed array is the sum over the array itself, because the order of additions is
free. The strides of a call determine the order of loops. An argmax is not free: its results are
positions in the order of the original loops.

Tests: tests/targets/cpu/test_cpu_orders.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from gpuflow.compiler.lowering.argument_block import StrideSource, stride_sources_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split_reduction import is_one_pass
from gpuflow.kir.argmax import is_argmax
from gpuflow.kir.nodes import Kernel, Mode, Operand, Reduce, Stride, memoized
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.codegen.schedules.memory_order import (
    complete_values,
    contiguous_operands,
    exchanged_call,
)


class _Order(NamedTuple):
    """A new order of loops.

    Attributes:
        axes: indices of the axes, outermost first.
        is_unit: for each operand, whether it is contiguous along the innermost one.
    """

    axes: tuple[int, ...]
    is_unit: tuple[bool, ...]


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "full" and _input_strides(kernel) is not None


def _input_strides(kernel: Kernel) -> list[list[StrideSource]] | None:
    return memoized(kernel, _find_input_strides)


def _choose(call: KernelCall) -> _Order | None:
    stride_sources = _input_strides(call.kernel)
    assert stride_sources is not None  # it applies
    order = _order_of_memory([[s.value_in(call.slots) for s in row] for row in stride_sources])
    if order is None:
        return None
    return _Order(
        order, contiguous_operands(call.kernel, complete_values(call), call.kernel.axes[order[-1]])
    )


def _rewrite(call: KernelCall, order: _Order, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (exchanged_call(call, memoized(call.kernel, _ordered_kernel, *order)),)


FULL_MEMORY_ORDER = Schedule("loops in the order of memory", _applies, _choose, _rewrite)


def _find_input_strides(kernel: Kernel) -> list[list[StrideSource]] | None:
    """For each varying input of a full reduction, its stride along each axis.

    None: the loops cannot be reordered.
    """
    if len(kernel.axes) < 2 or not is_one_pass(kernel):
        return None
    if any(isinstance(s, Reduce) and is_argmax(s) for s in statements(kernel.body)):
        return None
    memory = [o for o in kernel.operands if o.mode in (Mode.IN, Mode.OUT, Mode.INOUT)]
    varying = [o for o in memory if any(kind is not Stride.ZERO for kind in o.strides)]
    if any(operand.mode is not Mode.IN for operand in varying):
        return None  # the kernel also stores an array, which is row-major
    stride_sources = stride_sources_of(kernel)
    return [[stride_sources[o.name, axis.name] for axis in kernel.axes] for o in varying]


def _order_of_memory(strides: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Order axes by descending stride, with the contiguous axis innermost.

    The operand that varies along most axes determines the order. Axes along which it does not vary
    come first.

    Args:
        strides: for each operand, its strides along all axes, in elements.

    Returns:
        Indices of axes, outermost first. None if the innermost axis is contiguous already, or no
        axis is contiguous in all operands.
    """
    if not any(abs(row[-1]) > 1 for row in strides):
        return None
    lead = max(strides, key=lambda row: sum(stride != 0 for stride in row))
    order = sorted(range(len(lead)), key=lambda k: -abs(lead[k]) if lead[k] else -inf)
    if any(abs(row[order[-1]]) > 1 for row in strides):
        return None
    return tuple(order)


def _ordered_kernel(kernel: Kernel, order: Sequence[int], is_unit: Sequence[bool]) -> Kernel:
    """Reorder the loops of a full reduction.

    Args:
        kernel: the kernel.
        order: indices of its axes, outermost first.
        is_unit: for each operand, whether it is contiguous along the new innermost axis.
    """
    *outer, innermost = (kernel.axes[k] for k in order)
    axes = (*[replace(axis, exact=None) for axis in outer], innermost)

    def ordered(operand: Operand, unit: bool) -> Operand:
        if not operand.strides:
            return operand
        *outer_strides, last = (operand.strides[k] for k in order)
        strides = [Stride.ANY if s is Stride.UNIT else s for s in outer_strides]
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
