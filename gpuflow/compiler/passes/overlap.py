"""Overlap of communication and computation: split collectives into an async start and end.

A call starts as soon as its operand is ready, and ends before the first reader of its result. So
the sum of one gradient over devices runs during the remaining backward pass. The order of starts
depends on the program alone, so it is the same on all devices.

Tests: tests/parallel/test_overlap.py.
"""

from __future__ import annotations

from gpuflow.compiler.passes.program import Replacement, reader_positions
from gpuflow.core.effects import COMMUNICATION
from gpuflow.core.jaxpr import DropVar, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import AsyncCall


def overlap_collectives(jaxpr: Jaxpr) -> Jaxpr:
    """Split collectives with enough work between their operand and their first reader.

    The start follows the producer of the operand, with the views between them. The end precedes the
    first reader; cheap conversions of the result move after the end.
    """
    if not any(_async_call(eqn) for eqn in jaxpr.eqns):
        return jaxpr
    producer = {var: position for position, eqn in enumerate(jaxpr.eqns) for var in eqn.outputs}
    readers = reader_positions(jaxpr)
    count = len(jaxpr.eqns)
    is_heavy = [_is_heavy(eqn) for eqn in jaxpr.eqns]
    insert_after: dict[int, list[Eqn]] = {}  # equations to insert after a position; -1 is the start
    insert_before: dict[int, list[Eqn]] = {}  # equations to insert before a position
    relocated: set[int] = set()  # equations that are moved or replaced
    for position, eqn in enumerate(jaxpr.eqns):
        collective = _async_call(eqn)
        if collective is None or len(eqn.inputs) != 1 or type(eqn.inputs[0]) is Literal:
            continue
        producer_position, views = _producer_and_views(jaxpr, producer, eqn.inputs[0])
        starts_in_place = not relocated.isdisjoint((producer_position, *views))
        if starts_in_place:  # its operand comes from a call that was split: start where it is
            producer_position, views = position, []
        reader_position, delayed = _first_reader(jaxpr, readers, position)
        if eqn.inputs[0].aval.size and any(is_heavy[producer_position + 1 : reader_position]):
            start, end = _started_and_ended(eqn, collective)
            moved_views = [jaxpr.eqns[m] for m in views]
            conversions = [jaxpr.eqns[m] for m in delayed]
            insertions = insert_before if starts_in_place else insert_after
            insertions.setdefault(producer_position, []).extend([*moved_views, start])
            insert_before.setdefault(reader_position, []).extend([*end, *conversions])
            relocated.update((position, *views, *delayed))
    eqns = list(insert_after.get(-1, ()))
    for position, eqn in enumerate(jaxpr.eqns):
        eqns += insert_before.get(position, ())
        if position not in relocated:
            eqns.append(eqn)
        eqns += insert_after.get(position, ())
    eqns += insert_before.get(count, ())
    return jaxpr.replace(eqns=tuple(eqns))


def _producer_and_views(jaxpr: Jaxpr, producer: dict[Var, int], var: Var) -> tuple[int, list[int]]:
    """The equation that computes a value (-1 for an input), and the chain of views after it.

    Both are positions; the views are in program order.
    """
    views: list[int] = []
    while True:
        k = producer.get(var, -1)
        eqn = jaxpr.eqns[k]
        if k < 0 or eqn.primitive.lower.view is None or len(eqn.inputs) != 1:
            return k, views[::-1]
        (source,) = eqn.inputs
        if type(source) is Literal:
            return k, views[::-1]
        views.append(k)
        var = source


def _first_reader(jaxpr: Jaxpr, readers: dict[Var, list[int]], call: int) -> tuple[int, list[int]]:
    """The first equation that needs a call's result, and cheap conversions that can be delayed.

    Both are positions; the first is the count of equations if none needs it.
    A gradient is often transposed or scaled right after its sum, long before it is used.
    """
    waiting = list(readers.get(jaxpr.eqns[call].outputs[0], ()))
    first_reader, converted = len(jaxpr.eqns), set()
    while waiting:
        k = waiting.pop()
        eqn = jaxpr.eqns[k] if k < len(jaxpr.eqns) else None
        if eqn is None or not _is_cheap_conversion(eqn):
            first_reader = min(first_reader, k)
        elif k not in converted:
            converted.add(k)
            waiting += readers.get(eqn.outputs[0], ())
    return first_reader, sorted(k for k in converted if k < first_reader)


def _is_cheap_conversion(eqn: Eqn) -> bool:
    """Whether an equation is a cheap function of one value, such as a transpose or a scaling."""
    inputs = [atom for atom in eqn.inputs if type(atom) is not Literal]
    lowering = eqn.primitive.lower
    is_light = lowering.view is not None or lowering.is_elementwise
    return is_light and len(inputs) == len(eqn.outputs) == 1 and not eqn.effects


def _async_call(eqn: Eqn) -> AsyncCall | None:
    return eqn.primitive.lower.async_call


def _is_heavy(eqn: Eqn) -> bool:
    """Whether an equation takes long enough to hide a call: a loop, or an op that counts FLOPs."""
    if COMMUNICATION in eqn.effects:
        return False
    lowering = eqn.primitive.lower
    return lowering.form is not None or lowering.flops is not None


def _started_and_ended(eqn: Eqn, collective: AsyncCall) -> tuple[Eqn, list[Eqn]]:
    """The equation that starts a call, and the equations that end it and define its output."""
    build = Replacement(eqn.source)
    (x,) = eqn.inputs
    total = build.apply(collective.begin, x, **eqn.params)
    done = build.apply(collective.end, x, total, **eqn.params)
    build.apply(collective.barrier, total, done)
    start, end, last = build.eqns
    (out,) = eqn.outputs
    assert isinstance(out, Var)
    # The barrier makes readers of the result wait for the end; its output aliases the total.
    return start, [end, last.replace(outputs=(out, DropVar(done.aval)))]
