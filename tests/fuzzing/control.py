"""Steps that hold programs: in Python, one op at a time, and as gpuflow's own control flow.

Every function takes (params, operands, run, plain), where ``run(program, operands)`` gives outputs.
Operands that a body takes beyond its arguments are closed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzzing.programs import dtype_of

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

Run = Callable[[Any, Sequence[Any]], list[Any]]
MAX_TRIPS = 4  # loops whose bounds are computed


def integer(x: Any) -> int:
    """A concrete integer scalar."""
    return int(np.asarray(x))


def trips(limit: int) -> int:
    """How often a loop with a computed bound runs."""
    return min(max(limit, 0), MAX_TRIPS)


def _clamped(x: Any) -> Any:
    return lax.clamp(np.int32(0), x, np.int32(MAX_TRIPS))


def _stack(rows: list[Any], axis: int, type_: Any) -> Any:
    """Results of all iterations; ``type_`` is that of one of them."""
    if rows:
        return jnp.stack([jnp.asarray(row) for row in rows], axis)
    shape, dtype = list(type_[0]), dtype_of(type_[1])
    return lax.full([*shape[:axis], 0, *shape[axis:]], np.zeros((), dtype)[()])


def _columns(rows: list[list[Any]], axes: Sequence[int], types: Sequence[Any]) -> list[Any]:
    return [
        _stack([row[k] for row in rows], axis, type_)
        for k, (axis, type_) in enumerate(zip(axes, types, strict=True))
    ]


def _scan(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    body, count, end = params["body"], params["carries"], params["carries"] + params["xs"]
    carry, xs, closed = list(operands[:count]), list(operands[count:end]), operands[end:]
    length, reverse, types = params["length"], params["reverse"], params["types"]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = run(body, [*carry, *x, *closed])
        return outs[:count], outs[count:]

    if not plain:
        carry, ys = lax.scan(
            step, carry, xs, length=length, reverse=reverse, unroll=params["unroll"]
        )
        return [*carry, *ys]
    rows = []
    for k in reversed(range(length)) if reverse else range(length):
        carry, row = step(carry, [lax.index_in_dim(x, k, 0, False) for x in xs])
        rows.append(row)
    if reverse:
        rows.reverse()
    return [*carry, *_columns(rows, [0] * len(types), types)]


def _map(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    """A function of the elements of several arrays, some at a time or one by one."""
    body, count, batch = params["body"], params["xs"], params["batch_size"]
    xs, closed = list(operands[:count]), operands[count:]
    if not plain:
        return list(lax.map(lambda x: run(body, [*x, *closed]), xs, batch_size=batch))
    rows = [
        run(body, [*[lax.index_in_dim(x, k, 0, False) for x in xs], *closed])
        for k in range(params["length"])
    ]
    return _columns(rows, [0] * len(params["types"]), params["types"])


def _while(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    """As long as ``number < limit`` and the condition holds, if there is one."""
    count, condition, limit = params["carries"], params["condition"], params["limit"]
    if limit is None:
        limit, operands = _clamped(operands[0]), operands[1:]
    limit = np.int32(limit) if isinstance(limit, int) else limit
    carry, closed = list(operands[:count]), operands[count:]

    def goes_on(state: Any) -> Any:
        number, values = state
        going = lax.lt(number, limit)
        if condition is not None:
            going = lax.bitwise_and(going, run(condition, [number, *values, *closed])[0])
        return going

    def step(state: Any) -> Any:
        number, values = state
        return lax.add(number, np.int32(1)), run(params["body"], [number, *values, *closed])

    state = (np.int32(0), carry)
    if plain:
        while np.asarray(goes_on(state)):
            state = step(state)
        return list(state[1])
    return list(lax.while_loop(goes_on, step, state, max_steps=params["max_steps"])[1])


def _fori(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    bounds = params["bounds"]
    if bounds is None:
        bounds, operands = [np.int32(0), _clamped(operands[0])], operands[1:]
    lower, upper = bounds
    count = params["carries"]
    carry, closed = list(operands[:count]), operands[count:]

    def step(number: Any, values: list[Any]) -> list[Any]:
        # Known bounds count as Python ints, with 64 bits in a program that has them.
        number = lax.convert_element_type(number, np.int32)
        return run(params["body"], [number, *values, *closed])

    if not plain:
        lower, upper = [np.int32(b) if isinstance(b, int) else b for b in (lower, upper)]
        return list(lax.fori_loop(lower, upper, step, carry))
    for number in range(integer(lower), integer(upper)):
        carry = step(np.int32(number), carry)
    return carry


def _cond(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    """A predicate chooses between two branches; the first is for False."""
    no, yes = params["branches"]
    given = params["given"]
    args, closed = operands[1 : 1 + given], operands[1 + given :]
    if plain:
        return run(yes if np.asarray(operands[0]) else no, operands[1:])
    functions = [lambda *xs, p=p: run(p, [*xs, *closed]) for p in (yes, no)]
    return list(lax.cond(operands[0], *functions, *args))


def _switch(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    branches, given = params["branches"], params["given"]
    args, closed = operands[1 : 1 + given], operands[1 + given :]
    if plain:
        chosen = min(max(integer(operands[0]), 0), len(branches) - 1)
        return run(branches[chosen], operands[1:])
    functions = [lambda *xs, p=p: run(p, [*xs, *closed]) for p in branches]
    return list(lax.switch(operands[0], functions, *args))


def _vmap(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    body, axes, out_axes = params["body"], params["in_axes"], params["out_axes"]
    args, closed = operands[: len(axes)], operands[len(axes) :]
    if not plain:

        def function(*xs: Any) -> list[Any]:
            return run(body, [*xs, *closed])

        mapped = gf.vmap(function, in_axes=tuple(axes), out_axes=list(out_axes))
        return mapped(*args)
    rows = []
    for k in range(params["size"]):
        lane = [
            x if axis is None else lax.index_in_dim(x, k, axis, False)
            for x, axis in zip(args, axes, strict=True)
        ]
        rows.append(run(body, [*lane, *closed]))
    return _columns(rows, out_axes, params["types"])


def _custom_vjp(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the rule that it has anyway."""
    ruled = gf.custom_vjp(function)

    def backward(operands: Any, cotangents: Any) -> Any:
        return gf.vjp(function, *operands)[1](cotangents)

    ruled.defvjp(lambda *xs: (function(*xs), xs), backward)
    return ruled


