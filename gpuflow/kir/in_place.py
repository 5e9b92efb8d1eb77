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

Tests: tests/kir/test_in_place.py.
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

_POINT_ROLES = (Role.PARALLEL, Role.VECTOR)
_NO_AXIS = ""  # of loops without an axis


class OverwriteHazard(NamedTuple):
    """An operand that is overwritten too early: an access of it, and the rule that this breaks."""

    operand: str
    access: Load | Store
    rule: str


@record
class _AccessSite:
    """A load or a store, and the loops around it.

    Attributes:
        access: the statement.
        loop_ids: for each axis of a loop around it the ordinal of the loop in the text, or of its
            strip, since all points of a strip belong to one worker; _NO_AXIS for other loops.
    """

    access: Load | Store
    loop_ids: dict[str, int]


def overwrite_hazards(kernel: Kernel, may_read_again: bool = False) -> list[OverwriteHazard]:
    """The operands of which a load may give a value that the kernel itself has stored.

    Args:
        kernel: any kernel.
        may_read_again: whether a worker may load a value that it has stored, as for values that
            are cached in memory.

    Returns:
        One entry for each such operand; empty if the kernel is safe.
    """
    operands = [operand for operand in kernel.operands if operand.mode is Mode.INOUT]
    if not operands:
        return []
    sites: dict[str, list[_AccessSite]] = {operand.name: [] for operand in operands}
    for site in _access_sites(kernel.body, {}, _LoopCounter(), {}):
        if site.access.operand in sites:
            sites[site.access.operand].append(site)
    hazards = []
    for operand in operands:
        operand_sites = sites[operand.name]
        if any(site.access.offset is not None for site in operand_sites):
            continue
        hazard = _find_race(kernel, operand, operand_sites, may_read_again)
        if hazard is None and not may_read_again:
            hazard = _find_load_after_store(operand, operand_sites)
        hazards += [] if hazard is None else [hazard]
    return hazards


class _LoopCounter:
    """Numbers the loops of a text."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        """The next ordinal."""
        self.count += 1
        return self.count


def _access_sites(
    block: Block, enclosing: dict[str, int], counter: _LoopCounter, strip_ids: dict[str, int]
) -> Iterator[_AccessSite]:
    """All accesses in the order of the text.

    Args:
        block: the block.
        enclosing: the loops around it, as of ``_AccessSite.loop_ids``.
        counter: numbers the loops and strips in the order of the text.
        strip_ids: the ordinal of the innermost strip around it of each axis that is cut.
    """
    for statement in block.body:
        if isinstance(statement, Load | Store):
            yield _AccessSite(statement, enclosing)
            continue
        ordinal = counter.next()
        if isinstance(statement, Strip):
            inner_strips = {**strip_ids, statement.axis: ordinal}
            yield from _access_sites(statement.body, enclosing, counter, inner_strips)
            continue
        opened = {axis: strip_ids.get(axis, ordinal) for axis in _axes_of(statement)}
        inner = {**enclosing, **opened}
        for owned in owned_blocks(statement):
            yield from _access_sites(owned, inner, counter, strip_ids)


def _axes_of(statement: Statement) -> tuple[str, ...]:
    """The axes that a statement opens; _NO_AXIS for a loop without one."""
    if isinstance(statement, Reduce):
        return statement.axes
    if isinstance(statement, For | While):
        axis = statement.axis if isinstance(statement, For) else None
        return (axis or _NO_AXIS,)
    return ()


def _find_race(
    kernel: Kernel, operand: Operand, sites: list[_AccessSite], may_read_again: bool
) -> OverwriteHazard | None:
    """The first access that breaks rule 1 or 2 of this module; None if there is none."""
    axes = {axis.name: axis for axis in kernel.axes}
    pairs = zip(kernel.axes, operand.strides, strict=False)
    moving_axes = {axis.name for axis, stride in pairs if stride is not Stride.ZERO}
    serial_axes = {name for name, axis in axes.items() if axis.role is Role.SERIAL}
    allowed_axes = moving_axes | (serial_axes if may_read_again else set())
    point_axes = [name for name in moving_axes if axes[name].role in _POINT_ROLES]
    for site in sites:
        if isinstance(site.access, Store) and not set(site.loop_ids) <= allowed_axes:
            rule = "every loop around a store in place must move the operand"
            return OverwriteHazard(operand.name, site.access, rule)
        first = sites[0].loop_ids
        in_same_loops = all(site.loop_ids.get(name) == first.get(name) for name in point_axes)
        if not moving_axes <= set(site.loop_ids) or not in_same_loops:
            rule = "all accesses in place must be in the loops that move the operand"
            return OverwriteHazard(operand.name, site.access, rule)
    return None


def _find_load_after_store(operand: Operand, sites: list[_AccessSite]) -> OverwriteHazard | None:
    """The first load after a store in the text, which breaks rule 3; None if there is none."""
    is_stored = False
    for site in sites:
        if is_stored and isinstance(site.access, Load):
            rule = "an operand must not be loaded after it is stored in place"
            return OverwriteHazard(operand.name, site.access, rule)
        is_stored |= isinstance(site.access, Store)
    return None
