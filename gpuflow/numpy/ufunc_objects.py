"""The elementwise functions that are ufuncs: ``jnp.add`` and so on.

Modules of this package use the undecorated functions.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Axes, BinaryUfunc, UnaryUfunc
from gpuflow.numpy import elementary, logic, reductions, sorting, statistics, ufuncs
from gpuflow.numpy.promotion import convert, promote_dtypes_inexact, user_dtype
from gpuflow.numpy.shaping import squeeze
from gpuflow.numpy.ufunc_class import public, ufunc

Function = Callable[..., Any]


def _make(
    plain: Function,
    identity: Any = None,
    nin: int = 2,
    *,
    reduce: Function | None = None,
    accumulate: Function | None = None,
    at: Function | None = None,
) -> Any:
    """A ufunc that calls a plain function of arrays."""
    ufunc_object = ufunc(
        plain,
        nin,
        1,
        name=plain.__name__,
        call=plain,
        identity=identity,
        reduce=reduce,
        accumulate=accumulate,
        at=at,
    )
    return public(ufunc_object)


def _bits(op: Function, combine: Function) -> Function:
    """A reduction of integers or bools bit by bit."""

    def reduce(a: Any, *, axis: Axes, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        neutral = -1 if op is lax.reduce_and else 0
        a = a if dtype is None else convert(a, user_dtype(dtype, "reduce"))
        if dtypes.is_bool(aval_of(a).dtype):
            neutral = op is lax.reduce_and
        elif aval_of(a).dtype.kind == "u" and neutral:
            neutral = np.iinfo(aval_of(a).dtype).max
        a, axes = reductions.prepare("reduce", a, axis, None, where, neutral)
        out = op(a, axes)
        if initial is not None:
            out = combine(out, convert(initial, aval_of(out).dtype))
        return reductions.finish(out, aval_of(a).shape, axes, keepdims)

    return reduce


def _truths(op: Function, combine: Function) -> Function:
    """A reduction of elements as bools."""
    bits = _bits(op, combine)

    def reduce(a: Any, *, dtype: Any, initial: Any, **options: Any) -> Any:
        initial = None if initial is None else logic.as_bool(initial)
        out = bits(logic.as_bool(a), dtype=None, initial=initial, **options)
        return out if dtype is None else convert(out, user_dtype(dtype, "reduce"))

    return reduce


def _extremes(plain: Function) -> Function:
    def reduce(a: Any, *, dtype: Any, **options: Any) -> Any:
        out = plain(a, **options)
        return out if dtype is None else convert(out, user_dtype(dtype, "reduce"))

    return reduce


def _log_sums(exp: Function, log: Function, combine: Function) -> Function:
    """The logarithm of the sum of exponentials, without overflow."""

    def reduce(a: Any, *, axis: Axes, dtype: Any, keepdims: bool, initial: Any, where: Any) -> Any:
        (a,) = promote_dtypes_inexact(a if dtype is None else convert(a, user_dtype(dtype, "")))
        a, axes = reductions.prepare("reduce", a, axis, None, where, -np.inf)
        narrow = aval_of(a).dtype
        a = convert(a, statistics.working_dtype(narrow))
        top = reductions.max(a, axes, keepdims=True, initial=-np.inf)
        zero = convert(0, aval_of(a).dtype)
        shift = lax.stop_gradient(logic.where(logic.isfinite(top), top, zero))
        out = log(reductions.sum(exp(ufuncs.subtract(a, shift)), axes, keepdims=True)) + shift
        out = convert(out if keepdims else squeeze(out, axes), narrow)
        return out if initial is None else combine(out, initial)

    return reduce


def _add_at(x: Any, index: Any, b: Any) -> Any:
    if not dtypes.is_bool(aval_of(x).dtype):
        return x.at[index].add(b)
    return logic.as_bool(x.astype(np.int32).at[index].add(logic.as_bool(b).astype(np.int32)))


def _multiply_at(x: Any, index: Any, b: Any) -> Any:
    if not dtypes.is_bool(aval_of(x).dtype):
        return x.at[index].multiply(b)
    return logic.as_bool(x.astype(np.int32).at[index].multiply(logic.as_bool(b).astype(np.int32)))


def _subtract_at(x: Any, index: Any, b: Any) -> Any:
    return x.at[index].subtract(b)


add: BinaryUfunc = _make(
    ufuncs.add, 0, reduce=reductions.sum, accumulate=sorting.cumsum, at=_add_at
)
multiply: BinaryUfunc = _make(
    ufuncs.multiply, 1, reduce=reductions.prod, accumulate=sorting.cumprod, at=_multiply_at
)
subtract: BinaryUfunc = _make(ufuncs.subtract, at=_subtract_at)
negative: UnaryUfunc = _make(ufuncs.negative, nin=1)
maximum: BinaryUfunc = _make(ufuncs.maximum, reduce=_extremes(reductions.max))
minimum: BinaryUfunc = _make(ufuncs.minimum, reduce=_extremes(reductions.min))
bitwise_and: BinaryUfunc = _make(
    logic.bitwise_and, -1, reduce=_bits(lax.reduce_and, lax.bitwise_and)
)
bitwise_or: BinaryUfunc = _make(logic.bitwise_or, 0, reduce=_bits(lax.reduce_or, lax.bitwise_or))
bitwise_xor: BinaryUfunc = _make(
    logic.bitwise_xor, 0, reduce=_bits(lax.reduce_xor, lax.bitwise_xor)
)
logical_and: BinaryUfunc = _make(
    logic.logical_and, True, reduce=_truths(lax.reduce_and, lax.bitwise_and)
)
logical_or: BinaryUfunc = _make(
    logic.logical_or, False, reduce=_truths(lax.reduce_or, lax.bitwise_or)
)
logical_xor: BinaryUfunc = _make(
    logic.logical_xor, False, reduce=_truths(lax.reduce_xor, lax.bitwise_xor)
)
logaddexp: BinaryUfunc = _make(
    elementary.logaddexp,
    -np.inf,
    reduce=_log_sums(elementary.exp, elementary.log, elementary.logaddexp),
)
logaddexp2: BinaryUfunc = _make(
    elementary.logaddexp2,
    -np.inf,
    reduce=_log_sums(elementary.exp2, elementary.log2, elementary.logaddexp2),
)
