"""Other orders, shapes and slices of the elements of BCOO arrays, made by ``mat.like`` of ``bcoo``.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from operator import index as to_int
from typing import TYPE_CHECKING, Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.arguments import as_items, canonicalize_axes, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.experimental.sparse import elements
from gpuflow.experimental.sparse.base import SparseEfficiencyError, SparseEfficiencyWarning

if TYPE_CHECKING:
    from gpuflow.experimental.sparse.bcoo import BCOO

zip = safe_zip


def broadcast_batches(mat: BCOO) -> BCOO:
    """Broadcast batch dimensions to full size in the data and in the indices."""
    batches = mat.shape[: mat.n_batch]
    data = jnp.broadcast_to(mat.data, (*batches, *aval_of(mat.data).shape[mat.n_batch :]))
    indices = jnp.broadcast_to(mat.indices, (*batches, *aval_of(mat.indices).shape[-2:]))
    return mat.same(data, indices)


def unbatched(mat: BCOO) -> BCOO:
    """Convert batch dimensions to sparse ones."""
    if mat.n_batch == 0:
        return mat
    mat = broadcast_batches(mat)
    batches = mat.shape[: mat.n_batch]
    shape, dtype = (*batches, mat.nse), aval_of(mat.indices).dtype
    counts = [lax.broadcasted_iota(dtype, shape, d) for d in range(mat.n_batch)]
    indices = jnp.concatenate([jnp.stack(counts, -1), mat.indices], -1)
    data = jnp.reshape(mat.data, (math.prod(shape), *mat.dense_shape))
    return mat.same(data, jnp.reshape(indices, (math.prod(shape), -1)))


@explained
def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """Sort the indices in ascending order, with padding last."""
    mat = broadcast_batches(mat)
    data, indices = elements.sorted_by_index(mat.data, mat.indices, mat.sparse_shape)
    return mat.like(data, indices, indices_sorted=True, unique_indices=mat.unique_indices)


@explained
def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """Sum duplicates: one element for each index, in ascending order.

    Args:
        nse: maximum number of stored elements; extra ones are dropped, and missing ones are padded.
            By default the number of distinct elements, which cannot be used in traced functions.

    Raises:
        ValueError: if ``nse`` is needed and not given.
    """
    mat = broadcast_batches(mat)
    if mat.n_sparse == 0:
        data = jnp.sum(mat.data, mat.n_batch, keepdims=True, dtype=mat.dtype)
        indices = jnp.zeros((*mat.shape[: mat.n_batch], 1, 0), aval_of(mat.indices).dtype)
        return mat.like(data, indices, indices_sorted=True, unique_indices=True)
    data, indices, number, counts = elements.grouped(mat.data, mat.indices, mat.sparse_shape)
    if nse is None:
        check(
            not isinstance(counts, Tracer),
            lambda: (
                "[sum_duplicates] nse must be given in traced functions, where indices are not "
                "known; got None. Fix: sum_duplicates(nse=mat.nse)."
            ),
            ValueError,
        )
        nse = int(np.max(np.asarray(counts), initial=0))
    data, indices = elements.summed(data, indices, number, mat.sparse_shape, nse)
    return mat.like(data, indices, indices_sorted=True, unique_indices=True)


def without_zeros(mat: BCOO, nse: int | None = None) -> BCOO:
    """As ``bcoo_sum_duplicates``, without stored zeros."""
    mat = broadcast_batches(mat)
    dense = tuple(range(mat.n_batch + 1, mat.n_batch + 1 + mat.n_dense))
    mask = jnp.any(mat.data != 0, dense)
    indices = elements.padded(mask, mat.indices, mat.sparse_shape)
    return bcoo_sum_duplicates(mat.like(mat.data, indices), nse)


@explained
def bcoo_update_layout(
    mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None,
    on_inefficient: str | None = "error",
) -> BCOO:  # fmt: skip
    """Change the numbers of batch and dense dimensions.

    Args:
        n_batch, n_dense: number of batch and of dense dimensions; None keeps it.
        on_inefficient: ``"error"``, ``"warn"`` or None: the reaction if many zeros would be stored,
            because there are more batch or dense dimensions of sizes above 1 than before.
    """
    n_batch = mat.n_batch if n_batch is None else to_int(n_batch)
    n_dense = mat.n_dense if n_dense is None else to_int(n_dense)
    check(
        on_inefficient in ("error", "warn", None),
        lambda: (
            "[bcoo_update_layout] on_inefficient must be 'error', 'warn' or None; got "
            f"{on_inefficient!r}. Fix: one of these."
        ),
        ValueError,
    )
    check(
        n_batch >= 0 and n_dense >= 0 and n_batch + n_dense <= mat.ndim,
        lambda: (
            "[bcoo_update_layout] n_batch and n_dense must not be negative, nor be more than "
            f"the dimensions, {mat.ndim}; got {n_batch} and {n_dense}. Fix: smaller ones."
        ),
        ValueError,
    )
    dense = mat.shape[mat.ndim - n_dense : mat.ndim - mat.n_dense]
    new = (*mat.shape[mat.n_batch : n_batch], *dense)
    if math.prod(new) > 1 and on_inefficient is not None:
        text = (
            "[bcoo_update_layout] new batch and dense dimensions must have size 1, as all of "
            f"their elements are stored; got sizes {new} of {mat!r}. Fix: on_inefficient=None, "
            "or fewer of them."
        )
        if on_inefficient == "error":
            raise SparseEfficiencyError(text)
        warnings.warn(text, SparseEfficiencyWarning, stacklevel=2)
    while mat.n_dense > n_dense:
        mat = _dense_to_sparse(mat)
    if mat.n_batch > n_batch:
        mat = _batches_to_sparse(mat, n_batch)
    while mat.n_dense < n_dense:
        mat = _sparse_to_dense(mat)
    while mat.n_batch < n_batch:
        mat = _sparse_to_batch(mat)
    return mat


def _dense_to_sparse(mat: BCOO) -> BCOO:
    """The first dense dimension as the last sparse one."""
    mat = broadcast_batches(mat)
    size, at = mat.dense_shape[0], mat.n_batch
    batches = mat.shape[:at]
    count = lax.broadcasted_iota(aval_of(mat.indices).dtype, (*batches, mat.nse, size, 1), at + 1)
    old = jnp.broadcast_to(mat.indices[..., None, :], (*batches, mat.nse, size, mat.n_sparse))
    indices = jnp.concatenate([old, count], -1)
    data = jnp.reshape(mat.data, (*batches, mat.nse * size, *mat.dense_shape[1:]))
    return mat.same(data, jnp.reshape(indices, (*batches, mat.nse * size, mat.n_sparse + 1)))


def _sparse_to_dense(mat: BCOO) -> BCOO:
    """The last sparse dimension as the first dense one; all of its elements are stored."""
    mat = broadcast_batches(mat)
    size = mat.sparse_shape[-1]
    here = mat.indices[..., -1:] == np.arange(size)
    data = jnp.expand_dims(mat.data, mat.n_batch + 1)
    data = jnp.where(elements.with_trailing_axes(here, aval_of(data).ndim), data, 0)
    return mat.like(data, mat.indices[..., :-1])


def _batches_to_sparse(mat: BCOO, n_batch: int) -> BCOO:
    """The last batch dimensions as the first sparse ones."""
    mat = broadcast_batches(mat)
    outer, inner = mat.shape[:n_batch], mat.shape[n_batch : mat.n_batch]
    nse, dtype = math.prod(inner) * mat.nse, aval_of(mat.indices).dtype
    shape = (*outer, *inner, mat.nse)
    counts = [lax.broadcasted_iota(dtype, shape, d) for d in range(n_batch, mat.n_batch)]
    indices = jnp.concatenate([jnp.stack(counts, -1), mat.indices], -1)
    data = jnp.reshape(mat.data, (*outer, nse, *mat.dense_shape))
    return mat.same(data, jnp.reshape(indices, (*outer, nse, aval_of(indices).shape[-1])))


def _sparse_to_batch(mat: BCOO) -> BCOO:
    """The first sparse dimension as the last batch dimension: each has room for all elements."""
    mat = broadcast_batches(mat)
    at, size = mat.n_batch, mat.sparse_shape[0]
    rows, trailing = jnp.expand_dims(mat.indices[..., 0], at), mat.indices[..., 1:]
    here = rows == np.arange(size).reshape(size, 1)
    data = jnp.expand_dims(mat.data, at)
    data = jnp.where(elements.with_trailing_axes(here, aval_of(data).ndim), data, 0)
    trailing = jnp.broadcast_to(
        jnp.expand_dims(trailing, at), (*aval_of(here).shape, mat.n_sparse - 1)
    )
    return mat.like(data, elements.padded(here, trailing, mat.sparse_shape[1:]))


@explained
def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """Permute the dimensions.

    Raises:
        TypeError: if an argument is not a permutation.
        NotImplementedError: if batch, sparse and dense dimensions would mix.
    """
    permutation = [to_int(d) for d in permutation]
    check(
        sorted(permutation) == list(range(mat.ndim)),
        lambda: (
            "[bcoo_transpose] permutation must hold each dimension once; got "
            f"{permutation} for shape {mat.shape}. Fix: a permutation of {[*range(mat.ndim)]}."
        ),
    )
    first, end = mat.n_batch, mat.n_batch + mat.n_sparse
    batch, sparse, dense = permutation[:first], permutation[first:end], permutation[end:]
    check(
        sorted(batch) == list(range(first)) and sorted(dense) == list(range(end, mat.ndim)),
        lambda: (
            "[bcoo_transpose] batch, sparse and dense dimensions must stay among their own; "
            f"got {permutation} for {mat!r}. Fix: update_layout first."
        ),
        NotImplementedError,
    )
    columns = [d - first for d in sparse]
    indices = mat.indices[..., np.asarray(columns, int)] if columns else mat.indices
    indices = jnp.transpose(indices, (*batch, first, first + 1))
    data = jnp.transpose(mat.data, (*batch, first, *[d - mat.n_sparse + 1 for d in dense]))
    return mat.like(
        data,
        indices,
        tuple(mat.shape[d] for d in permutation),
        indices_sorted=mat.indices_sorted and columns == sorted(columns),
        unique_indices=mat.unique_indices,
    )


@explained
def bcoo_reshape(
    mat: BCOO,
    *,
    new_sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    sharding: Any = None,
) -> BCOO:
    """Reshape the array; batch, sparse and dense dimensions are not mixed.

    Args:
        dimensions: the order in which to read dimensions. sharding: accepted; no effect.
    """
    del sharding
    if dimensions is not None and [*dimensions] != [*range(mat.ndim)]:
        mat = bcoo_transpose(mat, permutation=dimensions)
    mat = broadcast_batches(mat)
    new_sizes = tuple(to_int(size) for size in new_sizes)
    check(
        math.prod(new_sizes) == mat.size,
        lambda: (
            f"[bcoo_reshape] sizes must hold {mat.size} elements, as {mat.shape} does; got "
            f"{new_sizes}. Fix: other sizes."
        ),
    )
    outer = _length_of(new_sizes, mat.shape[: mat.n_batch])
    inner = _length_of(new_sizes[::-1], mat.dense_shape[::-1])
    check(
        outer is not None and inner is not None and outer + inner <= len(new_sizes),
        lambda: (
            "[bcoo_reshape] batch, sparse and dense dimensions must not mix; got "
            f"{new_sizes} for {mat!r}. Fix: update_layout first."
        ),
        ValueError,
    )
    assert outer is not None
    assert inner is not None
    end = len(new_sizes) - inner
    sizes = new_sizes[outer:end]
    real = elements.in_bounds(mat.indices, mat.sparse_shape)
    number = elements.raveled(mat.indices, mat.sparse_shape)
    indices = elements.padded(real, elements.unraveled(number, sizes), sizes)
    indices = jnp.reshape(indices, (*new_sizes[:outer], mat.nse, len(sizes)))
    data = jnp.reshape(mat.data, (*new_sizes[:outer], mat.nse, *new_sizes[end:]))
    return mat.like(
        data,
        indices,
        new_sizes,
        indices_sorted=mat.indices_sorted,
        unique_indices=mat.unique_indices,
    )


def _length_of(sizes: Sequence[int], group: Sequence[int]) -> int | None:
    """Length of the shortest prefix of sizes with as many elements as ``group``, or None."""
    product = 1
    for k in range(len(sizes) + 1):
        if product == math.prod(group) and (k == len(group) or math.prod(group) > 1 or not group):
            return k
        product *= sizes[k] if k < len(sizes) else 1
    return None


@explained
def bcoo_broadcast_in_dim(
    mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any = None
) -> BCOO:
    """Broadcast along new dimensions and those of size 1, without storing more elements.

    New dimensions before or between batch dimensions are batch dimensions; after sparse dimensions
    they are sparse, of size 1, and after dense ones dense.

    Raises:
        ValueError, NotImplementedError: if a sparse dimension of size 1 would grow.
    """
    del sharding
    shape, dims = tuple(map(to_int, shape)), [to_int(d) for d in broadcast_dimensions]
    check(
        len(dims) == mat.ndim and sorted(set(dims)) == dims and set(dims) <= {*range(len(shape))},
        lambda: (
            "[bcoo_broadcast_in_dim] broadcast_dimensions must give the dimension of the "
            f"result for each dimension; got {dims} for {mat!r}. Fix: {mat.ndim} ascending "
            "dimensions."
        ),
        ValueError,
    )
    first, end = mat.n_batch, mat.n_batch + mat.n_sparse
    # The new dimensions up to the first sparse one are batch dimensions.
    n_batch = dims[first] if first < mat.ndim else len(shape)
    if mat.n_sparse == 0 and first:
        n_batch = dims[first - 1] + 1
    n_dense = len(shape) - dims[end] if end < mat.ndim else 0
    n_sparse = len(shape) - n_batch - n_dense
    old = {new: d for d, new in enumerate(dims)}
    sparse = range(n_batch, n_batch + n_sparse)
    check(
        all(shape[d] == (mat.shape[old[d]] if d in old else 1) for d in sparse),
        lambda: (
            "[bcoo_broadcast_in_dim] sparse dimensions must keep their sizes, and new ones "
            f"have size 1; got {shape} for {mat!r}. Fix: todense first."
        ),
        NotImplementedError,
    )
    zero = jnp.zeros((*aval_of(mat.indices).shape[:-1], 1), aval_of(mat.indices).dtype)
    columns = [mat.indices[..., old[d] - first, None] if d in old else zero for d in sparse]
    indices = jnp.concatenate(columns, -1) if columns else mat.indices
    mine = [d for d in dims if d < n_batch]
    outer = shape[:n_batch]
    indices = lax.broadcast_in_dim(
        indices,
        (*_sizes_of(indices, outer, mine), mat.nse, n_sparse),
        (*mine, n_batch, n_batch + 1),
    )
    data = lax.broadcast_in_dim(
        mat.data,
        (*outer, mat.nse, *shape[n_batch + n_sparse :]),
        (*mine, n_batch, *[d - n_sparse + 1 for d in dims if d >= n_batch + n_sparse]),
    )
    return mat.like(
        data, indices, shape, indices_sorted=mat.indices_sorted, unique_indices=mat.unique_indices
    )


def _sizes_of(indices: Any, outer: tuple[int, ...], mine: list[int]) -> list[int]:
    """Sizes of batch dimensions, where new ones have size 1."""
    sizes = [1] * len(outer)
    for d, size in zip(mine, aval_of(indices).shape[: len(mine)]):
        sizes[d] = size
    return sizes


@explained
def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """Remove dimensions of size 1."""
    dims = as_items("bcoo_squeeze", "dimensions", dimensions)
    gone = canonicalize_axes(dims, arr.ndim, "bcoo_squeeze")
    check(
        all(arr.shape[d] == 1 for d in gone),
        lambda: (
            "[bcoo_squeeze] dimensions must have size 1; got "
            f"{sorted(gone)} of {arr.shape}. Fix: others."
        ),
        ValueError,
    )
    arr = broadcast_batches(arr)
    first, end = arr.n_batch, arr.n_batch + arr.n_sparse
    batch = tuple(d for d in gone if d < first)
    columns = [d - first for d in range(first, end) if d not in gone]
    # An index out of bounds in a removed dimension is padding of the others.
    real = elements.in_bounds(arr.indices, arr.sparse_shape)
    indices = arr.indices[..., np.asarray(columns, int)]
    sizes = tuple(arr.sparse_shape[k] for k in columns)
    data = arr.data
    if sizes:
        indices = elements.padded(real, indices, sizes)
    else:
        data = jnp.where(elements.with_trailing_axes(real, aval_of(data).ndim), data, 0)
    dense = tuple(d - arr.n_sparse + 1 for d in gone if d >= end)
    return arr.like(
        jnp.squeeze(data, (*batch, *dense)),
        jnp.squeeze(indices, batch),
        tuple(size for d, size in enumerate(arr.shape) if d not in gone),
        indices_sorted=arr.indices_sorted,
        unique_indices=arr.unique_indices,
    )


@explained
def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Concatenate along a dimension; all operands have the same batch and dense dimensions."""
    first = operands[0]
    dimension = canonicalize_axis(dimension, first.ndim, "bcoo_concatenate")
    same = {(mat.n_batch, mat.n_dense, mat.ndim) for mat in operands}
    sizes = {mat.shape[:dimension] + mat.shape[dimension + 1 :] for mat in operands}
    check(
        len(same) == 1 and len(sizes) == 1,
        lambda: (
            "[bcoo_concatenate] operands must have equal shapes but for one dimension, and "
            f"equal n_batch and n_dense; got {[*operands]}. Fix: update_layout."
        ),
        ValueError,
    )
    total = sum(mat.shape[dimension] for mat in operands)
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    mats = [broadcast_batches(mat) for mat in operands]
    at = first.n_batch
    if dimension < at:
        check(
            len({mat.nse for mat in mats}) == 1,
            lambda: (
                "[bcoo_concatenate] operands must store equally many elements in a batch; got "
                f"{[*operands]}. Fix: sum_duplicates(nse=...)."
            ),
            ValueError,
        )
        along = dimension
    else:
        check(
            dimension < at + first.n_sparse,
            lambda: (
                "[bcoo_concatenate] dimension must be a batch or sparse one; got "
                f"{dimension} of {first!r}. Fix: update_layout(n_dense=0)."
            ),
            NotImplementedError,
        )
        starts = np.cumsum([0, *[mat.shape[dimension] for mat in mats]])
        mats = [
            _shifted(mat, dimension - at, int(start), shape)
            for mat, start in zip(mats, starts[:-1])
        ]
        along = at
    data = jnp.concatenate([mat.data for mat in mats], along)
    indices = jnp.concatenate([mat.indices for mat in mats], along)
    return first.like(data, indices, shape)


