"""Norms of vectors and matrices, and functions of singular values.

Tests: tests/numpy/test_numpy_linalg.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import are_several, canonicalize_axes, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Axes
from gpuflow.numpy import reductions
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.decompositions import svd, svdvals
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    like,
    promote_args_inexact,
)
from gpuflow.numpy.scalar_types import finfo
from gpuflow.numpy.shaping import expand_dims, moveaxis
from gpuflow.numpy.solvers import inv
from gpuflow.numpy.ufuncs import abs as absolute
from gpuflow.numpy.ufuncs import power
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import real_dtype, through_float32, with_batch

Order = float | str | None  # not an operand: it selects the formula


def _euclidean(x: Any, axes: Axes, keepdims: bool) -> Any:
    if aval_of(x).dtype != real_dtype(aval_of(x).dtype):
        squares = lax.real(lax.mul(x, lax.conj(x)))
    else:
        squares = lax.mul(x, x)
    return reductions.sqrt_of_sum(reductions.sum(squares, axes, keepdims=keepdims))


@composite
@through_float32
def norm(x: ArrayLike, ord: Order = None, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the norm of vectors, of matrices, or of all elements.

    Args:
        x: array; integers are converted to floats.
        ord: for one axis any number, including inf and -inf. For two axes ``"fro"``, ``"nuc"``,
            inf, -inf, 1, -1, 2 or -2. None: the square root of the sum of squares.
        axis: one axis, a pair of axes, or None for all axes of a vector or matrix.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        An array of real floats without the axes.

    Raises:
        ValueError: if ``ord`` is unknown, or there are more than two axes.

    Example:
        >>> x = jnp.array([[3.0, 4.0], [6.0, 8.0]])
        >>> jnp.linalg.norm(x, axis=1)
        Array([ 5., 10.], dtype=float32)
        >>> jnp.linalg.norm(x, 1)  # the largest sum of a column
        Array(12., dtype=float32)
    """
    (x,) = promote_args_inexact("norm", x)
    x = asarray(x)
    rank = aval_of(x).ndim
    if axis is None and ord is None:
        return _euclidean(x, None, keepdims)
    if are_several(axis):  # rows first: the order distinguishes them
        axes = tuple(canonicalize_axis(d, rank, "norm") for d in axis)
    else:
        axes = canonicalize_axes(axis, rank, "norm")
    if len(axes) == 1:
        return vector_norm(x, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)
    check(
        len(axes) == 2,
        lambda: (
            f"[norm] there must be one axis or two; got axis={axis} for {aval_of(x)}. "
            "Fix: axis=-1 for vectors, axis=(-2, -1) for matrices."
        ),
        ValueError,
    )
    ord = _as_order("norm", "ord", ord)
    if ord is None or ord in ("f", "fro"):
        return _euclidean(x, axes, keepdims)
    if ord in ("nuc", 2, -2):
        out = _of_values(moveaxis(x, axes, (-2, -1)), ord)
        return expand_dims(out, axes) if keepdims else out
    check(
        ord in (1, -1, np.inf, -np.inf),
        lambda: (
            f"[norm] ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2 for matrices; got "
            f"{ord!r}. Fix: ord='fro'."
        ),
        ValueError,
    )
    summed, compared = axes if ord in (1, -1) else axes[::-1]
    sums = reductions.sum(absolute(x), summed, keepdims=True)
    if ord > 0:
        out = reductions.max(sums, compared, keepdims=True, initial=0)
    else:
        out = reductions.min(sums, compared, keepdims=True)
    return out if keepdims else lax.squeeze(out, axes)


@through_float32
def _of_values(x: Any, ord: Order) -> Any:
    """A norm computed from the singular values."""
    values = svdvals(x)
    if ord == "nuc":
        return reductions.sum(values, -1)
    if ord == 2:
        return reductions.max(values, -1, initial=0)
    return reductions.min(values, -1)


@composite
@through_float32
def vector_norm(
    x: ArrayLike, /, *, axis: Axes = None, keepdims: bool = False, ord: Order = 2
) -> Array:
    """Return the norm ``sum(abs(x) ** ord) ** (1 / ord)`` of vectors, its limits for inf and -inf,
    or the number of nonzero elements for 0.

    Args:
        x: array; integers are converted to floats.
        axis: the axes of the vector, or None for all.
        keepdims: whether reduced axes stay, with size 1.
        ord: a number.

    Returns:
        An array of real floats without the axes.

    Raises:
        ValueError: if ``ord`` is not a number.

    Example:
        >>> x = jnp.array([3.0, -4.0])
        >>> [float(jnp.linalg.vector_norm(x, ord=p)) for p in (0, 1, 2, jnp.inf)]
        [2.0, 7.0, 5.0, 4.0]
    """
    (x,) = check_arraylike("vector_norm", x)
    if not dtypes.is_inexact(aval_of(x).dtype):  # the dtype of a root of a sum of integers
        x = convert(x, dtypes.default_float())
    x = asarray(x)
    check(
        not isinstance(ord, str),
        lambda: f"[vector_norm] ord must be a number; got {ord!r}. Fix: ord=jnp.inf.",
        ValueError,
    )
    if ord is None or ord == 2:
        return _euclidean(x, axis, keepdims)
    if ord == np.inf:
        return reductions.max(absolute(x), axis, keepdims=keepdims, initial=0)
    if ord == -np.inf:
        return reductions.min(absolute(x), axis, keepdims=keepdims)
    if ord == 0:
        dtype = real_dtype(aval_of(x).dtype)
        return reductions.sum(lax.ne(x, like(0, x)), axis, dtype, keepdims=keepdims)
    if ord == 1:
        return reductions.sum(absolute(x), axis, keepdims=keepdims)
    total = reductions.sum(power(absolute(x), ord), axis, keepdims=keepdims)
    if ord < 0:
        return power(total, 1 / ord)
    is_zero = lax.eq(total, like(0, total))  # the derivative is 0 there, as for abs
    return where(is_zero, 0, power(where(is_zero, 1, total), 1 / ord))


