"""Atomics on global and shared memory; lanes at one address run in ascending order.

A GPU may take another order; results that depend on it differ there from run to run. float32 sums
keep subnormal numbers, which atom.add.f32 of a GPU's global memory may flush.

Tests: tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ptxsim.floats import packed
from ptxsim.frame import Frame, Step
from ptxsim.instruction_table import instruction
from ptxsim.memory_access import Access
from ptxsim.shared import ATOMIC
from ptxsim.site import Site
from ptxsim.types import PACKED, TYPES, Array, is_float

Function = Callable[..., Array]


def _increment(old: Array, last: Array) -> Array:
    return np.where(old >= last, 0, old + 1).astype(old.dtype)


def _decrement(old: Array, last: Array) -> Array:
    return np.where((old == 0) | (old > last), last, old - 1).astype(old.dtype)


_FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": _increment,
    "dec": _decrement,
    "exch": lambda old, new: new,
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
}


def _function(site: Site) -> Function:
    how, name = site.one_of(tuple(_FUNCTIONS)), site.type_name()
    if not how:
        site.refuse("must name an operation")
    function, element = _FUNCTIONS[how], PACKED.get(name, TYPES[name])
    if is_float(element) and how in ("min", "max"):
        function = np.fmin if how == "min" else np.fmax
    if name in PACKED:
        return packed(function, element, TYPES[name])
    return function


@instruction("atom")
def _atomic(site: Site) -> Step:
    """``atom.op d, [a], b``: d is the old value."""
    return _step(site, 1, site.targets(0, site.dtype()))


@instruction("red")
def _reduction(site: Site) -> Step:
    """``red.op [a], b``."""
    if site.has("async"):
        site.refuse("must not be asynchronous")
    return _step(site, 0, [])


def _step(site: Site, position: int, targets: Sequence[int]) -> Step:
    dtype, function = site.dtype(), _function(site)
    operands = [site.sources(k, dtype) for k in range(position + 1, site.count())]
    count = len(operands[0])
    access = Access(site, position, dtype, count, ATOMIC)

    def action(frame: Frame, elements: Array, index: Array) -> None:
        index = frame.per_lane(index)
        for component in range(count):
            slots = [operand[component] for operand in operands]
            values = [frame.per_lane(frame.registers[slot].view(dtype)) for slot in slots]
            column = elements if count == 1 else elements[:, component]
            if not targets and isinstance(function, np.ufunc):
                function.at(column, index, *values)
                continue
            old = in_order(function, column, index, values)
            if targets:
                frame.registers[targets[component]] = old

    def step(frame: Frame) -> None:
        access.run(frame, step, action)

    return step


def in_order(function: Any, elements: Array, index: Array, values: Sequence[Array]) -> Array:
    """Apply a function lane by lane; returns the value that each lane read."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(starts) == len(index):
        old = elements[index]
        elements[index] = function(old, *values)
        return old
    # Process the k-th lanes of all addresses at once.
    lengths = np.diff(np.append(starts, len(index)))
    rank = np.arange(len(index)) - np.repeat(starts, lengths)
    by_rank = order[np.argsort(rank, kind="stable")]
    bounds = np.concatenate(([0], np.cumsum(np.bincount(rank))))
    old = np.empty(len(index), elements.dtype)
    for first, last in pairwise(bounds):
        lanes = by_rank[first:last]
        positions = index[lanes]
        previous = elements[positions]
        old[lanes] = previous
        elements[positions] = function(previous, *(value[lanes] for value in values))
    return old
