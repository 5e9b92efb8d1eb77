"""Schur, Hessenberg and tridiagonal forms of matrices; without derivatives, as in JAX.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.linalg.algebra import Shape, real_dtype, through_float32
from gpuflow.ops.linalg.common import (
    Outputs,
    check_square,
    each_matrix,
    failing_as_nan,
    lapack,
    matrix_op,
    on_host,
)

# --- schur ---------------------------------------------------------------------------------


def _schur_result(shape: Shape, dtype: Any, *, compute_schur_vectors: bool) -> Outputs:
    check_square("schur", shape)
    return [(shape, dtype)] * (1 + compute_schur_vectors)


@on_host
def _schur_impl(xp: Any, a: Any, *, compute_schur_vectors: bool) -> list[Any]:
    del xp
    if not a.size:
        return [np.zeros(a.shape, a.dtype) for _ in range(1 + compute_schur_vectors)]
    (gees,) = lapack(["gees"], a)
    outs = _schur_result(a.shape[-2:], a.dtype, compute_schur_vectors=compute_schur_vectors)

    def decompose(matrix: np.ndarray) -> Sequence[np.ndarray] | None:
        form, *_, vectors, _, info = gees(_never, matrix, compute_v=compute_schur_vectors)
        return [form, vectors] if info == 0 else None

    return failing_as_nan(lambda x: each_matrix(decompose, [x], [2], outs), a)


def _never(*values: Any) -> None:
    """Select no eigenvalue to be sorted to the front."""


schur_p = matrix_op("schur", (2,), _schur_result, _schur_impl, multiple_results=True)


@explained
@through_float32
def schur(
    x: ArrayLike,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Any = None,
) -> tuple[Array, Array]:
    """Compute the Schur form ``x == V @ T @ V^H`` with unitary V.

    Args:
        x: matrices of shape (..., n, n).
        compute_schur_vectors: whether to return V.
        sort_eig_vals: must be False. select_callable: unused, as in JAX.

    Returns:
        (T, V), or (T,): T is upper triangular; for real matrices it has blocks of size 2 on the
        diagonal for conjugate pairs of eigenvalues.

    Raises:
        ValueError: if the matrices are not square. NotImplementedError: if ``sort_eig_vals`` is
            set.

    Example:
        >>> a = jnp.array([[1.0, 2.0], [4.0, 3.0]])
        >>> t, v = lax.linalg.schur(a)
        >>> bool(jnp.allclose(v @ t @ v.T, a, atol=1e-5))
        True
    """
    del select_callable
    check(
        not sort_eig_vals,
        lambda: "[schur] sort_eig_vals must be False; got True. Fix: sort the eigenvalues.",
        NotImplementedError,
    )
    return tuple(schur_p.bind(x, compute_schur_vectors=bool(compute_schur_vectors)))


# --- hessenberg, tridiagonal ---------------------------------------------------------------


def _hessenberg_result(shape: Shape, dtype: Any) -> Outputs:
    check_square("hessenberg", shape)
    return [(shape, dtype), ((max(shape[0] - 1, 0),), dtype)]


@on_host
def _hessenberg_impl(xp: Any, a: Any) -> list[Any]:
    del xp
    size = a.shape[-1]
    if size < 2 or not a.size:
        return [a, np.zeros((*a.shape[:-2], max(size - 1, 0)), a.dtype)]
    gehrd, work_size = lapack(["gehrd", "gehrd_lwork"], a)
    work = int(work_size(size)[0].real)

    def reduce(matrix: np.ndarray) -> Sequence[np.ndarray] | None:
        form, factors, info = gehrd(matrix, lwork=work)
        return [form, factors] if info == 0 else None

    return each_matrix(reduce, [a], [2], _hessenberg_result(a.shape[-2:], a.dtype))


hessenberg_p = matrix_op(
    "hessenberg", (2,), _hessenberg_result, _hessenberg_impl, multiple_results=True
)


@explained
@through_float32
def hessenberg(a: ArrayLike) -> tuple[Array, Array]:
    """Reduce matrices to upper Hessenberg form by a unitary similarity.

    Args:
        a: matrices of shape (..., n, n).

    Returns:
        The Hessenberg form on and above the first subdiagonal, with Householder vectors below it;
        and their factors (..., n - 1).

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> form, factors = lax.linalg.hessenberg(jnp.eye(3))
        >>> form.shape, factors.shape
        ((3, 3), (2,))
    """
    form, factors = hessenberg_p.bind(a)
    return form, factors


def _tridiagonal_result(shape: Shape, dtype: Any, *, lower: bool) -> Outputs:
    del lower
    check_square("tridiagonal", shape)
    check(
        shape[0] > 0,
        lambda: f"[tridiagonal] matrices must not be empty; got {shape}. Fix: skip the call.",
        ValueError,
    )
    size, rdtype = shape[0], real_dtype(dtype)
    return [(shape, dtype), ((size,), rdtype), ((size - 1,), rdtype), ((size - 1,), dtype)]


@on_host
def _tridiagonal_impl(xp: Any, a: Any, *, lower: bool) -> list[Any]:
    del xp
    outs = _tridiagonal_result(a.shape[-2:], a.dtype, lower=lower)
    if a.shape[-1] == 1 or not a.size:
        trivial = [np.zeros((*a.shape[:-2], *shape), dtype) for shape, dtype in outs]
        trivial[0], trivial[1] = a.real.astype(a.dtype), a[..., 0].real
        return trivial
    name = "hetrd" if dtypes.is_complex(a.dtype) else "sytrd"
    trd, work_size = lapack([name, f"{name}_lwork"], a)
    work = int(work_size(a.shape[-1], lower=lower)[0].real)

    def reduce(matrix: np.ndarray) -> Sequence[np.ndarray] | None:
        form, diagonal, off_diagonal, factors, info = trd(matrix, lower=lower, lwork=work)
        return [form, diagonal, off_diagonal, factors] if info == 0 else None

    return each_matrix(reduce, [a], [2], outs)


tridiagonal_p = matrix_op(
    "tridiagonal", (2,), _tridiagonal_result, _tridiagonal_impl, multiple_results=True
)


@explained
@through_float32
def tridiagonal(a: ArrayLike, *, lower: bool = True) -> tuple[Array, Array, Array, Array]:
    """Reduce symmetric or Hermitian matrices to tridiagonal form by a unitary similarity.

    Args:
        a: matrices of shape (..., n, n).
        lower: whether to read and write the lower triangle.

    Returns:
        An array like ``a`` with the tridiagonal form and Householder vectors. The diagonal (..., n)
        and the off-diagonal (..., n - 1), both real. The factors of the vectors (..., n - 1).

    Raises:
        ValueError: if a matrix is empty or not square.

    Example:
        >>> a = jnp.array([[4.0, 3.0, 4.0], [3.0, 1.0, 2.0], [4.0, 2.0, 5.0]])
        >>> form, diagonal, off_diagonal, factors = lax.linalg.tridiagonal(a)
        >>> diagonal.sum().round(3), abs(off_diagonal[0]).round(3)
        (Array(10., dtype=float32), Array(5., dtype=float32))
    """
    form, diagonal, off_diagonal, factors = tridiagonal_p.bind(a, lower=bool(lower))
    return form, diagonal, off_diagonal, factors