@composite
def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Order = "fro") -> Array:
    """Return the norm of matrices in the last two axes.

    Args:
        x: matrices of shape (..., m, n); integers are converted to floats.
        keepdims: whether reduced axes stay, with size 1.
        ord: ``"fro"``: square root of the sum of squares. ``"nuc"``: sum of the singular values. 2
            or -2: largest or smallest singular value. 1 or -1: largest or smallest sum of absolute
            values of a column. inf or -inf: the same for rows.

    Returns:
        An array of real floats of shape (...).

    Raises:
        ValueError: if ``ord`` is unknown, or the rank is below 2.

    Example:
        >>> jnp.linalg.matrix_norm(jnp.array([[3.0, 0.0], [0.0, 4.0]]))
        Array(5., dtype=float32)
    """
    return norm(x, ord, (-2, -1), keepdims)


@composite
@through_float32
def cond(x: ArrayLike, p: Order = None) -> Array:
    """Return the condition number of matrices: their norm times that of the inverse.

    Args:
        x: matrices of shape (..., m, n), square unless ``p`` is None, 2 or -2.
        p: order of the norm, as for ``norm``; None means 2.

    Returns:
        An array of real floats of shape (...); large, or inf, for singular matrices.

    Raises:
        ValueError: if a matrix is empty or not square.

    Example:
        >>> jnp.linalg.cond(jnp.array([[2.0, 0.0], [0.0, 8.0]])).round(3)
        Array(4., dtype=float32)
    """
    (x,) = promote_args_inexact("cond", x)
    x = asarray(x)
    shape = aval_of(x).shape
    check(
        len(shape) >= 2 and 0 not in shape[-2:],
        lambda: f"[cond] matrices must not be empty; got {aval_of(x)}. Fix: check the shape.",
        ValueError,
    )
    p = _as_order("cond", "p", p)
    if p in (None, 2, -2):
        values = svdvals(x)
        last = len(shape) - 2
        count = min(shape[-2:])
        high = lax.squeeze(lax.slice_in_dim(values, 0, 1, axis=last), (last,))
        low = lax.squeeze(lax.slice_in_dim(values, count - 1, count, axis=last), (last,))
        if p != -2:
            return lax.div(high, low)
        kappa = lax.div(low, high)
    else:
        check(
            len(set(shape[-2:])) == 1,
            lambda: f"[cond] matrices must be square for p={p!r}; got {aval_of(x)}. Fix: p=2.",
            ValueError,
        )
        kappa = lax.mul(norm(x, p, (-2, -1)), norm(inv(x), p, (-2, -1)))
    # inf times 0 means that there is no inverse.
    has_nan = reductions.any(lax.ne(x, x), (-2, -1))
    no_inverse = lax.bitwise_and(lax.ne(kappa, kappa), lax.bitwise_not(has_nan))
    infinite = lax.broadcast_in_dim(aval_of(kappa).dtype.type(np.inf), aval_of(kappa).shape, ())
    return lax.select(no_inverse, infinite, kappa)


@composite
def matrix_rank(
    M: ArrayLike,
    rtol: ArrayLike | None = None,
    *,
    hermitian: bool = False,
    tol: ArrayLike | None = None,
) -> Array:
    """Return the number of singular values above a tolerance.

    Args:
        M: matrices of shape (..., m, n), or a vector or scalar.
        rtol: relative tolerance, one for each matrix; eps times the larger size by default.
        hermitian: whether ``M`` is Hermitian.
        tol: another name of ``rtol``.

    Returns:
        Integers of shape (...); for vectors and scalars, 1 if an element is not 0.

    Raises:
        ValueError: if both names of an argument are used.

    Example:
        >>> jnp.linalg.matrix_rank(jnp.array([[1.0, 2.0], [2.0, 4.0]]))
        Array(1, dtype=int32)
    """
    (M,) = check_arraylike("matrix_rank", M)
    check(
        rtol is None or tol is None,
        lambda: "[matrix_rank] only one of rtol and tol may be given; got both. Fix: rtol=...",
        ValueError,
    )
    bound = tol if rtol is None else rtol
    (x,) = promote_args_inexact("matrix_rank", M)
    x = asarray(x)
    if aval_of(x).ndim < 2:
        return lax.convert_element_type(reductions.any(lax.ne(x, like(0, x))), np.int32)
    values = svd(x, full_matrices=False, compute_uv=False, hermitian=hermitian)
    dtype = aval_of(values).dtype
    if bound is None:
        eps = float(finfo(dtype).eps) * max(aval_of(x).shape[-2:])
        largest = reductions.max(values, -1, initial=0)
        bound = lax.mul(largest, like(eps, largest))
    bound = expand_dims(asarray(bound, dtype), -1)
    shapes = (aval_of(bound).shape[:-1], aval_of(values).shape[:-1])
    batch = broadcast_shapes(*shapes, name="matrix_rank")
    return reductions.sum(lax.gt(with_batch(values, batch, 1), with_batch(bound, batch, 1)), -1)


def _as_order(name: str, what: str, value: Any) -> Any:
    """The order of a norm."""
    check(
        value is None or isinstance(value, str | int | float | np.generic),
        lambda: f"[{name}] {what} must be the order of a norm; got {brief(value)}. Fix: {what}=2.",
        ValueError,
    )
    return value
