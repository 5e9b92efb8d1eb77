"""``nonzero`` and related functions: indices of nonzero elements.

The shape of the result depends on values: under jit, ``size=`` must be given.

Tests: tests/numpy/test_complex_order.py, tests/numpy/test_argument_kinds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, known, static_int
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.joining import stack
from gpuflow.numpy.promotion import convert, is_arraylike
from gpuflow.numpy.shaping import ravel
from gpuflow.ops.elementwise.select import where as select_where


def nonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> tuple[Array, ...]:
    """Return the indices of nonzero elements, one array for each axis.

    Args:
        a: array of rank 1 or more.
        size: static number of indices, for use under jit; extra indices are dropped, missing ones
            are padded.
        fill_value: the value of padding indices, a scalar or one for each axis; 0 by default.

    Returns:
        A tuple of integer arrays, one for each axis of ``a``, in row-major order.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.
        ValueError: if the rank is 0, or ``fill_value`` is invalid.

    Example:
        >>> jnp.nonzero(jnp.array([[0, 5], [7, 0]]))
        (Array([0, 1], dtype=int32), Array([1, 0], dtype=int32))
        >>> jnp.nonzero(jnp.array([0, 5, 7]), size=3, fill_value=-1)
        (Array([ 1,  2, -1], dtype=int32),)
    """
    return positions("nonzero", as_array("nonzero", a), size, fill_value)


def positions(name: str, x: Any, size: Any, fill_value: Any) -> tuple[Any, ...]:
    """``nonzero`` under the name of the function that the user called."""
    shape = aval_of(x).shape
    check(
        len(shape) > 0,
        lambda: f"[{name}] the array must have an axis; got a scalar. Fix: jnp.atleast_1d(x).",
        ValueError,
    )
    fills = _fills(name, fill_value, len(shape))
    mask = x if dtypes.is_bool(aval_of(x).dtype) else lax.ne(x, convert(0, aval_of(x).dtype))
    if size is None:
        fix = f"say how many positions to return: jnp.{name}(x, size=...)."
        indices = np.nonzero(known(name, "the array", mask, fix))
        return tuple(asarray(coordinate.astype(dtypes.default_int())) for coordinate in indices)
    count = static_int(name, "size", size)
    flat, valid = _flat_positions(ravel(mask), count)
    sizes = [convert(prod(shape[d + 1 :]), aval_of(flat).dtype) for d in range(len(shape))]
    coordinates = []
    for d, step in enumerate(sizes):
        coordinate = flat if d == 0 else lax.rem(flat, convert(sizes[d - 1], aval_of(flat).dtype))
        coordinates.append(lax.div(coordinate, step) if prod(shape[d + 1 :]) > 1 else coordinate)
    if fills is None:
        return tuple(coordinates)
    return tuple(
        select_where(valid, coordinate, lax.convert_element_type(fill, aval_of(coordinate).dtype))
        for coordinate, fill in zip(coordinates, fills, strict=True)
    )


def _flat_positions(mask: Any, count: int) -> tuple[Any, Any]:
    """The first indices of True, padded by zeros, and a mask of the valid ones."""
    index = dtypes.default_int()
    total = aval_of(mask).size
    if not total or not count:
        none = lax.full((count,), 0, index)
        return none, lax.full((count,), False, dtypes.bool_)
    ranks = lax.cumsum(lax.convert_element_type(mask, index), 0)
    # The k-th True is written to index k; False goes out of bounds and is dropped.
    target = select_where(mask, lax.sub(ranks, convert(1, index)), convert(count, index))
    flat = lax.full((count,), 0, index).at[target].set(lax.iota(index, (total,)), mode="drop")
    true_count = lax.slice_in_dim(ranks, total - 1, total)
    return flat, lax.lt(lax.iota(index, (count,)), lax.broadcast_in_dim(true_count, (count,), (0,)))


def _fills(name: str, fill_value: Any, rank: int) -> Sequence[Any] | None:
    """Fill values of missing indices along each axis."""
    if fill_value is None:
        return None
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * rank
    check(
        len(fills) == rank and all(is_arraylike(fill) and np.ndim(fill) == 0 for fill in fills),
        lambda: (
            f"[{name}] fill_value must be a number, or a tuple of {rank}; got {fill_value!r}. "
            "Fix: fill_value=0."
        ),
        ValueError,
    )
    return fills


def flatnonzero(a: ArrayLike, *, size: int | None = None, fill_value: Any = None) -> Array:
    """Return the indices of nonzero elements in the flattened array.

    Args:
        a: array.
        size: static number of indices, for use under jit; extra indices are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; 0 by default.

    Returns:
        A vector of integers.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.

    Example:
        >>> jnp.flatnonzero(jnp.array([[0, 5], [7, 0]]))
        Array([1, 2], dtype=int32)
    """
    return positions("flatnonzero", ravel(as_array("flatnonzero", a)), size, fill_value)[0]


def argwhere(
    a: ArrayLike, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return the indices of nonzero elements as rows.

    Args:
        a: array of rank n.
        size: static number of indices, for use under jit; extra indices are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; 0 by default.

    Returns:
        Integers of shape (k, n) for k nonzero elements.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.

    Example:
        >>> jnp.argwhere(jnp.array([[0, 5], [7, 0]]))
        Array([[0, 1],
               [1, 0]], dtype=int32)
    """
    x = as_array("argwhere", a)
    if aval_of(x).ndim == 0:
        count = positions("argwhere", ravel(x), size, fill_value)[0]
        return lax.full((aval_of(count).shape[0], 0), 0, dtypes.default_int())
    return stack(positions("argwhere", x, size, fill_value), 1)
