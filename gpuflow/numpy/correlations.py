"""Weighted means, covariances and correlations.

Tests: tests/numpy/test_narrow_sums.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal, overload

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import are_several, canonicalize_axes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes, DTypeLike
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.contractions import matmul
from gpuflow.numpy.elementary import conj, imag, real, sqrt
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.logic import clip
from gpuflow.numpy.matrices import diagonal
from gpuflow.numpy.promotion import convert, promote_dtypes_inexact, user_dtype
from gpuflow.numpy.ranks import atleast_2d
from gpuflow.numpy.reductions import sum as sum_of
from gpuflow.numpy.shaping import broadcast_to, squeeze
from gpuflow.numpy.statistics import mean, working_dtype
from gpuflow.numpy.ufuncs import abs as absolute
from gpuflow.numpy.ufuncs import divide
from gpuflow.ops.linalg.algebra import through_float32


@overload
def average(
    a: ArrayLike,
    axis: Axes = None,
    weights: ArrayLike | None = None,
    returned: Literal[False] = False,
    keepdims: bool = False,
) -> Array: ...
@overload
def average(
    a: ArrayLike,
    axis: Axes = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> tuple[Array, Array]: ...
@composite
def average(
    a: ArrayLike,
    axis: Axes = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> Any:
    """Return the weighted mean over axes.

    Args:
        a: array; integers are converted to floats.
        axis: an axis, a tuple of axes, or None to reduce over all axes.
        weights: weights in the shape of ``a`` or of the axes; None weights all equally.
        returned: whether to return the sum of weights too.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array without the axes; with ``returned`` a pair with the sums of weights, in its shape.

    Raises:
        ValueError: if the weights have another shape, or the axis does not exist.

    Example:
        >>> jnp.average(jnp.array([1., 2., 5.]), weights=jnp.array([2., 1., 1.]))
        Array(2.25, dtype=float32)
        >>> jnp.average(jnp.ones((2, 3)), axis=0, returned=True)[1]
        Array([2., 2., 2.], dtype=float32)
    """
    if weights is None:
        (a,) = promote_dtypes_inexact(as_array("average", a))
        axes = canonicalize_axes(axis, aval_of(a).ndim, "average")
        out = mean(a, axis, keepdims=keepdims)
        total = lax.full((), prod(aval_of(a).shape[d] for d in axes), aval_of(out).dtype)
    else:
        a, weights = promote_dtypes_inexact(*as_arrays("average", a, weights))
        out, total = _weighted_mean(a, _in_rank_of(a, weights, axis), axis, keepdims)
    return (out, broadcast_to(total, aval_of(out).shape)) if returned else out


@through_float32
def _weighted_mean(a: Any, weights: Any, axis: Axes, keepdims: bool) -> tuple[Any, Any]:
    """The mean and the sum of the weights."""
    total = sum_of(weights, axis, keepdims=keepdims)
    return divide(sum_of(a * weights, axis, keepdims=keepdims), total), total


def _in_rank_of(a: Any, weights: Any, axis: Axes) -> Any:
    """Weights that broadcast with the array."""
    shape, weights_shape = aval_of(a).shape, aval_of(weights).shape
    if shape == weights_shape:
        return weights
    axes: list[Any] = list(axis) if are_several(axis) else [axis]
    check(
        axis is not None and weights_shape == tuple(shape[d] for d in axes),
        lambda: (
            f"[average] weights must have the shape of the array, or of its axes {axis}; got "
            f"{weights_shape} for {shape}. Fix: jnp.broadcast_to(weights, x.shape)."
        ),
        ValueError,
    )
    dims = [d % len(shape) for d in axes]
    weights = lax.transpose(weights, [int(k) for k in np.argsort(dims)])
    sizes = [n if d in dims else 1 for d, n in enumerate(shape)]
    return lax.broadcast_in_dim(weights, sizes, sorted(dims))


@composite
def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Return the covariance matrix of variables.

    Args:
        m: matrix with a row for each variable, or a vector for one variable.
        y: further variables in the same layout; None for none.
        rowvar: if False, each column is a variable.
        bias: whether to divide by the number of observations instead of one less.
        ddof: number to subtract from the number of observations, instead of ``bias``.
        fweights: vector of integers, the number of repetitions of each observation.
        aweights: vector of the weights of observations.
        dtype: a float or complex dtype; None uses the dtype of the variables.

    Returns:
        An array of shape (variables, variables); of rank 0 for one variable.

    Raises:
        ValueError: if there are more than two axes, or the dtype is not supported.
        RuntimeError: if the weights have another shape.
        TypeError: if ``fweights`` are not integers.

    Example:
        >>> jnp.cov(jnp.array([[0., 1., 2.], [4., 2., 0.]]))
        Array([[ 1., -2.],
               [-2.,  4.]], dtype=float32)
    """
    out, out_dtype = _covariance(
        m, y, rowvar, bias, ddof, fweights, aweights, _float_dtype("cov", dtype)
    )
    return out if aval_of(out).dtype == out_dtype else convert(out, out_dtype)


