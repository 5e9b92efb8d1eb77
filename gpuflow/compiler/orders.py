"""Loops in the order of memory: transposed operands of one kernel call on the CPU.

A map reads them in tiles; a reduction over them runs with its loops exchanged, as a reduction of
rows instead of columns or the other way round. Both are decided by the strides of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

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

SMALLEST_TILED = 1 << 12  # points
SHORTEST_TILED = 16  # of both axes: a cache line of 4-byte elements


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


class Distance(NamedTuple):
    """How far apart neighbours along an axis lie: the place of a word, or a number without one."""

    place: int | None
    number: int = 0

    def within(self, words: Sequence[Word]) -> int:
        """The distance in elements; 0 where the operand does not change."""
        return self.number if self.place is None else words[self.place].value


def distances_of(kernel: Kernel) -> dict[tuple[str, str], Distance]:
    """For each operand and axis how far apart neighbours lie."""
    return remembered(kernel, "distances", lambda: _distances(kernel))


def _distances(kernel: Kernel) -> dict[tuple[str, str], Distance]:
    table: dict[tuple[str, str], Distance] = {}
    place_of = {argument: place for place, argument in enumerate(arguments(kernel))}
    for operand in kernel.operands:
        for place, axis in enumerate(kernel.axes):
            kind = operand.strides[place] if place < len(operand.strides) else Stride.ZERO
            known = {Stride.ZERO: 0, Stride.UNIT: 1}.get(kind)
            own = Argument("stride", operand.name, axis.name)
            table[operand.name, axis.name] = (
                Distance(place_of[own]) if known is None else Distance(None, known)
            )
    return table


def in_tiles(call: KernelCall) -> KernelCall:
    """A map as a tiled one, if it reads a large operand across its rows."""
    if call.points < SMALLEST_TILED or not can_be_tiled(call.kernel):
        return call
    sizes, distances = sizes_of(call), distances_of(call.kernel)
    down, along = (axis.name for axis in call.kernel.axes[-2:])
    if min(sizes[down], sizes[along]) < SHORTEST_TILED:
        return call
    is_across = any(
        abs(distances[operand.name, down].within(call.words)) == 1
        and abs(distances[operand.name, along].within(call.words)) >= SHORTEST_TILED
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

    The sum over rows of a transposed array is the sum over columns of the array itself. A search
    down a few columns does not fill vectors with columns: it takes one after the other.
    """
    kernel = call.kernel
    if not remembered(kernel, "may turn", lambda: _may_turn(kernel)):
        return call
    is_narrow = remembered(kernel, "few columns", lambda: _searches_few_columns(kernel))
    if not is_narrow and not _lies_across(kernel, call.words):
        return call
    *_, first, last = kernel.axes
    values = values_of(call)
    for operand in kernel.operands:
        for axis in (first, last):
            distance = distances_of(kernel)[operand.name, axis.name]
            step = Word(None, distance.within(call.words))
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


def _searches_few_columns(kernel: Kernel) -> bool:
    """Whether a column kernel of a few columns finds places, see ``cpu_places``."""
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


def _lies_across(kernel: Kernel, words: Sequence[Word]) -> bool:
    """Whether what is reduced has its neighbours along the last axis but one."""
    changing = False
    for reduced, first, last in remembered(kernel, "last axes", lambda: _last_axes(kernel)):
        if reduced.within(words) != 0:
            if abs(first.within(words)) != 1 or abs(last.within(words)) <= 1:
                return False
            changing = True
    return changing


def _last_axes(kernel: Kernel) -> list[tuple[Distance, Distance, Distance]]:
    """Of each operand that is read: along the reduced axis, the last axis but one, the last."""
    first, last = kernel.axes[-2:]
    reduced = first if last.role is Role.PARALLEL else last
    found = distances_of(kernel)
    return [
        (found[operand.name, reduced.name], found[operand.name, first.name],
         found[operand.name, last.name])
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
