"""Sums, products, extremes and tests over axes.

Tests: tests/numpy/test_numpy_properties.py, tests/numpy/test_numpy_array_api.py.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes, DTypeLike
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.logic import where as jnp_where
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    like,
    no_out,
    user_dtype,
)
from gpuflow.numpy.shaping import broadcast_to, ravel, reshape
from gpuflow.ops.collectives.named_axes import check_bound
from gpuflow.ops.elementwise.select import where


@custom_jvp
def sqrt_of_sum(total: Any) -> Any:
    """Square root with derivative 0 at 0, as for ``abs``: the mean of both one-sided slopes."""
    return lax.sqrt(total)


def _slope_of_sqrt(t: Any, out: Any, total: Any) -> Any:
    del total
    is_zero = lax.eq(out, like(0, out))
    slope = lax.div(like(0.5, out), where(is_zero, 1, out))
    return lax.mul(t, where(is_zero, 0, slope))


sqrt_of_sum.defjvps(_slope_of_sqrt)


def keep_dims(out: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """The result of a reduction of ``shape`` over ``axes``, with those axes of size 1."""
    remaining = [d for d in range(len(shape)) if d not in axes]
    sizes = [size if d in remaining else 1 for d, size in enumerate(shape)]
    return lax.broadcast_in_dim(out, sizes, remaining)


def prepare(name: str, a: Any, axis: Axes, out: Any, where: Any, fill: Any) -> Any:
    """The operand with elements replaced where the mask is False, and the axes."""
    no_out(name, out)
    (a,) = check_arraylike(name, a)
    aval = aval_of(a)
    if aval.weak_type or not hasattr(a, "aval"):
        a = lax.convert_element_type(a, aval.dtype)
    if where is not None:
        (where,) = check_arraylike(name, where)
        check(
            dtypes.is_bool(aval_of(where).dtype),
            lambda: f"[{name}] where must hold bools; got {aval_of(where)}. Fix: where=mask != 0.",
            ValueError,
        )
        a = broadcast_to(a, broadcast_shapes(aval_of(a).shape, aval_of(where).shape, name=name))
        a = jnp_where(where, a, convert(fill, aval_of(a).dtype))
    return a, _axes(name, axis, aval_of(a).ndim)


def _axes(name: str, axis: Axes, rank: int) -> tuple[int, ...]:
    try:
        return canonicalize_axes(axis, rank, name)
    except TypeError:
        for one in axis if isinstance(axis, tuple | list) else (axis,):
            if isinstance(one, str):
                check_bound(name, one)
        raise


def finish(out: Any, shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> Any:
    """The result of a reduction, with reduced axes of size 1 if ``keepdims``."""
    return keep_dims(out, shape, axes) if keepdims and axes else out


def sum_dtype(name: str, dtype: Any, requested: Any) -> Any:
    """The dtype of sums and products: small integers and bools become default ones."""
    if requested is not None:
        return user_dtype(requested, name)
    if dtypes.is_unsigned(dtype):
        default = dtypes.canonicalize(np.uint64)
        return default if dtype.itemsize < default.itemsize else dtype
    if dtypes.is_bool(dtype) or dtypes.is_integer(dtype):
        default = dtypes.default_int()
        return default if dtype.itemsize < default.itemsize else dtype
    return dtype


@composite
def sum(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Sum over axes.

    Args:
        a: array; bools and small integers are summed in the default integer dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the sum.
        keepdims: whether reduced axes stay, with size 1.
        initial: initial value of the reduction.
        where: bool mask that broadcasts with ``a``; other elements count as 0.
        promote_integers: whether small integers and bools are summed in the default integer dtype.

    Returns:
        An array without ``axis``, 0 for no elements.

    Raises:
        ValueError: if the axis does not exist, ``initial`` is not a scalar, or the mask is not
            boolean.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> jnp.sum(x, axis=0)
        Array([4, 6], dtype=int32)
        >>> jnp.sum(x, where=x > 1)
        Array(9, dtype=int32)
    """
    dtype = _input_dtype_unless(promote_integers, a, dtype)
    return _accumulate("sum", lax.reduce_sum, 0, a, axis, dtype, out, keepdims, initial, where)


def _input_dtype_unless(promote_integers: bool, a: Any, dtype: Any) -> Any:
    if promote_integers or dtype is not None:
        return dtype
    input_dtype = aval_of(a).dtype
    return dtypes.int32 if dtypes.is_bool(input_dtype) else input_dtype


