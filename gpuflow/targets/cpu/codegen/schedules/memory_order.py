"""Loop interchange of reductions whose operands are transposed in memory.

    for i:                          for j:
        sum of x[j, i] over j           y[i] += x[j, i] for all i

A sum over rows of a transposed array is a sum over columns of the array itself, and vice versa. So
row kernels become column kernels, or column kernels row kernels, if the strides of a call are
transposed. An argmax down few columns is always exchanged: its columns would not fill vectors. Full
reductions are for ``full_memory_order``.

Tests: tests/targets/cpu/test_cpu_orders.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuflow.compiler.lowering.argument_block import (
    StrideSource,
    argument_values,
    stride_sources_of,
)
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split_reduction import is_one_pass
from gpuflow.kir.argmax import is_argmax
from gpuflow.kir.nodes import (
    Argument,
    Axis,
    Kernel,
    Mode,
    Operand,
    Reduce,
    Role,
    Stride,
    arguments,
    memoized,
)
from gpuflow.kir.walk import statements


def _applies(kernel: Kernel) -> bool:
    return kernel.kind not in ("map", "full") and _exchange(kernel) is not None


def _exchange(kernel: Kernel) -> _Exchange | None:
    return memoized(kernel, _exchange_condition)


def _choose(call: KernelCall) -> tuple[bool, ...] | None:
    """For each operand, whether it is contiguous along the new innermost loop."""
    exchange = _exchange(call.kernel)
    assert exchange is not None  # it applies
    if not (exchange.always or _is_transposed(exchange.inputs, call.slots)):
        return None
    return contiguous_operands(call.kernel, complete_values(call), call.kernel.axes[-2])


def _rewrite(
    call: KernelCall, is_unit: tuple[bool, ...], allocate: Allocate
) -> tuple[KernelCall, ...]:
    del allocate
    return (exchanged_call(call, memoized(call.kernel, _exchanged_kernel, is_unit)),)


MEMORY_ORDER = Schedule("loops exchanged", _applies, _choose, _rewrite)


def complete_values(call: KernelCall) -> dict[Argument, int]:
    """The values of a call's arguments, and of extents and strides that its kernel has static."""
    kernel, values = call.kernel, argument_values(call)
    for (operand, axis), stride in stride_sources_of(kernel).items():
        values[Argument("stride", operand, axis)] = stride.value_in(call.slots)
    for axis in kernel.axes:
        if axis.exact is not None:
            values[Argument("extent", axis=axis.name)] = axis.exact
    return values


def contiguous_operands(
    kernel: Kernel, values: Mapping[Argument, int], axis: Axis
) -> tuple[bool, ...]:
    """For each operand, whether it is contiguous along an axis; see ``complete_values``."""
    return tuple(
        values[Argument("stride", operand.name, axis.name)] == 1 for operand in kernel.operands
    )


def exchanged_call(call: KernelCall, exchanged: Kernel) -> KernelCall:
    """The call with another kernel, whose axes and operands have the same names.

    The operands must be in the same order, because the call's buffers are unchanged.
    """
    values = complete_values(call)
    slots = tuple([values[argument] for argument in arguments(exchanged)])
    return call._replace(kernel=exchanged, slots=slots)


class _InputStrides(NamedTuple):
    """Strides of an input.

    Attributes:
        reduced: along the axis that is reduced: one of the other two.
        first: along the last axis but one.
        last: along the last axis.
    """

    reduced: StrideSource
    first: StrideSource
    last: StrideSource


class _Exchange(NamedTuple):
    """Condition for an exchange.

    Attributes:
        always: whether every call is rewritten.
        inputs: strides of each input. If not ``always``, a call is rewritten if these are
            transposed.
    """

    always: bool
    inputs: list[_InputStrides]


def _exchange_condition(kernel: Kernel) -> _Exchange | None:
    if not _can_exchange(kernel):
        return None
    return _Exchange(_is_argmax_of_few_columns(kernel), _input_strides(kernel))


def _can_exchange(kernel: Kernel) -> bool:
    """Whether the last two loops of a kernel can be exchanged."""
    if len(kernel.axes) < 2 or not is_one_pass(kernel):
        return False
    *outer, first, last = kernel.axes
    if any(axis.role is not Role.PARALLEL for axis in outer) or first.role is last.role:
        return False
    return Role.PARALLEL in (first.role, last.role)


def _is_argmax_of_few_columns(kernel: Kernel) -> bool:
    """Whether the kernel is an argmax down columns, whose number is exact (small)."""
    last = kernel.axes[-1]
    if last.role is not Role.PARALLEL or last.exact is None:
        return False
    reduces = [s for s in statements(kernel.body) if isinstance(s, Reduce)]
    return all(map(is_argmax, reduces))


def _exchanged_kernel(kernel: Kernel, is_unit: Sequence[bool]) -> Kernel:
    """Exchange the last two loops.

    Args:
        kernel: the kernel.
        is_unit: for each operand, whether it is contiguous along the new innermost axis.
    """
    *outer, first, last = kernel.axes
    first = first if first.role is Role.PARALLEL else replace(first, role=Role.ROW)
    to_row = last.role is Role.PARALLEL
    last = replace(last, exact=None)
    last = last if to_row else replace(last, role=Role.REDUCE)
    return replace(
        kernel,
        axes=(*outer, last, first),
        operands=tuple(map(_exchanged_operand, kernel.operands, is_unit)),
        kind="row" if to_row else "column",
    )


def _is_transposed(inputs: Sequence[_InputStrides], slots: Sequence[int]) -> bool:
    """Whether all inputs that are reduced are contiguous along the last axis but one."""
    is_any_reduced = False
    for reduced, first, last in inputs:
        if reduced.value_in(slots) != 0:
            if abs(first.value_in(slots)) != 1 or abs(last.value_in(slots)) <= 1:
                return False
            is_any_reduced = True
    return is_any_reduced


def _input_strides(kernel: Kernel) -> list[_InputStrides]:
    """The strides of each input of a kernel that ``_can_exchange``."""
    first, last = kernel.axes[-2:]
    reduced = first if last.role is Role.PARALLEL else last
    stride_sources = stride_sources_of(kernel)
    return [
        _InputStrides(
            stride_sources[operand.name, reduced.name],
            stride_sources[operand.name, first.name],
            stride_sources[operand.name, last.name],
        )
        for operand in kernel.operands
        if operand.mode is Mode.IN
    ]


def _exchanged_operand(operand: Operand, is_unit: bool) -> Operand:
    """The operand with its last two axes exchanged."""
    if len(operand.strides) < 2:
        return operand
    *outer, first, second = operand.strides
    outermost = Stride.ANY if second is Stride.UNIT else second
    innermost = Stride.UNIT if is_unit else first
    return replace(operand, strides=(*outer, outermost, innermost))
