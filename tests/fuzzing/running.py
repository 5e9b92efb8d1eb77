"""Programs run by gpuflow, either op by op with control flow in Python, or with gpuflow's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from fuzzing.control import CONTROL
from fuzzing.programs import Program, Step, dtype_of

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def on_cpu() -> AbstractContextManager[Any]:
    """Where the results come from that others are compared with.

    On a simulated GPU each op by itself would be a kernel to build, and shared mistakes be unseen.
    """
    return gf.default_device(gf.devices("cpu")[0])


def _spread(x: Any, axes: Sequence[int], shape: Sequence[int]) -> Any:
    kept = [d for d in range(len(shape)) if d not in axes]
    return lax.broadcast_in_dim(x, shape, kept)


def _contract(x: Any, y: Any, axes: Any, batch: Any) -> Any:
    return lax.dot_general(x, y, (axes, batch))


def _vectors(indices: Sequence[Any]) -> Any:
    """Index arrays side by side, as the last dimension."""
    shape = np.shape(indices[0])
    columns = [lax.broadcast_in_dim(x, (*shape, 1), range(len(shape))) for x in indices]
    return lax.concatenate(columns, len(shape))


def _gather(x: Any, *indices: Any, numbers: Any, sizes: Any, mode: Any, fill: Any) -> Any:
    dims = lax.GatherDimensionNumbers(*map(tuple, numbers))
    fill = None if fill is None else np.asarray(fill).astype(x.dtype)[()]
    return lax.gather(x, _vectors(indices), dims, sizes, mode=mode, fill_value=fill)


def _scatter(x: Any, updates: Any, *indices: Any, kind: str, numbers: Any, mode: Any) -> Any:
    dims = lax.ScatterDimensionNumbers(*map(tuple, numbers))
    name = "scatter" if kind == "set" else f"scatter_{kind}"
    return getattr(lax, name)(x, _vectors(indices), updates, dims, mode=mode)


def make_index(entries: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """What stands between the brackets of ``x[...]``, from its description as data."""
    meaning: dict[str, Callable[..., Any]] = {
        "slice": slice,
        "int": lambda k: k,
        "array": lambda k: arrays[k],
        "none": lambda: None,
    }
    return tuple(meaning[kind](*values) for kind, *values in entries)


def _get_at(x: Any, *arrays: Any, index: Any, mode: Any, fill: Any) -> Any:
    return jnp.asarray(x).at[make_index(index, arrays)].get(mode=mode, fill_value=fill)


def _update_at(x: Any, value: Any, *arrays: Any, index: Any, kind: str, mode: Any) -> Any:
    place = jnp.asarray(x).at[make_index(index, arrays)]
    return getattr(place, kind)(value, mode=mode)


def _argsort(x: Any, axis: int) -> Any:
    return jnp.argsort(x, axis=axis).astype(np.int32)


def _associative_scan(x: Any, kind: str, axis: int, reverse: bool) -> Any:
    function = {"cumsum": lax.add, "cumprod": lax.mul, "cummax": lax.max}[kind]
    return lax.associative_scan(function, x, reverse=reverse, axis=axis)


SPECIAL: dict[str, Callable[..., Any]] = {
    "convert": lambda x, dtype: lax.convert_element_type(x, dtype_of(dtype)),
    "iota": lambda dtype, shape, dimension: lax.iota(dtype_of(dtype), shape, dimension),
    "full": lambda dtype, shape, value: lax.full(shape, np.asarray(value).astype(dtype_of(dtype))),
    "spread": _spread,
    "dot": _contract,
    "argmax": lambda x, axis: lax.argmax(x, axis, np.dtype("int32")),
    "argmin": lambda x, axis: lax.argmin(x, axis, np.dtype("int32")),
    "pad": lambda x, value, config: lax.pad(x, np.asarray(value).astype(x.dtype), config),
    "concatenate": lambda *xs, dimension: lax.concatenate(xs, dimension),
    "add_number": lambda x, value: lax.add(x, np.asarray(value).astype(x.dtype)),
    "mul_number": lambda x, value: lax.mul(x, np.asarray(value).astype(x.dtype)),
    "clamp": lambda x: lax.clamp(np.asarray(-1).astype(x.dtype), x, np.asarray(2).astype(x.dtype)),
    "gather": _gather,
    "scatter": _scatter,
    "get_at": _get_at,
    "update_at": _update_at,
    "dynamic_slice": lambda x, *starts, sizes: lax.dynamic_slice(x, starts, sizes),
    "dynamic_update_slice": lambda x, u, *starts: lax.dynamic_update_slice(x, u, starts),
    "sort": lambda *xs, axis, keys: lax.sort(xs, dimension=axis, is_stable=True, num_keys=keys),
    "argsort": _argsort,
    "associative_scan": _associative_scan,
    "top_k": lambda x, k, axis: lax.top_k(x, k, axis=axis),
}


def _apply(step: Step, operands: Sequence[Any], noise: Any, plain: bool) -> Any:
    control = CONTROL.get(step.op)
    if control is not None:
        return control(step.params, operands, partial(run, noise=noise, plain=plain), plain)
    function = SPECIAL.get(step.op) or getattr(lax, step.op)
    if noise is not None and not all(step.exact_results):
        operands = [_noisy(x, noise) for x in operands]
    return function(*operands, **step.params)


def _noisy(x: Any, noise: np.random.Generator) -> Any:
    dtype = np.dtype(x.dtype)
    if "float" not in dtype.name and dtype.kind != "c":
        return x
    real = np.dtype("float32") if dtype.kind == "c" else dtype
    step = float(ml_dtypes.finfo(real).eps)
    factors = 1 + step * noise.choice([-1.0, 1.0], np.shape(x))
    return lax.mul(x, factors.astype(dtype))


def _run_steps(
    program: Program, values: list[Any], first: int, last: int, noise: Any, plain: bool
) -> list[Any]:
    values = list(values)
    for step in program.steps[first:last]:
        results = _apply(step, [values[k] for k in step.args], noise, plain)
        values += results if isinstance(step.exact, tuple) else [results]
    return values


def run(
    program: Program, inputs: Sequence[Any], noise: Any = None, plain: bool = True
) -> list[Any]:
    """The outputs of a program.

    Args:
        program: what to run.
        inputs: its operands.
        noise: a generator; then every inexact step gets slightly wrong operands.
        plain: loops and branches run in Python, one op at a time; else they are gpuflow's.
    """
    first, last = program.nested
    values = _run_steps(program, list(inputs), 0, first, noise, plain)
    if last > first:

        def inner(*xs: Any) -> list[Any]:
            return _run_steps(program, list(xs), first, last, noise, plain)[len(xs) :]

        values += (inner if plain else gf.jit(inner))(*values)
    values = _run_steps(program, values, max(first, last), len(program.steps), noise, plain)
    return [values[k] for k in program.outputs]
