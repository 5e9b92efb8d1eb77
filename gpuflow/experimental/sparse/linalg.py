"""Linear algebra with sparse matrices.

Tests: tests/experimental/test_sparse.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.callbacks import pure_callback
from gpuflow.control.custom.implicit import custom_linear_solve
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.experimental.sparse.base import JAXSparse
from gpuflow.experimental.sparse.bcsr import BCSR
from gpuflow.numpy.exact_products import exact_dot
from gpuflow.numpy.promotion import is_arraylike


def spsolve(
    data: ArrayLike,
    indices: ArrayLike,
    indptr: ArrayLike,
    b: ArrayLike,
    tol: float = 1e-6,
    reorder: int = 1,
) -> Array:
    """Solve ``A x = b`` with SciPy's direct solver, on the host.

    Args:
        data, indices, indptr: the square matrix A in CSR format.
        b: a vector.
        tol, reorder: accepted as in JAX, where they apply to GPUs.

    Returns:
        The solution, with derivatives with respect to ``data`` and ``b``.
    """
    del tol, reorder
    aval, size = aval_of(b), aval_of(indptr).shape[0] - 1
    check(
        aval.shape == (size,) and aval.dtype == aval_of(data).dtype,
        lambda: (
            f"[spsolve] b must be a vector of {size} elements of the matrix's dtype; got "
            f"{aval} for {aval_of(data)}. Fix: vmap over several vectors."
        ),
        ValueError,
    )
    mat = BCSR((data, indices, indptr), shape=(size, size))
    arrays = tuple(jnp.asarray(array) for array in (data, indices, indptr))
    result = ShapeDtypeStruct(aval.shape, aval.dtype)

    def solve(_: Any, b: Any) -> Any:
        return pure_callback(_solved, result, *arrays, b, vmap_method="sequential")

    def transpose_solve(_: Any, b: Any) -> Any:
        return pure_callback(_solved_transposed, result, *arrays, b, vmap_method="sequential")

    return custom_linear_solve(lambda x: mat @ x, b, solve, transpose_solve)


def _solved(data: Any, indices: Any, indptr: Any, b: Any, transposed: bool = False) -> Any:
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import spsolve as solve

    size = len(indptr) - 1
    arrays = (np.array(data), np.array(indices), np.array(indptr))
    mat = csr_matrix(arrays, shape=(size, size))
    return solve(mat.T.tocsr() if transposed else mat, np.array(b)).astype(b.dtype)


def _solved_transposed(data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    return _solved(data, indices, indptr, b, transposed=True)


def lobpcg_standard(
    A: ArrayLike | Callable[[Any], Any],
    X: ArrayLike,
    m: int = 100,
    tol: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Compute the largest eigenvalues of a symmetric matrix from products with it.

    Each iteration takes the best vectors from the span of the current vectors, the previous steps,
    and the residuals.

    Args:
        A: (n, n), dense or sparse, or a function that multiplies with a matrix (n, j).
        X: (n, k) with 5 k < n: linearly independent initial columns.
        m: maximum number of iterations.
        tol: a vector v has converged if its residual is below ``10 tol n (eigenvalue + |A v|)``; by
            default the dtype's precision.

    Returns:
        Eigenvalues (k,), descending, eigenvectors (n, k), and the number of iterations.

    Source: Knyazev, Toward the optimal preconditioned eigensolver, SIAM J. Sci. Comput. 23 (2001),
    517; a basis from QR as in Duersch et al., A robust and efficient implementation of LOBPCG,
    SIAM J. Sci. Comput. 40 (2018), C655.
    """
    X = jnp.asarray(X)
    n, k = aval_of(X).shape
    check(
        0 < 5 * k < n,
        lambda: (
            "[lobpcg_standard] X must have columns, and five times as many must be less than "
            f"its rows; got {aval_of(X)}. Fix: linalg.eigh."
        ),
        ValueError,
    )
    multiply = _product(A)
    result = aval_of(multiply(jnp.zeros((n, 1), aval_of(X).dtype)))
    check(
        result.shape == (n, 1) and result.dtype == aval_of(X).dtype,
        lambda: (
            f"[lobpcg_standard] A must map ({n}, 1) to itself, in the dtype of X; got {result} "
            f"for X {aval_of(X)}. Fix: convert one."
        ),
        ValueError,
    )
    limit = 10 * n * (jnp.finfo(aval_of(X).dtype).eps if tol is None else tol)

    def residual(values: Any, X: Any) -> tuple[Any, Any]:
        product = multiply(X)
        R = product - values * X
        done = jnp.linalg.norm(R, axis=0) < limit * (jnp.linalg.norm(product, axis=0) + values)
        return R, jnp.sum(done)

    def goes_on(state: Any) -> Any:
        count, _, _, _, done, _ = state
        return (count < m) & (done < k)

    def step(state: Any) -> Any:
        count, X, P, R, _, _ = state
        R = R / jnp.maximum(jnp.linalg.norm(R, axis=0), jnp.finfo(aval_of(R).dtype).tiny)
        # Columns that depend on those before them become some that are orthogonal to all.
        basis, _ = jnp.linalg.qr(jnp.concatenate([X, P, R], 1))
        inner = exact_dot(basis.T, multiply(basis))
        values, vectors = jnp.linalg.eigh((inner + inner.T) / 2)
        values, best = values[: -k - 1 : -1], vectors[:, : -k - 1 : -1]
        X = exact_dot(basis, best)
        P, _ = jnp.linalg.qr(exact_dot(basis[:, k:], best[k:]))
        R, done = residual(values, X)
        return count + 1, X, P, R, done, values

    X, _ = jnp.linalg.qr(X)
    values = jnp.sum(X * multiply(X), 0)
    R, _ = residual(values, X)
    start = (jnp.int32(0), X, R, R, jnp.zeros_like(jnp.sum(R[0] < 0)), values)
    count, vectors, _, _, _, values = lax.while_loop(goes_on, step, start)
    return values, vectors, count


def _product(A: Any) -> Callable[[Any], Any]:
    """Return a function that multiplies by a matrix."""
    if isinstance(A, JAXSparse):
        return lambda X: A @ X
    return (lambda X: exact_dot(A, X)) if is_arraylike(A) else A
