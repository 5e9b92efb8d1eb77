"""Where the temporaries of a plan lie: lifetimes, and offsets in one arena."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace

from gpuflow.compiler.plan import ALIGNMENT, Plan, nbytes, reads_of, scratch_of, writes_of
from gpuflow.core.jaxpr import Var


def with_memory(plan: Plan, into_given: bool) -> Plan:
    """The plan with a place for every buffer that is not an input."""
    made = dict.fromkeys(out for out in plan.outputs if isinstance(out, Var))
    owned = tuple(out for out in made if out not in plan.in_place)
    lifetimes: dict[Var, list[int]] = {}
    fixed = {*made, *plan.jaxpr.invars}
    for position, step in enumerate(plan.steps):
        for var in (*reads_of(step), *writes_of(step), *scratch_of(step)):
            if var not in fixed:
                lifetimes.setdefault(var, [position, position])[1] = position
    offsets, total = _place(lifetimes)
    return replace(
        plan,
        offsets=offsets,
        arena_bytes=total,
        owned=() if into_given else owned,
        given=owned if into_given else (),
    )


def _place(lifetimes: dict[Var, list[int]]) -> tuple[dict[Var, int], int]:
    """First-fit offsets, the largest buffers first; buffers alive together do not overlap."""
    offsets: dict[Var, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # start, end, first and last step; by start
    total = 0
    sizes = {var: -(-max(nbytes(var), 1) // ALIGNMENT) * ALIGNMENT for var in lifetimes}
    for var in sorted(sizes, key=sizes.__getitem__, reverse=True):
        first, last = lifetimes[var]
        start, end = 0, sizes[var]
        for begin, stop, born, dead in placed:
            if born <= last and first <= dead and begin < end and start < stop:
                start, end = stop, stop + sizes[var]
        offsets[var] = start
        insort(placed, (start, end, first, last))
        total = max(total, end)
    return offsets, total