def _shifted(mat: BCOO, column: int, start: int, shape: tuple[int, ...]) -> BCOO:
    """Embed an array in a larger one at offset ``start``."""
    real = elements.in_bounds(mat.indices, mat.sparse_shape)
    shift = np.zeros(mat.n_sparse, aval_of(mat.indices).dtype)
    shift[column] = start
    sizes = shape[mat.n_batch : mat.n_batch + mat.n_sparse]
    return mat.like(mat.data, elements.padded(real, mat.indices + shift, sizes), shape)


@explained
def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """Reverse dimensions."""
    mat = broadcast_batches(operand)
    dims = as_items("bcoo_rev", "dimensions", dimensions)
    gone = canonicalize_axes(dims, mat.ndim, "bcoo_rev")
    first, end = mat.n_batch, mat.n_batch + mat.n_sparse
    reversed_dims = [d - first for d in gone if first <= d < end]
    real = elements.in_bounds(mat.indices, mat.sparse_shape)
    sign, start = np.ones(mat.n_sparse, int), np.zeros(mat.n_sparse, int)
    for k in reversed_dims:
        sign[k], start[k] = -1, mat.sparse_shape[k] - 1
    dtype = aval_of(mat.indices).dtype
    indices = mat.indices * sign.astype(dtype) + start.astype(dtype)
    indices = elements.padded(real, indices, mat.sparse_shape)
    batch = tuple(d for d in gone if d < first)
    dense = tuple(d - mat.n_sparse + 1 for d in gone if d >= end)
    return mat.like(
        jnp.flip(mat.data, (*batch, *dense)),
        jnp.flip(indices, batch),
        unique_indices=mat.unique_indices,
    )


