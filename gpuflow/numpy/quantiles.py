"""Medians, quantiles and percentiles.

Tests: tests/numpy/test_numpy_gradients.py, tests/numpy/test_operand_kinds.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes, check_choice
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes, ShardingLike
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.logic import clip, isnan, where
from gpuflow.numpy.promotion import convert, promote_dtypes_inexact
from gpuflow.numpy.reductions import any as any_element
from gpuflow.numpy.shaping import broadcast_to, expand_dims, moveaxis, reshape, squeeze
from gpuflow.numpy.sorting import cumsum
from gpuflow.numpy.taking import take_along_axis
from gpuflow.ops.define import check_kind
from gpuflow.ops.effects.device_put import in_sharding

METHODS = ("linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf")


@composite
def quantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return quantiles of the elements over axes; nan if an element is nan.

    Args:
        a: array of real numbers.
        q: quantiles in [0, 1]: a float, or a vector of floats, which adds a first axis to the
            result.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        overwrite_input: must be False; arrays are immutable.
        method: interpolation between two neighbors: ``"linear"``, ``"lower"``, ``"higher"``,
            ``"midpoint"``, ``"nearest"``; or ``"inverted_cdf"``.
        keepdims: whether reduced axes stay, with size 1.
        weights: weight of each element, in the shape of ``a`` or of the axes; requires
            ``method="inverted_cdf"``.

    Returns:
        An array of floats without the axes; a vector ``q`` adds a first axis.

    Raises:
        TypeError: if ``q`` is not a float array.
        ValueError: if an argument is complex, the method is unknown, ``out`` or ``overwrite_input``
            is given, or shapes do not match.
        NotImplementedError: if weights are given with another method.

    Example:
        >>> x = jnp.array([1.0, 2.0, 3.0, 5.0])
        >>> jnp.quantile(x, 0.5)
        Array(2.5, dtype=float32)
        >>> jnp.quantile(x, jnp.array([0.0, 0.5]), method="lower")
        Array([1., 2.], dtype=float32)
    """
    _no_writing("quantile", out, overwrite_input)
    _check_fractions("quantile", q)
    return _quantile("quantile", a, q, axis, method, keepdims, False, weights)


@composite
def nanquantile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return quantiles over axes, ignoring nan; nan for slices of only nan.

    Args:
        a: array of real numbers.
        q: quantiles in [0, 1]: a float, or a vector of floats, which adds a first axis to the
            result.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        overwrite_input: must be False; arrays are immutable.
        method: interpolation between two neighbors: ``"linear"``, ``"lower"``, ``"higher"``,
            ``"midpoint"``, ``"nearest"``; or ``"inverted_cdf"``.
        keepdims: whether reduced axes stay, with size 1.
        weights: weight of each element, in the shape of ``a`` or of the axes; requires
            ``method="inverted_cdf"``.

    Returns:
        An array of floats without the axes; a vector ``q`` adds a first axis.

    Raises:
        TypeError: if ``q`` is not a float array.
        ValueError: if an argument is complex, the method is unknown, ``out`` or ``overwrite_input``
            is given, or shapes do not match.
        NotImplementedError: if weights are given with another method.

    Example:
        >>> jnp.nanquantile(jnp.array([[1.0, jnp.nan, 3.0], [4.0, 5.0, 9.0]]), 0.5, axis=1)
        Array([2., 5.], dtype=float32)
    """
    _no_writing("nanquantile", out, overwrite_input)
    _check_fractions("nanquantile", q)
    return _quantile("nanquantile", a, q, axis, method, keepdims, True, weights)


@composite
def percentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return percentiles of the elements over axes; nan if an element is nan.

    Args:
        a: array of real numbers.
        q: percentiles in [0, 100]: a number, or a vector of numbers, which adds a first axis to the
            result.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        overwrite_input: must be False; arrays are immutable.
        method: interpolation between two neighbors: ``"linear"``, ``"lower"``, ``"higher"``,
            ``"midpoint"``, ``"nearest"``; or ``"inverted_cdf"``.
        keepdims: whether reduced axes stay, with size 1.
        weights: weight of each element, in the shape of ``a`` or of the axes; requires
            ``method="inverted_cdf"``.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array of floats without the axes; a vector ``q`` adds a first axis.

    Raises:
        ValueError: if an argument is complex, the method is unknown, ``out`` or ``overwrite_input``
            is given, or shapes do not match.
        NotImplementedError: if weights are given with another method.

    Example:
        >>> jnp.percentile(jnp.array([0.0, 10.0, 20.0]), jnp.array([25, 50]))
        Array([ 5., 10.], dtype=float32)
    """
    _no_writing("percentile", out, overwrite_input)
    fractions = _from_percent("percentile", q)
    out = _quantile("percentile", a, fractions, axis, method, keepdims, False, weights)
    return in_sharding("percentile", out, out_sharding)


