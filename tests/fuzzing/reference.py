"""Programs run by NumPy and Python alone: what they mean, whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fuzzing.control import trips
from fuzzing.meaning import OPS, REDUCTIONS, narrowed, widened
from fuzzing.meaning_indexing import INDEXING
from fuzzing.programs import Program, Step, dtype_of

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def evaluate(program: Program, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of a program, each step computed wide and rounded once."""
    values = [np.asarray(x) for x in inputs]
    with np.errstate(all="ignore"):
        for step in program.steps:
            values += _results(step, [values[k] for k in step.args])
    return [values[k] for k in program.outputs]


def _results(step: Step, operands: list[np.ndarray]) -> list[np.ndarray]:
    if step.op in CONTROL:
        return CONTROL[step.op](step.params, operands)
    dtypes = _dtypes(step, operands)
    wide = [widened(x) for x in operands]
    if step.op in REDUCTIONS:
        outs = REDUCTIONS[step.op](*wide, **step.params, dtype=dtypes[0])
    elif step.op in INDEXING:
        outs = INDEXING[step.op](*wide, **step.params, dtype=dtypes[0])
    elif step.op in ("add_number", "mul_number"):
        number = widened(np.asarray(step.params["value"]).astype(dtypes[0]))
        outs = wide[0] + number if step.op == "add_number" else wide[0] * number
    else:
        outs = OPS[step.op](*wide, **step.params)
    outs = outs if isinstance(step.exact, tuple) else [outs]
    return [narrowed(out, dtype) for out, dtype in zip(outs, dtypes, strict=True)]


def _dtypes(step: Step, operands: list[np.ndarray]) -> list[np.dtype]:
    if step.op in ("convert", "iota", "full"):
        return [dtype_of(step.params["dtype"])]
    if step.op in ("argmax", "argmin", "argsort"):
        return [np.dtype("int32")]
    if step.op in COMPARISONS:
        return [np.dtype("bool")]
    if step.op in ("real", "imag", "abs") and operands[0].dtype.kind == "c":
        return [np.dtype("float32")]
    if step.op == "select":
        return [operands[1].dtype]
    if step.op == "top_k":
        return [operands[0].dtype, np.dtype("int32")]
    return [x.dtype for x in operands] if step.op == "sort" else [operands[0].dtype]


# --- programs in steps ---------------------------------------------------------------------


def _stacked(rows: list[Any], axis: int, type_: Any) -> np.ndarray:
    if rows:
        return np.stack(rows, axis)
    shape, dtype = type_
    return np.zeros((*shape[:axis], 0, *shape[axis:]), dtype_of(dtype))


def _scan(params: Any, operands: list[Any]) -> list[Any]:
    count, end = params["carries"], params["carries"] + params["xs"]
    carry, xs, closed = operands[:count], operands[count:end], operands[end:]
    rows: list[Any] = [None] * params["length"]
    order = range(params["length"])
    for k in reversed(order) if params["reverse"] else order:
        outs = evaluate(params["body"], [*carry, *[x[k] for x in xs], *closed])
        carry, rows[k] = outs[:count], outs[count:]
    stacked = [
        _stacked([row[k] for row in rows], 0, type_) for k, type_ in enumerate(params["types"])
    ]
    return [*carry, *stacked]


def _map(params: Any, operands: list[Any]) -> list[Any]:
    return _scan({**params, "carries": 0, "reverse": False}, operands)


def _while(params: Any, operands: list[Any]) -> list[Any]:
    limit, count = params["limit"], params["carries"]
    if limit is None:
        limit, operands = trips(int(operands[0])), operands[1:]
    carry, closed = operands[:count], operands[count:]
    for number in range(limit):
        state = [np.int32(number), *carry, *closed]
        if params["condition"] is not None and not evaluate(params["condition"], state)[0]:
            break
        carry = evaluate(params["body"], state)
    return carry


def _fori(params: Any, operands: list[Any]) -> list[Any]:
    bounds, count = params["bounds"], params["carries"]
    if bounds is None:
        bounds, operands = (0, trips(int(operands[0]))), operands[1:]
    carry, closed = operands[:count], operands[count:]
    for number in range(*bounds):
        carry = evaluate(params["body"], [np.int32(number), *carry, *closed])
    return carry


def _branch(params: Any, operands: list[Any]) -> list[Any]:
    branches = params["branches"]
    chosen = min(max(int(operands[0]), 0), len(branches) - 1)
    return evaluate(branches[chosen], operands[1:])


def _vmap(params: Any, operands: list[Any]) -> list[Any]:
    axes = [*params["in_axes"], *[None] * (len(operands) - len(params["in_axes"]))]
    rows = []
    for k in range(params["size"]):
        lane = [
            x if axis is None else np.take(x, k, axis)
            for x, axis in zip(operands, axes, strict=True)
        ]
        rows.append(evaluate(params["body"], lane))
    return [
        _stacked([row[k] for row in rows], axis, type_)
        for k, (axis, type_) in enumerate(zip(params["out_axes"], params["types"], strict=True))
    ]


def _call(params: Any, operands: list[Any]) -> list[Any]:
    return evaluate(params["body"], operands)


CONTROL: dict[str, Callable[..., list[Any]]] = {
    "scan": _scan,
    "map": _map,
    "while": _while,
    "fori": _fori,
    "cond": _branch,
    "switch": _branch,
    "vmap": _vmap,
    "call": _call,
}
