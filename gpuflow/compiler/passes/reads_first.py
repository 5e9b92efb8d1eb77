"""Reorder equations so that reads of an array precede its update, which can then be in place.

In the user's program, reads of the old values may come after the update. If they do not depend on
it, they run before it, and the array need not be copied. Equations with effects keep their order.

Tests: tests/compiler/test_updates.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from gpuflow.compiler.passes.program import reader_positions
from gpuflow.core.jaxpr import Jaxpr, Literal, Var


def reads_first(jaxpr: Jaxpr) -> Jaxpr:
    """Move the readers of each update's operand before it, if they do not depend on it."""
    readers = reader_positions(jaxpr)
    late_read_updates = [k for k in _updates(jaxpr) if _has_late_readers(jaxpr, readers, k)]
    if not late_read_updates:
        return jaxpr
    successors = _successors(jaxpr, readers)
    for update in late_read_updates:
        operand = _operand(jaxpr, update)
        after_update = _reachable(successors, update)
        direct_readers = set(readers[operand]) - {update}
        if direct_readers.isdisjoint(after_update):
            # If a reader of a slice depends on the update, the slice is stored before that.
            view_readers = _readers_of_views(jaxpr, readers, operand) - after_update
            for reader in (direct_readers | view_readers) - {update}:
                successors[reader].add(update)
    order = _topological_order(successors)
    return jaxpr.replace(eqns=tuple([jaxpr.eqns[k] for k in order]))


def _updates(jaxpr: Jaxpr) -> list[int]:
    """The positions of updates whose operand is a variable, not a literal."""
    return [
        k
        for k, eqn in enumerate(jaxpr.eqns)
        if eqn.primitive.lower.is_update and type(eqn.inputs[0]) is Var
    ]


def _operand(jaxpr: Jaxpr, update: int) -> Var:
    operand = jaxpr.eqns[update].inputs[0]
    assert type(operand) is not Literal  # see _updates
    return operand


def _has_late_readers(jaxpr: Jaxpr, readers: Mapping[Var, Sequence[int]], update: int) -> bool:
    """Whether the operand of an update, or a view of it, is read after the update."""
    operand = _operand(jaxpr, update)
    last = max(readers[operand])
    return max(_readers_of_views(jaxpr, readers, operand), default=last) > update or last > update


def _successors(jaxpr: Jaxpr, readers: Mapping[Var, Sequence[int]]) -> list[set[int]]:
    """For each equation its readers, and the next equation with an effect."""
    successors: list[set[int]] = [set() for _ in jaxpr.eqns]
    last_effect = None
    for k, eqn in enumerate(jaxpr.eqns):
        for var in eqn.outputs:
            successors[k].update(readers.get(var, ()))
        if eqn.effects:
            if last_effect is not None:
                successors[last_effect].add(k)
            last_effect = k
    return successors


def _readers_of_views(jaxpr: Jaxpr, readers: Mapping[Var, Sequence[int]], var: Var) -> set[int]:
    """Readers of the possible aliases of a variable, such as slices."""
    result: set[int] = set()
    aliases = [var]
    for alias in aliases:  # grows while it is iterated
        for reader in readers.get(alias, ()):
            if jaxpr.eqns[reader].primitive.lower.may_alias:
                aliases += jaxpr.eqns[reader].outputs
        result.update(readers.get(alias, ()) if alias is not var else ())
    return result


def _reachable(successors: Sequence[set[int]], start: int) -> set[int]:
    """The equations that must come after an equation, transitively."""
    reached, worklist = set(successors[start]), list(successors[start])
    while worklist:
        new = successors[worklist.pop()] - reached
        reached |= new
        worklist += new
    return reached


def _topological_order(successors: Sequence[set[int]]) -> list[int]:
    """Positions in topological order; among ready equations the first in the program."""
    predecessor_counts = [0] * len(successors)
    for targets in successors:
        for k in targets:
            predecessor_counts[k] += 1
    ready = [k for k, count in enumerate(predecessor_counts) if count == 0]  # a heap: it is sorted
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for target in successors[k]:
            predecessor_counts[target] -= 1
            if predecessor_counts[target] == 0:
                heapq.heappush(ready, target)
    assert len(order) == len(successors), "[reads first] edges must not lead around"
    return order
