"""Reductions over axes: extrema, products and logic.

reduce_sum is in axes.py, because other rules use it; argmax and argmin are in argmax.py.

Tests: tests/ops/test_elementwise_rules.py, tests/control/test_reduce.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Reduction
from gpuflow.core.rules import Zero
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_kind, define, is_number
from gpuflow.ops.elementwise.arithmetic import add, constant, div, mul
from gpuflow.ops.elementwise.comparison import eq, is_bits
from gpuflow.ops.elementwise.nary import zero_jvp
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.axes import (
    bind_reduction,
    check_axes,
    drop_unit_axes,
    reduce_sum,
    reduced_shape,
    reduction_batch,
    reshape,
)
from gpuflow.ops.layout.slicing import slice_
from gpuflow.ops.layout.transpose import transpose


def _reduction_shape(
    name: str, accepts: Callable[[Any], bool], what: str
) -> Callable[..., ShapedArray]:
    def shape(x: ShapedArray, *, axes: tuple[int, ...]) -> ShapedArray:
        check_kind(name, x, accepts, what)
        check_axes(name, x, axes)
        return ShapedArray(reduced_shape(x, axes), x.dtype, x.weak_type)

    return shape


# --- reduce_max, reduce_min ----------------------------------------------------------------


def lowest(dtype: Any) -> Any:
    """The neutral element of max: -inf, or the least finite number, or False."""
    return _extreme_of(dtype, False)


def highest(dtype: Any) -> Any:
    """The neutral element of min: inf, or the greatest finite number, or True."""
    return _extreme_of(dtype, True)


def _extreme_of(dtype: Any, greatest: bool) -> Any:
    dtype = np.dtype(dtype)
    if dtypes.is_bool(dtype):
        return greatest
    if dtypes.is_integer(dtype):
        bounds = ml_dtypes.iinfo(dtype)
        return int(bounds.max if greatest else bounds.min)
    infinity = np.inf if greatest else -np.inf
    if dtypes.is_complex(dtype) or np.isinf(np.float32(infinity).astype(dtype)):
        return infinity
    bounds = ml_dtypes.finfo(dtype)
    return float(bounds.max if greatest else bounds.min)


def _max_impl(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    if not x.size:
        return _empty_reduction(xp, x, axes, lowest)
    return _signed_zeros(xp, x, axes, xp.max(x, axis=axes), 0.0, -0.0)


def _min_impl(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    if not x.size:
        return _empty_reduction(xp, x, axes, highest)
    return _signed_zeros(xp, x, axes, xp.min(x, axis=axes), -0.0, 0.0)


def _empty_reduction(xp: Any, x: Any, axes: tuple[int, ...], neutral: Callable[[Any], Any]) -> Any:
    """The reduction of an empty array. (CuPy's reductions take no initial value.)"""
    shape = tuple(size for d, size in enumerate(x.shape) if d not in axes)
    return xp.full(shape, neutral(x.dtype), x.dtype)


def _signed_zeros(
    xp: Any, x: Any, axes: tuple[int, ...], out: Any, mixed: float, other: float
) -> Any:
    """Set the sign of zero results: ``mixed`` if an element is a zero of that sign.

    If the maximum is 0, all elements without a sign bit are +0, and the minimum likewise.
    """
    if not dtypes.is_floating(x.dtype):
        return out
    zero = xp.asarray(out == 0)
    if not zero.any():
        return out
    signs = xp.signbit(x) if np.signbit(mixed) else ~xp.signbit(x)
    kind = x.dtype.type
    return xp.where(zero, xp.where(signs.any(axis=axes), kind(mixed), kind(other)), out)


def _chooser_jvp(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The mean of the tangents at the positions of the extremum."""

    def jvp(
        primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...]
    ) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = apply(x, axes)
        shape = aval_of(x).shape
        keepdims_shape = tuple(1 if d in axes else size for d, size in enumerate(shape))
        mask = where(eq(x, reshape(out, keepdims_shape)), constant(x, 1.0), 0.0)
        return out, div(reduce_sum(mul(t, mask), axes), reduce_sum(mask, axes))

    return jvp


def reduce_max(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Maximum over ``axes``; nan propagates, -0.0 is below 0.0, "or" for bools.

    Args:
        operand: array of numbers or bools.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.

    Returns:
        An array without the reduced dimensions; the lowest value for no elements.

    Raises:
        ValueError: if an axis is repeated or out of range for ``operand``.

    Example:
        >>> lax.reduce_max(jnp.array([[1, 2], [3, 0]]), (1,))
        Array([2, 3], dtype=int32)
    """
    if dtypes.is_bool(aval_of(operand).dtype):
        return reduce_or(operand, axes)
    return bind_reduction(reduce_max_p, operand, axes)


def reduce_min(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Minimum over ``axes``; nan propagates, -0.0 is below 0.0, "and" for bools.

    Args:
        operand: array of numbers or bools.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.

    Returns:
        An array without the reduced dimensions; the highest value for no elements.

    Raises:
        ValueError: if an axis is repeated or out of range for ``operand``.

    Example:
        >>> lax.reduce_min(jnp.array([[1, 2], [3, 0]]), (1,))
        Array([1, 0], dtype=int32)
    """
    if dtypes.is_bool(aval_of(operand).dtype):
        return reduce_and(operand, axes)
    return bind_reduction(reduce_min_p, operand, axes)


reduce_max_p = define(
    "reduce_max",
    shape=_reduction_shape("reduce_max", is_number, "a number (reduce_or takes bools)"),
    impl=_max_impl,
    jvp=_chooser_jvp(reduce_max),
    batch=reduction_batch(reduce_max),
    lower=Reduction("max", lowest),
    simplify=drop_unit_axes,
)

reduce_min_p = define(
    "reduce_min",
    shape=_reduction_shape("reduce_min", is_number, "a number (reduce_and takes bools)"),
    impl=_min_impl,
    jvp=_chooser_jvp(reduce_min),
    batch=reduction_batch(reduce_min),
    lower=Reduction("min", highest),
    simplify=drop_unit_axes,
)


# --- reduce_prod ---------------------------------------------------------------------------


def _prod_impl(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    narrow = dtypes.is_floating(x.dtype) and x.dtype.itemsize <= 2
    wide = x.astype(np.float32) if narrow else x
    return xp.asarray(wide.prod(axis=axes, dtype=wide.dtype)).astype(x.dtype)


def _prod_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, axes: tuple[int, ...]
) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return reduce_prod(x, axes), _product_tangent(_in_front(x, axes), _in_front(t, axes))


def _in_front(x: Any, axes: tuple[int, ...]) -> Any:
    """Move the reduced dimensions to the front as one dimension."""
    aval = aval_of(x)
    remaining = tuple(d for d in range(aval.ndim) if d not in axes)
    shape = tuple(aval.shape[d] for d in remaining)
    count = 1
    for d in axes:
        count *= aval.shape[d]
    return reshape(transpose(x, (*axes, *remaining)), (count, *shape))


def _rows(x: Any, start: int, stop: int) -> Any:
    shape = aval_of(x).shape
    return slice_(x, (start, *(0,) * (len(shape) - 1)), (stop, *shape[1:]))


def _product_tangent(x: Any, t: Any) -> Any:
    """The tangent of the product over dimension 0, exact where factors are 0.

    Halves are multiplied until one row remains; odd rows are multiplied at the end:

        x0 x1 x2 x3 x4  ->  (x0 x2) (x1 x3) | x4  ->  (x0 x2 x1 x3) | x4  ->  their product
    """
    shape = aval_of(x).shape
    if shape[0] == 0:
        return Zero(ShapedArray(shape[1:], aval_of(x).dtype))
    odd = []
    size = shape[0]
    while size > 1:
        half = size // 2
        if size % 2:
            odd.append((_rows(x, size - 1, size), _rows(t, size - 1, size)))
        x, t = _product_rule(
            *(_rows(x, 0, half), _rows(t, 0, half)),
            *(_rows(x, half, 2 * half), _rows(t, half, 2 * half)),
        )
        size = half
    for factor, tangent in odd:
        x, t = _product_rule(x, t, factor, tangent)
    return reshape(t, shape[1:])


def _product_rule(x: Any, x_tangent: Any, y: Any, y_tangent: Any) -> tuple[Any, Any]:
    return mul(x, y), add(mul(x_tangent, y), mul(x, y_tangent))


def reduce_prod(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Product over ``axes``.

    Args:
        operand: array of numbers. float16 and bfloat16 are multiplied in float32; integers wrap.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.

    Returns:
        An array without the reduced dimensions; 1 for no elements.

    Raises:
        ValueError: if an axis is repeated or out of range for ``operand``.

    Example:
        >>> lax.reduce_prod(jnp.array([[1, 2], [3, 4]]), (1,))
        Array([ 2, 12], dtype=int32)
    """
    return bind_reduction(reduce_prod_p, operand, axes)


reduce_prod_p = define(
    "reduce_prod",
    shape=_reduction_shape("reduce_prod", is_number, "a number (not bool)"),
    impl=_prod_impl,
    jvp=_prod_jvp,
    batch=reduction_batch(reduce_prod),
    lower=Reduction("mul", lambda dtype: 1),
    simplify=drop_unit_axes,
)


# --- reduce_and, reduce_or, reduce_xor -----------------------------------------------------


def _bits_reduction(name: str, ufunc: str, combine: str, neutral: Callable[[Any], Any]) -> Any:
    def impl(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        if not x.size:
            return _empty_reduction(xp, x, axes, neutral)
        return getattr(xp, ufunc).reduce(x, axis=axes)

    primitive = define(
        name,
        shape=_reduction_shape(name, is_bits, "an integer or bool"),
        impl=impl,
        jvp=zero_jvp(lambda: primitive),
        batch=reduction_batch(lambda x, axes: primitive.bind(x, axes=axes)),
        lower=Reduction(combine, neutral),
        simplify=drop_unit_axes,
    )
    return primitive


def _all_ones(dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return True
    return int(np.iinfo(dtype).max) if dtype.kind == "u" else -1


def _no_bits(dtype: Any) -> Any:
    return False if np.dtype(dtype).kind == "b" else 0


reduce_and_p = _bits_reduction("reduce_and", "bitwise_and", "and", _all_ones)
reduce_or_p = _bits_reduction("reduce_or", "bitwise_or", "or", _no_bits)
reduce_xor_p = _bits_reduction("reduce_xor", "bitwise_xor", "xor", _no_bits)


def reduce_and(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Bitwise or logical "and" over ``axes``; all ones for no elements.

    Args:
        operand: array of integers or bools.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.

    Returns:
        An array without the reduced dimensions, of the dtype of ``operand``.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if an axis is repeated or out of range for ``operand``.

    Example:
        >>> lax.reduce_and(jnp.array([True, False]), (0,)), lax.reduce_and(jnp.array([6, 3]), (0,))
        (Array(False, dtype=bool), Array(2, dtype=int32))
    """
    return bind_reduction(reduce_and_p, operand, axes)


def reduce_or(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Bitwise or logical "or" over ``axes``; 0 for no elements.

    Args:
        operand: array of integers or bools.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.

    Returns:
        An array without the reduced dimensions, of the dtype of ``operand``.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if an axis is repeated or out of range for ``operand``.

    Example:
        >>> lax.reduce_or(jnp.array([True, False]), (0,)), lax.reduce_or(jnp.array([6, 3]), (0,))
        (Array(True, dtype=bool), Array(7, dtype=int32))
    """
    return bind_reduction(reduce_or_p, operand, axes)


def reduce_xor(operand: ArrayLike, axes: Sequence[int]) -> Array:
    """Bitwise or logical "exclusive or" over ``axes``; 0 for no elements.

    Args:
        operand: array of integers or bools.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.

    Returns:
        An array without the reduced dimensions, of the dtype of ``operand``.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if an axis is repeated or out of range for ``operand``.

    Example:
        >>> lax.reduce_xor(jnp.array([6, 3]), (0,))
        Array(5, dtype=int32)
    """
    return bind_reduction(reduce_xor_p, operand, axes)
