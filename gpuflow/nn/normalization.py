"""Functions along axes: softmax, means of exponentials, standard scores, one-hot vectors.

Tests: tests/test_nn.py, tests/numpy/test_narrow_sums.py.
"""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis, known_index
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes, DTypeLike
from gpuflow.numpy.promotion import (
    check_arraylike,
    convert,
    promote_args_inexact,
    user_dtype,
)
from gpuflow.ops.linalg.algebra import through_float32
from gpuflow.scipy.special.sums import logsumexp as logsumexp


def _numbers(name: str, x: Any, where: Any) -> Any:
    """``x`` as floats or complex numbers; integers become default floats, which hold -inf.

    Raises:
        TypeError: if ``x`` is boolean and there is no mask.
    """
    (x,) = check_arraylike(name, x)
    aval = aval_of(x)
    check(
        where is not None or not dtypes.is_bool(aval.dtype),
        lambda: f"[{name}] the operand must hold numbers; got {aval}. Fix: x.astype(jnp.float32).",
    )
    if where is not None and not dtypes.is_inexact(aval.dtype):
        return convert(x, dtypes.default_float())
    return promote_args_inexact(name, x)[0]


@composite
@through_float32
def softmax(x: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None) -> Array:
    """Compute ``exp(x) / sum(exp(x))`` along ``axis``, without overflow.

    Args:
        x: array of numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        where: mask of the elements to include; the others give 0.

    Returns:
        An array of the shape and float dtype of ``x``, with sums of 1 along ``axis``.

    Raises:
        TypeError: if ``x`` is boolean and there is no mask.

    Example:
        >>> gf.nn.softmax(jnp.array([0.0, 0.0, -jnp.inf]))
        Array([0.5, 0.5, 0. ], dtype=float32)
    """
    x = _numbers("softmax", x, where)
    top = jnp.max(x, axis, keepdims=True, initial=-np.inf, where=where)
    masked = x if where is None else jnp.where(where, x, -np.inf)
    powers = lax.exp(lax.sub(masked, lax.stop_gradient(top)))
    result = lax.div(powers, jnp.sum(powers, axis, keepdims=True, where=where))
    return result if where is None else jnp.where(where, result, 0)


@composite
@through_float32
def log_softmax(x: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None) -> Array:
    """Compute ``log(softmax(x))`` along ``axis``, without overflow.

    Args:
        x: array of numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        where: mask of the elements to include; the others give -inf.

    Returns:
        An array of the shape and float dtype of ``x``.

    Raises:
        TypeError: if ``x`` is boolean and there is no mask.

    Example:
        >>> gf.nn.log_softmax(jnp.array([1.0, 1.0])).round(3)
        Array([-0.693, -0.693], dtype=float32)
    """
    x = _numbers("log_softmax", x, where)
    top = jnp.max(x, axis, keepdims=True, initial=-np.inf, where=where)
    masked = x if where is None else jnp.where(where, x, -np.inf)
    shifted = lax.sub(masked, lax.stop_gradient(top))
    total = lax.log(jnp.sum(lax.exp(shifted), axis, keepdims=True, where=where))
    result = lax.sub(shifted, total)
    return result if where is None else jnp.where(where, result, -np.inf)


@composite
@through_float32
def standardize(
    x: ArrayLike,
    axis: Axes = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
) -> Array:
    """Compute ``(x - mean) / sqrt(variance + epsilon)`` along ``axis``.

    Args:
        x: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        mean: mean of ``x``, computed by default.
        variance: variance of ``x``, computed by ``algorithm`` by default.
        epsilon: added to the variance for numerical stability.
        where: mask of the elements to include.
        algorithm: ``"fast"``: ``mean(x**2) - mean(x)**2``, at least 0; ``"stable"``: ``mean((x -
            mean)**2)``.

    Returns:
        An array of the shape and float dtype of ``x``.

    Raises:
        ValueError: if the algorithm is unknown.

    Example:
        >>> gf.nn.standardize(jnp.array([1.0, 3.0]), epsilon=0.0)
        Array([-1.,  1.], dtype=float32)
    """
    (x,) = check_arraylike("standardize", x)
    check(
        algorithm in ("fast", "stable"),
        lambda: (
            "[standardize] algorithm must be 'fast' or 'stable'; "
            f"got {algorithm!r}. Fix: algorithm='fast'."
        ),
        ValueError,
    )
    if mean is None:
        mean = jnp.mean(x, axis, keepdims=True, where=where)
    if variance is None and algorithm == "stable":
        distance = jnp.square(jnp.subtract(x, mean))
        variance = jnp.mean(distance, axis, keepdims=True, where=where)
    elif variance is None:
        square_mean = jnp.mean(jnp.square(x), axis, keepdims=True, where=where)
        variance = jnp.clip(jnp.subtract(square_mean, jnp.square(mean)), 0)
    scale = lax.rsqrt(*promote_args_inexact("standardize", jnp.add(variance, epsilon)))
    return jnp.multiply(jnp.subtract(x, mean), scale)


@composite
def one_hot(
    x: ArrayLike, num_classes: int, *, dtype: DTypeLike | None = None, axis: int = -1
) -> Array:
    """Return one-hot vectors: 1 at the index ``x``, else 0; all zeros if it is out of bounds.

    Args:
        x: array of numbers; numbers that are not integers match no class.
        num_classes: number of classes, the size of the new axis.
        dtype: dtype of the result; float32 by default.
        axis: position of the new axis.

    Returns:
        An array of the shape of ``x`` with an additional axis of size ``num_classes``.

    Raises:
        TypeError: if an argument is boolean.

    Example:
        >>> gf.nn.one_hot(jnp.array([0, 2, 5]), 3)
        Array([[1., 0., 0.],
               [0., 0., 1.],
               [0., 0., 0.]], dtype=float32)
    """
    x = jnp.asarray(x)
    aval = aval_of(x)
    dim = canonicalize_axis(axis, aval.ndim + 1, "one_hot")
    check(
        not dtypes.is_bool(aval.dtype),
        lambda: f"[one_hot] positions must be numbers; got {aval}. Fix: x.astype(jnp.int32).",
    )
    if dtypes.bits_of(aval.dtype) < 32:  # such a dtype may not hold all indices
        wide = np.int32 if dtypes.is_integer(aval.dtype) else np.float32
        x = lax.convert_element_type(x, wide)
    index_dtype = aval_of(x).dtype
    sizes = [1] * (aval.ndim + 1)
    sizes[dim] = as_index(known_index(num_classes))
    hot = lax.eq(jnp.expand_dims(x, dim), lax.iota(index_dtype, sizes, dim))
    return lax.convert_element_type(hot, user_dtype(float if dtype is None else dtype, "one_hot"))


@composite
@through_float32
def logmeanexp(
    x: ArrayLike, axis: Axes = None, where: ArrayLike | None = None, keepdims: bool = False
) -> Array:
    """Compute ``log(mean(exp(x)))`` along ``axis``, without overflow.

    Args:
        x: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        where: mask of the elements to include.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array of floats, of the shape of ``x`` without ``axis``.

    Example:
        >>> gf.nn.logmeanexp(jnp.array([1000.0, 1000.0]))
        Array(1000., dtype=float32)
    """
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    ones = jnp.ones_like(x, dtype=aval_of(total).dtype)
    return jnp.subtract(total, jnp.log(jnp.sum(ones, axis, keepdims=keepdims, where=where)))
