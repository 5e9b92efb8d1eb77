"""Stored elements and their indices, as plain arrays.

``data`` is (*batch, nse, *dense) and ``indices`` (*batch, nse, n_sparse). An index that is out of
bounds is padding: gathers fill with 0, and scatters drop the update.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.vmap import vmap
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array

Sizes = tuple[int, ...]


def over_batches(function: Callable[..., Any], n_batch: int) -> Callable[..., Any]:
    """Lift a function of arrays without batch dimensions to those with ``n_batch``."""
    for _ in range(n_batch):
        function = vmap(function)
    return function


def in_bounds(indices: Any, sizes: Sizes) -> Array:
    """Mask of indices that are in bounds, (*batch, nse)."""
    limit = np.asarray(sizes, aval_of(indices).dtype)
    return jnp.all(indices < limit, -1)


def padded(keep: Any, indices: Any, sizes: Sizes) -> Array:
    """Replace indices outside a mask by padding."""
    limit = np.asarray(sizes, aval_of(indices).dtype)
    return jnp.where(keep[..., None], indices, limit)


def with_trailing_axes(mask: Any, ndim: int) -> Array:
    """A mask with dimensions of size 1 after its own."""
    return lax.expand_dims(mask, tuple(range(aval_of(mask).ndim, ndim)))


def key_of(indices: Any, sizes: Sizes) -> tuple[Any, Any]:
    """All indices of an array as subscripts: of batches, and of sparse dimensions."""
    shape = aval_of(indices).shape
    n_batch = len(shape) - 2
    batches = tuple(
        np.arange(size, dtype=np.int32).reshape([-1 if k == d else 1 for k in range(n_batch + 1)])
        for d, size in enumerate(sizes[:n_batch])
    )
    return batches, tuple(indices[..., k] for k in range(shape[-1]))


@composite
def dense_of(data: Any, indices: Any, shape: Sizes) -> Array:
    """Convert to a dense array."""
    batches, columns = key_of(indices, shape)
    n_batch = aval_of(indices).ndim - 2
    if not columns:
        data = jnp.sum(data, n_batch, dtype=aval_of(data).dtype)
        return jnp.broadcast_to(data, shape)
    zeros = jnp.zeros(shape, aval_of(data).dtype)
    return zeros.at[(*batches, *columns)].add(data, mode="drop")


@composite
def taken_at(indices: Any, dense: Any, shape: Sizes) -> Array:
    """Gather elements of an array at indices for ``shape``, to which it is broadcast."""
    sizes = aval_of(dense).shape
    dense = jnp.reshape(dense, (1,) * (len(shape) - len(sizes)) + sizes)
    sizes = aval_of(dense).shape
    batches, columns = key_of(indices, shape)
    n_batch = len(batches)
    keys = (*batches, *columns)
    # A dimension of size 1 counts for all.
    keys = tuple(
        k * 0 if size == 1 and full != 1 else k
        for k, size, full in zip(keys, sizes, shape, strict=False)
    )
    if not columns:
        return jnp.expand_dims(dense, n_batch)
    return dense.at[keys].get(mode="fill", fill_value=0)


def stored_count(dense: Any, n_batch: int, n_dense: int) -> Array:
    """Number of nonzero elements in the batch that has the most."""
    mask = dense != 0
    ndim = aval_of(dense).ndim
    mask = jnp.any(mask, tuple(range(ndim - n_dense, ndim)))
    return jnp.max(jnp.sum(mask, tuple(range(n_batch, ndim - n_dense))), initial=0)


@composite
def stored_of(
    dense: Any, nse: int, n_batch: int, n_dense: int, index_dtype: Any
) -> tuple[Array, Array]:
    """The first ``nse`` elements that are not zero, in each batch, and their indices."""
    shape = aval_of(dense).shape
    end = len(shape) - n_dense
    sizes = shape[n_batch:end]
    mask = jnp.any(dense != 0, tuple(range(end, len(shape))))

    def nonzero_indices(mask: Any) -> Any:
        if not sizes:
            return jnp.zeros((nse, 0), index_dtype)
        found = jnp.nonzero(mask, size=nse, fill_value=sizes)
        return jnp.stack([column.astype(index_dtype) for column in found], -1)

    indices = over_batches(nonzero_indices, n_batch)(mask)
    data = taken_at(indices, dense, shape)
    if not sizes:
        data = jnp.broadcast_to(data, (*shape[:n_batch], nse, *shape[end:]))
    count = jnp.sum(mask, tuple(range(n_batch, end)))
    real = np.arange(nse) < count[..., None]
    return jnp.where(with_trailing_axes(real, aval_of(data).ndim), data, 0), indices


def order_of(indices: Any, sizes: Sizes) -> Array:
    """The order of indices without batches, the first column first; padding comes last."""
    if not sizes:
        return jnp.arange(aval_of(indices).shape[0])
    indices = padded(in_bounds(indices, sizes), indices, sizes)
    # One integer per index, if it fits the dtype.
    if math.prod(size + 1 for size in sizes) < np.iinfo(aval_of(indices).dtype).max:
        return jnp.argsort(raveled(indices, tuple(size + 1 for size in sizes)))
    return jnp.lexsort([indices[:, k] for k in range(len(sizes) - 1, -1, -1)])


@composite
def sorted_by_index(data: Any, indices: Any, sizes: Sizes) -> tuple[Array, Array]:
    """Elements in the order of their indices, in each batch."""

    def sort(data: Any, indices: Any) -> Any:
        order = order_of(indices, sizes)
        return data[order], indices[order]

    return over_batches(sort, aval_of(indices).ndim - 2)(data, indices)


@composite
def grouped(data: Any, indices: Any, sizes: Sizes) -> tuple[Array, Array, Array, Array]:
    """Sorted elements, their indices, the ordinal of each index, and the count of indices.

    Padding has an ordinal that is out of bounds.
    """

    def group(data: Any, indices: Any) -> Any:
        order = order_of(indices, sizes)
        data, indices = data[order], indices[order]
        real = in_bounds(indices, sizes)
        indices = padded(real, indices, sizes)
        new = jnp.any(indices[1:] != indices[:-1], -1)
        number = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), new])[: len(real)])
        number = jnp.where(real, number, np.iinfo(np.int32).max).astype(np.int32)
        return data, indices, number, jnp.max(jnp.where(real, number, -1) + 1, initial=0)

    return over_batches(group, aval_of(indices).ndim - 2)(data, indices)


@composite
def summed(data: Any, indices: Any, number: Any, sizes: Sizes, nse: int) -> tuple[Array, Array]:
    """Sum the elements of each of the first ``nse`` ordinals."""

    def add(data: Any, indices: Any, number: Any) -> Any:
        trailing = aval_of(data).shape[1:]
        zeros = jnp.zeros((nse, *trailing), aval_of(data).dtype)
        dtype = aval_of(indices).dtype
        limit = jnp.broadcast_to(np.asarray(sizes, dtype), (nse, len(sizes)))
        sums = zeros.at[number].add(data, mode="drop", indices_are_sorted=True)
        positions = limit.at[number].set(indices, mode="drop", indices_are_sorted=True)
        return sums, positions

    return over_batches(add, aval_of(indices).ndim - 2)(data, indices, number)


def raveled(indices: Any, sizes: Sizes) -> Array:
    """Flatten indices to one integer each, by the last dimension first."""
    number = jnp.zeros(aval_of(indices).shape[:-1], aval_of(indices).dtype)
    for k, size in enumerate(sizes):
        number = number * np.asarray(size, aval_of(indices).dtype) + indices[..., k]
    return number


def unraveled(number: Any, sizes: Sizes) -> Array:
    """Invert ``raveled``."""
    columns = []
    for size in reversed(sizes):
        size = np.asarray(max(size, 1), aval_of(number).dtype)
        columns.append(number % size)
        number = number // size
    shape = (*aval_of(number).shape, 0)
    return jnp.stack(columns[::-1], -1) if columns else jnp.zeros(shape, aval_of(number).dtype)


def remaining(ndim: int, *taken: Sequence[int]) -> list[int]:
    """The dimensions that are in none of the lists."""
    used = {d for dims in taken for d in dims}
    return [d for d in range(ndim) if d not in used]
