"""Loops in the order of memory: transposed operands of one kernel call on the CPU.

A map reads them in tiles; a reduction over them runs with its loops exchanged, as a reduction of
rows instead of columns or the other way round. Both are decided by the strides of a call. Full
reductions are for ``full_memory_order``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from gpuflow.base.util import row_major_strides
from gpuflow.compiler.lowering.call_layout import Distance, distances_of, sizes_of, values_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.schedules.split import is_one_pass
from gpuflow.kir.nodes import (
    Argument,
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Store,
    Stride,
    Value,
    arguments,
    remembered,
)
from gpuflow.kir.places import finds_first_largest
from gpuflow.kir.walk import statements
from gpuflow.targets.cpu.printing.tiles import KIND, across_operands, can_be_tiled

SMALLEST_TILED = 1 << 12  # points
SHORTEST_TILED = 16  # of both axes: a cache line of 4-byte elements


def in_tiles(call: KernelCall) -> KernelCall:
    """A map as a tiled one, if it reads a large operand across its rows."""
    if call.points < SMALLEST_TILED:
        return call
    across = remembered(call.kernel, "across", lambda: _across(call.kernel))
    if across is None:
        return call
    sizes, words = sizes_of(call), call.words
    down, along = (axis.name for axis in call.kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < SHORTEST_TILED:
        return call
    for one, other in across:
        if abs(one.within(words)) == 1 and abs(other.within(words)) >= SHORTEST_TILED:
            break
    else:
        return call
    tiled = remembered(call.kernel, KIND, lambda: replace(call.kernel, kind=KIND))
    return call._replace(kernel=tiled)


def _across(kernel: Kernel) -> list[tuple[Distance, Distance]] | None:
    """For each operand that tiles may turn how it lies down and along; None without tiles."""
    if not can_be_tiled(kernel):
        return None
    distances = distances_of(kernel)
    down, along = (axis.name for axis in kernel.axes[-2:])
    return [(distances[o.name, down], distances[o.name, along]) for o in across_operands(kernel)]


def transposing_copy(axes: Sequence[tuple[int, int]], itemsize: int) -> KernelCall | None:
    """A copy to row-major memory that goes through tiles, or None where that is no help.

    Args:
        axes: size and stride, in elements, of the source's axes.
        itemsize: bytes of an element.

    Returns:
        The call; its first two words are to be the addresses of the source and of the target.
    """
    if itemsize not in (1, 2, 4, 8) or len(axes) < 2:
        return None
    kernel = _copy_kernel(itemsize, tuple([stride != 0 for _, stride in axes]))
    places = remembered(kernel, "copy", lambda: _copy_places(kernel))
    sizes = tuple([size for size, _ in axes])
    rows = (0,), sizes, tuple([stride for _, stride in axes]), row_major_strides(sizes)
    words = tuple([rows[row][column] for row, column in places])
    call = KernelCall(kernel, words, (NO_BUFFER,) * 2, sizes[0], prod(sizes))
    tiled = in_tiles(call)
    return None if tiled is call else tiled


def _copy_places(kernel: Kernel) -> list[tuple[int, int]]:
    """Where the words of a copy stand: nowhere, or among sizes, strides, and the target's strides.

    These are rows 0 to 3, with a column for each axis.
    """
    columns = {axis.name: column for column, axis in enumerate(kernel.axes)}
    row_of = {("extent", ""): 1, ("stride", "x0"): 2, ("stride", "o0"): 3}
    return [
        (row_of.get((argument.kind, argument.operand), 0), columns.get(argument.axis, 0))
        for argument in arguments(kernel)
    ]


@lru_cache(64)
def _copy_kernel(itemsize: int, changes: tuple[bool, ...]) -> Kernel:
    """The copy of an array that changes along some of its axes."""
    names = [f"i{k}" for k in range(len(changes))]
    dtype = f"uint{8 * itemsize}"
    value = Value(0, dtype)
    body = Block(body=(Load(value, "x0"), Store("o0", value)))
    for name in reversed(names):
        body = Block(body=(For(name, body),))
    across = tuple(Stride.ANY if changing else Stride.ZERO for changing in changes)
    operands = (
        Operand("x0", dtype, Mode.IN, across),
        Operand("o0", dtype, Mode.OUT, (*[Stride.ANY] * (len(changes) - 1), Stride.UNIT)),
    )
    axes = tuple(Axis(name, Role.PARALLEL) for name in names)
    return Kernel("map_copy", axes, operands, body)


def in_memory_order(call: KernelCall) -> KernelCall:
    """A reduction with its last two loops exchanged, if that is how its operands lie.

    The sum over rows of a transposed array is the sum over columns of the array itself. A search
    down a few columns does not fill vectors with columns: it takes one after the other.
    """
    kernel = call.kernel
    turn = remembered(kernel, "turn", lambda: _turn(kernel))
    if turn is None or not (turn.always or _lies_across(turn.distances, call.words)):
        return call
    first = kernel.axes[-2]
    values = all_values(call)
    is_unit = are_unit(kernel, values, first)
    turned = remembered(kernel, ("turned", is_unit), lambda: _turned_kernel(kernel, is_unit))
    return turned_call(call, turned, values)


def all_values(call: KernelCall) -> dict[Argument, int]:
    """The words of a call, with the extents and strides that its kernel has written out."""
    kernel, values = call.kernel, values_of(call)
    for (operand, axis), distance in distances_of(kernel).items():
        values[Argument("stride", operand, axis)] = distance.within(call.words)
    for axis in kernel.axes:
        if axis.exact is not None:
            values[Argument("extent", axis=axis.name)] = axis.exact
    return values


def are_unit(
    kernel: Kernel, values: Mapping[Argument, int], innermost: Axis
) -> tuple[bool, ...]:
    """Which operands lie contiguously along an axis."""
    return tuple(
        values[Argument("stride", operand.name, innermost.name)] == 1
        for operand in kernel.operands
    )


def turned_call(call: KernelCall, turned: Kernel, values: Mapping[Argument, int]) -> KernelCall:
    """The call of a kernel whose axes and operands have the names of another's."""
    words = tuple([values[argument] for argument in arguments(turned)])
    return call._replace(kernel=turned, words=words)


