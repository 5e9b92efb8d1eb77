"""BCSR: elements row by row, with the column of each and the start of each row.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.mapped_axes import register_axes
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.experimental.sparse import elements
from gpuflow.experimental.sparse.base import JAXSparse, batch_axis
from gpuflow.experimental.sparse.bcoo import BCOO, bcoo_fromdense
from gpuflow.experimental.sparse.layout import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    broadcast_batches,
)
from gpuflow.experimental.sparse.products import bcoo_dot_general, matmul
from gpuflow.tree_util import register_pytree_node_class


@register_pytree_node_class
class BCSR(JAXSparse):
    """A sparse matrix in compressed row format, with optional batch dimensions.

    Attributes:
        data: (*batch, nse, *dense). Elements after the end of the last row are padding.
        indices: (*batch, nse), the column of each element.
        indptr: (*batch, rows + 1), the index in the data at which each row starts.
        sparse_shape: (rows, columns).
    """

    def __init__(
        self,
        args: tuple[Any, Any, Any],
        *,
        shape: Sequence[int],
        indices_sorted: bool = False,
        unique_indices: bool = False,
    ) -> None:
        data, indices, indptr = (jnp.asarray(array) for array in args)
        sizes = as_integers("BCSR", "shape", shape)
        a, b, c = aval_of(data), aval_of(indices), aval_of(indptr)
        n_batch = b.ndim - 1
        check(
            n_batch >= 0
            and c.ndim == b.ndim
            and len(sizes) >= n_batch + 2
            and dtypes.is_integer(b.dtype)
            and dtypes.is_integer(c.dtype)
            and c.shape[-1] == sizes[n_batch] + 1
            and a.shape[n_batch:] == (b.shape[-1], *sizes[n_batch + 2 :])
            and all(array.shape[:n_batch] == sizes[:n_batch] for array in (a, b, c)),
            lambda: (
                "[BCSR] data must be (*batch, nse, *dense), indices (*batch, nse) and indptr "
                f"(*batch, rows + 1); got {a}, {b} and {c} for shape {sizes}. Fix: "
                "BCSR((data, indices, indptr), shape=...)."
            ),
            ValueError,
        )
        self.data, self.indices, self.indptr = data, indices, indptr
        self.sparse_shape = sizes[n_batch : n_batch + 2]
        self.indices_sorted, self.unique_indices = bool(indices_sorted), bool(unique_indices)

    @property
    def n_batch(self) -> int:
        """The number of batch dimensions."""
        return aval_of(self.indices).ndim - 1

    @property
    def n_sparse(self) -> int:
        """Two: rows and columns."""
        return 2

    @property
    def n_dense(self) -> int:
        """The number of dense dimensions."""
        return aval_of(self.data).ndim - 1 - self.n_batch

    @property
    def nse(self) -> int:
        """Number of stored elements in each batch, including padding."""
        return aval_of(self.indices).shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense array."""
        data = aval_of(self.data).shape
        return (*data[: self.n_batch], *self.sparse_shape, *data[self.n_batch + 1 :])

    def tree_flatten(self) -> tuple[tuple[Any, Any, Any], Any]:
        """Return data, indices and indptr, and the static data."""
        return (self.data, self.indices, self.indptr), (
            self.sparse_shape,
            self.indices_sorted,
            self.unique_indices,
        )

    @classmethod
    def tree_unflatten(cls, aux_data: Any, children: Sequence[Any]) -> Self:
        """Build an array from any leaves."""
        self = object.__new__(cls)
        self.data, self.indices, self.indptr = children
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
    ) -> BCSR:
        """See ``bcsr_fromdense``."""
        return bcsr_fromdense(
            mat, nse=nse, index_dtype=index_dtype, n_dense=n_dense, n_batch=n_batch
        )

    @classmethod
    def from_scipy_sparse(
        cls, mat: Any, *, index_dtype: DTypeLike | None = None, n_dense: int = 0, n_batch: int = 0
    ) -> BCSR:
        """Convert from a matrix of scipy.sparse."""
        check(
            n_dense == 0 and n_batch == 0,
            lambda: (
                "[BCSR.from_scipy_sparse] n_dense and n_batch must be 0; got "
                f"{n_dense} and {n_batch}. Fix: BCSR.from_bcoo of another layout."
            ),
            NotImplementedError,
        )
        mat = mat.tocsr()
        kind = dtypes.canonicalize(index_dtype or np.int32)
        arrays = (jnp.asarray(mat.data), mat.indices.astype(kind), mat.indptr.astype(kind))
        return cls(arrays, shape=mat.shape)

    @classmethod
    def from_bcoo(cls, arr: BCOO) -> BCSR:
        """Convert from a BCOO array with two sparse dimensions; its elements are sorted."""
        check(
            arr.n_sparse == 2,
            lambda: (
                f"[BCSR.from_bcoo] the array must have two sparse dimensions; got {arr!r}. "
                "Fix: update_layout."
            ),
            NotImplementedError,
        )
        arr = broadcast_batches(arr if arr.indices_sorted else arr.sort_indices())
        columns, indptr = _compressed(arr.indices, arr.sparse_shape)
        return cls(
            (arr.data, columns, indptr),
            shape=arr.shape,
            indices_sorted=True,
            unique_indices=arr.unique_indices,
        )

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
    ) -> BCSR:
        sizes = as_integers("empty", "shape", shape)
        end = len(sizes) - n_dense
        check(
            end - n_batch == 2 and n_dense >= 0 and n_batch >= 0 and nse >= 0,
            lambda: (
                "[BCSR] there must be two sparse dimensions; got shape "
                f"{sizes} with n_batch={n_batch}, n_dense={n_dense}, nse={nse}. Fix: n_batch."
            ),
            ValueError,
        )
        batch, kind = sizes[:n_batch], dtypes.canonicalize(index_dtype)
        data = jnp.zeros((*batch, nse, *sizes[end:]), dtype)
        indices = jnp.full((*batch, nse), sizes[n_batch + 1], kind)
        indptr = jnp.zeros((*batch, sizes[n_batch] + 1), kind)
        return cls((data, indices, indptr), shape=sizes, indices_sorted=True, unique_indices=True)

    def to_bcoo(self) -> BCOO:
        """Convert to BCOO format."""
        return BCOO(
            (self.data, _expanded(self.indices, self.indptr)),
            shape=self.shape,
            indices_sorted=self.indices_sorted,
            unique_indices=self.unique_indices,
        )

    def sum_duplicates(self, nse: int | None = None, remove_zeros: bool = True) -> BCSR:
        """Sum duplicates; see ``BCOO.sum_duplicates``."""
        return self.from_bcoo(self.to_bcoo().sum_duplicates(nse, remove_zeros))

    def todense(self) -> Array:
        """Convert to a dense array."""
        return self.to_bcoo().todense()

    def transpose(self, axes: Sequence[int] | None = None) -> Any:
        """Transpose the matrix, which sorts the elements again."""
        return self.from_bcoo(self.to_bcoo().transpose(axes))

    def __matmul__(self, other: Any) -> Any:
        return self.to_bcoo() @ _as_bcoo(other)

    def __rmatmul__(self, other: Any) -> Any:
        return matmul(other, self.to_bcoo())

    def __getitem__(self, item: Any) -> Any:
        out = self.to_bcoo()[item]
        return self.from_bcoo(out) if isinstance(out, BCOO) and out.n_sparse == 2 else out


