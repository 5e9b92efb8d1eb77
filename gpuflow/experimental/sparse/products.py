"""Products of sparse arrays with dense and with sparse ones.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.experimental.sparse import elements
from gpuflow.experimental.sparse.base import JAXSparse
from gpuflow.experimental.sparse.elements import remaining
from gpuflow.experimental.sparse.layout import bcoo_sum_duplicates, broadcast_batches, unbatched

if TYPE_CHECKING:
    from gpuflow.experimental.sparse.bcoo import BCOO

zip = safe_zip

Dims = tuple[tuple[int, ...], tuple[int, ...]]
Numbers = tuple[Dims, Dims]


def plain_numbers(numbers: Any) -> Numbers:
    """Dimension numbers as tuples of ints."""
    (a, b), (c, d) = numbers
    a, b, c, d = (tuple(int(k) for k in dims) for dims in (a, b, c, d))
    return (a, b), (c, d)


def check_numbers(lhs: Sequence[int], rhs: Sequence[int], numbers: Numbers) -> None:
    """Raise TypeError unless dimensions that are paired have equal sizes."""
    for pairs in numbers:
        check(
            len(pairs[0]) == len(pairs[1])
            and all(
                0 <= i < len(lhs) and 0 <= j < len(rhs) and lhs[i] == rhs[j] for i, j in zip(*pairs)
            ),
            lambda: (
                "[bcoo_dot_general] dimensions that belong together must have equal sizes; "
                f"got shapes {(*lhs,)} and {(*rhs,)} with {numbers}. Fix: other dimension numbers."
            ),
        )


def bcoo_dot_general(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
) -> Any:
    """Compute ``lax.dot_general`` with at least one sparse operand.

    Args:
        dimension_numbers: as for ``lax.dot_general``; batch dimensions are batch or sparse
            dimensions of the sparse operand.
        precision: accepted; sums have the dtype of the result. out_sharding: must be None.

    Returns:
        A dense array; a sparse one if both operands are sparse.
    """
    del precision, out_sharding
    numbers = plain_numbers(dimension_numbers)
    left, right = isinstance(lhs, JAXSparse), isinstance(rhs, JAXSparse)
    if not (left or right):
        return lax.dot_general(lhs, rhs, numbers, preferred_element_type=preferred_element_type)
    lhs_shape, rhs_shape = _shape_of(lhs), _shape_of(rhs)
    check_numbers(lhs_shape, rhs_shape, numbers)
    if left and right:
        return _of_sparse(lhs, rhs, numbers)
    if left:
        return _of_dense(lhs, rhs, numbers, preferred_element_type)
    (lc, rc), (lb, rb) = numbers
    out = _of_dense(rhs, lhs, ((rc, lc), (rb, lb)), preferred_element_type)
    # The sparse operand's dimensions came first.
    batch, trailing = len(lb), len(rhs_shape) - len(rc) - len(rb)
    total = aval_of(out).ndim
    order = (*range(batch), *range(batch + trailing, total), *range(batch, batch + trailing))
    return jnp.transpose(out, order)


def _shape_of(x: Any) -> tuple[int, ...]:
    return x.shape if isinstance(x, JAXSparse) else aval_of(x).shape


def _of_dense(mat: BCOO, dense: Any, numbers: Numbers, preferred: Any) -> Array:
    mat = unbatched(mat)
    check(
        all(d < mat.n_sparse for d in numbers[1][0]),
        lambda: (
            "[bcoo_dot_general] batch dimensions must not be dense dimensions of the sparse "
            f"operand; got {numbers} for {mat!r}. Fix: update_layout(n_dense=0)."
        ),
        NotImplementedError,
    )
    retained = [*numbers[1][0], *remaining(mat.n_sparse, *[pair[0] for pair in numbers])]
    in_order = mat.indices_sorted and retained == [*range(len(retained))]
    result = jnp.result_type(mat.data, dense)
    total = result if preferred is None else dtypes.canonicalize(preferred)
    return product_with_dense(
        mat.data, mat.indices, dense, mat.sparse_shape, numbers, in_order, total
    )


@composite
def product_with_dense(
    data: Any,
    indices: Any,
    dense: Any,
    sizes: tuple[int, ...],
    numbers: Any,
    in_order: bool,
    dtype: Any,
) -> Array:
    """The product: elements multiply gathered rows of the dense operand, and are scatter-added.

    Args:
        data: (nse, *dense). indices: (nse, n_sparse), indices in ``sizes``.
        in_order: rows of the result come in ascending order.
    """
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers
    n_sparse = len(sizes)
    data, dense = data.astype(dtype), dense.astype(dtype)
    pairs = [*zip(lhs_batch, rhs_batch), *zip(lhs_contracting, rhs_contracting)]
    looked_up = [(i, j) for i, j in pairs if i < n_sparse]
    inner = [(i, j) for i, j in pairs if i >= n_sparse]
    free = remaining(aval_of(dense).ndim, rhs_batch, rhs_contracting)
    rows = jnp.transpose(dense, (*[j for _, j in looked_up], *[j for _, j in inner], *free))
    if looked_up:
        key = tuple(indices[:, i] for i, _ in looked_up)
        rows = rows.at[key].get(mode="fill", fill_value=0)
    else:
        rows = rows[None]
    if aval_of(data).ndim > 1:
        nse = aval_of(data).shape[0]
        rows = jnp.broadcast_to(rows, (nse, *aval_of(rows).shape[1:]))
        contracted = tuple(i - n_sparse + 1 for i, _ in inner)
        inner_dims = tuple(range(1, 1 + len(inner)))
        products = lax.dot_general(data, rows, ((contracted, inner_dims), ((0,), (0,))))
    else:
        products = elements.with_trailing_axes(data, aval_of(rows).ndim) * rows
    retained = [*lhs_batch, *remaining(n_sparse, lhs_batch, lhs_contracting)]
    if not retained:
        return jnp.sum(products, 0, dtype=dtype)
    out = jnp.zeros((*[sizes[i] for i in retained], *aval_of(products).shape[1:]), dtype)
    key = tuple(indices[:, i] for i in retained)
    return out.at[key].add(products, mode="drop", indices_are_sorted=in_order)


def _of_sparse(lhs: BCOO, rhs: BCOO, numbers: Numbers) -> BCOO:
    """Multiply every pair of elements; pairs with equal contracted indices contribute."""
    (lc, rc), (lb, rb) = numbers
    check(
        lhs.n_dense == rhs.n_dense == 0,
        lambda: (
            "[bcoo_dot_general] two sparse operands must have no dense dimensions; got "
            f"{lhs!r} and {rhs!r}. Fix: update_layout(n_dense=0)."
        ),
        NotImplementedError,
    )
    lhs, rhs = unbatched(lhs), unbatched(rhs)
    lhs_free = remaining(lhs.ndim, lc, lb)
    rhs_free = remaining(rhs.ndim, rc, rb)
    data, indices = _pairs(
        lhs.data,
        lhs.indices,
        rhs.data,
        rhs.indices,
        lhs.shape,
        rhs.shape,
        ((*lb, *lc), (*rb, *rc)),
        (*lb, *lhs_free),
        tuple(rhs_free),
    )
    shape = (*[lhs.shape[d] for d in (*lb, *lhs_free)], *[rhs.shape[d] for d in rhs_free])
    nse = min(lhs.nse * rhs.nse, math.prod(shape))
    return bcoo_sum_duplicates(lhs.like(data, indices, shape), nse)


@composite
def _pairs(
    lhs: Any,
    lhs_indices: Any,
    rhs: Any,
    rhs_indices: Any,
    lhs_shape: tuple[int, ...],
    rhs_shape: tuple[int, ...],
    matching: Any,
    lhs_retained: tuple[int, ...],
    rhs_retained: tuple[int, ...],
) -> tuple[Array, Array]:
    a = lhs_indices[:, np.asarray(matching[0], int)]
    b = rhs_indices[:, np.asarray(matching[1], int)]
    counts = jnp.all(a[:, None] == b[None], -1)
    counts = counts & elements.in_bounds(lhs_indices, lhs_shape)[:, None]
    counts = counts & elements.in_bounds(rhs_indices, rhs_shape)[None]
    data = jnp.where(counts, lhs[:, None] * rhs[None], 0)
    shape = aval_of(counts).shape
    left = jnp.broadcast_to(
        lhs_indices[:, None, np.asarray(lhs_retained, int)], (*shape, len(lhs_retained))
    )
    right = jnp.broadcast_to(
        rhs_indices[None, :, np.asarray(rhs_retained, int)], (*shape, len(rhs_retained))
    )
    sizes = (*[lhs_shape[d] for d in lhs_retained], *[rhs_shape[d] for d in rhs_retained])
    indices = elements.padded(counts, jnp.concatenate([left, right], -1), sizes)
    return jnp.ravel(data), jnp.reshape(indices, (math.prod(shape), len(sizes)))


def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Any) -> Array:
    """Compute elements of ``lax.dot_general(A, B)`` of dense arrays at indices, (nse, ndim)."""
    numbers = plain_numbers(dimension_numbers)
    (lc, rc), (lb, _) = numbers
    a, b = aval_of(A), aval_of(B)
    check_numbers(a.shape, b.shape, numbers)
    check(
        not lb and aval_of(indices).ndim == 2,
        lambda: (
            "[bcoo_dot_general_sampled] there must be no batch dimensions; got "
            f"{dimension_numbers} with indices {aval_of(indices)}. Fix: vmap."
        ),
        NotImplementedError,
    )
    lhs_free, rhs_free = remaining(a.ndim, lc), remaining(b.ndim, rc)
    n = len(lhs_free)
    rows = jnp.transpose(A, (*lhs_free, *lc))
    columns = jnp.transpose(B, (*rhs_free, *rc))
    key = tuple(indices[:, k] for k in range(n + len(rhs_free)))
    rows = rows.at[key[:n]].get(mode="fill", fill_value=0) if n else rows[None]
    columns = columns.at[key[n:]].get(mode="fill", fill_value=0) if key[n:] else columns[None]
    products = rows * columns
    return jnp.sum(products, tuple(range(1, aval_of(products).ndim)))


def matmul(lhs: Any, rhs: Any) -> Any:
    """Compute ``lhs @ rhs`` with one or two sparse operands, as ``jnp.matmul``."""
    a, b = _shape_of(lhs), _shape_of(rhs)
    check(
        bool(a) and bool(b) and a[-1] == b[max(len(b) - 2, 0)],
        lambda: (
            "[matmul] the last dimension of the left operand must be as long as the last but "
            f"one of the right one; got shapes {a} and {b}. Fix: transpose one."
        ),
    )
    outer = min(max(len(a) - 2, 0), max(len(b) - 2, 0))
    check(
        outer == 0 or a[:-2] == b[:-2],
        lambda: (
            f"[matmul] batch dimensions must be equal; got shapes {a} and {b}. Fix: broadcast one."
        ),
    )
    batch = tuple(range(outer))
    contracting = ((len(a) - 1,), (max(len(b) - 2, 0),))
    out = bcoo_dot_general(lhs, rhs, dimension_numbers=(contracting, (batch, batch)))
    extra = len(b) - 2 - outer if len(a) >= 1 else 0
    rows = 1 if len(a) > 1 else 0
    if extra <= 0 or not rows:
        return out
    # The right operand's own batch dimensions come before the rows.
    order = [*range(outer), *range(outer + 1, outer + 1 + extra), outer, outer + 1 + extra]
    return out.transpose(order)


def bcoo_extract(sparr: BCOO, arr: ArrayLike, *, assume_unique: bool | None = None) -> BCOO:
    """Return the elements of a dense array at the indices of a sparse one.

    Args:
        assume_unique: if True, duplicates each receive the element; the flag of the array by
            default.
    """
    check(
        isinstance(sparr, JAXSparse),
        lambda: (
            f"[bcoo_extract] the first argument must be a BCOO; got {type(sparr).__name__}. "
            "Fix: BCOO.fromdense."
        ),
    )
    shape = aval_of(arr).shape
    check(
        shape == sparr.shape,
        lambda: (
            f"[bcoo_extract] shapes must be equal; got {sparr!r} and {aval_of(arr)}. Fix: "
            "broadcast the array."
        ),
        ValueError,
    )
    unique = sparr.unique_indices if assume_unique is None else assume_unique
    mat = sparr if unique else bcoo_sum_duplicates(sparr, sparr.nse)
    return mat.same(elements.taken_at(mat.indices, arr, mat.shape), mat.indices)


def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Array:
    """Return the elements of the product with a dense array, which broadcasts to the sparse one."""
    shape = aval_of(v).shape
    check(
        len(shape) <= sp_mat.ndim
        and all(
            size in (1, full) for size, full in zip(shape, sp_mat.shape[sp_mat.ndim - len(shape) :])
        ),
        lambda: (
            "[bcoo_multiply_dense] the dense array must broadcast to the shape of the sparse "
            f"one; got {aval_of(v)} for {sp_mat!r}. Fix: todense."
        ),
        NotImplementedError,
    )
    if not shape:
        return sp_mat.data * v
    return sp_mat.data * elements.taken_at(sp_mat.indices, v, sp_mat.shape)


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Return the elementwise product of two sparse arrays of one shape."""
    check(
        lhs.shape == rhs.shape and lhs.n_dense == rhs.n_dense,
        lambda: (
            "[bcoo_multiply_sparse] shapes and dense dimensions must be equal; got "
            f"{lhs!r} and {rhs!r}. Fix: todense for one of them."
        ),
        NotImplementedError if lhs.ndim == rhs.ndim else TypeError,
    )
    if lhs.n_batch != rhs.n_batch:
        lhs, rhs = unbatched(lhs), unbatched(rhs)
    lhs, rhs = broadcast_batches(lhs), broadcast_batches(rhs)
    at = lhs.n_batch
    a, b = lhs.data[..., None], rhs.data[..., None]
    both = jnp.concatenate(
        [
            jnp.concatenate([a, jnp.zeros_like(a, dtype=jnp.result_type(a, b))], -1),
            jnp.concatenate([jnp.zeros_like(b), b], -1),
        ],
        at,
    )
    indices = jnp.concatenate([lhs.indices, rhs.indices], at)
    # Elements of both in two columns, each summed by index.
    pairs = lhs.like(both, indices, (*lhs.shape, 2))
    pairs = bcoo_sum_duplicates(pairs, pairs.nse)
    data = pairs.data[..., 0] * pairs.data[..., 1]
    return lhs.like(data, pairs.indices, lhs.shape, indices_sorted=True, unique_indices=True)
