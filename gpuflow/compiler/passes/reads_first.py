"""Reorder equations so that reads of an array precede its update, which can then be in place.

In the user's program, reads of the old values may come after the update. If they do not depend on
it, they run before it, and the array need not be copied.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from gpuflow.compiler.passes.program import uses
from gpuflow.core.jaxpr import Jaxpr, Literal, Var


def reads_first(jaxpr: Jaxpr) -> Jaxpr:
    """Move the readers of each update's operand before it, if they do not depend on it."""
    readers = uses(jaxpr)
    late = [k for k in _updates(jaxpr) if _has_late_readers(jaxpr, readers, k)]
    if not late:
        return jaxpr
    after = _edges(jaxpr, readers)
    for update in late:
        operand = _operand(jaxpr, update)
        after_update = _reachable(after, update)
        direct = set(readers[operand]) - {update}
        if direct.isdisjoint(after_update):
            # If a reader of a slice depends on the update, the slice is stored before that.
            view_readers = _readers_of_views(jaxpr, readers, operand) - after_update
            for reader in (direct | view_readers) - {update}:
                after[reader].add(update)
    order = _in_order(after)
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
    operand = _operand(jaxpr, update)
    late = max(readers[operand])
    return max(_readers_of_views(jaxpr, readers, operand), default=late) > update or late > update


def _edges(jaxpr: Jaxpr, readers: Mapping[Var, Sequence[int]]) -> list[set[int]]:
    """For each equation its successors: readers, and the next equation with an effect."""
    after: list[set[int]] = [set() for _ in jaxpr.eqns]
    last = None
    for k, eqn in enumerate(jaxpr.eqns):
        for var in eqn.outputs:
            after[k].update(readers.get(var, ()))
        if eqn.effects:
            if last is not None:
                after[last].add(k)
            last = k
    return after


def _readers_of_views(jaxpr: Jaxpr, readers: Mapping[Var, Sequence[int]], var: Var) -> set[int]:
    """Readers of the possible aliases of a variable, such as slices."""
    result: set[int] = set()
    aliases = [var]
    for alias in aliases:
        for reader in readers.get(alias, ()):
            if jaxpr.eqns[reader].primitive.lower.may_alias:
                aliases += jaxpr.eqns[reader].outputs
        result.update(readers.get(alias, ()) if alias is not var else ())
    return result


def _reachable(after: Sequence[set[int]], start: int) -> set[int]:
    """The equations that must come after an equation, transitively."""
    reached, waiting = set(after[start]), list(after[start])
    while waiting:
        new = after[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def _in_order(after: Sequence[set[int]]) -> list[int]:
    """Positions in topological order; among ready equations the first in the program."""
    missing = [0] * len(after)
    for targets in after:
        for k in targets:
            missing[k] += 1
    ready = [k for k, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for target in after[k]:
            missing[target] -= 1
            if missing[target] == 0:
                heapq.heappush(ready, target)
    assert len(order) == len(after), "[reads first] edges must not lead around"
    return order