@explained
def bcoo_slice(
    mat: BCOO,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> BCOO:
    """Slice an array: elements out of bounds become padding, dropped if the result is smaller."""
    start, limit = [to_int(s) for s in start_indices], [to_int(s) for s in limit_indices]
    steps = [1] * mat.ndim if strides is None else [to_int(s) for s in strides]
    check(
        len(start) == len(limit) == len(steps) == mat.ndim
        and all(
            0 <= a <= b <= size and step > 0
            for a, b, step, size in zip(start, limit, steps, mat.shape)
        ),
        lambda: (
            "[bcoo_slice] each dimension must have a start and a limit in bounds, and a "
            f"positive stride; got {start}, {limit}, {steps} for {mat.shape}. Fix: clip them."
        ),
        ValueError,
    )
    slices = [slice(a, b, step) for a, b, step in zip(start, limit, steps)]
    mat = broadcast_batches(mat)
    first, end = mat.n_batch, mat.n_batch + mat.n_sparse
    data = mat.data[(*slices[:first], slice(None), *slices[end:])]
    indices = mat.indices[tuple(slices[:first])]
    dtype = aval_of(indices).dtype
    low, high, step = (np.asarray(bounds[first:end], dtype) for bounds in (start, limit, steps))
    shape = tuple(len(range(*s.indices(size))) for s, size in zip(slices, mat.shape))
    mask = jnp.all((indices >= low) & (indices < high) & ((indices - low) % step == 0), -1)
    return _window(mat, data, indices, mask, (indices - low) // step, shape)


@explained
def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """Slice a window of static size at a start that may be traced; it is clamped to the bounds."""
    sizes = tuple(to_int(size) for size in slice_sizes)
    check(
        len(start_indices) == len(sizes) == mat.ndim
        and all(0 <= size <= full for size, full in zip(sizes, mat.shape)),
        lambda: (
            "[bcoo_dynamic_slice] each dimension must have a start and a size that fits; got "
            f"sizes {sizes} and {len(start_indices)} starts for {mat.shape}. Fix: smaller sizes."
        ),
    )
    mat = broadcast_batches(mat)
    first, end = mat.n_batch, mat.n_batch + mat.n_sparse
    dtype = aval_of(mat.indices).dtype
    starts = [
        jnp.clip(jnp.asarray(s), 0, full - size).astype(dtype)
        for s, size, full in zip(start_indices, sizes, mat.shape)
    ]
    zero = jnp.zeros((), dtype)
    data = lax.dynamic_slice(
        mat.data, [*starts[:first], zero, *starts[end:]], (*sizes[:first], mat.nse, *sizes[end:])
    )
    indices = lax.dynamic_slice(
        mat.indices, [*starts[:first], zero, zero], (*sizes[:first], mat.nse, mat.n_sparse)
    )
    low = jnp.stack(starts[first:end]) if mat.n_sparse else jnp.zeros(0, dtype)
    # The limit of the window also excludes padding, where the array ends with the window.
    mask = jnp.all((indices >= low) & (indices < low + np.asarray(sizes[first:end], dtype)), -1)
    return _window(mat, data, indices, mask, indices - low, sizes)


def _window(
    mat: BCOO, data: Any, indices: Any, mask: Any, shifted: Any, shape: tuple[int, ...]
) -> BCOO:
    sizes = shape[mat.n_batch : mat.n_batch + mat.n_sparse]
    data = jnp.where(elements.with_trailing_axes(mask, aval_of(data).ndim), data, 0)
    indices = elements.padded(mask, shifted, sizes)
    window = mat.like(data, indices, shape, unique_indices=mat.unique_indices)
    fits = math.prod(sizes)
    return bcoo_sum_duplicates(window, fits) if fits < mat.nse and sizes else window


@explained
def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """Sum over axes; elements with equal resulting indices are not summed yet."""
    gone = sorted({to_int(axis) for axis in axes})
    check(
        all(0 <= axis < mat.ndim for axis in gone),
        lambda: (
            f"[bcoo_reduce_sum] axes must be dimensions of {mat.shape}; got {gone}. Fix: "
            "count from 0."
        ),
        ValueError,
    )
    mat = broadcast_batches(mat)
    first, end = mat.n_batch, mat.n_batch + mat.n_sparse
    real = elements.in_bounds(mat.indices, mat.sparse_shape)
    data = jnp.where(elements.with_trailing_axes(real, aval_of(mat.data).ndim), mat.data, 0)
    dense = tuple(d - mat.n_sparse + 1 for d in gone if d >= end)
    data = jnp.sum(data, dense, dtype=mat.dtype)
    columns = [d - first for d in range(first, end) if d not in gone]
    indices = mat.indices[..., np.asarray(columns, int)]
    # Batches that are summed over become contiguous.
    retained = [d for d in range(first) if d not in gone]
    batch = [d for d in range(first) if d in gone]
    outer = tuple(mat.shape[d] for d in retained)
    nse = mat.nse * math.prod(mat.shape[d] for d in batch)
    order = (*retained, *batch)
    trailing = range(first, aval_of(data).ndim)
    data = jnp.transpose(data, (*order, *trailing))
    indices = jnp.transpose(indices, (*order, first, first + 1))
    data = jnp.reshape(data, (*outer, nse, *aval_of(data).shape[first + 1 :]))
    indices = jnp.reshape(indices, (*outer, nse, len(columns)))
    shape = tuple(size for d, size in enumerate(mat.shape) if d not in gone)
    return mat.like(data, indices, shape)
