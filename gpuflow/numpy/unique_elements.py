"""Distinct elements: ``unique`` and the four functions of the array API standard.

Their count depends on values: under jit, ``size=`` must be given.

Tests: tests/numpy/test_complex_order.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, known, static_int
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.logic import isnan, where
from gpuflow.numpy.positions import nonzero
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.reductions import any as any_element
from gpuflow.numpy.shaping import expand_dims, moveaxis, ravel, reshape
from gpuflow.numpy.sorting import cumsum, lexsort


@overload
def unique(
    ar: ArrayLike,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Array: ...
@overload
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Any: ...
@explained
def unique(
    ar: ArrayLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Any:
    """Return the distinct elements, or slices along ``axis``, in ascending order.

    Args:
        ar: array.
        return_index: whether to return the index of the first occurrence of each.
        return_inverse: whether to return the indices that reconstruct ``ar``.
        return_counts: whether to return the number of occurrences of each.
        axis: the axis of the slices to compare; None compares elements.
        equal_nan: whether all nan count as equal.
        size: static number of results, for use under jit; extra results are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; the smallest element by default.
        sorted: accepted; the result is always sorted.

    Returns:
        The array, or a tuple with the requested additional arrays.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.
        ValueError: if there is nothing to fill from, and ``fill_value`` is not given.

    Example:
        >>> jnp.unique(jnp.array([3, 1, 3]))
        Array([1, 3], dtype=int32)
        >>> jnp.unique(jnp.array([3, 1, 3]), return_counts=True, size=3, fill_value=0)
        (Array([1, 3, 0], dtype=int32), Array([1, 2, 0], dtype=int32))
    """
    del sorted
    x = as_array("unique", ar)
    shape = aval_of(x).shape
    dim = 0 if axis is None else canonicalize_axis(axis, len(shape), "unique")
    x = ravel(x) if axis is None else x
    unique_elements = distinct("unique", x, dim, equal_nan, size, fill_value)
    out = [unique_elements.values]
    if return_index:
        out.append(unique_elements.first)
    if return_inverse:
        inverse = unique_elements.inverse()
        out.append(reshape(inverse, shape) if axis is None else inverse)
    if return_counts:
        out.append(unique_elements.counts())
    return out[0] if len(out) == 1 else tuple(out)


class Distinct(NamedTuple):
    """Distinct slices of an array, and data for indices, inverse and counts.

    Attributes:
        values: the slices, along the requested axis.
        starts: mask of the positions of the sorted array that start a new value.
        order: the positions of the sorted slices in the array.
        start_positions: the first indices of True in ``starts``, as many as values; then zeros.
        valid_count: number of valid values.
    """

    values: Any
    starts: Any
    order: Any
    start_positions: Any
    valid_count: Any

    @property
    def first(self) -> Any:
        """Index of the first occurrence of each value."""
        return self.order[self.start_positions] if aval_of(self.order).size else self.order

    def inverse(self) -> Any:
        """Index of the value of each slice."""
        if not aval_of(self.order).size:
            return self.order
        which = lax.sub(cumsum(self.starts), convert(1, dtypes.default_int()))
        return lax.full_like(self.order, 0).at[self.order].set(which, unique_indices=True)

    def counts(self) -> Any:
        """Number of occurrences of each value."""
        total, count = aval_of(self.order).size, aval_of(self.start_positions).shape[0]
        if not total:
            return self.order
        bounds = nonzero(self.starts, size=count + 1, fill_value=total)[0]
        return lax.sub(bounds[1:], bounds[:-1])


def distinct(
    name: str, x: Any, dim: int, equal_nan: bool, size: int | None, fill_value: Any
) -> Distinct:
    """The distinct slices of ``x`` along an axis."""
    x = moveaxis(x, dim, 0)
    length, *row_shape = aval_of(x).shape
    check(
        length > 0 or not size or fill_value is not None,
        lambda: (
            f"[{name}] an empty array needs fill_value to fill up from; got size {size}. "
            "Fix: fill_value=0."
        ),
        ValueError,
    )
    rows, starts, order = _sorted_slices(x, equal_nan)
    if size is None:
        fix = f"say how many values to return: jnp.{name}(x, size=...)."
        positions = np.nonzero(known(name, "the array", starts, fix))[0]
        start_positions = asarray(positions.astype(dtypes.default_int()))
        valid_count = asarray(len(positions))
    else:
        size = static_int(name, "size", size)
        start_positions = nonzero(starts, size=size)[0]
        valid_count = lax.convert_element_type(lax.reduce_sum(starts.astype(int), (0,)), int)
    if length:
        values = rows[start_positions]
    else:
        values = lax.full((aval_of(start_positions).shape[0], *row_shape), 0, aval_of(x).dtype)
    if size is not None and fill_value is not None:
        fill = lax.convert_element_type(asarray(fill_value), aval_of(x).dtype)
        real = lax.lt(lax.iota(dtypes.default_int(), (size,)), lax.broadcast(valid_count, (size,)))
        real = expand_dims(real, tuple(range(1, len(row_shape) + 1)))
        values = where(real, values, fill)
    return Distinct(moveaxis(values, 0, dim), starts, order, start_positions, valid_count)


def _sorted_slices(x: Any, equal_nan: bool) -> tuple[Any, Any, Any]:
    """The sorted slices, a mask of starts of new values, and the permutation that sorts."""
    length, *row_shape = aval_of(x).shape
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        x = where(isnan(x), convert(np.nan, dtype), x)
    width = prod(row_shape)
    index = dtypes.default_int()
    if not length or not width:
        # Slices without elements are all equal.
        starts = lax.eq(lax.iota(index, (length,)), convert(0, index))
        return x, starts, lax.iota(index, (length,))
    if row_shape:
        flat = lax.reshape(x, (length, width))
        order = lexsort([flat[:, k] for k in range(width)][::-1])
        rows = x[order]
    else:
        rows, order = lax.sort_key_val(x, lax.iota(index, (length,)), 0, True)
    before, after = rows[:-1], rows[1:]
    differs = lax.ne(after, before)
    if equal_nan and dtypes.is_inexact(dtype):
        differs = differs & ~(isnan(after) & isnan(before))
    differs = any_element(differs, tuple(range(1, len(row_shape) + 1)))
    return rows, concatenate([lax.full((1,), True, dtypes.bool_), differs]), order


# --- the functions of the array API standard -----------------------------------------------


class UniqueAllResult(NamedTuple):
    """Values, first indices, inverse indices and counts."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCountsResult(NamedTuple):
    """Values and counts."""

    values: Array
    counts: Array


