"""Conditions under which a kernel may overwrite its operands.

An INOUT operand is read and written at one index. The workers of a kernel, be they threads of a
CPU, of a warp or of a grid, share nothing but its loops: the points of PARALLEL and VECTOR axes run
in any order, several at a time; for one point each loop over a ROW or REDUCE axis ends before the
next begins, in any order. So the result of a load does not depend on the schedule of a kernel if

1. every loop around a store moves the operand, or is SERIAL: else its other iterations may read
  before or after it;
2. all accesses are in loops over the same axes that move the operand, and in the very same loops
  over PARALLEL and VECTOR axes, or in loops over one piece of such an axis, which belongs to one
  worker: then only the worker of a point accesses the point's elements.

A load gives the value from before the kernel if besides

3. it does not come after a store in the text, nor is in a SERIAL loop with one: then every loop
  that reads the elements of a point is over before one that overwrites them, or the same iteration
  of one loop does both.

Operands that are accessed at an offset are left out: updates choose their elements, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.kir.nodes import (
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Statement,
    Store,
    Stride,
    Strip,
    While,
)
from gpuflow.kir.walk import owned_blocks

_POINTS = (Role.PARALLEL, Role.VECTOR)
_NO_AXIS = ""  # of loops that move no operand


class Early(NamedTuple):
    """An operand that is overwritten too early: an access of it, and the rule that this breaks."""

    operand: str
    access: Load | Store
    rule: str


@record
class _Place:
    """A load or a store, and the loops around it by axis."""

    access: Load | Store
    loops: dict[str, int]  # each with its number in the text, or that of the piece it is in


def overwritten_early(kernel: Kernel, may_read_again: bool = False) -> list[Early]:
    """The operands of which a load may give a value that the kernel itself has stored.

    Args:
        kernel: any kernel.
        may_read_again: whether a worker may load a value that it has stored, like values kept in
            memory.

    Returns:
        One entry for each such operand; none if all is well.
    """
    operands = [operand for operand in kernel.operands if operand.mode is Mode.INOUT]
    if not operands:
        return []
    places: dict[str, list[_Place]] = {operand.name: [] for operand in operands}
    for place in _places(kernel.body, {}, _Counter(), {}):
        if place.access.operand in places:
            places[place.access.operand].append(place)
    overwritten = []
    for operand in operands:
        operand_places = places[operand.name]
        if any(place.access.offset is not None for place in operand_places):
            continue
        early = _race(kernel, operand, operand_places, may_read_again)
        if early is None and not may_read_again:
            early = _reread(operand, operand_places)
        overwritten += [] if early is None else [early]
    return overwritten


class _Counter:
    """Numbers the loops of a text."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """The next number."""
        self.count += 1
        return self.count


def _places(
    block: Block, loops: dict[str, int], counter: _Counter, pieces: dict[str, int]
) -> Iterator[_Place]:
    """All accesses in the order of the text."""
    for statement in block.body:
        if isinstance(statement, Load | Store):
            yield _Place(statement, loops)
            continue
        number = counter.next()
        if isinstance(statement, Strip):
            yield from _places(statement.body, loops, counter, {**pieces, statement.axis: number})
            continue
        inner = {**loops, **{axis: pieces.get(axis, number) for axis in _axes_of(statement)}}
        for owned in owned_blocks(statement):
            yield from _places(owned, inner, counter, pieces)


def _axes_of(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Reduce):
        return statement.axes
    if isinstance(statement, For | While):
        axis = statement.axis if isinstance(statement, For) else None
        return (axis or _NO_AXIS,)
    return ()


def _race(
    kernel: Kernel, operand: Operand, places: list[_Place], may_read_again: bool
) -> Early | None:
    axes = {axis.name: axis for axis in kernel.axes}
    pairs = zip(kernel.axes, operand.strides, strict=False)
    moving = {axis.name for axis, stride in pairs if stride is not Stride.ZERO}
    serial = {name for name, axis in axes.items() if axis.role is Role.SERIAL}
    allowed = moving | (serial if may_read_again else set())
    points = [name for name in moving if axes[name].role in _POINTS]
    for place in places:
        if isinstance(place.access, Store) and not set(place.loops) <= allowed:
            rule = "every loop around a store in place must move the operand"
            return Early(operand.name, place.access, rule)
        is_same = all(place.loops.get(name) == places[0].loops.get(name) for name in points)
        if not moving <= set(place.loops) or not is_same:
            rule = "all accesses in place must stand in the loops that move the operand"
            return Early(operand.name, place.access, rule)
    return None


def _reread(operand: Operand, places: list[_Place]) -> Early | None:
    is_stored = False
    for place in places:
        if is_stored and isinstance(place.access, Load):
            rule = "an operand must not be loaded after it is stored in place"
            return Early(operand.name, place.access, rule)
        is_stored |= isinstance(place.access, Store)
    return None