def _custom_jvp(function: Callable[..., Any]) -> Callable[..., Any]:
    ruled = gf.custom_jvp(function)
    ruled.defjvp(lambda primals, tangents: gf.jvp(function, primals, tangents))
    return ruled


WRAPPERS: dict[str, Callable[..., Any]] = {
    "jit": gf.jit,
    "jit of jit": lambda f: gf.jit(gf.jit(f)),
    "checkpoint": gf.checkpoint,
    "jit of checkpoint": lambda f: gf.jit(gf.checkpoint(f)),
    "checkpoint of checkpoint": lambda f: gf.checkpoint(gf.checkpoint(f)),
    "custom_vjp": _custom_vjp,
    "custom_jvp": _custom_jvp,
    "checkpoint of custom_vjp": lambda f: gf.checkpoint(_custom_vjp(f)),
    "jit of custom_jvp": lambda f: gf.jit(_custom_jvp(f)),
}


def _call(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> list[Any]:
    body, count = params["body"], params["given"]
    if plain:
        return run(body, operands)
    args, closed = operands[:count], operands[count:]
    return list(WRAPPERS[params["wrapper"]](lambda *xs: run(body, [*xs, *closed]))(*args))


def _grad(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> Any:
    """The gradient of a bounded scalar by the first operand."""
    del plain

    def loss(x: Any) -> Any:
        out = run(params["body"], [x, *operands[1:]])[0]
        return lax.reduce_sum(lax.sin(out), tuple(range(out.ndim)))

    return gf.grad(loss)(operands[0])


def _jvp(params: Any, operands: Sequence[Any], run: Run, plain: bool) -> Any:
    """The derivative along the first operand itself."""
    del plain

    def function(x: Any) -> Any:
        return run(params["body"], [x, *operands[1:]])[0]

    return gf.jvp(function, (operands[0],), (operands[0],))[1]


CONTROL: dict[str, Callable[..., Any]] = {
    "scan": _scan,
    "map": _map,
    "while": _while,
    "fori": _fori,
    "cond": _cond,
    "switch": _switch,
    "vmap": _vmap,
    "call": _call,
    "grad": _grad,
    "jvp": _jvp,
}
