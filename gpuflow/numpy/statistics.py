"""Means, variances and standard deviations over axes.

Tests: tests/numpy/test_numpy_functions.py, tests/numpy/test_narrow_sums.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import HasAval, aval_of
from gpuflow.core.types import Array, ArrayLike, Axes, DTypeLike
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.logic import where as jnp_where
from gpuflow.numpy.promotion import (
    check_arraylike,
    convert,
    inexact_dtype,
    no_out,
    promote_dtypes_inexact,
    user_dtype,
)
from gpuflow.numpy.reductions import finish, prepare, sqrt_of_sum, sum
from gpuflow.numpy.shaping import broadcast_to
from gpuflow.numpy.ufuncs import subtract

# --- means ---------------------------------------------------------------------------------


def working_dtype(dtype: Any) -> Any:
    """Accumulation dtype: float32 for 16-bit floats."""
    small = dtypes.is_floating(dtype) and dtype.itemsize <= 2
    return np.dtype(np.float32) if small else dtype


def _count(shape: Sequence[int], axes: Sequence[int], where: Any, keepdims: bool) -> Any:
    if where is None:
        return float(math.prod(shape[d] for d in axes))
    return sum(broadcast_to(as_bool(where), shape), tuple(axes), keepdims=keepdims)


@composite
def mean(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return the mean over axes; integers give floats, 16-bit floats are summed in float32.

    Args:
        a: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the result, and of the sum if it is wider than 16 bits.
        keepdims: whether reduced axes stay, with size 1.
        where: mask that broadcasts with ``a``; other elements are ignored.

    Returns:
        An array without ``axis``; nan for no elements.

    Raises:
        ValueError: if the axis does not exist, or the mask is not boolean.

    Example:
        >>> jnp.mean(jnp.array([[1, 2], [3, 6]]), axis=1)
        Array([1.5, 4.5], dtype=float32)
    """
    (a,) = check_arraylike("mean", a)
    a, axes = prepare("mean", a, axis, out, where, 0)
    shape = aval_of(a).shape
    out_dtype = user_dtype(dtype, "mean") if dtype is not None else _float_type(a)
    work = working_dtype(out_dtype)
    total = finish(lax.reduce_sum(convert(a, work), axes), shape, axes, keepdims)
    count = _count(shape, axes, where, keepdims)
    return convert(lax.div(total, convert(count, work)), out_dtype)


mean_of = mean


def _float_type(a: Any) -> Any:
    return aval_of(promote_dtypes_inexact(a)[0]).dtype


def variance_dtypes(name: str, input_dtype: Any, dtype: Any) -> tuple[Any, Any]:
    """The dtypes in which a variance is computed and returned.

    Raises:
        ValueError: if a real dtype is given for complex numbers.
    """
    work = inexact_dtype(input_dtype)
    if dtype is None:
        return working_dtype(work), _real_type(work)
    out_dtype = user_dtype(dtype, name)
    check(
        dtypes.is_complex(out_dtype) or not dtypes.is_complex(input_dtype),
        lambda: (
            f"[{name}] dtype must be complex for complex numbers; got {out_dtype}. "
            "Fix: leave it out, or use x.real and x.imag."
        ),
        ValueError,
    )
    return working_dtype(out_dtype), out_dtype


@composite
def var(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Return the variance over axes, the mean squared distance from the mean.

    Args:
        a: array; for complex arrays the result is real.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the result.
        ddof: delta degrees of freedom; the divisor is the number of elements minus ``ddof``. Also
            called ``correction``.
        keepdims: whether reduced axes stay, with size 1.
        where: mask that broadcasts with ``a``; other elements are ignored.
        mean: precomputed means, as with ``keepdims``.
        correction: another name of ``ddof``; it may be a float.

    Returns:
        The variance; nan if the number of elements does not exceed ``ddof``.

    Raises:
        ValueError: if both ``ddof`` and ``correction`` are given, or ``dtype`` is real for a
            complex array.

    Example:
        >>> x = jnp.array([1.0, 3.0, 5.0, 7.0])
        >>> jnp.var(x), jnp.var(x, correction=2)
        (Array(5., dtype=float32), Array(10., dtype=float32))
    """
    no_out("var", out)
    (a,) = check_arraylike("var", a)
    less = _correction("var", ddof, correction)
    work, out_dtype = variance_dtypes("var", aval_of(a).dtype, dtype)
    a = convert(a, work)
    axes = canonicalize_axes(axis, aval_of(a).ndim, "var")
    center = mean_of(a, axes, keepdims=True, where=where) if mean is None else convert(mean, work)
    squared = squared_modulus(subtract(a, center))
    total = sum(squared, axes, keepdims=keepdims, where=where)
    work = aval_of(total).dtype
    if where is not None or isinstance(less, HasAval):
        count = convert(_count(aval_of(a).shape, axes, where, keepdims), work)
        count = lax.sub(count, convert(less, work))
        out_ = lax.div(total, count)
        return convert(jnp_where(count > 0, out_, np.nan), out_dtype)
    count = _count(aval_of(a).shape, axes, None, keepdims) - less
    return convert(lax.div(total, convert(count if count > 0 else np.nan, work)), out_dtype)


def _correction(name: str, ddof: Any, correction: Any) -> Any:
    check(
        correction is None or (isinstance(ddof, int) and ddof == 0),
        lambda: (
            f"[{name}] ddof and correction are the same: one must be left out; got {ddof} and "
            f"{correction}. Fix: correction={correction}."
        ),
        ValueError,
    )
    return ddof if correction is None else correction


@composite
def std(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Array:
    """Return the standard deviation over axes, the square root of the variance.

    Args:
        a: array; for complex arrays the result is real.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the result, a float or complex one.
        ddof: delta degrees of freedom; the divisor is the number of elements minus ``ddof``. Also
            called ``correction``.
        keepdims: whether reduced axes stay, with size 1.
        where: mask that broadcasts with ``a``; other elements are ignored.
        mean: precomputed means, as with ``keepdims``.
        correction: another name of ``ddof``; it may be a float.

    Returns:
        The standard deviation; nan if the number of elements does not exceed ``ddof``.

    Raises:
        ValueError: if both ``ddof`` and ``correction`` are given, or ``dtype`` is an integer dtype,
            or real for a complex array.

    Example:
        >>> jnp.std(jnp.array([[1.0, 3.0], [2.0, 8.0]]), axis=1)
        Array([1., 3.], dtype=float32)
    """
    no_out("std", out)
    (a,) = check_arraylike("std", a)
    less = _correction("std", ddof, correction)
    target = variance_dtypes("std", aval_of(a).dtype, dtype)[1]
    check(
        dtypes.is_inexact(target),
        lambda: f"[std] dtype must be a float or complex dtype; got {target}. Fix: leave it out.",
        ValueError,
    )
    work = None if dtypes.is_complex(aval_of(a).dtype) else working_dtype(target)
    squared = var(a, axis, work, None, less, keepdims, where=where, mean=mean)
    return convert(sqrt_of_sum(squared), target)


def _real_type(dtype: Any) -> Any:
    return np.zeros(0, dtype).real.dtype if dtypes.is_complex(dtype) else dtype


def squared_modulus(x: Any) -> Any:
    if dtypes.is_complex(aval_of(x).dtype):
        return lax.add(lax.square(lax.real(x)), lax.square(lax.imag(x)))
    return lax.square(x)