@composite
def nanpercentile(
    a: ArrayLike,
    q: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayLike | None = None,
) -> Array:
    """Return percentiles over axes, ignoring nan; nan for slices of only nan.

    Args:
        a: array of real numbers.
        q: percentiles in [0, 100]: a number, or a vector of numbers, which adds a first axis to the
            result.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        overwrite_input: must be False; arrays are immutable.
        method: interpolation between two neighbors: ``"linear"``, ``"lower"``, ``"higher"``,
            ``"midpoint"``, ``"nearest"``; or ``"inverted_cdf"``.
        keepdims: whether reduced axes stay, with size 1.
        weights: weight of each element, in the shape of ``a`` or of the axes; requires
            ``method="inverted_cdf"``.

    Returns:
        An array of floats without the axes; a vector ``q`` adds a first axis.

    Raises:
        ValueError: if an argument is complex, the method is unknown, ``out`` or ``overwrite_input``
            is given, or shapes do not match.
        NotImplementedError: if weights are given with another method.

    Example:
        >>> jnp.nanpercentile(jnp.array([0.0, jnp.nan, 20.0]), 50)
        Array(10., dtype=float32)
    """
    _no_writing("nanpercentile", out, overwrite_input)
    fractions = _from_percent("nanpercentile", q)
    return _quantile("nanpercentile", a, fractions, axis, method, keepdims, True, weights)