class _Turn(NamedTuple):
    """How a kernel is turned: whatever the strides, or if these distances ask for it."""

    always: bool
    distances: list[tuple[Distance, Distance, Distance]]


def _turn(kernel: Kernel) -> _Turn | None:
    if not _may_turn(kernel):
        return None
    return _Turn(_searches_few_columns(kernel), _last_axes(kernel))


def _may_turn(kernel: Kernel) -> bool:
    """Whether the last two loops of a kernel can be exchanged."""
    if len(kernel.axes) < 2 or not is_one_pass(kernel):
        return False
    *outer, first, last = kernel.axes
    if any(axis.role is not Role.PARALLEL for axis in outer) or first.role is last.role:
        return False
    return Role.PARALLEL in (first.role, last.role)


def _searches_few_columns(kernel: Kernel) -> bool:
    """Whether a column kernel of a few columns finds places, see ``first_places``."""
    last = kernel.axes[-1]
    if last.role is not Role.PARALLEL or last.exact is None:
        return False
    reduces = [s for s in statements(kernel.body) if isinstance(s, Reduce)]
    return all(map(finds_first_largest, reduces))


def _turned_kernel(kernel: Kernel, is_unit: Sequence[bool]) -> Kernel:
    """The kernel with its last two loops exchanged; which operands are then innermost."""
    *outer, first, last = kernel.axes
    first = first if first.role is Role.PARALLEL else replace(first, role=Role.ROW)
    to_row = last.role is Role.PARALLEL
    last = replace(last, exact=None)
    last = last if to_row else replace(last, role=Role.REDUCE)
    return replace(
        kernel,
        axes=(*outer, last, first),
        operands=tuple(map(_turned, kernel.operands, is_unit)),
        kind="row" if to_row else "column",
    )


def _lies_across(
    distances: Sequence[tuple[Distance, Distance, Distance]], words: Sequence[int]
) -> bool:
    """Whether what is reduced has its neighbours along the last axis but one."""
    changing = False
    for reduced, first, last in distances:
        if reduced.within(words) != 0:
            if abs(first.within(words)) != 1 or abs(last.within(words)) <= 1:
                return False
            changing = True
    return changing


def _last_axes(kernel: Kernel) -> list[tuple[Distance, Distance, Distance]]:
    """Of each operand that is read: along the reduced axis, the last axis but one, the last."""
    first, last = kernel.axes[-2:]
    reduced = first if last.role is Role.PARALLEL else last
    distances = distances_of(kernel)
    return [
        (distances[operand.name, reduced.name], distances[operand.name, first.name],
         distances[operand.name, last.name])
        for operand in kernel.operands
        if operand.mode is Mode.IN
    ]  # fmt: skip


def _turned(operand: Operand, is_unit: bool) -> Operand:
    """The operand with its last two axes exchanged."""
    if len(operand.strides) < 2:
        return operand
    *outer, first, second = operand.strides
    outermost = Stride.ANY if second is Stride.UNIT else second
    innermost = Stride.UNIT if is_unit else first
    return replace(operand, strides=(*outer, outermost, innermost))