def _covariance(
    m: Any,
    y: Any,
    rowvar: bool,
    bias: bool,
    ddof: int | None,
    fweights: Any,
    aweights: Any,
    dtype: Any,
) -> tuple[Array, Any]:
    """The covariance matrix in the dtype of the computation, and the dtype of the result."""
    operands = promote_dtypes_inexact(*as_arrays("cov", *([m] if y is None else [m, y])))
    check(
        all(aval_of(x).ndim <= 2 for x in operands),
        lambda: (
            "[cov] variables must be rows of a matrix; got "
            f"{', '.join(str(aval_of(x)) for x in operands)}. Fix: jnp.reshape."
        ),
        ValueError,
    )
    x = atleast_2d(operands[0])
    if not rowvar and aval_of(operands[0]).ndim != 1:
        x = x.T
    if not aval_of(x).shape[0]:
        return lax.full((0, 0), 0, dtypes.default_float()), dtypes.default_float()
    if y is not None:
        other = atleast_2d(operands[1])
        if not rowvar and aval_of(other).shape[0] != 1:
            other = other.T
        x = concatenate([x, other], 0)
    variables, count = aval_of(x).shape
    if not count:
        shape = (variables, variables) if variables > 1 else ()
        return lax.full(shape, np.nan, aval_of(x).dtype), aval_of(x).dtype
    less = (0 if bias else 1) if ddof is None else ddof
    frequency, importance = _weights(fweights, aweights, count)
    weights = frequency if importance is None else importance
    if importance is not None and frequency is not None:
        weights = frequency * importance
    operands = [x] if weights is None else [x, weights]
    out_dtype = aval_of(promote_dtypes_inexact(*operands)[0]).dtype if dtype is None else dtype
    # Sums and products of deviations leave the range of float16 before the covariance does.
    x = convert(x, working_dtype(out_dtype))
    if weights is not None:
        weights = convert(weights, working_dtype(out_dtype))
    if importance is not None:
        importance = convert(importance, working_dtype(out_dtype))
    center, total = average(x, 1, weights, returned=True)
    total = total[0]
    if weights is None:
        divisor = count - less
    elif less == 0:
        divisor = total
    elif importance is None:
        divisor = total - less
    else:
        divisor = total - less * sum_of(weights * importance) / total
    x = x - center[:, None]
    weighted = x if weights is None else x * weights[None]
    return squeeze(divide(matmul(x, conj(weighted.T)), divisor)), out_dtype


def _float_dtype(name: str, dtype: Any) -> Any:
    out_dtype = None if dtype is None else user_dtype(dtype, name)
    check(
        out_dtype is None or dtypes.is_inexact(out_dtype),
        lambda: (
            f"[{name}] dtype must be a float or complex dtype; got {out_dtype}. "
            "Fix: dtype=jnp.float32."
        ),
        ValueError,
    )
    return out_dtype


def _weights(fweights: Any, aweights: Any, count: int) -> list[Any]:
    out: list[Any] = []
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            out.append(None)
            continue
        values = as_array("cov", weights)
        check(
            aval_of(values).shape == (count,),
            lambda name=name, values=values: (
                f"[cov] {name} must be a vector of {count}; got {aval_of(values)}. "
                "Fix: one weight for each observation."
            ),
            RuntimeError,
        )
        check(
            name == "aweights" or dtypes.is_integer(aval_of(values).dtype),
            lambda values=values: (
                f"[cov] fweights must be integers; got {aval_of(values)}. Fix: aweights."
            ),
        )
        out.append(absolute(values))
    return out


@composite
def corrcoef(
    x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, dtype: DTypeLike | None = None
) -> Array:
    """Return the correlation coefficients of variables.

    Args:
        x: matrix with a row for each variable, or a vector for one variable.
        y: further variables in the same layout; None for none.
        rowvar: if False, each column is a variable.
        dtype: a float or complex dtype; None uses the dtype of the variables.

    Returns:
        An array of shape (variables, variables) with real and imaginary parts in [-1, 1]; of rank 0
        for one variable.

    Raises:
        ValueError: if there are more than two axes, or the dtype is not supported.

    Example:
        >>> jnp.corrcoef(jnp.array([[0., 1., 2.], [4., 2., 0.]]))
        Array([[ 1., -1.],
               [-1.,  1.]], dtype=float32)
    """
    c, out_dtype = _covariance(
        x, y, rowvar, False, None, None, None, _float_dtype("corrcoef", dtype)
    )
    out = _correlation(c)
    return out if aval_of(out).dtype == out_dtype else convert(out, out_dtype)


def _correlation(c: Any) -> Any:
    """The covariances ``c`` over both standard deviations."""
    if not aval_of(c).ndim:
        return divide(c, c)
    deviation = convert(sqrt(real(diagonal(c))), aval_of(c).dtype)
    c = c / deviation[:, None] / deviation[None]
    clipped = clip(real(c), -1, 1)
    if not dtypes.is_complex(aval_of(c).dtype):
        return clipped
    return lax.complex(clipped, clip(imag(c), -1, 1))
