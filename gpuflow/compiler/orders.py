"""Loops in the order of memory: transposed operands of one kernel call on the CPU.

A map reads them in tiles; a reduction over them runs with its loops exchanged, as a reduction of
rows instead of columns or the other way round. Both are decided by the strides of a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuflow.compiler.cpu_tiles import KIND, across_operands, can_be_tiled
from gpuflow.compiler.lower import KernelCall, Word
from gpuflow.compiler.split import is_one_pass
from gpuflow.kir.nodes import (
    Argument,
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Role,
    Store,
    Stride,
    Value,
    arguments,
    remembered,
)

SMALLEST_TILED = 1 << 12  # points
SHORTEST_TILED = 16  # of both axes: a cache line of 4-byte elements

Values = Mapping[Argument, Word]


def values_of(call: KernelCall) -> dict[Argument, Word]:
    """The words of a call by what they stand for."""
    return dict(zip(arguments(call.kernel), call.words, strict=True))


def sizes_of(call: KernelCall) -> dict[str, int]:
    """The extents of a call's axes."""
    places = remembered(call.kernel, "extents", lambda: _extents(call.kernel))
    return {
        axis: call.words[place].value if exact is None else exact
        for axis, exact, place in places
    }


def _extents(kernel: Kernel) -> list[tuple[str, int | None, int]]:
    """For each axis its exact size, or None and the place of its extent among the words."""
    place_of = {argument: place for place, argument in enumerate(arguments(kernel))}
    return [
        (axis.name, axis.exact, place_of.get(Argument("extent", axis=axis.name), -1))
        for axis in kernel.axes
    ]


def stride_of(operand: Operand, axis: str, kernel: Kernel, values: Values) -> int:
    """How far apart neighbours along an axis lie; 0 where the operand does not change."""
    found = strides_of(kernel)[operand.name, axis]
    return values[found].value if isinstance(found, Argument) else found


def strides_of(kernel: Kernel) -> dict[tuple[str, str], int | Argument]:
    """For each operand and axis the stride, or which argument it is."""
    return remembered(kernel, "strides", lambda: _strides(kernel))


def _strides(kernel: Kernel) -> dict[tuple[str, str], int | Argument]:
    table: dict[tuple[str, str], int | Argument] = {}
    for operand in kernel.operands:
        for place, axis in enumerate(kernel.axes):
            kind = operand.strides[place] if place < len(operand.strides) else Stride.ZERO
            known = {Stride.ZERO: 0, Stride.UNIT: 1}.get(kind)
            own = Argument("stride", operand.name, axis.name)
            table[operand.name, axis.name] = own if known is None else known
    return table


def in_tiles(call: KernelCall) -> KernelCall:
    """A map as a tiled one, if it reads a large operand across its rows."""
    if call.points < SMALLEST_TILED or not can_be_tiled(call.kernel):
        return call
    values, sizes = values_of(call), sizes_of(call)
    down, along = (axis.name for axis in call.kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < SHORTEST_TILED:
        return call
    is_across = any(
        abs(stride_of(operand, down, call.kernel, values)) == 1
        and abs(stride_of(operand, along, call.kernel, values)) >= SHORTEST_TILED
        for operand in across_operands(call.kernel)
    )
    if not is_across:
        return call
    tiled = remembered(call.kernel, KIND, lambda: replace(call.kernel, kind=KIND))
    return replace(call, kernel=tiled)


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
    names = [f"i{k}" for k in range(len(axes))]
    dtype, last = f"uint{8 * itemsize}", len(axes) - 1
    value = Value(0, dtype)
    body = Block(body=(Load(value, "x0"), Store("o0", value)))
    for name in reversed(names):
        body = Block(body=(For(name, body),))
    across = tuple(Stride.ANY if stride else Stride.ZERO for _, stride in axes)
    operands = (
        Operand("x0", dtype, Mode.IN, across),
        Operand("o0", dtype, Mode.OUT, (*[Stride.ANY] * last, Stride.UNIT)),
    )
    parallel = tuple(Axis(name, Role.PARALLEL) for name in names)
    kernel = Kernel("map_copy", parallel, operands, body)
    values = {Argument("pointer", name): Word(None, 0) for name in ("x0", "o0")}
    step = 1
    for name, (size, stride) in zip(reversed(names), reversed(axes), strict=True):
        values[Argument("extent", axis=name)] = Word(None, size)
        values[Argument("stride", "x0", name)] = Word(None, stride)
        values[Argument("stride", "o0", name)] = Word(None, step)
        step *= size
    words = tuple(values[argument] for argument in arguments(kernel))
    call = KernelCall(kernel, words, axes[0][0], step, (), ())
    tiled = in_tiles(call)
    return None if tiled is call else tiled


def in_memory_order(call: KernelCall) -> KernelCall:
    """A reduction with its last two loops exchanged, if that is how its operands lie.

    The sum over rows of a transposed array is the sum over columns of the array itself.
    """
    kernel = call.kernel
    if not remembered(kernel, "may turn", lambda: _may_turn(kernel)):
        return call
    values = values_of(call)
    if not _lies_across(kernel, values):
        return call
    *_, first, last = kernel.axes
    for operand in kernel.operands:
        for axis in (first, last):
            step = Word(None, stride_of(operand, axis.name, kernel, values))
            values[Argument("stride", operand.name, axis.name)] = step
    if last.exact is not None:
        values[Argument("extent", axis=last.name)] = Word(None, last.exact)
    is_unit = tuple(
        values[Argument("stride", operand.name, first.name)].value == 1
        for operand in kernel.operands
    )
    turned = remembered(kernel, ("turned", is_unit), lambda: _turned_kernel(kernel, is_unit))
    return replace(call, kernel=turned, words=tuple(values[word] for word in arguments(turned)))


def _may_turn(kernel: Kernel) -> bool:
    """Whether the last two loops of a kernel can be exchanged."""
    if len(kernel.axes) < 2 or not is_one_pass(kernel):
        return False
    *outer, first, last = kernel.axes
    if any(axis.role is not Role.PARALLEL for axis in outer) or first.role is last.role:
        return False
    return Role.PARALLEL in (first.role, last.role)


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


def _lies_across(kernel: Kernel, values: Values) -> bool:
    """Whether what is reduced has its neighbours along the last axis but one."""
    first, last = kernel.axes[-2:]
    reduced = first if last.role is Role.PARALLEL else last
    changing = [
        operand
        for operand in kernel.operands
        if operand.mode is Mode.IN and stride_of(operand, reduced.name, kernel, values) != 0
    ]
    return bool(changing) and all(
        abs(stride_of(operand, first.name, kernel, values)) == 1
        and abs(stride_of(operand, last.name, kernel, values)) > 1
        for operand in changing
    )


def _turned(operand: Operand, is_unit: bool) -> Operand:
    """The operand with its last two axes exchanged."""
    if len(operand.strides) < 2:
        return operand
    *outer, first, second = operand.strides
    outermost = Stride.ANY if second is Stride.UNIT else second
    innermost = Stride.UNIT if is_unit else first
    return replace(operand, strides=(*outer, outermost, innermost))
