"""Creation of sparse arrays: empty, identity and random; conversion to dense arrays.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index as to_int
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import random
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.types import Array, DTypeLike
from gpuflow.experimental.sparse import elements
from gpuflow.experimental.sparse.base import JAXSparse
from gpuflow.experimental.sparse.bcoo import BCOO
from gpuflow.experimental.sparse.bcsr import BCSR

_FORMATS: dict[str, type[BCOO] | type[BCSR]] = {"bcoo": BCOO, "bcsr": BCSR}


def _format(name: str, sparse_format: str) -> Any:
    check(
        sparse_format in _FORMATS,
        lambda: (
            f"[{name}] sparse_format must be one of {[*_FORMATS]}; got {sparse_format!r}. Fix: "
            "one of these."
        ),
        ValueError,
    )
    return _FORMATS[sparse_format]


@explained
def empty(
    shape: Sequence[int],
    dtype: DTypeLike | None = None,
    index_dtype: DTypeLike = "int32",
    sparse_format: str = "bcoo",
    **kwds: Any,
) -> Any:
    """Return a sparse array of zeros without stored elements.

    Args:
        kwds: ``n_batch``, ``n_dense``, and ``nse`` for the capacity.
    """
    kind = _format("empty", sparse_format)
    return kind._empty(shape, dtype=dtype, index_dtype=index_dtype, **kwds)


@explained
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    index_dtype: DTypeLike = "int32",
    sparse_format: str = "bcoo",
    **kwds: Any,
) -> Any:
    """Return an (N, M) matrix with ones on the diagonal ``k``.

    Args:
        kwds: ``n_batch``, ``n_dense``.
    """
    kind = _format("eye", sparse_format)
    rows, columns = to_int(N), to_int(N if M is None else M)
    mat = BCOO._eye(rows, columns, to_int(k), dtype=dtype, index_dtype=index_dtype, **kwds)
    return mat if kind is BCOO else kind.from_bcoo(mat)


@explained
def todense(arr: Any) -> Array:
    """Convert a sparse array to a dense one; dense arrays are returned unchanged."""
    return arr.todense() if isinstance(arr, JAXSparse) else jnp.asarray(arr)


@explained
def random_bcoo(
    key: Any,
    shape: Sequence[int],
    *,
    dtype: DTypeLike = float,
    indices_dtype: DTypeLike | None = None,
    nse: float = 0.2,
    n_batch: int = 0,
    n_dense: int = 0,
    unique_indices: bool = True,
    sorted_indices: bool = False,
    generator: Callable[..., Any] = random.uniform,
    **kwds: Any,
) -> BCOO:
    """Return a random sparse array.

    Args:
        nse: number of stored elements in each batch, or their fraction of all elements.
        unique_indices: whether indices are distinct. sorted_indices: whether they are in ascending
            order.
        generator: ``(key, shape, dtype, **kwds) -> array``; uniform in [0, 1) by default.
    """
    sizes = tuple(to_int(size) for size in shape)
    end = len(sizes) - n_dense
    check(
        n_batch >= 0 and n_dense >= 0 and n_batch <= end,
        lambda: (
            "[random_bcoo] n_batch and n_dense must not be negative, nor be more than the "
            f"dimensions; got {n_batch} and {n_dense} for {sizes}. Fix: smaller ones."
        ),
        ValueError,
    )
    batch, sparse, dense = sizes[:n_batch], sizes[n_batch:end], sizes[end:]
    total = math.prod(sparse)
    check(
        0 <= nse < total,
        lambda: (
            f"[random_bcoo] nse must be at least 0 and below {total}, the sparse elements; got "
            f"{nse}. Fix: a smaller one."
        ),
        ValueError,
    )
    count = math.ceil(nse * total) if 0 < nse < 1 else to_int(int(nse))
    kind = dtypes.canonicalize(int if indices_dtype is None else indices_dtype)
    check(
        total <= np.iinfo(kind).max,
        lambda: (
            f"[random_bcoo] indices_dtype must represent {total} indices; got {kind}. Fix: a "
            "wider dtype."
        ),
        ValueError,
    )

    def drawn(key: Any) -> Any:
        flat = random.choice(key, total, (count,), replace=not unique_indices)
        return elements.unraveled(flat.astype(kind), sparse)

    keys = random.split(key, math.prod(batch) + 1)
    data = generator(keys[0], shape=(*batch, count, *dense), dtype=dtype, **kwds)
    indices = elements.over_batches(drawn, 1)(keys[1:])
    indices = jnp.reshape(indices, (*batch, count, len(sparse)))
    mat = BCOO((data, indices), shape=sizes)
    return mat.sort_indices() if sorted_indices else mat
