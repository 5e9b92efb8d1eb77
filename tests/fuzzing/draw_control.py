"""Draws of loops, branches, mapped functions and wrapped calls, which hold programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from fuzzing.control import WRAPPERS
from fuzzing.maker import Maker, Type

SMALL = 200  # elements of a value that a body takes
NUMBER = Type((), "int32", True, 9)  # the counter of a loop


def _small(t: Type) -> bool:
    return t.size <= SMALL and len(t.shape) <= 3


def _carry_type(m: Maker, t: Type) -> Type:
    """What a carry that starts as ``t`` keeps to."""
    exact = t.exact and (not t.is_float or m.pick([True, False, False]))
    return replace(t, exact=exact and not t.is_complex, bound=max(t.bound, 2))


def _fill(m: Maker, draws: Sequence[Callable[[Maker], None]]) -> None:
    for _ in range(m.pick([1, 2, 2, 3, 4])):
        m.pick(draws)(m)


def _late(m: Maker) -> int:
    """One of the last values."""
    return m.pick(range(len(m.types))[-4:])


# --- loops ---------------------------------------------------------------------------------


def _loop_parts(m: Maker) -> tuple[list[int], list[Type], list[int]]:
    """Values that start carries, types of the carries, and values that are closed over."""
    init = m.some(1, 3, _small)
    return init, [_carry_type(m, m.types[k]) for k in init], m.some(0, 2, _small)


def scan(m: Maker, draws: Any) -> None:
    init, carries, closed = _loop_parts(m)
    lead = m.find(lambda t: bool(t.shape) and t.shape[0] <= 9 and t.size <= 900)
    xs = []
    length = m.pick([0, 1, 2, 3, 5])
    if lead is not None and m.pick([True, True, False]):
        length = m.types[lead].shape[0]
        xs = [lead, *m.some(0, 1, lambda t: t.shape[:1] == (length,) and t.size <= 900)]
    elements = [replace(m.types[k], shape=m.types[k].shape[1:]) for k in xs]
    body = m.inner([*carries, *elements, *[m.types[k] for k in closed]])
    _fill(body, draws)
    outs = [body.match(t) for t in carries]
    rows = [_late(body) for _ in range(m.pick([0, 1, 1, 2])) if body.types]
    types = [body.types[k] for k in rows]
    if any(t.size * length > 4000 for t in types):
        rows, types = [], []
    stacked = [replace(t, shape=(length, *t.shape)) for t in types]
    m.add_many(
        "scan",
        [*init, *xs, *closed],
        [*carries, *stacked],
        body=body.program([*outs, *rows]),
        carries=len(init),
        xs=len(xs),
        length=length,
        reverse=m.chance(),
        unroll=m.pick([1, 1, 1, 2, True]),
        types=[t.plain for t in types],
    )


def map_(m: Maker, draws: Any) -> None:
    lead = m.find(lambda t: bool(t.shape) and t.shape[0] <= 9 and t.size <= 900)
    if lead is None:
        return
    length = m.types[lead].shape[0]
    xs = [lead, *m.some(0, 1, lambda t: t.shape[:1] == (length,) and t.size <= 900)]
    closed = m.some(0, 1, _small)
    elements = [replace(m.types[k], shape=m.types[k].shape[1:]) for k in xs]
    body = m.inner([*elements, *[m.types[k] for k in closed]])
    _fill(body, draws)
    rows = [_late(body) for _ in range(m.pick([1, 2]))]
    types = [body.types[k] for k in rows]
    if any(t.size * length > 4000 for t in types):
        return
    m.add_many(
        "map",
        [*xs, *closed],
        [replace(t, shape=(length, *t.shape)) for t in types],
        body=body.program(rows),
        xs=len(xs),
        length=length,
        types=[t.plain for t in types],
        batch_size=m.pick([None, 1, 2, 3]),
    )


def while_loop(m: Maker, draws: Any) -> None:
    init, carries, closed = _loop_parts(m)
    limit = m.pick([0, 1, 2, 3, None, None])
    first = [m.exact_scalar("int32")] if limit is None else []
    operands = [NUMBER, *carries, *[m.types[k] for k in closed]]
    body = m.inner(operands)
    _fill(body, draws)
    outs = [body.match(t) for t in carries]
    condition = None
    if m.chance():
        condition = m.inner(operands)
        if m.chance():
            _fill(condition, draws)
        condition = condition.program([condition.exact_scalar("bool")])
    m.add_many(
        "while",
        [*first, *init, *closed],
        carries,
        body=body.program(outs),
        condition=condition,
        carries=len(init),
        limit=limit,
        max_steps=5 if m.options.reverse or m.pick([True, False, False]) else None,
    )


def fori_loop(m: Maker, draws: Any) -> None:
    init, carries, closed = _loop_parts(m)
    bounds = m.pick([[0, 3], [1, 4], [-2, 0], [2, 2], None, None])
    if m.options.reverse and bounds is None:
        bounds = [0, 2]
    first = [m.exact_scalar("int32")] if bounds is None else []
    body = m.inner([NUMBER, *carries, *[m.types[k] for k in closed]])
    _fill(body, draws)
    outs = [body.match(t) for t in carries]
    m.add_many(
        "fori",
        [*first, *init, *closed],
        carries,
        body=body.program(outs),
        carries=len(init),
        bounds=bounds,
    )


# --- branches ------------------------------------------------------------------------------


def _branches(m: Maker, draws: Any, op: str, choice: int, count: int) -> None:
    args = m.some(1, 3, _small)
    inputs = [m.types[k] for k in args]
    makers = []
    for _ in range(count):
        branch = m.inner(inputs)
        if m.pick([True, True, True, False]):
            _fill(branch, draws)
        makers.append(branch)
    first = m.pick(makers)
    types = [_carry_type(first, first.types[_late(first)]) for _ in range(m.pick([1, 1, 2]))]
    branches = [branch.program([branch.match(t) for t in types]) for branch in makers]
    given = m.pick(range(len(args) + 1))
    m.add_many(op, [choice, *args], types, branches=branches, given=given)


def cond(m: Maker, draws: Any) -> None:
    _branches(m, draws, "cond", m.exact_scalar("bool"), 2)


def switch(m: Maker, draws: Any) -> None:
    _branches(m, draws, "switch", m.exact_scalar("int32"), m.pick([1, 2, 3]))


# --- mapped and wrapped --------------------------------------------------------------------


def vmap(m: Maker, draws: Any) -> None:
    lead = m.find(lambda t: any(0 < n <= 9 for n in t.shape) and t.size <= 900)
    if lead is None:
        return
    size = m.pick([n for n in m.types[lead].shape if 0 < n <= 9])
    args = [lead, *m.some(0, 2, lambda t: t.size <= 900)]
    axes: list[int | None] = []
    for k in args:
        places = [d for d, n in enumerate(m.types[k].shape) if n == size]
        axes.append(m.pick(places if k == lead else [*places, None]))
    elements = []
    for k, axis in zip(args, axes, strict=True):
        shape = tuple(n for d, n in enumerate(m.types[k].shape) if d != axis)
        elements.append(replace(m.types[k], shape=shape))
    closed = m.some(0, 1, _small)
    body = m.inner([*elements, *[m.types[k] for k in closed]])
    _fill(body, draws)
    outs = [_late(body) for _ in range(m.pick([1, 1, 2]))]
    types = [body.types[k] for k in outs]
    if any(t.size * size > 4000 or len(t.shape) > 3 for t in types):
        return
    out_axes = [m.pick(range(len(t.shape) + 1)) for t in types]
    results = [
        replace(t, shape=(*t.shape[:axis], size, *t.shape[axis:]))
        for t, axis in zip(types, out_axes, strict=True)
    ]
    m.add_many(
        "vmap",
        [*args, *closed],
        results,
        body=body.program(outs),
        in_axes=axes,
        out_axes=out_axes,
        size=size,
        types=[t.plain for t in types],
    )


def call(m: Maker, draws: Any) -> None:
    args = m.some(1, 3, lambda t: t.size <= 900)
    body = m.inner([m.types[k] for k in args])
    _fill(body, draws)
    if not body.types:  # it has no arguments, and its loops no results
        return
    outs = [_late(body) for _ in range(m.pick([1, 1, 2]))]
    wrappers = [w for w in WRAPPERS if not (m.options.forward and "custom_vjp" in w)]
    wrapper = m.pick(wrappers)
    # A function with rules of its own gets everything that it differentiates as an argument.
    given = len(args) if "custom" in wrapper else m.pick(range(len(args) + 1))
    m.add_many(
        "call",
        args,
        [body.types[k] for k in outs],
        body=body.program(outs),
        wrapper=wrapper,
        given=given,
    )


def derivative(m: Maker, draws: Any) -> None:
    """The gradient of a program, or its derivative along its own operands."""
    first = m.find(lambda t: t.is_float and t.size <= 900)
    if first is None or not m.options.nested:
        return
    args = [first, *m.some(0, 2, lambda t: t.size <= 900)]
    forward = m.chance()
    body = m.inner([m.types[k] for k in args], reverse=not forward, forward=forward)
    _fill(body, draws)
    floats = [k for k, t in enumerate(body.types) if t.is_float]
    out = m.pick(floats[-4:])
    t = body.types[out] if forward else m.types[first]
    op = "jvp" if forward else "grad"
    m.add(op, args, t.shape, t.dtype, False, inf, body=body.program([out]))


DRAWS = (
    scan,
    scan,
    scan,
    map_,
    while_loop,
    while_loop,
    fori_loop,
    cond,
    cond,
    switch,
    vmap,
    vmap,
    call,
    derivative,
)
