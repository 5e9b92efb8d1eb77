"""Calls of Python on the host: only for an effect, or for results.

``debug_callback`` returns nothing. ``pure_callback`` may be dropped, repeated or moved;
``io_callback`` happens once each time the program runs it. Their callbacks take arrays and return a
list.

Tests: tests/ops/test_callbacks.py, tests/test_callbacks_with_results.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.effects import DEBUG, IO, ORDERED_DEBUG, ORDERED_IO, Effect
from gpuflow.core.lowering import HostCall
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import define
from gpuflow.ops.layout.axes import insert_axis, squeeze
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.slicing import slice_
from gpuflow.ops.layout.transpose import move_axis


def _callback_shape(*avals: ShapedArray, callback: Any, effect: Effect) -> list[ShapedArray]:
    del avals, callback, effect
    return []


def _on_host(xp: Any, array: Any) -> np.ndarray:
    """A read-only copy: a callback may retain its arguments, and programs reuse memory."""
    host = np.array(array) if xp is np else xp.asnumpy(array)
    host.flags.writeable = False
    return host


def _callback_impl(xp: Any, *arrays: Any, callback: Callable[..., Any], effect: Effect) -> list:
    del effect
    callback(*[_on_host(xp, array) for array in arrays])
    return []


def _callback_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    del tangents
    return debug_callback_p.bind(*primals, **params), []


def _callback_transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[None]:
    del cotangents, params
    return [None] * len(operands)


def _callback_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[Any]]:
    """One call for each element of the mapped axis, in order."""
    for index in range(axis.size):
        element = [_element(x, dim, index) for x, dim in zip(operands, dims)]
        debug_callback_p.bind(*element, **params)
    return [], []


def _element(x: Any, dim: int | None, index: int) -> Any:
    if dim is None:
        return x
    shape = aval_of(x).shape
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = index, index + 1
    return squeeze(slice_(x, starts, limits), (dim,))


def debug_callback(callback: Callable[..., Any], *operands: Any, ordered: bool = False) -> None:
    """Call ``callback(*arrays)`` on the host when the program runs; it returns nothing.

    Under vmap it is called once for each element, in order; derivatives ignore it.

    Args:
        callback: a Python function; it gets read-only NumPy arrays.
        operands: arrays of any dtype.
        ordered: whether calls happen in program order.
    """
    effect = ORDERED_DEBUG if ordered else DEBUG
    debug_callback_p.bind(*operands, callback=callback, effect=effect)


debug_callback_p = define(
    "debug_callback",
    multiple_results=True,
    shape=_callback_shape,
    impl=_callback_impl,
    jvp=_callback_jvp,
    transpose=_callback_transpose,
    batch=_callback_batch,
    effects=lambda params: frozenset({params["effect"]}),
    lower=HostCall(),
)


# --- callbacks with results ----------------------------------------------------------------

Callback = Callable[..., Sequence[Any]]
Avals = tuple[ShapedArray, ...]

VMAP_METHODS = (
    None,
    "sequential",
    "sequential_unrolled",
    "expand_dims",
    "broadcast_all",
    "legacy_vectorized",
)


def _result_shape(*avals: ShapedArray, result_avals: Avals, **params: Any) -> list[ShapedArray]:
    del avals, params
    return list(result_avals)


def _result_impl(
    name: str, xp: Any, *arrays: Any, callback: Callback, result_avals: Avals, **params: Any
) -> list[Any]:
    del params
    results = list(callback(*[_on_host(xp, array) for array in arrays]))
    check(
        len(results) == len(result_avals),
        lambda: (
            f"[{name}] the callback must return as many arrays as result_shape_dtypes declares; "
            f"got {len(results)} arrays for {len(result_avals)}. Fix: return the same tree."
        ),
        ValueError,
    )
    pairs = zip(results, result_avals, strict=True)
    return [xp.asarray(_checked(name, result, aval)) for result, aval in pairs]


def _checked(name: str, result: Any, aval: ShapedArray) -> np.ndarray:
    """A result as an array of the declared type; 64-bit numbers may be declared with 32 bits."""
    is_scalar = type(result) in (bool, int, float, complex)
    array = np.asarray(result)
    valid = is_scalar or dtypes.canonicalize(array.dtype) == aval.dtype or array.dtype == aval.dtype
    check(
        array.shape == aval.shape and valid,
        lambda: (
            f"[{name}] the callback must return the types that result_shape_dtypes declares; got "
            f"{dtypes.short_name(array.dtype)}{list(array.shape)} for {aval}. Fix: convert the "
            "result, or declare its type."
        ),
        ValueError,
    )
    return array.astype(aval.dtype, copy=False)


def _refuse_derivative(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **params: Any) -> Any:
        del args, params
        raise ValueError(
            f"[{what}] callbacks have no derivative; got one under differentiation. "
            "Fix: wrap the call in custom_jvp or custom_vjp, or in lax.stop_gradient."
        )

    return refuse


def _one_by_one(callback: Callback, dims: Sequence[int | None], size: int, count: int) -> Callback:
    """A callback of mapped arrays that calls ``callback`` for each element, in order."""

    def mapped(*arrays: Any) -> list[Any]:
        rows = []
        for k in range(size):
            pairs = zip(arrays, dims, strict=True)
            rows.append(callback(*[x if d is None else np.take(x, k, d) for x, d in pairs]))
        if not rows:
            return [None] * count
        return [np.stack([np.asarray(x) for x in column]) for column in zip(*rows, strict=True)]

    return mapped


def _mapped_avals(result_avals: Avals, size: int) -> Avals:
    return tuple(aval.update(shape=(size, *aval.shape)) for aval in result_avals)


def _sequential(
    primitive: Any,
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    params: dict[str, Any],
) -> tuple[list[Any], list[int]]:
    avals = params["result_avals"]
    if axis.size == 0:
        outs = [np.zeros((0, *aval.shape), aval.dtype) for aval in avals]
        return outs, [0] * len(outs)
    callback = _one_by_one(params["callback"], dims, axis.size, len(avals))
    changed = {"callback": callback, "result_avals": _mapped_avals(avals, axis.size)}
    outs = primitive.bind(*operands, **{**params, **changed})
    return outs, [0] * len(outs)


def _pure_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int]]:
    method = params["vmap_method"]
    if method is None and axis.has_devices:
        method = "sequential"  # each device calls it
    if method is None:
        raise NotImplementedError(
            "[pure_callback] vmap needs to know how the callback takes mapped arrays; got "
            "vmap_method=None. Fix: vmap_method='sequential', or 'expand_dims' for a callback that "
            "broadcasts as NumPy functions do."
        )
    if method.startswith("sequential"):
        return _sequential(pure_callback_p, axis, operands, dims, params)
    batched = []
    for x, dim in zip(operands, dims, strict=True):
        if dim is not None:
            batched.append(move_axis(x, dim, 0))
        elif method == "expand_dims":
            batched.append(insert_axis(x, 0))
        elif method == "broadcast_all":
            batched.append(batch_to_dim(x, None, 0, axis.size))
        else:
            batched.append(x)
    avals = _mapped_avals(params["result_avals"], axis.size)
    outs = pure_callback_p.bind(*batched, **{**params, "result_avals": avals})
    return outs, [0] * len(outs)


def _io_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int]]:
    if params["effect"].ordered:
        raise ValueError(
            "[io_callback] ordered callbacks must not be mapped, because vmap has no order; got "
            "ordered=True under vmap. Fix: ordered=False, or lax.map instead of vmap."
        )
    return _sequential(io_callback_p, axis, operands, dims, params)


pure_callback_p = define(
    "pure_callback",
    multiple_results=True,
    shape=_result_shape,
    impl=partial(_result_impl, "pure_callback"),
    jvp=_refuse_derivative("pure_callback"),
    transpose=_refuse_derivative("pure_callback"),
    batch=_pure_batch,
    lower=HostCall(),
)
io_callback_p = define(
    "io_callback",
    multiple_results=True,
    shape=_result_shape,
    impl=partial(_result_impl, "io_callback"),
    jvp=_refuse_derivative("io_callback"),
    transpose=_refuse_derivative("io_callback"),
    batch=_io_batch,
    effects=lambda params: frozenset({params["effect"]}),
    lower=HostCall(),
)


def pure_callback(
    callback: Callback, result_avals: Sequence[ShapedArray], *operands: Any, vmap_method: Any
) -> list[Any]:
    """Results of ``callback(*arrays)``, a function without effects, computed on the host."""
    return pure_callback_p.bind(
        *operands, callback=callback, result_avals=tuple(result_avals), vmap_method=vmap_method
    )


def io_callback(
    callback: Callback, result_avals: Sequence[ShapedArray], *operands: Any, ordered: bool
) -> list[Any]:
    """Results of ``callback(*arrays)``, called once each time the program gets here."""
    effect = ORDERED_IO if ordered else IO
    return io_callback_p.bind(
        *operands, callback=callback, result_avals=tuple(result_avals), effect=effect
    )
