"""Loop interchange of reductions whose operands are transposed in memory.

    for i:                          for j:
        sum of x[j, i] over j           y[i] += x[j, i] for all i

A sum over rows of a transposed array is a sum over columns of the array itself, and vice versa. So
row kernels become column kernels, or column kernels row kernels, if the strides of a call are
transposed. An argmax down few columns is always exchanged: its columns would not fill vectors. Full
reductions are for ``full_memory_order``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuflow.compiler.lowering.call_layout import Distance, distances_of, values_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.compiler.schedules.split import is_one_pass
from gpuflow.kir.argmax import finds_first_largest
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
    remembered,
)
from gpuflow.kir.walk import statements


def _applies(kernel: Kernel) -> bool:
    return kernel.kind not in ("map", "full") and _exchange_of(kernel) is not None


def _exchange_of(kernel: Kernel) -> _Exchange | None:
    return remembered(kernel, _exchange)


def _choose(call: KernelCall) -> tuple[bool, ...] | None:
    """For each operand, whether it is contiguous along the new innermost loop."""
    exchange = _exchange_of(call.kernel)
    assert exchange is not None  # it applies
    if not (exchange.always or _is_transposed(exchange.distances, call.slots)):
        return None
    return are_unit(call.kernel, all_values(call), call.kernel.axes[-2])


def _rewrite(
    call: KernelCall, is_unit: tuple[bool, ...], allocate: Allocate
) -> tuple[KernelCall, ...]:
    del allocate
    return (exchanged_call(call, remembered(call.kernel, _exchanged_kernel, is_unit)),)


MEMORY_ORDER = Schedule("loops exchanged", _applies, _choose, _rewrite)


def all_values(call: KernelCall) -> dict[Argument, int]:
    """The arguments of a call, with the static extents and strides of its kernel."""
    kernel, values = call.kernel, values_of(call)
    for (operand, axis), distance in distances_of(kernel).items():
        values[Argument("stride", operand, axis)] = distance.within(call.slots)
    for axis in kernel.axes:
        if axis.exact is not None:
            values[Argument("extent", axis=axis.name)] = axis.exact
    return values


def are_unit(kernel: Kernel, values: Mapping[Argument, int], innermost: Axis) -> tuple[bool, ...]:
    """For each operand, whether it is contiguous along an axis."""
    return tuple(
        values[Argument("stride", operand.name, innermost.name)] == 1 for operand in kernel.operands
    )


def exchanged_call(call: KernelCall, exchanged: Kernel) -> KernelCall:
    """The call with another kernel, whose axes and operands have the same names."""
    values = all_values(call)
    slots = tuple([values[argument] for argument in arguments(exchanged)])
    return call._replace(kernel=exchanged, slots=slots)


class _Exchange(NamedTuple):
    """Condition for an exchange.

    Attributes:
        always: whether every call is rewritten.
        distances: strides of each input, see ``_last_axes``. If not ``always``, a call is
            rewritten if these are transposed.
    """

    always: bool
    distances: list[tuple[Distance, Distance, Distance]]


def _exchange(kernel: Kernel) -> _Exchange | None:
    if not _can_exchange(kernel):
        return None
    return _Exchange(_searches_few_columns(kernel), _last_axes(kernel))


def _can_exchange(kernel: Kernel) -> bool:
    """Whether the last two loops of a kernel can be exchanged."""
    if len(kernel.axes) < 2 or not is_one_pass(kernel):
        return False
    *outer, first, last = kernel.axes
    if any(axis.role is not Role.PARALLEL for axis in outer) or first.role is last.role:
        return False
    return Role.PARALLEL in (first.role, last.role)


def _searches_few_columns(kernel: Kernel) -> bool:
    """Whether the kernel is an argmax down columns, whose number is exact (small)."""
    last = kernel.axes[-1]
    if last.role is not Role.PARALLEL or last.exact is None:
        return False
    reduces = [s for s in statements(kernel.body) if isinstance(s, Reduce)]
    return all(map(finds_first_largest, reduces))


def _exchanged_kernel(kernel: Kernel, is_unit: Sequence[bool]) -> Kernel:
    """Exchange the last two loops; ``is_unit`` has the operands that are contiguous then."""
    *outer, first, last = kernel.axes
    first = first if first.role is Role.PARALLEL else replace(first, role=Role.ROW)
    to_row = last.role is Role.PARALLEL
    last = replace(last, exact=None)
    last = last if to_row else replace(last, role=Role.REDUCE)
    return replace(
        kernel,
        axes=(*outer, last, first),
        operands=tuple(map(_exchanged, kernel.operands, is_unit)),
        kind="row" if to_row else "column",
    )


def _is_transposed(
    distances: Sequence[tuple[Distance, Distance, Distance]], slots: Sequence[int]
) -> bool:
    """Whether all inputs that are reduced are contiguous along the last axis but one."""
    changing = False
    for reduced, first, last in distances:
        if reduced.within(slots) != 0:
            if abs(first.within(slots)) != 1 or abs(last.within(slots)) <= 1:
                return False
            changing = True
    return changing


def _last_axes(kernel: Kernel) -> list[tuple[Distance, Distance, Distance]]:
    """Strides of each input along the reduced axis, the last axis but one, and the last."""
    first, last = kernel.axes[-2:]
    reduced = first if last.role is Role.PARALLEL else last
    distances = distances_of(kernel)
    return [
        (
            distances[operand.name, reduced.name],
            distances[operand.name, first.name],
            distances[operand.name, last.name],
        )
        for operand in kernel.operands
        if operand.mode is Mode.IN
    ]


def _exchanged(operand: Operand, is_unit: bool) -> Operand:
    """The operand with its last two axes exchanged."""
    if len(operand.strides) < 2:
        return operand
    *outer, first, second = operand.strides
    outermost = Stride.ANY if second is Stride.UNIT else second
    innermost = Stride.UNIT if is_unit else first
    return replace(operand, strides=(*outer, outermost, innermost))
