"""Decompositions of matrices, with SciPy's names and arguments.

Tests: tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.decompositions import matrices
from gpuflow.numpy.exact_products import exact_matmul
from gpuflow.numpy.promotion import promote_dtypes_inexact
from gpuflow.numpy.solvers import check_square
from gpuflow.ops.linalg.algebra import adjoint, columns, rows, to_dtype


def inexact(name: str, *operands: Any) -> list[Any]:
    """Arguments, lists too, as arrays of one float or complex dtype."""
    arrays = promote_dtypes_inexact(*[jnp.asarray(x) for x in operands])
    return matrices(name, *arrays)


def floats(name: str, *operands: Any) -> list[Any]:
    """Arguments, lists too, as arrays of one float or complex dtype, which they must have.

    Raises:
        TypeError: integers, bools, or dtypes that differ.
    """
    arrays = [jnp.asarray(x) for x in operands]
    check(
        len({aval_of(x).dtype for x in arrays}) == 1
        and dtypes.is_inexact(aval_of(arrays[0]).dtype),
        lambda: (
            f"[{name}] matrices must have one float or complex dtype; got "
            f"{', '.join(str(aval_of(x)) for x in arrays)}. Fix: x.astype(jnp.float32)."
        ),
    )
    return arrays


@explained
def cholesky(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Array:
    """Return the upper triangular ``U`` with ``U.conj().T @ U == a``, or the lower ``L``.

    Args:
        a: Hermitian positive definite matrices of shape (..., n, n); only one triangle is read.
        lower: whether to return the lower factor, computed from the lower triangle.
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        Floats or complex numbers of the shape of ``a``; nan for matrices that are not positive
        definite.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> gf.scipy.linalg.cholesky(jnp.array([[4., 2.], [2., 10.]]))
        Array([[2., 1.],
               [0., 3.]], dtype=float32)
    """
    del overwrite_a, check_finite
    (a,) = inexact("cholesky", a)
    check_square("cholesky", a)
    factor = lax.linalg.cholesky(a if lower else adjoint(a), symmetrize_input=False)
    return factor if lower else adjoint(factor)


@explained
def cho_factor(
    a: ArrayLike, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, bool]:
    """Return ``(cholesky(a, lower), lower)``, for ``cho_solve``.

    Args:
        a: Hermitian positive definite matrices of shape (..., n, n); only one triangle is read.
        lower: whether to return the lower factor, computed from the lower triangle.
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        (factor, lower): an array of the shape of ``a``, and the argument.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> factor = gf.scipy.linalg.cho_factor(jnp.array([[4., 0.], [0., 16.]]))
        >>> gf.scipy.linalg.cho_solve(factor, jnp.array([8., 16.]))
        Array([2., 1.], dtype=float32)
    """
    return cholesky(a, lower, overwrite_a, check_finite), lower


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> tuple[Array, Array, Array]: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Array: ...
@explained
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """Return the singular value decomposition ``a == u @ diag(s) @ vh``.

    Args:
        a: matrices of shape (..., m, n).
        full_matrices: whether u and vh are square; otherwise they have min(m, n) columns and rows.
        compute_uv: whether to return the singular vectors too.
        overwrite_a, check_finite, lapack_driver: accepted; no effect.

    Returns:
        (u, s, vh), or s; ``s`` is real and descending.

    Raises:
        TypeError: if the array has fewer than two axes.

    Example:
        >>> x = jnp.array([[0., 2.], [3., 0.]])
        >>> u, s, vh = gf.scipy.linalg.svd(x)
        >>> jnp.round(s, 3)
        Array([3., 2.], dtype=float32)
        >>> jnp.round(u * s @ vh, 3) + 0.0
        Array([[0., 2.],
               [3., 0.]], dtype=float32)
    """
    del overwrite_a, check_finite, lapack_driver
    (a,) = inexact("svd", a)
    decomposition = lax.linalg.svd(a, full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(decomposition) if compute_uv else decomposition


@overload
def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: Literal[False] = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> tuple[Array, Array]: ...
@overload
def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Array: ...
@explained
def eigh(
    a: ArrayLike,
    b: ArrayLike | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """Return eigenvalues and eigenvectors of symmetric or Hermitian matrices.

    Args:
        a: matrices of shape (..., n, n).
        b, eigvals: must be None.
        type: must be 1.
        lower: accepted; as in JAX, the mean of ``a`` and its adjoint is decomposed.
        eigvals_only: whether to return only the eigenvalues.
        overwrite_a, overwrite_b, turbo, check_finite: accepted; no effect.

    Returns:
        (values, vectors), or values; values ascend, and vectors are columns.

    Raises:
        NotImplementedError: if the problem is generalized, or a subset of eigenvalues is requested.
        ValueError: if the matrices are not square.

    Example:
        >>> values, vectors = gf.scipy.linalg.eigh(jnp.array([[0., 2.], [2., 0.]]))
        >>> jnp.round(values, 3)
        Array([-2.,  2.], dtype=float32)
    """
    del overwrite_a, overwrite_b, turbo, check_finite
    for what, value, only in (("b", b, None), ("type", type, 1), ("eigvals", eigvals, None)):
        check(
            value is only if only is None else value == only,
            lambda what=what, value=value, only=only: (
                f"[eigh] {what} must be {only}; got {value!r}. Fix: leave it out."
            ),
            NotImplementedError,
        )
    (a,) = inexact("eigh", a)
    if eigvals_only:
        return jnp.linalg.eigvalsh(a, "L" if lower else "U")
    vectors, values = lax.linalg.eigh(a, lower=lower)
    return values, vectors


# --- lu, qr --------------------------------------------------------------------------------


@explained
def lu_factor(
    a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, Array]:
    """Compute the LU decomposition in one array, for ``lu_solve``.

    Args:
        a: matrices of shape (..., m, n).
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        (factors, pivots): an array of the shape of ``a``, and int32 of shape (..., min(m, n)); row
        k was swapped with row ``pivots[k]``.

    Raises:
        TypeError: if the array has fewer than two axes.

    Example:
        >>> factors, pivots = gf.scipy.linalg.lu_factor(jnp.array([[1., 2.], [2., 8.]]))
        >>> factors
        Array([[ 2. ,  8. ],
               [ 0.5, -2. ]], dtype=float32)
        >>> pivots
        Array([1, 1], dtype=int32)
    """
    del overwrite_a, check_finite
    (a,) = inexact("lu_factor", a)
    factors, pivots, _ = lax.linalg.lu(a)
    return factors, pivots


@explained
def lu(
    a: ArrayLike, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Array, ...]:
    """Compute ``a == p @ l @ u`` with a permutation, a lower and an upper triangular matrix.

    Args:
        a: matrices of shape (..., m, n).
        permute_l: whether to return ``p @ l`` instead of both.
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        (p, l, u), or (p @ l, u); p is real.

    Raises:
        TypeError: if the array has fewer than two axes.

    Example:
        >>> p, l, u = gf.scipy.linalg.lu(jnp.array([[1., 2.], [2., 8.]]))
        >>> l
        Array([[1. , 0. ],
               [0.5, 1. ]], dtype=float32)
        >>> u
        Array([[ 2.,  8.],
               [ 0., -2.]], dtype=float32)
    """
    del overwrite_a, check_finite
    (a,) = inexact("lu", a)
    factors, _, permutation = lax.linalg.lu(a)
    height, width = aval_of(a).shape[-2:]
    size, dtype = min(height, width), aval_of(a).dtype
    row = np.arange(height, dtype=np.int32)[:, None]
    p = jnp.equal(jnp.expand_dims(permutation, -2), row).astype(jnp.real(a).dtype)
    lower = jnp.tril(columns(factors, 0, size), -1) + np.eye(height, size, dtype=dtype)
    upper = jnp.triu(rows(factors, 0, size))
    if permute_l:
        return exact_matmul(to_dtype(p, dtype), lower), upper
    return p, lower, upper


@explained
def qr(
    a: ArrayLike,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Array, ...]:
    """Compute ``a == q @ r`` with orthonormal columns of q and upper triangular r.

    Args:
        a: matrices of shape (..., m, n).
        mode: "full": q is square; "economic": q has min(m, n) columns; "r": only r.
        pivoting: whether to permute columns so that the diagonal of r is descending; the
            permutation is then returned too.
        overwrite_a, lwork, check_finite: accepted; no effect.

    Returns:
        (q, r), (q, r, p), (r,) or (r, p).

    Raises:
        ValueError: if the mode is unknown.
        TypeError: if the array has fewer than two axes.

    Example:
        >>> x = jnp.array([[3., 0.], [4., 5.]])
        >>> q, r = gf.scipy.linalg.qr(x)
        >>> jnp.round(q @ r, 3) + 0.0
        Array([[3., 0.],
               [4., 5.]], dtype=float32)
    """
    del overwrite_a, lwork, check_finite
    check_choice("qr", "mode", mode, ("full", "r", "economic"))
    (a,) = inexact("qr", a)
    factors = lax.linalg.qr(a, pivoting=pivoting, full_matrices=mode != "economic")
    return tuple(factors[1:] if mode == "r" else factors)


@explained
def qr_multiply(
    a: ArrayLike,
    c: ArrayLike,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Array, ...]:
    """Multiply a matrix by the first min(m, n) columns of the q of ``a == q @ r``.

    Args:
        a: matrices of shape (..., m, n).
        c: "left": (..., min(m, n), k), or a vector; "right": (..., k, m), or a vector.
        mode: "left": ``q @ c``; "right": ``c @ q``.
        pivoting: whether to permute columns so that the diagonal of r is descending.
        conjugate: whether to multiply by the conjugate of q.
        overwrite_a, overwrite_c: accepted; no effect.

    Returns:
        (product, r) or (product, r, p).

    Raises:
        ValueError: if shapes do not match, or the mode is unknown.

    Example:
        >>> x = jnp.array([[3., 0.], [4., 5.]])
        >>> product, r = gf.scipy.linalg.qr_multiply(x, jnp.array([3., 4.]))
        >>> jnp.round(jnp.abs(product), 3) + 0.0
        Array([5., 0.], dtype=float32)
    """
    del overwrite_a, overwrite_c
    check_choice("qr_multiply", "mode", mode, ("right", "left"))
    a, c = inexact("qr_multiply", a, c)
    vector, left = aval_of(c).ndim == 1, mode == "left"
    if vector:
        c = jnp.expand_dims(c, 1 if left else 0)
    check(
        aval_of(a).ndim >= 2 and aval_of(c).ndim >= 2,
        lambda: (
            f"[qr_multiply] operands must be matrices; got {aval_of(a)} and {aval_of(c)}. "
            "Fix: reshape one operand."
        ),
        ValueError,
    )
    height, width = aval_of(a).shape[-2:]
    expected = min(height, width) if left else height
    check(
        aval_of(c).shape[-2 if left else -1] == expected,
        lambda: (
            f"[qr_multiply] c must have {expected} {'rows' if left else 'columns'} for mode="
            f"{mode!r}; got {aval_of(a)} and {aval_of(c)}. Fix: transpose c."
        ),
        ValueError,
    )
    q, *others = lax.linalg.qr(a, pivoting=pivoting, full_matrices=False)
    q = jnp.conj(q) if conjugate else q
    product = exact_matmul(q, c) if left else exact_matmul(c, q)
    return (jnp.ravel(product) if vector else product, *others)