@composite
def median(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Return the median over axes; nan if an element is nan.

    Args:
        a: array of real numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        overwrite_input: must be False; arrays are immutable.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array of floats without the axes; nan for no elements.

    Raises:
        ValueError: if an argument is complex, ``out`` or ``overwrite_input`` is given, or the axis
            does not exist.

    Example:
        >>> jnp.median(jnp.array([[3, 1, 2, 9], [0, 5, 5, 7]]), axis=1)
        Array([2.5, 5. ], dtype=float32)
    """
    _no_writing("median", out, overwrite_input)
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, False, None)


@composite
def nanmedian(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Array:
    """Return the median over axes, ignoring nan; nan for slices of only nan.

    Args:
        a: array of real numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        overwrite_input: must be False; arrays are immutable.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array of floats without the axes.

    Raises:
        ValueError: if an argument is complex, ``out`` or ``overwrite_input`` is given, or the axis
            does not exist.

    Example:
        >>> jnp.nanmedian(jnp.array([3.0, jnp.nan, 1.0, 2.0]))
        Array(2., dtype=float32)
    """
    _no_writing("nanmedian", out, overwrite_input)
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, True, None)


def _no_writing(name: str, out: Any, overwrite_input: bool) -> None:
    check(
        out is None and not overwrite_input,
        lambda: (
            f"[{name}] out must be None and overwrite_input False: arrays are immutable; got "
            f"{type(out).__name__} and {overwrite_input}. Fix: y = jnp.{name}(...)."
        ),
        ValueError,
    )


def _check_fractions(name: str, q: Any) -> None:
    """Raise TypeError unless q is a float: 50 instead of 0.5 is a likely mistake; as in JAX."""
    check_kind(name, aval_of(as_array(name, q)), dtypes.is_floating, "a float")


def _from_percent(name: str, q: Any) -> Any:
    (q,) = promote_dtypes_inexact(as_array(name, q))
    return q / 100


# --- one algorithm -------------------------------------------------------------------------


def _quantile(
    name: str,
    a: Any,
    q: Any,
    axis: Axes,
    method: str,
    keepdims: bool,
    skip_nan: bool,
    weights: Any,
) -> Any:
    a, q = as_arrays(name, a, q)
    check_choice(name, "method", method, METHODS)
    check(
        aval_of(q).ndim < 2,
        lambda: f"[{name}] q must be a number or a vector; got {aval_of(q)}. Fix: jnp.ravel(q).",
        ValueError,
    )
    axes = canonicalize_axes(axis, aval_of(a).ndim, name)
    if weights is None:
        (a,) = promote_dtypes_inexact(a)
    else:
        a, weights = _with_weights(name, a, as_array(name, weights), axis, axes, method)
    check(
        not dtypes.is_complex(aval_of(a).dtype),
        lambda: (
            f"[{name}] the array must be real: complex numbers have no order; got "
            f"{aval_of(a)}. Fix: x.real."
        ),
        ValueError,
    )
    shape, dtype = aval_of(a).shape, aval_of(a).dtype
    (q,) = promote_dtypes_inexact(q)
    rows = _as_rows(a, axes)
    if method == "inverted_cdf":
        weights = lax.full_like(rows, 1) if weights is None else _as_rows(weights, axes)
        out = _by_weights(rows, weights, q, skip_nan)
    else:
        out = _by_rank(rows, q, method, skip_nan)
    out = convert(out, dtype)  # of shape (*remaining sizes, *q.shape)
    out_sizes = [n for d, n in enumerate(shape) if d not in axes]
    out = moveaxis(out, -1, 0) if aval_of(q).ndim else out
    if keepdims:
        out_sizes = [1 if d in axes else n for d, n in enumerate(shape)]
    return reshape(out, (*aval_of(q).shape, *out_sizes))


def _as_rows(a: Any, axes: tuple[int, ...]) -> Any:
    """The array with the given axes merged into one, at the end."""
    shape = aval_of(a).shape
    remaining = [d for d in range(len(shape)) if d not in axes]
    a = lax.transpose(a, [*remaining, *axes])
    if len(axes) == 1:
        return a
    return lax.reshape(a, [*[shape[d] for d in remaining], prod(shape[d] for d in axes)])


def _with_weights(
    name: str, a: Any, weights: Any, axis: Axes, axes: tuple[int, ...], method: str
) -> list[Any]:
    check(
        not dtypes.is_complex(aval_of(weights).dtype),
        lambda: f"[{name}] weights must be real; got {aval_of(weights)}. Fix: weights.real.",
        ValueError,
    )
    check(
        method == "inverted_cdf",
        lambda: (
            f"[{name}] weights need method 'inverted_cdf'; got {method!r}. "
            "Fix: method='inverted_cdf'."
        ),
        NotImplementedError,
    )
    a, weights = promote_dtypes_inexact(a, weights)
    shape, weights_shape = aval_of(a).shape, aval_of(weights).shape
    if weights_shape != shape:
        check(
            axis is not None and weights_shape == tuple(shape[d] for d in axes),
            lambda: (
                f"[{name}] weights must have the shape of the array, or of its axes {axes}; "
                f"got {weights_shape} for {shape}. Fix: jnp.broadcast_to(weights, x.shape)."
            ),
            ValueError,
        )
        weights = lax.broadcast_in_dim(weights, shape, axes)
    return [a, weights]


def _by_rank(rows: Any, q: Any, method: str, skip_nan: bool) -> Any:
    """Elements at fractional ranks ``q * (n - 1)`` of the sorted rows."""
    nan = isnan(rows)
    dtype, length = aval_of(q).dtype, aval_of(rows).shape[-1]
    axis = aval_of(rows).ndim - 1
    if skip_nan:
        rows = where(nan, convert(np.nan, aval_of(rows).dtype), rows)
        count = lax.reduce_sum((~nan).astype(dtype), (axis,))
        count = lax.expand_dims(count, (axis,))
    else:
        rows = where(any_element(nan, -1, keepdims=True), convert(np.nan, rows.dtype), rows)
        count = lax.full((1,) * (axis + 1), length, dtype)
    rows = lax.sort(rows, axis)
    fractions = lax.broadcast_in_dim(q, (1,) * axis + (aval_of(q).size,), (axis,) * aval_of(q).ndim)
    last = count - 1
    ranks = fractions * last
    low, high = lax.floor(ranks), lax.ceil(ranks)
    high_weight = ranks - low
    low_weight = 1 - high_weight
    low, high = (_element(rows, clip(rank, 0, last)) for rank in (low, high))
    if method == "linear":
        out = low.astype(dtype) * low_weight + high.astype(dtype) * high_weight
    elif method == "midpoint":
        out = (low + high) * convert(0.5, aval_of(low).dtype)
    elif method == "nearest":
        out = where(high_weight <= 0.5, low, high)
    else:
        out = low if method == "lower" else high
    return out if aval_of(q).ndim else squeeze(out, -1)


def _element(rows: Any, ranks: Any) -> Any:
    """Elements of rows at ranks of shape (..., count)."""
    shape = (*aval_of(rows).shape[:-1], aval_of(ranks).shape[-1])
    ranks = broadcast_to(lax.convert_element_type(ranks, int), shape)
    return take_along_axis(rows, clip(ranks, 0, None), -1)


def _by_weights(rows: Any, weights: Any, q: Any, skip_nan: bool) -> Any:
    """The first elements at which the cumulative weight reaches the fraction ``q``."""
    axis = aval_of(rows).ndim - 1
    rows, weights = lax.sort_key_val(rows, weights, axis, True)
    nan = isnan(rows)
    bad = (weights < 0) | isnan(weights)
    weights = where(bad | nan, convert(0, aval_of(weights).dtype), weights)
    reached = cumsum(weights, -1)
    levels = lax.reshape(q, (aval_of(q).size,))
    levels = lax.expand_dims(lax.convert_element_type(levels, aval_of(reached).dtype), range(axis))
    target = reached[..., -1:] * levels
    before = expand_dims(reached, -2) < expand_dims(target, -1)
    ranks = lax.reduce_sum(before.astype(int), (axis + 1,))
    length = aval_of(rows).shape[-1]
    if skip_nan:
        count = lax.reduce_sum((~nan).astype(int), (axis,))
    else:
        count = lax.full(aval_of(rows).shape[:-1], length, dtypes.default_int())
    ranks = clip(ranks, 0, expand_dims(count, -1) - 1)
    out = take_along_axis(rows, clip(ranks, 0, None), -1)
    none = (count == 0) if skip_nan else any_element(nan, -1)
    spoiled = expand_dims(any_element(bad, -1) | none, -1)
    out = where(spoiled, convert(np.nan, aval_of(out).dtype), out)
    return out if aval_of(q).ndim else squeeze(out, -1)