@composite
def prod(
    a: ArrayLike,
    axis: Axes = None,
    dtype: DTypeLike | None = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
    promote_integers: bool = True,
) -> Array:
    """Multiply over axes.

    Args:
        a: array; bools and small integers are multiplied in the default integer dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        dtype: dtype of the product.
        keepdims: whether reduced axes stay, with size 1.
        initial: initial value of the reduction.
        where: bool mask that broadcasts with ``a``; other elements count as 1.
        promote_integers: whether small integers and bools are multiplied in the default integer
            dtype.

    Returns:
        An array without ``axis``, 1 for no elements.

    Raises:
        ValueError: if the axis does not exist, ``initial`` is not a scalar, or the mask is not
            boolean.

    Example:
        >>> jnp.prod(jnp.array([[1, 2], [3, 4]]), axis=1)
        Array([ 2, 12], dtype=int32)
    """
    dtype = _input_dtype_unless(promote_integers, a, dtype)
    return _accumulate("prod", lax.reduce_prod, 1, a, axis, dtype, out, keepdims, initial, where)


def _accumulate(
    name: str,
    op: Callable[..., Any],
    neutral: int,
    a: Any,
    axis: Axes,
    dtype: Any,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    a, axes = prepare(name, a, axis, out, where, neutral)
    aval = aval_of(a)
    out_dtype, combine = sum_dtype(name, aval.dtype, dtype), lax.mul if neutral else lax.add
    if dtypes.is_bool(out_dtype):  # sum and product of bools in bool: or, and
        op, combine = _OF_BOOLS[bool(neutral)]
    result = op(convert(a, out_dtype), axes)
    if initial is not None:
        result = combine(result, _first_value(name, initial, aval_of(result).dtype))
    return finish(result, aval.shape, axes, keepdims)


_OF_BOOLS = {
    False: (lax.reduce_or, lax.bitwise_or),
    True: (lax.reduce_and, lax.bitwise_and),
}


def _first_value(name: str, initial: Any, dtype: np.dtype) -> Any:
    """``initial`` converted to the dtype of the result."""
    check(
        aval_of(initial).shape == (),
        lambda: (
            f"[{name}] initial must be a number; got {aval_of(initial)}. "
            "Fix: combine the result with the array afterwards."
        ),
        ValueError,
    )
    return convert(initial, dtype)


# --- extremes ------------------------------------------------------------------------------


def _extreme(
    name: str,
    op: Callable[..., Any],
    pair: Callable[..., Any],
    a: Any,
    axis: Axes,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    check(
        where is None or initial is not None,
        lambda: (
            f"[{name}] where= needs initial=, as there is no neutral element; got none. "
            f"Fix: jnp.{name}(x, where=mask, initial=...)."
        ),
        ValueError,
    )
    a, axes = prepare(name, a, axis, out, where, initial)
    sizes = aval_of(a).shape
    check(
        initial is not None or builtins.all(sizes[d] for d in axes),
        lambda: (
            f"[{name}] an empty array has no {name}; got shape {sizes} and axes {axes}. "
            "Fix: pass initial=."
        ),
        ValueError,
    )
    result = op(a, axes)
    if initial is not None:
        result = pair(_first_value(name, initial, aval_of(result).dtype), result)
    return finish(result, sizes, axes, keepdims)


@composite
def max(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the maximum over axes; nan if an element is nan.

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
        >>> jnp.max(jnp.array([[1, 5], [3, 2]]), axis=1)
        Array([5, 3], dtype=int32)
        >>> jnp.max(jnp.array([]), initial=-1.0)
        Array(-1., dtype=float32)
    """
    return _extreme("max", lax.reduce_max, lax.max, a, axis, out, keepdims, initial, where)


@composite
def min(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: ArrayLike | None = None,
) -> Array:
    """Return the minimum over axes; nan if an element is nan.

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
        >>> jnp.min(jnp.array([[1, 5], [3, 2]]), axis=1)
        Array([1, 2], dtype=int32)
    """
    return _extreme("min", lax.reduce_min, lax.min, a, axis, out, keepdims, initial, where)


amax, amin = max, min


@composite
def ptp(a: ArrayLike, axis: Axes = None, out: None = None, keepdims: bool = False) -> Array:
    """Return the maximum minus the minimum over axes.

    Args:
        a: array of numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array of the dtype of ``a``, without ``axis``.

    Raises:
        TypeError: if an argument is boolean.
        ValueError: if there are no elements, or the axis does not exist.

    Example:
        >>> jnp.ptp(jnp.array([[1, 5], [3, 2]]), axis=1)
        Array([4, 1], dtype=int32)
    """
    return lax.sub(max(a, axis, out, keepdims), min(a, axis, out, keepdims))


@composite
def argmax(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """Return the index of the first maximum, along ``axis`` or in the flattened array.

    Args:
        a: array; the first nan counts as largest.
        axis: the axis to search; None flattens the array first.
        keepdims: whether the axis stays, with size 1; None means no.

    Returns:
        Indices in the default integer dtype.

    Raises:
        ValueError: if the axis does not exist or has no elements.

    Example:
        >>> jnp.argmax(jnp.array([[1, 5, 5], [3, 2, 0]]), axis=1)
        Array([1, 0], dtype=int32)
    """
    return _position("argmax", lax.argmax, a, axis, out, bool(keepdims))


@composite
def argmin(
    a: ArrayLike, axis: int | None = None, out: None = None, keepdims: bool | None = None
) -> Array:
    """Return the index of the first minimum, along ``axis`` or in the flattened array.

    Args:
        a: array; the first nan counts as smallest.
        axis: the axis to search; None flattens the array first.
        keepdims: whether the axis stays, with size 1; None means no.

    Returns:
        Indices in the default integer dtype.

    Raises:
        ValueError: if the axis does not exist or has no elements.

    Example:
        >>> jnp.argmin(jnp.array([[1, 5, 1], [3, 2, 0]]), axis=1)
        Array([0, 2], dtype=int32)
    """
    return _position("argmin", lax.argmin, a, axis, out, bool(keepdims))


def _position(
    name: str, op: Callable[..., Any], a: Any, axis: int | None, out: Any, keepdims: bool
) -> Any:
    no_out(name, out)
    (a,) = check_arraylike(name, a)
    sizes = aval_of(a).shape
    if axis is None:
        position = op(ravel(a), 0, dtypes.default_int())
        return reshape(position, (1,) * len(sizes)) if keepdims else position
    dim = canonicalize_axis(axis, len(sizes), name)
    check(
        sizes[dim] > 0,
        lambda: (
            f"[{name}] the axis must not be empty; got shape {sizes}, axis {dim}. "
            "Fix: choose another axis."
        ),
        ValueError,
    )
    position = op(a, dim, dtypes.default_int())
    return finish(position, sizes, (dim,), keepdims)


# --- tests ---------------------------------------------------------------------------------


@composite
def all(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return whether all elements are nonzero.

    Args:
        a: array of any dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        keepdims: whether reduced axes stay, with size 1.
        where: bool mask that broadcasts with ``a``; other elements count as True.

    Returns:
        bool array without ``axis``; True for no elements.

    Raises:
        ValueError: if the axis does not exist, or the mask is not boolean.

    Example:
        >>> jnp.all(jnp.array([[1, 0], [2, 3]]), axis=1)
        Array([False,  True], dtype=bool)
    """
    return _test("all", lax.reduce_and, True, a, axis, out, keepdims, where)


@composite
def any(
    a: ArrayLike,
    axis: Axes = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: ArrayLike | None = None,
) -> Array:
    """Return whether any element is nonzero.

    Args:
        a: array of any dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        keepdims: whether reduced axes stay, with size 1.
        where: bool mask that broadcasts with ``a``; other elements count as False.

    Returns:
        bool array without ``axis``; False for no elements.

    Raises:
        ValueError: if the axis does not exist, or the mask is not boolean.

    Example:
        >>> jnp.any(jnp.array([[1, 0], [0, 0]]), axis=1)
        Array([ True, False], dtype=bool)
    """
    return _test("any", lax.reduce_or, False, a, axis, out, keepdims, where)


def _test(
    name: str,
    op: Callable[..., Any],
    neutral: bool,
    a: Any,
    axis: Axes,
    out: Any,
    keepdims: bool,
    where: Any,
) -> Any:
    (a,) = check_arraylike(name, a)
    a, axes = prepare(name, as_bool(a), axis, out, where, neutral)
    return finish(op(a, axes), aval_of(a).shape, axes, keepdims)


@composite
def count_nonzero(a: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Count the nonzero elements.

    Args:
        a: array of any dtype.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array of the default integer dtype, without ``axis``.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.count_nonzero(jnp.array([[1, 0], [2, 3]]), axis=1)
        Array([1, 2], dtype=int32)
    """
    (a,) = check_arraylike("count_nonzero", a)
    return sum(as_bool(a), axis, keepdims=keepdims)
