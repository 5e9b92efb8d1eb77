"""Linear algebra with sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base.errors import check
from gpuflow.callbacks import pure_callback
from gpuflow.control.implicit import custom_linear_solve
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.experimental.sparse.bcsr import BCSR


def spsolve(
    data: ArrayLike, indices: ArrayLike, indptr: ArrayLike, b: ArrayLike, tol: float = 1e-6,
    reorder: int = 1,
) -> Array:  # fmt: skip
    """Solve ``A x = b`` by SciPy's direct solver, on the host.

    Args:
        data, indices, indptr: the square matrix A in CSR format.
        b: a vector.
        tol, reorder: accepted as in JAX, where they are for GPUs.

    Returns:
        The solution, with derivatives with respect to ``data`` and ``b``.
    """
    del tol, reorder
    aval, size = aval_of(b), aval_of(indptr).shape[0] - 1
    check(
        aval.shape == (size,) and aval.dtype == aval_of(data).dtype,
        lambda: f"[spsolve] b must be a vector of {size} elements of the matrix's dtype; got "
        f"{aval} for {aval_of(data)}. Fix: vmap over several vectors.",
        ValueError,
    )
    mat = BCSR((data, indices, indptr), shape=(size, size))
    parts = tuple(jnp.asarray(part) for part in (data, indices, indptr))
    result = ShapeDtypeStruct(aval.shape, aval.dtype)

    def solve(_: Any, b: Any) -> Any:
        return pure_callback(_solved, result, *parts, b, vmap_method="sequential")

    def transpose_solve(_: Any, b: Any) -> Any:
        return pure_callback(_solved_transposed, result, *parts, b, vmap_method="sequential")

    return custom_linear_solve(lambda x: mat @ x, b, solve, transpose_solve)


def _solved(data: Any, indices: Any, indptr: Any, b: Any, transposed: bool = False) -> Any:
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import spsolve as solve

    size = len(indptr) - 1
    parts = (np.array(data), np.array(indices), np.array(indptr))
    mat = csr_matrix(parts, shape=(size, size))
    return solve(mat.T.tocsr() if transposed else mat, np.array(b)).astype(b.dtype)


def _solved_transposed(data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    return _solved(data, indices, indptr, b, transposed=True)
