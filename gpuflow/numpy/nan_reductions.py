"""Reductions that ignore nan.

Tests: tests/numpy/test_narrow_sums.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes, DTypeLike
from gpuflow.numpy import reductions, sorting, statistics
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.logic import isnan
from gpuflow.numpy.logic import where as choose
from gpuflow.numpy.promotion import convert, no_out, user_dtype


def _can_be_nan(a: Any) -> bool:
    return dtypes.is_inexact(aval_of(a).dtype)


def _without_nan(a: Any, value: float) -> Any:
    return choose(isnan(a), convert(value, aval_of(a).dtype), a) if _can_be_nan(a) else a


@composite
def nansum(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Sum over axes, with nan counted as 0.

    Args:
        a: array; bools and small integers are summed in the default integer dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the sum.
        keepdims: whether reduced axes stay, with size 1.
        initial: initial value of the reduction.
        where: bool mask that broadcasts with ``a``; other elements count as 0.

    Returns:
        An array without ``axis``, 0 for slices of only nan.

    Raises:
        ValueError: if the axis does not exist, ``initial`` is not a scalar, or the mask is not
            boolean.

    Example:
        >>> jnp.nansum(jnp.array([[1.0, jnp.nan], [2.0, 3.0]]), axis=1)
        Array([1., 5.], dtype=float32)
    """
    a = _without_nan(as_array("nansum", a), 0)
    return reductions.sum(a, axis, dtype, out, keepdims, initial, where)


