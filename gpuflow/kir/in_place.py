"""Conditions under which a kernel may overwrite its operands.

An INOUT operand is read and written at one index. The workers of a kernel, threads of a CPU, of a
warp or of a grid, share only its loops: the points of PARALLEL and VECTOR axes run in any order,
several at a time; for one point each loop over a ROW or REDUCE axis ends before the next begins, in
any order. So the result of a load does not depend on the schedule of a kernel if

1. every loop around a store moves the operand, or is SERIAL: else its other iterations may read
  before or after it;
2. all accesses are in loops over the same axes that move the operand, and in the very same loops
  over PARALLEL and VECTOR axes, or in loops over one strip of such an axis, which belongs to one
  worker: then only the worker of a point accesses the point's elements.

A load gives the value from before the kernel if, in addition,

3. it does not come after a store in the text, nor is in a SERIAL loop with one: then every loop
  that reads the elements of a point ends before one that overwrites them, or the same iteration of
  one loop does both.

Operands that are accessed at an offset are skipped: updates access their elements in order.
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
_NO_AXIS = ""  # of loops without an axis


class Early(NamedTuple):
    """An operand that is overwritten too early: an access of it, and the rule that this breaks."""

    operand: str
    access: Load | Store
    rule: str


@record
class _Site:
    """A load or a store, and the loops around it by axis."""

    access: Load | Store
    loops: dict[str, int]  # each with its ordinal in the text, or that of its strip


def overwritten_early(kernel: Kernel, may_read_again: bool = False) -> list[Early]:
    """The operands of which a load may give a value that the kernel itself has stored.

    Args:
        kernel: any kernel.
        may_read_again: whether a worker may load a value that it has stored, as for values that
            are cached in memory.

    Returns:
        One entry for each such operand.
    """
    operands = [operand for operand in kernel.operands if operand.mode is Mode.INOUT]
    if not operands:
        return []
    sites: dict[str, list[_Site]] = {operand.name: [] for operand in operands}
    for site in _sites(kernel.body, {}, _Counter(), {}):
        if site.access.operand in sites:
            sites[site.access.operand].append(site)
    overwritten = []
    for operand in operands:
        operand_sites = sites[operand.name]
        if any(site.access.offset is not None for site in operand_sites):
            continue
        early = _race(kernel, operand, operand_sites, may_read_again)
        if early is None and not may_read_again:
            early = _reread(operand, operand_sites)
        overwritten += [] if early is None else [early]
    return overwritten


class _Counter:
    """Numbers the loops of a text."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """The next ordinal."""
        self.count += 1
        return self.count


def _sites(
    block: Block, loops: dict[str, int], counter: _Counter, strips: dict[str, int]
) -> Iterator[_Site]:
    """All accesses in the order of the text."""
    for statement in block.body:
        if isinstance(statement, Load | Store):
            yield _Site(statement, loops)
            continue
        number = counter.next()
        if isinstance(statement, Strip):
            yield from _sites(statement.body, loops, counter, {**strips, statement.axis: number})
            continue
        inner = {**loops, **{axis: strips.get(axis, number) for axis in _axes_of(statement)}}
        for owned in owned_blocks(statement):
            yield from _sites(owned, inner, counter, strips)


def _axes_of(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Reduce):
        return statement.axes
    if isinstance(statement, For | While):
        axis = statement.axis if isinstance(statement, For) else None
        return (axis or _NO_AXIS,)
    return ()


def _race(
    kernel: Kernel, operand: Operand, sites: list[_Site], may_read_again: bool
) -> Early | None:
    axes = {axis.name: axis for axis in kernel.axes}
    pairs = zip(kernel.axes, operand.strides, strict=False)
    moving = {axis.name for axis, stride in pairs if stride is not Stride.ZERO}
    serial = {name for name, axis in axes.items() if axis.role is Role.SERIAL}
    allowed = moving | (serial if may_read_again else set())
    points = [name for name in moving if axes[name].role in _POINTS]
    for site in sites:
        if isinstance(site.access, Store) and not set(site.loops) <= allowed:
            rule = "every loop around a store in place must move the operand"
            return Early(operand.name, site.access, rule)
        is_same = all(site.loops.get(name) == sites[0].loops.get(name) for name in points)
        if not moving <= set(site.loops) or not is_same:
            rule = "all accesses in place must be in the loops that move the operand"
            return Early(operand.name, site.access, rule)
    return None


def _reread(operand: Operand, sites: list[_Site]) -> Early | None:
    is_stored = False
    for site in sites:
        if is_stored and isinstance(site.access, Load):
            rule = "an operand must not be loaded after it is stored in place"
            return Early(operand.name, site.access, rule)
        is_stored |= isinstance(site.access, Store)
    return None
