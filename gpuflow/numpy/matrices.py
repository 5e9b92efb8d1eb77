"""Diagonals and products of vectors and matrices that are not plain contractions.

Tests: tests/numpy/test_numpy_linalg.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.numpy import reductions
from gpuflow.numpy.contractions import matmul
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.elementary import conj
from gpuflow.numpy.joining import stack
from gpuflow.numpy.promotion import (
    check_arraylike,
    check_numbers,
    check_rank_promotion,
    like,
    no_out,
    promote_dtypes,
    to_rank,
)
from gpuflow.numpy.ranges import arange, eye
from gpuflow.numpy.shaping import expand_dims, moveaxis, reshape, squeeze
from gpuflow.numpy.ufuncs import multiply, power, subtract

# columns of vander that are computed by products; more are computed by pow
_MAX_PRODUCTS = 8


@composite
def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return the elements ``a[..., i, i + offset]`` of two axes, as a last axis.

    Args:
        a: array of rank 2 or more.
        offset: offset of the diagonal above the main diagonal; negative values are below it.
        axis1: the axis of rows.
        axis2: the axis of columns.

    Returns:
        An array without the two axes, with a new last one; empty if the diagonal does not exist.

    Raises:
        ValueError: if there are fewer than two axes, an axis is repeated, or an axis does not
            exist.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> jnp.diagonal(x), jnp.diagonal(x, offset=1)
        (Array([1, 4], dtype=int32), Array([2], dtype=int32))
    """
    (a,) = check_arraylike("diagonal", a)
    rank = aval_of(a).ndim
    check(
        rank >= 2,
        lambda: f"[diagonal] the array must have two axes; got {aval_of(a)}. Fix: jnp.diag.",
        ValueError,
    )
    rows, columns = (canonicalize_axis(axis, rank, "diagonal") for axis in (axis1, axis2))
    check(
        rows != columns,
        lambda: f"[diagonal] the axes must differ; got {axis1} and {axis2}. Fix: axis2=1.",
        ValueError,
    )
    x, first = a, min(rows, columns)
    offset = as_integer("diagonal", "offset", offset)
    if rows > columns:  # the diagonal of the transpose
        offset = -offset
    if abs(rows - columns) > 1:
        x = moveaxis(a, max(rows, columns), first + 1)
    shape = aval_of(x).shape
    height, width = shape[first : first + 2]
    start = offset if offset >= 0 else -offset * width
    room = min(height, width - offset) if offset >= 0 else min(height + offset, width)
    count = max(0, room)
    # In the flattened matrix the elements of a diagonal are evenly spaced.
    flat = lax.reshape(x, (*shape[:first], height * width, *shape[first + 2 :]))
    stop = start + (count - 1) * (width + 1) + 1
    bounds = (start, stop, width + 1) if count else (0, 0, 1)
    return moveaxis(lax.slice_in_dim(flat, *bounds, first), first, -1)


@composite
def trace(
    a: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike | None = None,
    out: None = None,
) -> Array:
    """Return the sum of a diagonal.

    Args:
        a: array of rank 2 or more.
        offset: offset of the diagonal above the main diagonal; it may be traced.
        axis1: the axis of rows.
        axis2: the axis of columns.
        dtype: dtype of the result; by default the dtype of ``a``, widened as for ``sum``.

    Returns:
        An array without the two axes.

    Raises:
        ValueError: if there are fewer than two axes, an axis is repeated, or an axis does not
            exist.

    Example:
        >>> jnp.trace(jnp.array([[1, 2], [3, 4]]))
        Array(5, dtype=int32)
    """
    no_out("trace", out)
    if isinstance(offset, Tracer) and offset.concrete() is None:
        x = moveaxis(a, (axis1, axis2), (-2, -1))
        height, width = aval_of(x).shape[-2:]
        on_diagonal = eye(height, width, offset, dtype=bool)
        return reductions.sum(x, (-2, -1), dtype, where=on_diagonal)
    return reductions.sum(diagonal(a, offset, axis1, axis2), -1, dtype)


