"""Eigenvalues of general matrices; Schur, Hessenberg and tridiagonal forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.lowering import Library
from gpuflow.ops.axes import reduce_sum
from gpuflow.ops.comparison import eq
from gpuflow.ops.complex_numbers import abs as absolute
from gpuflow.ops.complex_numbers import complex as complex_number
from gpuflow.ops.complex_numbers import conj, imag, real
from gpuflow.ops.elementwise import add, div, mul, neg, sub
from gpuflow.ops.layout import iota
from gpuflow.ops.linalg_common import (
    Outputs,
    Shape,
    adjoint,
    as_column,
    as_row,
    check_square,
    complex_dtype,
    diagonal_of,
    each_matrix,
    failing_as_nan,
    is_diagonal,
    lapack,
    matmul,
    matrix_op,
    on_host,
    real_dtype,
    swap,
    to_dtype,
)
from gpuflow.ops.linalg_lu import solve_matrices
from gpuflow.ops.reductions import argmax
from gpuflow.ops.selection import where

# --- eig -----------------------------------------------------------------------------------


def _eig_result(
    shape: Shape, dtype: Any, *, compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool, **params: Any,
) -> Outputs:  # fmt: skip
    del params
    check_square("eig", shape)
    wide = complex_dtype(dtype)
    count = compute_left_eigenvectors + compute_right_eigenvectors
    return [((shape[0],), wide), *[(shape, wide)] * count]


@on_host
def _eig_impl(
    xp: Any, a: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool,
    enable_eigvec_derivs: bool,
) -> list[Any]:  # fmt: skip
    del xp, enable_eigvec_derivs
    wide = complex_dtype(a.dtype)
    count = 1 + compute_left_eigenvectors + compute_right_eigenvectors
    if not a.size:
        shapes = [a.shape[:-1], a.shape, a.shape][:count]
        return [np.zeros(shape, wide) for shape in shapes]
    if compute_left_eigenvectors:
        outs = failing_as_nan(_with_left_vectors, a)
        outs = outs if compute_right_eigenvectors else outs[:2]
    elif compute_right_eigenvectors:
        outs = failing_as_nan(lambda x: tuple(np.linalg.eig(x)), a)
    else:
        outs = failing_as_nan(lambda x: [np.linalg.eigvals(x)], a)
    # NumPy gives real results where all values of the batch are real.
    return [out.astype(wide, copy=False) for out in outs]


def _with_left_vectors(a: np.ndarray) -> list[np.ndarray]:
    """Values, left and right vectors, of which NumPy gives the right ones only."""
    wide = complex_dtype(a.dtype)
    (geev,) = lapack(["geev"], a)

    def decompose(own: np.ndarray) -> Sequence[np.ndarray] | None:
        *values, left, right, info = geev(own)
        if info != 0:
            return None
        if len(values) == 1:
            return [values[0], left, right]
        spectrum = values[0] + 1j * values[1]
        return [spectrum, *[_from_pairs(values[1], v.astype(wide)) for v in (left, right)]]

    size = a.shape[-1]
    return each_matrix(decompose, [a], [2], [((size,), wide), *[((size, size), wide)] * 2])


def _from_pairs(imaginary: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Conjugate pairs of vectors, of which LAPACK stores the real and the imaginary part."""
    first = np.flatnonzero(imaginary > 0)
    parts = vectors[:, first] + 1j * vectors[:, first + 1]
    vectors[:, first], vectors[:, first + 1] = parts, parts.conj()
    return vectors


def _eig_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool, enable_eigvec_derivs: bool,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """First-order perturbation of a matrix with distinct eigenvalues.

    Source: Giles (2008), 3.1: the change of the values is the diagonal of V^-1 dA V.
    """
    (a,), (tangent,) = primals, tangents
    check(
        enable_eigvec_derivs or not (compute_left_eigenvectors or compute_right_eigenvectors),
        lambda: (
            "[eig] derivatives of eigenvectors hold only for distinct eigenvalues and vectors with "
            f"one largest component, so they must be asked for; got {aval_of(a)}. "
            "Fix: lax.linalg.eig(x, enable_eigvec_derivs=True), or eigvals for values alone."
        ),
        NotImplementedError,
    )
    values, *vectors = eig_p.bind(
        a,
        compute_left_eigenvectors=compute_left_eigenvectors,
        compute_right_eigenvectors=True,
        enable_eigvec_derivs=enable_eigvec_derivs,
    )
    right = vectors[-1]
    tangent = to_dtype(tangent, aval_of(right).dtype)
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        solved = solve_matrices(right, tangent)
        return [values], [reduce_sum(mul(solved, swap(right)), (aval_of(right).ndim - 1,))]
    d_values, d_right = _vector_tangents(values, right, tangent)
    outs, out_tangents = [values], [d_values]
    if compute_left_eigenvectors:
        outs.append(vectors[0])
        out_tangents.append(_vector_tangents(conj(values), vectors[0], adjoint(tangent))[1])
    if compute_right_eigenvectors:
        outs.append(right)
        out_tangents.append(d_right)
    return outs, out_tangents


def _vector_tangents(values: Any, vectors: Any, tangent: Any) -> tuple[Any, Any]:
    """The tangents of eigenvalues and of eigenvectors with LAPACK's norm.

    Perturbation gives each vector's tangent u up to a multiple of the vector v. The multiple
    keeps the length at 1 and the largest component real:

        c = -Re(v^H u) - i Im(u_k) / v_k,  k the place of the largest component of v.
    """
    diagonal = is_diagonal(aval_of(vectors).shape)
    gaps = where(diagonal, 1, sub(as_row(values), as_column(values)))
    inner = matmul(solve_matrices(vectors, tangent), vectors)
    moved = matmul(vectors, where(diagonal, 0, div(inner, gaps)))
    aval = aval_of(vectors)
    rows = aval.ndim - 2
    places = iota(np.int32, aval.shape, rows)
    is_largest = eq(places, as_row(argmax(absolute(vectors), rows, np.int32)))

    def largest(x: Any) -> Any:
        return reduce_sum(where(is_largest, x, 0), (rows,))

    along = real(reduce_sum(mul(conj(vectors), moved), (rows,)))
    turning = div(imag(largest(moved)), real(largest(vectors)))
    multiple = complex_number(neg(along), neg(turning))
    return diagonal_of(inner), add(moved, mul(vectors, as_row(multiple)))