@composite
def nanprod(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Multiply over axes, with nan counted as 1.

    Args:
        a: array; bools and small integers are multiplied in the default integer dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the product.
        keepdims: whether reduced axes stay, with size 1.
        initial: initial value of the reduction.
        where: bool mask that broadcasts with ``a``; other elements count as 1.

    Returns:
        An array without ``axis``, 1 for slices of only nan.

    Raises:
        ValueError: if the axis does not exist, ``initial`` is not a scalar, or the mask is not
            boolean.

    Example:
        >>> jnp.nanprod(jnp.array([[4.0, jnp.nan], [2.0, 3.0]]), axis=1)
        Array([4., 6.], dtype=float32)
    """
    a = _without_nan(as_array("nanprod", a), 1)
    return reductions.prod(a, axis, dtype, out, keepdims, initial, where)


@composite
def nanmax(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the maximum over axes, ignoring nan; nan for slices of only nan.

    Args:
        a: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        keepdims: whether reduced axes stay, with size 1.
        initial: lower bound of each maximum.
        where: bool mask that broadcasts with ``a``; requires ``initial``.

    Returns:
        An array of the dtype of ``a``, without ``axis``.

    Raises:
        ValueError: if ``initial`` is missing and there are no elements or a mask is given; or if
            the axis does not exist.

    Example:
        >>> jnp.nanmax(jnp.array([[1.0, jnp.nan], [2.0, 3.0]]), axis=1)
        Array([1., 3.], dtype=float32)
    """
    return _extreme("nanmax", reductions.max, -np.inf, a, axis, out, keepdims, initial, where)


@composite
def nanmin(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the minimum over axes, ignoring nan; nan for slices of only nan.

    Args:
        a: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        keepdims: whether reduced axes stay, with size 1.
        initial: upper bound of each minimum.
        where: bool mask that broadcasts with ``a``; requires ``initial``.

    Returns:
        An array of the dtype of ``a``, without ``axis``.

    Raises:
        ValueError: if ``initial`` is missing and there are no elements or a mask is given; or if
            the axis does not exist.

    Example:
        >>> jnp.nanmin(jnp.array([[1.0, jnp.nan], [2.0, 3.0]]), axis=1)
        Array([1., 2.], dtype=float32)
    """
    return _extreme("nanmin", reductions.min, np.inf, a, axis, out, keepdims, initial, where)


def _extreme(
    name: str,
    op: Callable[..., Any],
    neutral: float,
    a: Any,
    axis: Axes,
    out: Any,
    keepdims: bool,
    initial: Any,
    mask: Any,
) -> Any:
    a = as_array(name, a)
    extreme = op(_without_nan(a, neutral), axis, out, keepdims, initial, mask)
    if initial is not None or not _can_be_nan(a):
        return extreme
    nothing = reductions.all(isnan(a), axis, keepdims=keepdims)
    return choose(nothing, convert(np.nan, aval_of(a).dtype), extreme)


@composite
def nanargmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """Return the index of the first maximum, ignoring nan; -1 for slices of only nan.

    As in NumPy and JAX, nan counts as -inf. For slices of only nan and -inf, the result is 0.

    Args:
        a: array.
        axis: the axis to search; None flattens the array first.
        keepdims: whether the axis stays, with size 1; None means no.

    Returns:
        Indices in the default integer dtype.

    Raises:
        ValueError: if the axis does not exist or has no elements.

    Example:
        >>> jnp.nanargmax(jnp.array([[jnp.nan, 1.0], [jnp.nan, jnp.nan]]), axis=1)
        Array([ 1, -1], dtype=int32)
    """
    return _position("nanargmax", reductions.argmax, -np.inf, a, axis, out, keepdims)


@composite
def nanargmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """Return the index of the first minimum, ignoring nan; -1 for slices of only nan.

    As in NumPy and JAX, nan counts as inf. For slices of only nan and inf, the result is 0.

    Args:
        a: array.
        axis: the axis to search; None flattens the array first.
        keepdims: whether the axis stays, with size 1; None means no.

    Returns:
        Indices in the default integer dtype.

    Raises:
        ValueError: if the axis does not exist or has no elements.

    Example:
        >>> jnp.nanargmin(jnp.array([jnp.nan, 2.0, 1.0]))
        Array(2, dtype=int32)
    """
    return _position("nanargmin", reductions.argmin, np.inf, a, axis, out, keepdims)


def _position(
    name: str,
    op: Callable[..., Any],
    neutral: float,
    a: Any,
    axis: int | None,
    out: Any,
    keepdims: bool | None,
) -> Any:
    no_out(name, out)
    a = as_array(name, a)
    position = op(_without_nan(a, neutral), axis, None, bool(keepdims))
    if not _can_be_nan(a):
        return position
    nothing = reductions.all(isnan(a), axis, keepdims=bool(keepdims))
    return choose(nothing, convert(-1, aval_of(position).dtype), position)


# --- means and variances -------------------------------------------------------------------


@composite
def nanmean(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    where: ArrayLike | None = None,
) -> Array:
    """Return the mean over axes, ignoring nan; nan for slices of only nan.

    Args:
        a: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the sum and of the result; by default the dtype of ``a``, or the default
            float dtype for integers.
        keepdims: whether reduced axes stay, with size 1.
        where: bool mask that broadcasts with ``a``; other elements are ignored.

    Returns:
        An array without ``axis``.

    Raises:
        ValueError: if the axis does not exist, or the mask is not boolean.

    Example:
        >>> jnp.nanmean(jnp.array([[1.0, jnp.nan], [2.0, 4.0]]), axis=1)
        Array([1., 3.], dtype=float32)
    """
    no_out("nanmean", out)
    a = as_array("nanmean", a)
    if not _can_be_nan(a):
        return statistics.mean(a, axis, dtype, None, keepdims, where=where)
    out_dtype = aval_of(a).dtype if dtype is None else user_dtype(dtype, "nanmean")
    work = statistics.working_dtype(out_dtype)
    total = nansum(a, axis, work, None, keepdims, where=where)
    return convert(lax.div(total, _count(a, axis, keepdims, where, work)), out_dtype)


def _count(a: Any, axis: Axes, keepdims: bool, mask: Any, dtype: Any) -> Any:
    """Number of elements that are not nan, in ``dtype``."""
    return reductions.sum(lax.bitwise_not(isnan(a)), axis, dtype, None, keepdims, where=mask)


@composite
def nanvar(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """Return the variance over axes, ignoring nan; nan for slices with too few numbers.

    Args:
        a: array; for complex arrays the result is real.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the result.
        ddof: delta degrees of freedom; the divisor is the number of elements minus ``ddof``.
        keepdims: whether reduced axes stay, with size 1.
        where: bool mask that broadcasts with ``a``; other elements are ignored.
        mean: precomputed means, as with ``keepdims``.

    Returns:
        The variance; nan if the number of elements that are not nan does not exceed ``ddof``.

    Raises:
        ValueError: if the axis does not exist, or ``dtype`` is real for a complex array.

    Example:
        >>> jnp.nanvar(jnp.array([[1.0, jnp.nan], [2.0, 4.0]]), axis=1)
        Array([0., 1.], dtype=float32)
    """
    no_out("nanvar", out)
    a = as_array("nanvar", a)
    work, out_dtype = statistics.variance_dtypes("nanvar", aval_of(a).dtype, dtype)
    a = convert(a, work)
    center = nanmean(a, axis, work, None, True, where) if mean is None else mean
    distance = lax.sub(*_with_equal_ranks(a, convert(as_array("nanvar", center), work)))
    if _can_be_nan(a):
        # Only elements that are nan; the distance of inf to an infinite mean is nan, and counts.
        distance = _select(isnan(a), 0, distance)
    squared = statistics.squared_modulus(distance)
    total = reductions.sum(squared, axis, None, None, keepdims, where=where)
    count = _count(a, axis, keepdims, where, aval_of(total).dtype) - ddof
    few = count <= 0
    result = lax.div(total, _select(few, 1, count))
    return convert(_select(few, np.nan, result), out_dtype)


def _with_equal_ranks(a: Any, center: Any) -> tuple[Any, Any]:
    rank = aval_of(a).ndim
    missing = tuple(range(rank - aval_of(center).ndim))
    return a, lax.expand_dims(center, missing) if missing and aval_of(center).ndim else center


def _select(mask: Any, value: float, other: Any) -> Any:
    return choose(mask, convert(value, aval_of(other).dtype), other)


@composite
def nanstd(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    ddof: int = 0,
    keepdims: bool = False,
    where: ArrayLike | None = None,
    mean: ArrayLike | None = None,
) -> Array:
    """Return the standard deviation over axes, ignoring nan; nan for too few numbers.

    Args:
        a: array; for complex arrays the result is real.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the result.
        ddof: delta degrees of freedom; the divisor is the number of elements minus ``ddof``.
        keepdims: whether reduced axes stay, with size 1.
        where: bool mask that broadcasts with ``a``; other elements are ignored.
        mean: precomputed means, as with ``keepdims``.

    Returns:
        The square root of the variance; nan if the number of elements that are not nan does not
        exceed ``ddof``.

    Raises:
        ValueError: if the axis does not exist, or ``dtype`` is real for a complex array.

    Example:
        >>> jnp.nanstd(jnp.array([1.0, jnp.nan, 5.0]))
        Array(2., dtype=float32)
    """
    no_out("nanstd", out)
    a = as_array("nanstd", a)
    out_dtype = statistics.variance_dtypes("nanstd", aval_of(a).dtype, dtype)[1]
    work = statistics.working_dtype(out_dtype)
    narrow = work != out_dtype
    squared = nanvar(a, axis, work if narrow else dtype, None, ddof, keepdims, where, mean)
    out_ = reductions.sqrt_of_sum(squared)
    return convert(out_, out_dtype) if narrow else out_


# --- cumulative ----------------------------------------------------------------------------


@composite
def nancumsum(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """Return the cumulative sum, with nan counted as 0.

    Args:
        a: array; bools are summed in the default integer dtype, other dtypes in their own.
        axis: the axis of accumulation; None flattens the array first.
        dtype: dtype of the sum.

    Returns:
        An array of the shape of ``a``, or a vector if ``axis`` is None.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.nancumsum(jnp.array([1.0, jnp.nan, 2.0]))
        Array([1., 1., 3.], dtype=float32)
    """
    return sorting.cumsum(_without_nan(as_array("nancumsum", a), 0), axis, dtype, out)


@composite
def nancumprod(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """Return the cumulative product, with nan counted as 1.

    Args:
        a: array; bools are multiplied in the default integer dtype, other dtypes in their own.
        axis: the axis of accumulation; None flattens the array first.
        dtype: dtype of the product.

    Returns:
        An array of the shape of ``a``, or a vector if ``axis`` is None.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.nancumprod(jnp.array([3.0, jnp.nan, 2.0]))
        Array([3., 3., 6.], dtype=float32)
    """
    return sorting.cumprod(_without_nan(as_array("nancumprod", a), 1), axis, dtype, out)
