"""BCOO: elements with their indices, in batches.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import index as to_int
from typing import Any, Self

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers, canonicalize_axes
from gpuflow.base.errors import ConcretizationTypeError, check
from gpuflow.control.mapped_axes import register_axes
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.experimental.sparse import elements
from gpuflow.experimental.sparse.base import JAXSparse, batch_axis
from gpuflow.experimental.sparse.layout import (
    bcoo_broadcast_in_dim,
    bcoo_reduce_sum,
    bcoo_reshape,
    bcoo_rev,
    bcoo_slice,
    bcoo_sort_indices,
    bcoo_squeeze,
    bcoo_sum_duplicates,
    bcoo_transpose,
    bcoo_update_layout,
    without_zeros,
)
from gpuflow.experimental.sparse.products import (
    bcoo_multiply_dense,
    bcoo_multiply_sparse,
    matmul,
)
from gpuflow.numpy.promotion import is_arraylike
from gpuflow.tree_util import register_pytree_node_class


@register_pytree_node_class
class BCOO(JAXSparse):
    """A sparse array of elements and their indices (coordinate format).

    Dimensions are ordered: batch, sparse, dense. Elements with the same index are summed; elements
    with an index out of bounds are padding. Sizes of batch and dense dimensions are those of the
    data, so that ``vmap`` maps over a batch dimension as for arrays.

    Attributes:
        data: (*batch, nse, *dense). Batch dimensions of size 1 broadcast.
        indices: (*batch, nse, n_sparse), integers.
        sparse_shape: the sizes of sparse dimensions.
        indices_sorted, unique_indices: flags of the indices.
    """

    def __init__(
        self,
        args: tuple[Any, Any],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:
        data, indices = jnp.asarray(args[0]), jnp.asarray(args[1])
        sizes = as_integers("BCOO", "shape", shape)
        a, b = aval_of(data), aval_of(indices)
        n_batch = b.ndim - 2
        end = n_batch + b.shape[-1] if b.ndim >= 2 else 0
        check(
            n_batch >= 0
            and dtypes.is_integer(b.dtype)
            and end <= len(sizes)
            and a.shape[n_batch:] == (b.shape[-2], *sizes[end:])
            and all(
                batch == n or batch == 1
                for aval in (a, b)
                for batch, n in zip(aval.shape[:n_batch], sizes, strict=False)
            ),
            lambda: (
                "[BCOO] data must be (*batch, nse, *dense) and indices integers, "
                f"(*batch, nse, n_sparse); got {a} and {b} for shape {sizes}. Fix: "
                "BCOO((data, indices), shape=...)."
            ),
            ValueError,
        )
        if np.broadcast_shapes(a.shape[:n_batch], b.shape[:n_batch]) != sizes[:n_batch]:
            indices = jnp.broadcast_to(indices, (*sizes[:n_batch], *b.shape[-2:]))
        self.data, self.indices = data, indices
        self.sparse_shape = sizes[n_batch:end]
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)

    def like(
        self,
        data: Any,
        indices: Any,
        shape: Sequence[int] | None = None,
        *,
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Self:
        """Build another array, of the same shape by default."""
        return type(self)(
            (data, indices),
            shape=self.shape if shape is None else shape,
            indices_sorted=indices_sorted,
            unique_indices=unique_indices,
        )

    def same(self, data: Any, indices: Any) -> Self:
        """Build the same array from other data, with indices in the same order."""
        return self.like(
            data, indices, indices_sorted=self.indices_sorted, unique_indices=self.unique_indices
        )

    def with_data(self, data: Any) -> Self:
        """Replace the elements at the same indices."""
        return self.same(data, self.indices)

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        ndim = aval_of(self.indices).ndim
        check(
            ndim >= 2,
            lambda: (
                "[BCOO] loops and tree maps may take batch dimensions only; got an axis of "
                "the stored elements. Fix: update_layout(n_batch=...)."
            ),
            ValueError,
        )
        return ndim - 2

    @property
    def n_sparse(self) -> int:
        """The number of sparse dimensions."""
        return len(self.sparse_shape)

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return aval_of(self.data).ndim - 1 - self.n_batch

    @property
    def nse(self) -> int:
        """Number of stored elements in each batch, including padding."""
        return aval_of(self.indices).shape[-2]

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """The sizes of dense dimensions."""
        return aval_of(self.data).shape[self.n_batch + 1 :]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense array."""
        n_batch = self.n_batch
        batch_shapes = [aval_of(array).shape[:n_batch] for array in (self.data, self.indices)]
        return (*np.broadcast_shapes(*batch_shapes), *self.sparse_shape, *self.dense_shape)

    def tree_flatten(self) -> tuple[tuple[Any, Any], Any]:
        """Return data and indices, and the static data."""
        return (self.data, self.indices), (
            self.sparse_shape,
            self.indices_sorted,
            self.unique_indices,
        )

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Sequence[Any]) -> Self:
        """Build an array from any leaves."""
        self = object.__new__(cls)
        self.data, self.indices = children
        self.sparse_shape, self.indices_sorted, self.unique_indices = aux_data
        return self

    @classmethod
    def fromdense(
        cls,
        mat: ArrayLike,
        *,
        nse: int | None = None,
        index_dtype: DTypeLike = np.int32,
        n_dense: int = 0,
        n_batch: int = 0,
    ) -> BCOO:
        """See ``bcoo_fromdense``."""
        return bcoo_fromdense(
            mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch
        )

    @classmethod
    def from_scipy_sparse(
        cls, mat: Any, *, index_dtype: DTypeLike | None = None, n_dense: int = 0, n_batch: int = 0
    ) -> BCOO:
        """Convert from a matrix of scipy.sparse."""
        check(
            n_dense == 0 and n_batch == 0,
            lambda: (
                "[BCOO.from_scipy_sparse] n_dense and n_batch must be 0; got "
                f"{n_dense} and {n_batch}. Fix: update_layout."
            ),
            NotImplementedError,
        )
        mat = mat.tocoo()
        indices = np.stack([mat.row, mat.col], -1).astype(index_dtype or np.int32)
        return cls((jnp.asarray(mat.data), indices), shape=mat.shape)

    @classmethod
    def _empty(
        cls,
        shape: Sequence[int],
        *,
        dtype: DTypeLike | None = None,
        index_dtype: DTypeLike = "int32",
        n_dense: int = 0,
        n_batch: int = 0,
        nse: int = 0,
    ) -> BCOO:
        sizes = as_integers("empty", "shape", shape)
        end = len(sizes) - n_dense
        check(
            n_dense >= 0 and n_batch >= 0 and nse >= 0 and n_batch <= end,
            lambda: (
                "[empty] n_batch, n_dense and nse must not be negative, and dimensions be "
                f"enough; got {n_batch}, {n_dense} and {nse} for shape {sizes}. Fix: smaller ones."
            ),
            ValueError,
        )
        data = jnp.zeros((*sizes[:n_batch], nse, *sizes[end:]), dtype)
        limit = np.asarray(sizes[n_batch:end], dtypes.canonicalize(index_dtype))
        indices = jnp.broadcast_to(limit, (*sizes[:n_batch], nse, end - n_batch))
        return cls((data, indices), shape=sizes, indices_sorted=True, unique_indices=True)

    @classmethod
    def _eye(
        cls,
        N: int,
        M: int,
        k: int,
        *,
        dtype: DTypeLike | None = None,
        index_dtype: DTypeLike = "int32",
        n_batch: int = 0,
        n_dense: int = 0,
    ) -> BCOO:
        check(
            n_batch >= 0 and n_dense >= 0 and n_batch + n_dense <= 2,
            lambda: (
                "[eye] n_batch and n_dense must not be negative, and at most 2 together; got "
                f"{n_batch} and {n_dense}. Fix: smaller ones."
            ),
            ValueError,
        )
        count = max(0, min(N, M - k) if k > 0 else min(N + k, M))
        rows = np.arange(count) + max(0, -k)
        columns = np.arange(count) + max(0, k)
        indices = np.stack([rows, columns], -1).astype(dtypes.canonicalize(index_dtype))
        mat = cls(
            (jnp.ones(count, dtype), indices),
            shape=(N, M),
            indices_sorted=True,
            unique_indices=True,
        )
        if n_batch == n_dense == 0:
            return mat
        if n_batch + n_dense < 2 and n_batch:
            column = np.where((np.arange(N) + k >= 0) & (np.arange(N) + k < M), np.arange(N) + k, M)
            data = jnp.asarray(column < M, dtype or mat.dtype)
            batched = column.astype(aval_of(mat.indices).dtype)[:, None, None]
            return cls(
                (data[:, None], batched), shape=(N, M), indices_sorted=True, unique_indices=True
            )
        return bcoo_fromdense(
            mat.todense(), n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype
        )

    def update_layout(
        self,
        *,
        n_batch: int | None = None,
        n_dense: int | None = None,
        on_inefficient: str | None = "error",
    ) -> BCOO:
        """See ``bcoo_update_layout``."""
        return bcoo_update_layout(
            self, n_batch=n_batch, n_dense=n_dense, on_inefficient=on_inefficient
        )

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCOO:
        """Sum duplicates: one element for each index, in ascending order.

        Args:
            nse: see ``bcoo_sum_duplicates``. remove_zeros: whether to remove stored zeros.
        """
        return without_zeros(self, nse) if remove_zeros else bcoo_sum_duplicates(self, nse)

    def sort_indices(self) -> BCOO:
        """Sort the indices in ascending order."""
        return bcoo_sort_indices(self)

    def todense(self) -> Array:
        """Convert to a dense array."""
        return bcoo_todense(self)

    def transpose(self, axes: Sequence[int] | None = None) -> BCOO:
        """Permute the dimensions; by default reverse them."""
        axes = range(self.ndim)[::-1] if axes is None else axes
        return bcoo_transpose(self, permutation=[d % self.ndim for d in axes])

    def reshape(self, *args: Any, **kwargs: Any) -> BCOO:
        """Reshape the array; one size may be -1. See ``bcoo_reshape``."""
        sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple | list) else args
        sizes = kwargs.get("shape", sizes)
        product = int(np.prod([size for size in sizes if size != -1]))
        whole = [self.size // max(product, 1) if size == -1 else size for size in sizes]
        return bcoo_reshape(self, new_sizes=whole)

    def astype(self, dtype: DTypeLike) -> BCOO:
        """Convert to another dtype."""
        return self.with_data(self.data.astype(dtype))

    def sum(self, axis: Any = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Any:
        """Sum over axes: returns a sparse array, or a scalar for all axes."""
        axes = canonicalize_axes(axis, self.ndim, "sum")
        if dtype is None and not dtypes.is_inexact(self.dtype):
            # As of arrays: in the widest integer.
            dtype = dtypes.canonicalize(np.sum(np.zeros(0, self.dtype)).dtype)
        mat = self if dtype is None else self.astype(dtype)
        out = bcoo_reduce_sum(mat, axes=axes)
        if keepdims:
            sizes = [1 if d in axes else size for d, size in enumerate(self.shape)]
            return bcoo_reshape(out, new_sizes=sizes)
        return out if out.ndim else jnp.sum(out.data, dtype=out.dtype)

    def mapped(self, function: Callable[[Any], Any]) -> BCOO:
        """Apply a function with f(0) = 0 to each element; duplicates must be summed first."""
        mat = self if self.unique_indices else bcoo_sum_duplicates(self, self.nse)
        return mat.with_data(function(mat.data))

    def __abs__(self) -> BCOO:
        return self.mapped(jnp.abs)

    def __neg__(self) -> BCOO:
        return self.with_data(-self.data)

    def __pos__(self) -> BCOO:
        return self

    def __matmul__(self, other: Any) -> Any:
        return matmul(self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(other, self) if _is_operand(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, BCOO):
            if other.indices is self.indices and self.unique_indices:
                return self.with_data(self.data * other.data)
            return bcoo_multiply_sparse(self, other)
        if not _is_operand(other):
            return NotImplemented
        return self.with_data(bcoo_multiply_dense(self, other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        check(
            not isinstance(other, JAXSparse),
            lambda: f"[BCOO] the divisor must be dense; got {other!r}. Fix: todense.",
            NotImplementedError,
        )
        if aval_of(other).ndim == 0:
            return self.with_data(self.data / other)
        # Of padding the inverse is 0.
        inverse = 1.0 / jnp.asarray(other, jnp.result_type(self.data, other))
        return self.with_data(bcoo_multiply_dense(self, inverse))

    def __pow__(self, exponent: Any) -> BCOO:
        check(
            isinstance(exponent, int | float) and exponent > 0,
            lambda: (
                "[BCOO] the exponent must be a positive number, so that zeros stay zero; got "
                f"{exponent!r}. Fix: todense."
            ),
            NotImplementedError,
        )
        return self.mapped(lambda data: data**exponent)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, BCOO):
            return _added(self, other)
        if not _is_operand(other):
            return NotImplemented
        check(
            np.broadcast_shapes(aval_of(other).shape, self.shape) == aval_of(other).shape,
            lambda: (
                f"[BCOO] a dense array must have the shape of the sum; got {aval_of(other)} "
                f"and {self!r}. Fix: todense."
            ),
            NotImplementedError,
        )
        return self.todense() + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        check(
            isinstance(other, BCOO),
            lambda: (
                f"[BCOO] both sides of a difference must be sparse; got {other!r}. Fix: todense."
            ),
            NotImplementedError,
        )
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return self.__sub__(other)

    def __rtruediv__(self, other: Any) -> Any:
        raise NotImplementedError(_not_sparse("/", self, other))

    def __eq__(self, other: object) -> Any:
        raise NotImplementedError(_not_sparse("==", self, other))

    def __ne__(self, other: object) -> Any:
        raise NotImplementedError(_not_sparse("!=", self, other))

    def __lt__(self, other: Any) -> Any:
        raise NotImplementedError(_not_sparse("<", self, other))

    def __le__(self, other: Any) -> Any:
        raise NotImplementedError(_not_sparse("<=", self, other))

    def __gt__(self, other: Any) -> Any:
        raise NotImplementedError(_not_sparse(">", self, other))

    def __ge__(self, other: Any) -> Any:
        raise NotImplementedError(_not_sparse(">=", self, other))

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(self.shape[0])])

    def __getitem__(self, item: Any) -> Any:
        """Index the array by integers, slices and None."""
        items = list(item) if isinstance(item, tuple) else [item]
        ellipsis = [at for at, k in enumerate(items) if k is Ellipsis]
        missing = self.ndim - sum(k is not None and k is not Ellipsis for k in items)
        at = ellipsis[0] if ellipsis else len(items)
        items[at : at + 1] = [slice(None)] * max(missing, 0)
        check(
            missing >= 0
            and len(ellipsis) <= 1
            and all(k is None or isinstance(k, slice | int | np.integer) for k in items),
            lambda: (
                "[BCOO] subscripts must be integers, slices and None, not more than there are "
                f"dimensions; got {item!r} for {self!r}. Fix: todense."
            ),
            NotImplementedError,
        )
        taken = [k for k in items if k is not None]
        ranges = [_range_of(k, size) for k, size in zip(taken, self.shape, strict=True)]
        out = bcoo_slice(
            self,
            start_indices=[span.start for span in ranges],
            limit_indices=[span.stop for span in ranges],
            strides=[span.step for span in ranges],
        )
        flipped = [d for d, k in enumerate(taken) if isinstance(k, slice) and (k.step or 1) < 0]
        out = bcoo_rev(out, flipped) if flipped else out
        gone = [d for d, k in enumerate(taken) if not isinstance(k, slice)]
        out = bcoo_squeeze(out, dimensions=gone) if gone else out
        retained = [k for k in items if k is None or isinstance(k, slice)]
        if None not in retained:
            return out
        positions = [d for d, k in enumerate(retained) if k is not None]
        sizes = [1] * len(retained)
        for d, size in zip(positions, out.shape, strict=True):
            sizes[d] = size
        return bcoo_broadcast_in_dim(out, shape=sizes, broadcast_dimensions=positions)


register_axes(BCOO, batch_axis)


def _range_of(k: Any, size: int) -> range:
    """The indices that a subscript selects, ascending. Integers out of bounds are clamped."""
    if isinstance(k, slice):
        found = range(size)[k]
        found = found[::-1] if found.step < 0 else found
        return range(found[0], found[-1] + 1, found.step) if found else range(0)
    check(
        size > 0,
        lambda: f"[BCOO] a dimension of size 0 must have slices as subscripts; got {k}. Fix: [:].",
        IndexError,
    )
    k = min(max(k + size if k < 0 else k, 0), size - 1)
    return range(k, k + 1)


def _not_sparse(name: str, mat: BCOO, other: Any) -> str:
    return (
        f"[BCOO] {name} must have dense operands, as its result is dense; got {mat!r} and "
        f"{other!r}. Fix: todense."
    )


def _is_operand(x: Any) -> bool:
    return isinstance(x, JAXSparse) or is_arraylike(x)


def _added(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Concatenate the elements of both; equal indices are not summed yet."""
    check(
        lhs.shape == rhs.shape and lhs.n_batch == rhs.n_batch and lhs.n_dense == rhs.n_dense,
        lambda: (
            "[BCOO] sparse arrays that are added must have equal shapes, batch and dense "
            f"dimensions; got {lhs!r} and {rhs!r}. Fix: update_layout."
        ),
        NotImplementedError,
    )
    if lhs.indices is rhs.indices:
        return lhs.with_data(lhs.data + rhs.data)
    stacks = [[], []]
    for mat in (lhs, rhs):
        sizes = mat.shape[: mat.n_batch]
        for stack, array in zip(stacks, (mat.data, mat.indices), strict=True):
            trailing = aval_of(array).shape[mat.n_batch :]
            stack.append(jnp.broadcast_to(array, (*sizes, *trailing)))
    data, indices = (jnp.concatenate(stack, lhs.n_batch) for stack in stacks)
    return lhs.like(data, indices)


@explained
def bcoo_todense(mat: BCOO) -> Array:
    """Convert to a dense array."""
    return elements.dense_of(mat.data, mat.indices, mat.shape)


@explained
def bcoo_fromdense(
    mat: ArrayLike,
    *,
    nse: int | None = None,
    n_batch: int = 0,
    n_dense: int = 0,
    index_dtype: DTypeLike = np.int32,
) -> BCOO:
    """Convert a dense array to BCOO format.

    Args:
        nse: number of stored elements in each batch; by default the largest number of nonzeros in a
            batch, which cannot be used in traced functions.
        n_batch, n_dense: number of batch and of dense dimensions.

    Raises:
        ConcretizationTypeError: if ``nse`` is needed and not given.
    """
    mat = jnp.asarray(mat)
    rank = aval_of(mat).ndim
    check(
        n_batch >= 0 and n_dense >= 0 and n_batch + n_dense <= rank,
        lambda: (
            "[bcoo_fromdense] n_batch and n_dense must not be negative, and together be at "
            f"most {rank}; got {n_batch} and {n_dense}. Fix: n_batch=0, n_dense=0."
        ),
        ValueError,
    )
    if nse is None:
        count = elements.stored_count(mat, n_batch, n_dense)
        check(
            not isinstance(count, Tracer),
            lambda: (
                "[bcoo_fromdense] nse must be given in traced functions, where elements are "
                "not known; got None. Fix: fromdense(mat, nse=...)."
            ),
            ConcretizationTypeError,
        )
        nse = int(count)
    stored = elements.stored_of(
        mat, to_int(nse), n_batch, n_dense, dtypes.canonicalize(index_dtype)
    )
    return BCOO(stored, shape=aval_of(mat).shape, indices_sorted=True, unique_indices=True)
