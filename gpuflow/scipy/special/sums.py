"""Sums of exponentials, without overflow.

Tests: tests/scipy_surface/test_special_rules.py, tests/numpy/test_narrow_sums.py.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes
from gpuflow.numpy.promotion import convert, promote_args_inexact
from gpuflow.numpy.reductions import keep_dims
from gpuflow.ops.elementwise.select import where as select_where
from gpuflow.ops.linalg.algebra import through_float32


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: ArrayLike | None = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> tuple[Array, Array]: ...
@composite
@through_float32
def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Any:
    """Compute ``log(sum(exp(a)))`` without overflow.

    Args:
        a: array of real or complex numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        b: weights of the exponentials; they may be negative. None: all are 1.
        keepdims: whether reduced axes stay, with size 1.
        return_sign: whether to return a pair: log of the absolute sum, and its sign (on the unit
            circle for complex sums). Otherwise a negative real sum gives nan.
        where: mask of the elements to sum; None: all.

    Returns:
        Floats or complex numbers of the shape of ``a`` without the axes, or a pair of such arrays.

    Raises:
        TypeError: if an argument is not array-like.
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.round(gf.scipy.special.logsumexp(jnp.array([100., 100.])), 3)
        Array(100.693, dtype=float32)
    """
    if where is not None:
        a = jnp.where(where, a, 0)  # else a nan that is left out would reach the derivative
    if b is None:
        (a,) = promote_args_inexact("logsumexp", a)
    else:
        a, b = promote_args_inexact("logsumexp", a, b)
        a = jnp.where(jnp.not_equal(b, 0), a, -np.inf)
    shape, dtype = aval_of(a).shape, aval_of(a).dtype
    is_complex = dtypes.is_complex(dtype)
    axes = canonicalize_axes(axis, len(shape), "logsumexp")
    top = jnp.max(jnp.real(a), axes, initial=-np.inf, where=where)
    top = lax.stop_gradient(select_where(lax.is_finite(top), top, convert(0, aval_of(top).dtype)))
    scaled = lax.exp(lax.sub(a, keep_dims(convert(top, dtype), shape, axes)))
    if b is not None:
        scaled = jnp.multiply(b, scaled)
    total = jnp.sum(scaled, axes, where=where)
    sign = lax.sign(total)
    if return_sign or (b is not None and not is_complex):
        total = lax.abs(total)
    out = lax.add(lax.log(total), convert(top, aval_of(total).dtype))
    if keepdims:
        out, sign = keep_dims(out, shape, axes), keep_dims(sign, shape, axes)
    if return_sign:
        return out, sign
    return out if b is None or is_complex else jnp.where(jnp.less(sign, 0), np.nan, out)