eig_p = matrix_op(
    "eig",
    (2,),
    _eig_result,
    _eig_impl,
    jvp=_eig_jvp,
    multiple_results=True,
    lower=Library(flops=lambda ins, outs, params: 25 * ins[0].size * ins[0].shape[-1]),
)


def eig(
    x: Any, *, compute_left_eigenvectors: bool = True, compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
) -> list[Any]:  # fmt: skip
    """Eigenvalues and eigenvectors of general matrices.

    Args:
        x: matrices of shape (..., n, n).
        compute_left_eigenvectors: whether to give u with ``u^H A = w u^H``.
        compute_right_eigenvectors: whether to give v with ``A v = w v``.
        enable_eigvec_derivs: whether vectors may be differentiated; that is right only where all
            eigenvalues differ and no vector has two largest components.

    Returns:
        The complex values (..., n) in no particular order, then left and right vectors (..., n, n)
        in columns, of length 1 and with a real largest component.

    Raises:
        ValueError: matrices that are not square.
        NotImplementedError: derivatives of vectors without ``enable_eigvec_derivs``.
    """
    return list(
        eig_p.bind(
            x,
            compute_left_eigenvectors=bool(compute_left_eigenvectors),
            compute_right_eigenvectors=bool(compute_right_eigenvectors),
            enable_eigvec_derivs=bool(enable_eigvec_derivs),
        )
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

    def decompose(own: np.ndarray) -> Sequence[np.ndarray] | None:
        form, *_, vectors, _, info = gees(_never, own, compute_v=compute_schur_vectors)
        return [form, vectors] if info == 0 else None

    return failing_as_nan(lambda x: each_matrix(decompose, [x], [2], outs), a)


def _never(*values: Any) -> None:
    """No eigenvalue is sorted to the front."""


schur_p = matrix_op("schur", (2,), _schur_result, _schur_impl, multiple_results=True)


def schur(
    x: Any, *, compute_schur_vectors: bool = True, sort_eig_vals: bool = False,
    select_callable: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The Schur form ``x == V @ T @ V^H`` with unitary V.

    Args:
        x: matrices of shape (..., n, n).
        compute_schur_vectors: whether to give V.
        sort_eig_vals: must be False. select_callable: unused, as in JAX.

    Returns:
        (T, V), or (T,): T is upper triangular; for real matrices it has blocks of size 2 on the
        diagonal for conjugate pairs of eigenvalues.

    Raises:
        ValueError: matrices that are not square. NotImplementedError: ``sort_eig_vals``.
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
    (gehrd,) = lapack(["gehrd"], a)

    def reduce(own: np.ndarray) -> Sequence[np.ndarray] | None:
        form, factors, info = gehrd(own)
        return [form, factors] if info == 0 else None

    return each_matrix(reduce, [a], [2], _hessenberg_result(a.shape[-2:], a.dtype))


hessenberg_p = matrix_op(
    "hessenberg", (2,), _hessenberg_result, _hessenberg_impl, multiple_results=True
)


def hessenberg(a: Any) -> tuple[Any, Any]:
    """Reduce matrices to upper Hessenberg form by a unitary similarity.

    Args:
        a: matrices of shape (..., n, n).

    Returns:
        The form on and above the first subdiagonal, Householder vectors below it; and their
        factors (..., n - 1).

    Raises:
        ValueError: matrices that are not square.
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
    size, part = shape[0], real_dtype(dtype)
    return [(shape, dtype), ((size,), part), ((size - 1,), part), ((size - 1,), dtype)]


@on_host
def _tridiagonal_impl(xp: Any, a: Any, *, lower: bool) -> list[Any]:
    del xp
    outs = _tridiagonal_result(a.shape[-2:], a.dtype, lower=lower)
    if a.shape[-1] == 1 or not a.size:
        found = [np.zeros((*a.shape[:-2], *shape), dtype) for shape, dtype in outs]
        found[0], found[1] = a, a[..., 0].real
        return found
    (trd,) = lapack(["hetrd" if dtypes.is_complex(a.dtype) else "sytrd"], a)

    def reduce(own: np.ndarray) -> Sequence[np.ndarray] | None:
        form, diagonal, beside, factors, info = trd(own, lower=lower)
        return [form, diagonal, beside, factors] if info == 0 else None

    return each_matrix(reduce, [a], [2], outs)


tridiagonal_p = matrix_op(
    "tridiagonal", (2,), _tridiagonal_result, _tridiagonal_impl, multiple_results=True
)


def tridiagonal(a: Any, *, lower: bool = True) -> tuple[Any, Any, Any, Any]:
    """Reduce symmetric or Hermitian matrices to tridiagonal form by a unitary similarity.

    Args:
        a: matrices of shape (..., n, n).
        lower: which triangle is read and written.

    Returns:
        An array like ``a`` with the form and Householder vectors; the diagonal (..., n) and the
        one beside it (..., n - 1), both real; and the vectors' factors (..., n - 1).

    Raises:
        ValueError: matrices that are not square, or empty.
    """
    form, diagonal, beside, factors = tridiagonal_p.bind(a, lower=bool(lower))
    return form, diagonal, beside, factors
