"""Reads and writes at indices that lie outside, in every mode, as functions of an array.

Read by make_out_of_range.py, which runs them under JAX, and by tests/numpy/test_out_of_range.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

X = np.arange(1.0, 5.0, dtype=np.float32)
XX = np.arange(1.0, 13.0, dtype=np.float32).reshape(4, 3)
INDEX = np.array([0, 5, -1, -6, 2, 2, 3], np.int32)
ONCE = INDEX[:5]  # inside, it names no element twice
SCALARS = (5, -6, -1, 3)
MODES = ("fill", "drop", "clip", "promise_in_bounds", "wrap")

Case = tuple[Callable[..., Any], np.ndarray, tuple[np.ndarray, ...]]


def cases(jnp: Any, lax: Any) -> dict[str, Case]:
    """By name: a function of an array and of indices, the array, and the indices."""
    by_name: dict[str, Case] = {}
    for k in SCALARS:
        index = (np.int32(k),)
        by_name[f"x[{k}]"] = (lambda x, k=k: x[k], X, ())
        by_name[f"xx[{k}]"] = (lambda x, k=k: x[k], XX, ())
        by_name[f"x[i={k}]"] = (lambda x, i: x[i], X, index)
        by_name[f"xx[i={k}, 1]"] = (lambda x, i: x[i, 1], XX, index)
        by_name[f"xx[i={k}, :2]"] = (lambda x, i: x[i, :2], XX, index)
        by_name[f"xx[i={k}, i]"] = (lambda x, i: x[i, i], XX, index)
        by_name[f"xx[i={k}, ::-1]"] = (lambda x, i: x[i, ::-1], XX, index)
        by_name[f"xx[i={k}, None]"] = (lambda x, i: x[i, None], XX, index)
        by_name[f"xx[i={k}, ::2]"] = (lambda x, i: x[i, ::2], XX, index)
        by_name[f"xx[9, i={k}]"] = (lambda x, i: x[9, i], XX, index)
        by_name[f"xx[i={k}, a]"] = (lambda x, i: x[i, np.array([0, 2])], XX, index)
        by_name[f"at[i={k}].get"] = (lambda x, i: x.at[i].get(), XX, index)
        by_name[f"dynamic_slice {k}"] = (lambda x, i: lax.dynamic_slice(x, (i,), (2,)), X, index)
        by_name[f"dynamic_index {k}"] = (lambda x, i: lax.dynamic_index_in_dim(x, i), X, index)
        by_name[f"dynamic_update {k}"] = (
            lambda x, i: lax.dynamic_update_slice(x, x[:2] * 10, (i,)),
            X,
            index,
        )
    by_name["x[a]"] = (lambda x, i: x[i], X, (INDEX,))
    by_name["xx[a]"] = (lambda x, i: x[i], XX, (INDEX,))
    by_name["xx[a, a]"] = (lambda x, i: x[i, i], XX, (INDEX,))
    by_name["xx[a, a[:, None]]"] = (lambda x, i: x[i, i[:, None]], XX, (INDEX,))
    by_name["xx[:, a]"] = (lambda x, i: x[:, i], XX, (INDEX,))
    by_name["xx[a, None]"] = (lambda x, i: x[i, None], XX, (INDEX,))
    by_name["xx[1, a]"] = (lambda x, i: x[1, i], XX, (INDEX,))
    by_name["xx[9, a]"] = (lambda x, i: x[9, i], XX, (INDEX,))
    by_name["xx[a, -9]"] = (lambda x, i: x[i, -9], XX, (INDEX,))
    by_name["xx[a, ::-1]"] = (lambda x, i: x[i, ::-1], XX, (INDEX,))
    by_name["xx[None, a, 1:]"] = (lambda x, i: x[None, i, 1:], XX, (INDEX,))
    by_name["xx[a of uint8]"] = (lambda x, i: x[i], XX, (np.array([0, 200, 3], np.uint8),))
    by_name["take"] = (jnp.take, X, (INDEX,))
    by_name["take 9"] = (lambda x: jnp.take(x, 9), X, ())
    by_name["take -9"] = (lambda x: jnp.take(x, -9), X, ())
    by_name["take fill_value"] = (lambda x, i: jnp.take(x, i, fill_value=7.0), X, (INDEX,))
    by_name["take_along_axis"] = (lambda x, i: jnp.take_along_axis(x, i, 0), X, (INDEX,))
    by_name["index_take"] = (lambda x, i: lax.index_take(x, (i,), (0,)), X, (INDEX,))
    for mode in MODES:
        by_name.update(_with_mode(jnp, lax, mode))
    return by_name


def _with_mode(jnp: Any, lax: Any, mode: str) -> dict[str, Case]:
    rows = lax.GatherDimensionNumbers((1,), (0,), (0,))
    windows = lax.GatherDimensionNumbers((1, 2), (), (0,))
    several = np.stack([INDEX[:4]] * 4)
    made: dict[str, Case] = {
        "at.get x": (lambda x, i: x.at[i].get(mode=mode), X, (INDEX,)),
        "at.get xx": (lambda x, i: x.at[i].get(mode=mode), XX, (INDEX,)),
        "at.get column": (lambda x, i: x.at[:, i].get(mode=mode), XX, (INDEX,)),
        "at.get part": (lambda x, i: x.at[i, 1:].get(mode=mode), XX, (INDEX,)),
        "at.get no wrap": (
            lambda x, i: x.at[i].get(mode=mode, wrap_negative_indices=False),
            X,
            (INDEX,),
        ),
        "take": (lambda x, i: jnp.take(x, i, mode=mode), X, (INDEX,)),
        "take rows": (lambda x, i: jnp.take(x, i, axis=0, mode=mode), XX, (INDEX,)),
        "take columns": (lambda x, i: jnp.take(x, i, axis=1, mode=mode), XX, (INDEX,)),
        "along": (lambda x, i: jnp.take_along_axis(x, i, axis=0, mode=mode), X, (INDEX,)),
        "along rows": (lambda x, i: jnp.take_along_axis(x, i, 1, mode=mode), XX, (several,)),
        "at.set": (lambda x, i: x.at[i].set(x[0] * 3, mode=mode), X, (ONCE,)),
        "at.add": (lambda x, i: x.at[i].add(x[0] * 3, mode=mode), X, (INDEX,)),
        "at.max": (lambda x, i: x.at[i].max(x[1] * 3, mode=mode), X, (INDEX[:3],)),
        "gather": (lambda x, i: lax.gather(x, i[:, None], rows, (1, 3), mode=mode), XX, (INDEX,)),
        "gather windows": (
            lambda x, i: lax.gather(x, i[:, None], windows, (2, 3), mode=mode),
            XX,
            (INDEX,),
        ),
    }
    if mode == "clip":
        # JAX's weights of equal updates do not add up to 1 there (forward 5, where both give 3).
        del made["at.max"]
    return {f"{name}, {mode}": case for name, case in made.items()}


def outcomes(case: Case, library: Any, jnp: Any) -> dict[str, Any]:
    """What a case gives, by the way it is run: values, or the name of an error."""
    function, x, indices = case

    def loss(x: Any, *i: Any) -> Any:
        out = function(x, *i)
        out = jnp.where(jnp.isnan(out), 0, out)
        return jnp.sum(out * jnp.arange(1.0, out.size + 1).reshape(out.shape))

    def tangent(x: Any, *i: Any) -> Any:
        return library.jvp(lambda x: function(x, *i), (x,), (jnp.ones_like(x),))[1]

    def batched(run: Any) -> Any:
        return lambda *given: library.vmap(run)(*[jnp.stack([v, v]) for v in given])[1]

    def shared(run: Any) -> Any:
        return lambda x, *i: library.vmap(lambda x: run(x, *i))(jnp.stack([x, x]))[1]

    gradient = library.grad(loss)
    ways = {
        "value": function,
        "value, jit": library.jit(function),
        "value, vmap": batched(function),
        "tangent": tangent,
        "gradient": gradient,
        "gradient, jit": library.jit(gradient),
        "gradient, vmap": batched(gradient),
        "gradient, vmap of x": shared(gradient),
    }
    by_way: dict[str, Any] = {}
    for way, run in ways.items():
        try:
            out = np.asarray(run(jnp.asarray(x), *[jnp.asarray(i) for i in indices]))
            by_way[way] = [list(out.shape), [str(float(v)) for v in out.reshape(-1)]]
        except (NotImplementedError, TypeError, ValueError) as error:
            by_way[way] = type(error).__name__
    return by_way