register_axes(BCSR, batch_axis)


def _as_bcoo(x: Any) -> Any:
    return x.to_bcoo() if isinstance(x, BCSR) else x


@composite
def _compressed(indices: Any, sizes: tuple[int, ...]) -> tuple[Array, Array]:
    """Columns of sorted indices, and the start of each row."""

    def compress(indices: Any) -> Any:
        dtype = aval_of(indices).dtype
        real = elements.in_bounds(indices, sizes)
        row = jnp.where(real, indices[:, 0], np.asarray(sizes[0], dtype))
        counts = jnp.zeros(sizes[0] + 1, dtype).at[row + 1].add(1, mode="drop")
        return jnp.where(real, indices[:, 1], np.asarray(sizes[1], dtype)), jnp.cumsum(counts)

    columns, indptr = elements.over_batches(compress, aval_of(indices).ndim - 2)(indices)
    return columns, indptr.astype(aval_of(indices).dtype)


@composite
def _expanded(indices: Any, indptr: Any) -> Array:
    """Indices from columns and row starts; elements after the last row are out of bounds."""

    def expand(indices: Any, indptr: Any) -> Any:
        dtype = aval_of(indices).dtype
        starts = jnp.zeros(aval_of(indices).shape, dtype).at[indptr].add(1, mode="drop")
        return jnp.stack([(jnp.cumsum(starts) - 1).astype(dtype), indices], -1)

    return elements.over_batches(expand, aval_of(indices).ndim - 1)(indices, indptr)


@explained
def bcsr_fromdense(
    mat: ArrayLike,
    *,
    nse: int | None = None,
    n_batch: int = 0,
    n_dense: int = 0,
    index_dtype: DTypeLike = np.int32,
) -> BCSR:
    """Convert a dense array to BCSR format; see ``bcoo_fromdense``."""
    out = bcoo_fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype)
    return BCSR.from_bcoo(out)


@explained
def bcsr_todense(mat: BCSR) -> Array:
    """Convert to a dense array."""
    return mat.todense()


@explained
def bcsr_sum_duplicates(mat: BCSR, nse: int | None = None) -> BCSR:
    """Sum duplicates; stored zeros are kept."""
    return mat.sum_duplicates(nse, remove_zeros=False)


@explained
def bcsr_extract(indices: ArrayLike, indptr: ArrayLike, mat: ArrayLike) -> Array:
    """Return the elements of a dense array at the indices of a BCSR array."""
    return elements.taken_at(_expanded(indices, indptr), mat, aval_of(mat).shape)


@explained
def bcsr_dot_general(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
) -> Any:
    """See ``bcoo_dot_general``."""
    return bcoo_dot_general(
        _as_bcoo(lhs),
        _as_bcoo(rhs),
        dimension_numbers=dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
    )


@explained
def bcsr_broadcast_in_dim(
    mat: BCSR, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any = None
) -> BCSR:
    """See ``bcoo_broadcast_in_dim``."""
    return BCSR.from_bcoo(
        bcoo_broadcast_in_dim(
            mat.to_bcoo(),
            shape=shape,
            broadcast_dimensions=broadcast_dimensions,
            sharding=sharding,
        )
    )


@explained
def bcsr_concatenate(operands: Sequence[BCSR], *, dimension: int) -> BCSR:
    """See ``bcoo_concatenate``."""
    mats = [mat.to_bcoo() for mat in operands]
    return BCSR.from_bcoo(bcoo_concatenate(mats, dimension=dimension))