class UniqueInverseResult(NamedTuple):
    """Values and inverse indices."""

    values: Array
    inverse_indices: Array


@explained
def unique_all(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueAllResult:
    """Return distinct elements with indices, inverse and counts; all nan are distinct.

    Args:
        x: array.
        size: static number of results, for use under jit; extra results are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; the smallest element by default.

    Returns:
        A tuple of ``values``, ``indices`` of first occurrences, ``inverse_indices``, which
        reconstruct the array, and ``counts``.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.

    Example:
        >>> found = jnp.unique_all(jnp.array([3, 1, 3]))
        >>> found.values, found.inverse_indices
        (Array([1, 3], dtype=int32), Array([1, 0, 1], dtype=int32))
    """
    results = unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueAllResult(*results)


@explained
def unique_counts(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueCountsResult:
    """Return distinct elements and their numbers of occurrences; all nan are distinct.

    Args:
        x: array.
        size: static number of results, for use under jit; extra results are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; the smallest element by default.

    Returns:
        A tuple of ``values`` and ``counts``.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.

    Example:
        >>> jnp.unique_counts(jnp.array([3, 1, 3])).counts
        Array([1, 2], dtype=int32)
    """
    results = unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueCountsResult(*results)


@explained
def unique_inverse(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueInverseResult:
    """Return distinct elements and the indices that reconstruct the array; all nan are distinct.

    Args:
        x: array.
        size: static number of results, for use under jit; extra results are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; the smallest element by default.

    Returns:
        A tuple of ``values`` and ``inverse_indices``, which has the shape of ``x``.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.

    Example:
        >>> jnp.unique_inverse(jnp.array([3, 1, 3])).inverse_indices
        Array([1, 0, 1], dtype=int32)
    """
    results = unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueInverseResult(*results)


@explained
def unique_values(
    x: ArrayLike, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Array:
    """Return distinct elements in ascending order; all nan are distinct.

    Args:
        x: array.
        size: static number of results, for use under jit; extra results are dropped, missing ones
            are padded.
        fill_value: the value of padding elements; the smallest element by default.

    Returns:
        A vector.

    Raises:
        ConcretizationTypeError: if the array is traced and ``size`` is not given.

    Example:
        >>> jnp.unique_values(jnp.array([3.0, jnp.nan, 3.0, jnp.nan]))
        Array([ 3., nan, nan], dtype=float32)
    """
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)