@composite
def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Array:
    """Return the cross product of vectors of two or three elements.

    Args:
        a, b: arrays that broadcast after their vector axes were moved to the end.
        axisa, axisb, axisc: the vector axes of the operands and of the result.
        axis: sets all three at once.

    Returns:
        Vectors of three elements; if both have two elements, only the third component, without an
        axis.

    Raises:
        ValueError: if a vector has another size.

    Example:
        >>> jnp.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
        Array([0, 0, 1], dtype=int32)
        >>> jnp.cross(jnp.array([1, 2]), jnp.array([3, 4]))
        Array(-2, dtype=int32)
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _common("cross", moveaxis(a, axisa, -1), moveaxis(b, axisb, -1))
    sizes = aval_of(a).shape[-1], aval_of(b).shape[-1]
    check(
        all(size in (2, 3) for size in sizes),
        lambda: f"[cross] vectors must have two or three elements; got {sizes}. Fix: axis=...",
        ValueError,
    )
    left, right = ([_element(x, k) for k in range(aval_of(x).shape[-1])] for x in (a, b))
    third = _minor(left, right, 0, 1)
    if sizes == (2, 2):
        return third
    for components in (left, right):
        if len(components) == 2:
            components.append(lax.mul(components[0], like(0, components[0])))
    components = [_minor(left, right, 1, 2), _minor(left, right, 2, 0), third]
    return moveaxis(stack(components, -1), -1, axisc)


def _common(name: str, a: Any, b: Any) -> list[Any]:
    """Both operands as arrays of their common dtype; their shapes need not broadcast."""
    a, b = check_arraylike(name, a, b)
    return [asarray(x) for x in promote_dtypes(a, b)]


def _element(x: Any, index: int) -> Any:
    axis = aval_of(x).ndim - 1
    return lax.squeeze(lax.slice_in_dim(x, index, index + 1, axis=axis), (axis,))


def _minor(left: list[Any], right: list[Any], i: int, j: int) -> Any:
    return subtract(multiply(left[i], right[j]), multiply(left[j], right[i]))


@composite
def kron(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the Kronecker product: every element of ``a`` times all of ``b``; not for bools.

    Args:
        a, b: arrays of numbers; leading axes are added to the one of lower rank.

    Returns:
        An array of the common dtype, with the products of the sizes of ``a`` and ``b``.

    Raises:
        TypeError: if an argument is boolean.

    Example:
        >>> jnp.kron(jnp.array([[1, 2]]), jnp.array([[1], [10]]))
        Array([[ 1,  2],
               [10, 20]], dtype=int32)
    """
    a, b = _common("kron", a, b)
    check_numbers("kron", a)
    rank = max(aval_of(a).ndim, aval_of(b).ndim)
    a, b = to_rank(a, rank), to_rank(b, rank)
    left, right = aval_of(a).shape, aval_of(b).shape
    left_axes, right_axes = range(0, 2 * len(left), 2), range(1, 2 * len(left) + 1, 2)
    product = multiply(expand_dims(a, tuple(right_axes)), expand_dims(b, tuple(left_axes)))
    return reshape(product, tuple(m * n for m, n in zip(left, right)))


@composite
def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Array:
    """Return the matrix of powers of ``x``, one power in each column.

    Args:
        x: vector of n numbers.
        N: the number of columns; by default the size of ``x``.
        increasing: whether powers increase from left to right.

    Returns:
        An array of shape (n, N) and of the dtype of ``x``.

    Raises:
        TypeError: if an argument is boolean.
        ValueError: if ``x`` is not a vector, or ``N`` is negative.

    Example:
        >>> jnp.vander(jnp.array([2, 3]), 3)
        Array([[4, 2, 1],
               [9, 3, 1]], dtype=int32)
    """
    (x,) = check_arraylike("vander", x)
    check_numbers("vander", x)
    aval = aval_of(x)
    check(
        aval.ndim == 1,
        lambda: f"[vander] x must be a vector; got {aval}. Fix: jnp.ravel(x).",
        ValueError,
    )
    count = aval.shape[0] if N is None else as_integer("vander", "N", N)
    check(count >= 0, lambda: f"[vander] N must not be negative; got {N}. Fix: N=0.", ValueError)
    if 0 < count <= _MAX_PRODUCTS:
        columns = [lax.integer_pow(x, k) for k in range(count)]
        return stack(columns if increasing else columns[::-1], -1)
    powers = arange(count, dtype=np.int32)
    if not increasing:
        powers = lax.rev(powers, (0,))
    column = expand_dims(x, 1)
    powers = expand_dims(powers, 0)
    if dtypes.is_inexact(aval.dtype):
        return lax.pow(column, powers)
    return power(column, lax.convert_element_type(powers, aval.dtype))


def _check_batch_ranks(name: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    if len(left) != len(right):
        check_rank_promotion(name, [left, right])


@composite
def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Multiply matrices of shape (..., m, n) by vectors (..., n).

    Args:
        x1: matrices of shape (..., m, n).
        x2: vectors of shape (..., n); batches broadcast.

    Returns:
        Vectors of shape (..., m).

    Raises:
        TypeError: if sizes do not match.

    Example:
        >>> jnp.matvec(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 10]))
        Array([21, 43], dtype=int32)
    """
    x1, x2 = check_arraylike("matvec", x1, x2)
    _check_batch_ranks("matvec", aval_of(x1).shape[:-2], aval_of(x2).shape[:-1])
    return squeeze(matmul(x1, expand_dims(x2, -1)), -1)


@composite
def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Multiply the conjugates of vectors (..., n) by matrices (..., n, m).

    Args:
        x1: vectors of shape (..., n).
        x2: matrices of shape (..., n, m); batches broadcast.

    Returns:
        Vectors of shape (..., m).

    Raises:
        TypeError: if sizes do not match.

    Example:
        >>> jnp.vecmat(jnp.array([1, 10]), jnp.array([[1, 2], [3, 4]]))
        Array([31, 42], dtype=int32)
    """
    x1, x2 = check_arraylike("vecmat", x1, x2)
    _check_batch_ranks("vecmat", aval_of(x1).shape[:-1], aval_of(x2).shape[:-2])
    return squeeze(matmul(expand_dims(conj(x1), -2), x2), -2)
