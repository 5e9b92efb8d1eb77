"""Insertion and deletion of elements.

Tests: tests/numpy/test_operand_ranks.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ShapeLike
from gpuflow.numpy.arguments import as_array, as_arrays, known, static_int, tiled_to
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.logic import clip, where
from gpuflow.numpy.positions import nonzero
from gpuflow.numpy.promotion import broadcast_shapes
from gpuflow.numpy.shaping import broadcast_to, moveaxis, ravel, reshape
from gpuflow.numpy.sorting import argsort, sort

_MAX_RUNS = 8  # of retained elements, copied as slices


def trim_zeros(filt: ArrayLike, trim: str = "fb", axis: int | Sequence[int] | None = None) -> Array:
    """Remove zeros at the edges; values must be static.

    Args:
        filt: array.
        trim: ``"f"`` for the front, ``"b"`` for the back, or both.
        axis: the axes to trim; all by default.

    Returns:
        An array of the rank and dtype of ``filt``; empty if all elements are 0.

    Raises:
        ConcretizationTypeError: if the array is traced.
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.trim_zeros(jnp.array([0, 0, 1, 0, 2, 0]))
        Array([1, 0, 2], dtype=int32)
    """
    x = as_array("trim_zeros", filt)
    rank = aval_of(x).ndim
    axes = canonicalize_axes(axis, rank, "trim_zeros")
    check(
        isinstance(trim, str),
        lambda: f"[trim_zeros] trim must be a string; got {brief(trim)}. Fix: trim='fb'.",
        AttributeError,
    )
    host = known("trim_zeros", "the array", x, "outside of jit, or keep the zeros.") != 0
    index = [slice(None)] * rank
    for d in axes:
        occupied = np.flatnonzero(host.any(axis=tuple(k for k in range(rank) if k != d)))
        first = occupied[0] if occupied.size else 0
        last = occupied[-1] + 1 if occupied.size else 0
        start = int(first) if "f" in trim.lower() or not occupied.size else None
        stop = int(last) if "b" in trim.lower() or not occupied.size else None
        if "f" in trim.lower() or "b" in trim.lower():
            index[d] = slice(start, stop)
    return x[tuple(index)]


@composite
def resize(a: ArrayLike, new_shape: ShapeLike) -> Array:
    """Repeat or truncate the elements to another shape.

    Args:
        a: array; elements are read in row-major order.
        new_shape: an int or a sequence of ints.

    Returns:
        An array of that shape and of the dtype of ``a``; zeros if ``a`` is empty.

    Raises:
        ValueError: if a size is negative. OutOfMemoryError: if the array does not fit into memory.

    Example:
        >>> jnp.resize(jnp.array([1, 2, 3]), (2, 2))
        Array([[1, 2],
               [3, 1]], dtype=int32)
    """
    x = ravel(as_array("resize", a))
    sizes = tuple(new_shape) if np.ndim(new_shape) else (new_shape,)
    sizes = tuple(static_int("resize", "new_shape", n) for n in sizes)
    check(
        all(n >= 0 for n in sizes),
        lambda: f"[resize] sizes must not be negative; got {sizes}. Fix: new_shape=(0,).",
        ValueError,
    )
    count = prod(sizes)
    if not count or not aval_of(x).size:
        return lax.full(sizes, 0, aval_of(x).dtype)
    return reshape(tiled_to("resize", x, count), sizes)


def delete(
    arr: ArrayLike,
    obj: ArrayLike | slice,
    axis: int | None = None,
    *,
    assume_unique_indices: bool = False,
) -> Array:
    """Delete indices along an axis.

    Args:
        arr: array.
        obj: an int, a slice, integers or a mask; arrays must be static.
        axis: the axis; None flattens the array first.
        assume_unique_indices: whether all indices are guaranteed to be distinct; required for
            traced indices.

    Returns:
        An array of the dtype of ``arr``.

    Raises:
        ConcretizationTypeError: if indices are traced and ``assume_unique_indices`` is not set.
        ValueError: if ``obj`` is neither integers nor a mask of the axis.

    Example:
        >>> jnp.delete(jnp.array([10, 20, 30, 40]), jnp.array([0, 2]))
        Array([20, 40], dtype=int32)
    """
    x = as_array("delete", arr)
    if axis is None:
        x, axis = ravel(x), 0
    here = canonicalize_axis(axis, aval_of(x).ndim, "delete")
    size = aval_of(x).shape[here]
    if isinstance(obj, slice):
        obj = np.arange(size)[obj]
    if isinstance(obj, (int, np.integer)):
        index = canonicalize_axis(int(obj), size, "delete")
        return _joined_runs(x, [(0, index), (index + 1, size)], here)
    indices = as_array("delete", obj)
    integer = dtypes.is_integer(aval_of(indices).dtype)
    if integer and assume_unique_indices:
        return x[(slice(None),) * here + (_others(ravel(indices), size),)]
    fix = "assume_unique_indices=True, or jnp.where with a mask."
    host = known("delete", "obj", obj if isinstance(obj, np.ndarray) else indices, fix)
    check(
        integer or (host.dtype == bool and host.shape == (size,)),
        lambda: (
            f"[delete] obj must be integers or a mask of {size} elements; got {host.dtype} of "
            f"shape {host.shape}. Fix: pass positions."
        ),
        ValueError,
    )
    retained = np.ones(size, bool)
    try:
        retained[host] = False
    except IndexError:
        raise IndexError(
            f"[delete] obj must hold positions in [{-size}, {size}); got {brief(host)}. "
            "Fix: positions of the axis."
        ) from None
    indices = np.flatnonzero(retained)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    if indices.size > 0 and len(runs) <= _MAX_RUNS:
        return _joined_runs(x, [(int(run[0]), int(run[-1]) + 1) for run in runs], here)
    return x[(slice(None),) * here + (indices,)]


def _joined_runs(x: Any, runs: Sequence[tuple[int, int]], axis: int) -> Any:
    slices = [lax.slice_in_dim(x, start, stop, axis=axis) for start, stop in runs]
    return concatenate(slices, axis)


def _others(indices: Any, size: int) -> Any:
    """All indices except the given distinct ones."""
    indices = lax.convert_element_type(indices, dtypes.index_dtype(size))
    indices = clip(where(indices < 0, indices + size, indices), 0, size)
    count = aval_of(indices).shape[0]
    dtype = aval_of(indices).dtype
    # The k-th retained index is k plus the number of deleted indices before it.
    gone = sort(indices) - lax.iota(dtype, (count,))
    increments = lax.full((size - count,), 0, dtype).at[gone].add(1, mode="drop")
    return lax.iota(dtype, (size - count,)) + lax.cumsum(increments)


def _insert_run(x: Any, index: Any, values: Any, axis: int) -> Any:
    """Insert all values before one index along an axis."""
    count = aval_of(values).shape[axis]
    shape = list(aval_of(x).shape)
    shape[axis] = count
    values = broadcast_to(values, shape)
    shape[axis] += aval_of(x).shape[axis]
    edges, zero = [(0, 0, 0)] * len(shape), lax.full((), 0, aval_of(x).dtype)
    ahead, after = [*edges], [*edges]
    ahead[axis], after[axis] = (0, count, 0), (count, 0, 0)
    position = lax.broadcasted_iota(aval_of(index).dtype, shape, axis)
    shifted = where(position < index, lax.pad(x, zero, ahead), lax.pad(x, zero, after))
    out = lax.dynamic_update_slice_in_dim(shifted, values, index, axis)
    return lax.convert_element_type(out, aval_of(x).dtype, aval_of(x).weak_type)


def insert(
    arr: ArrayLike, obj: ArrayLike | slice, values: ArrayLike, axis: int | None = None
) -> Array:
    """Insert values before indices along an axis.

    Args:
        arr: array.
        obj: an int, a slice or integers: indices in ``arr``.
        values: values to insert; of the shape of ``x[obj]`` along ``axis``, or a single value.
        axis: the axis; None flattens the array first.

    Returns:
        An array of the dtype of ``arr``.

    Raises:
        ValueError: if indices are not integers, or have more than one axis.

    Example:
        >>> jnp.insert(jnp.array([1, 2, 3]), jnp.array([0, 2]), jnp.array([10, 20]))
        Array([10,  1,  2, 20,  3], dtype=int32)
    """
    x, values = as_arrays("insert", arr, values)
    if axis is None:
        x, axis = ravel(x), 0
    rank = aval_of(x).ndim
    here = canonicalize_axis(axis, rank, "insert")
    size = aval_of(x).shape[here]
    if isinstance(obj, slice):
        obj = np.arange(*obj.indices(size), dtype=np.int32)
    indices = asarray(obj)
    if aval_of(indices).size == 0 and not dtypes.is_integer(aval_of(indices).dtype):
        indices = indices.astype(int)
    check(
        dtypes.is_integer(aval_of(indices).dtype) and aval_of(indices).ndim < 2,
        lambda: (
            f"[insert] obj must be an int, a slice or a vector of integers; got "
            f"{aval_of(indices)}. Fix: jnp.asarray([0, 1])."
        ),
        ValueError,
    )
    values = lax.convert_element_type(values, aval_of(x).dtype)
    missing = rank - aval_of(values).ndim
    values = lax.expand_dims(values, tuple(range(missing))) if missing > 0 else values
    if aval_of(indices).size == 1:
        if aval_of(indices).ndim == 0:
            values = moveaxis(values, 0, here)
        at = reshape(clip(where(indices < 0, indices + size, indices), 0, size), ())
        return _insert_run(x, at, values, here)
    shapes = aval_of(indices).shape, (aval_of(values).shape[here],)
    count = broadcast_shapes(*shapes, name="insert")[0]
    indices = clip(where(indices < 0, indices + size, indices), 0, size)
    # The k-th of the sorted indices shifts by k: as many values were inserted before it.
    steps = lax.iota(aval_of(indices).dtype, (count,))
    targets = indices.at[argsort(indices)].add(steps[: aval_of(indices).shape[0]])
    taken = lax.full((size + count,), False, dtypes.bool_).at[targets].set(True)
    remaining = nonzero(~taken, size=size)[0]
    shape = list(aval_of(x).shape)
    shape[here] = size + count
    out, lead = lax.full_like(x, 0, shape=shape), (slice(None),) * here
    return out.at[(*lead, targets)].set(values).at[(*lead, remaining)].set(x)
