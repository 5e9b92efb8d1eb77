"""Eigenvalues of symmetric matrices, and singular values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.lowering import Library
from gpuflow.ops.comparison import eq
from gpuflow.ops.complex_numbers import real
from gpuflow.ops.elementwise import add, div, mul, sub
from gpuflow.ops.linalg_cholesky import symmetrized
from gpuflow.ops.linalg_common import (
    Outputs,
    Shape,
    adjoint,
    as_column,
    as_row,
    check_square,
    check_subset,
    diagonal_of,
    failing_as_nan,
    is_diagonal,
    matmul,
    matrix_op,
    plain_subset,
    real_dtype,
    to_dtype,
)
from gpuflow.ops.selection import where

Subset = tuple[int, int] | None


def _real(x: Any) -> Any:
    return real(x) if real_dtype(aval_of(x).dtype) != aval_of(x).dtype else x


def _library(xp: Any, function: Any, a: Any) -> list[Any]:
    """Call a batched routine; on the host nothing that is not finite reaches it."""
    return failing_as_nan(function, a) if xp is np else list(function(a))


# --- eigh ----------------------------------------------------------------------------------


def _eigh_result(
    shape: Shape, dtype: Any, *, subset_by_index: Subset, compute_vectors: bool, **params: Any
) -> Outputs:
    del params
    check_square("eigh", shape)
    size = shape[0]
    check_subset("eigh", subset_by_index, size)
    count = size if subset_by_index is None else subset_by_index[1] - subset_by_index[0]
    values = ((count,), real_dtype(dtype))
    return [((size, count), dtype), values] if compute_vectors else [values]


def _eigh_impl(
    xp: Any, a: Any, *, lower: bool, sort_eigenvalues: bool, subset_by_index: Subset,
    compute_vectors: bool,
) -> list[Any]:  # fmt: skip
    del sort_eigenvalues  # LAPACK sorts in any case
    side = "L" if lower else "U"
    chosen = slice(*(subset_by_index or (None,)))
    if not a.size:
        values = xp.zeros(a.shape[:-1], real_dtype(a.dtype))
        return [xp.zeros(a.shape, a.dtype), values] if compute_vectors else [values]
    if not compute_vectors:
        (values,) = _library(xp, lambda x: [xp.linalg.eigvalsh(x, side)], _one_side(xp, a, lower))
        return [values[..., chosen]]
    values, vectors = _library(xp, lambda x: xp.linalg.eigh(x, side), _one_side(xp, a, lower))
    return [vectors[..., chosen], values[..., chosen]]


def _one_side(xp: Any, a: Any, lower: bool) -> Any:
    """What is on the other side is not read, so it may be nan."""
    return a if np.isfinite(a).all() else (xp.tril(a) if lower else xp.triu(a))


def _eigh_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, subset_by_index: Subset,
    compute_vectors: bool, **params: Any,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """First-order perturbation of a matrix with distinct eigenvalues.

    Source: Giles, Collected matrix derivative results for forward and reverse mode (2008), 3.1.
    """
    (a,), (tangent,) = primals, tangents
    size = aval_of(a).shape[-1]
    check(
        subset_by_index in (None, (0, size)),
        lambda: (
            "[eigh] derivatives need all eigenvalues; got subset_by_index="
            f"{subset_by_index}. Fix: slice the results of the full decomposition."
        ),
        NotImplementedError,
    )
    vectors, values = eigh_p.bind(
        symmetrized(a), subset_by_index=None, compute_vectors=True, **params
    )
    inner = matmul(matmul(adjoint(vectors), tangent), vectors)
    d_values = _real(diagonal_of(inner))
    if not compute_vectors:
        return [values], [d_values]
    gaps = sub(as_row(values), as_column(values))
    turn = mul(to_dtype(_inverse_off_diagonal(gaps), aval_of(a).dtype), inner)
    return [vectors, values], [matmul(vectors, turn), d_values]


def _inverse_off_diagonal(gaps: Any) -> Any:
    """``1 / gaps`` beside the diagonal and 0 on it."""
    diagonal = is_diagonal(aval_of(gaps).shape)
    return where(diagonal, 0, div(1, where(diagonal, 1, gaps)))


eigh_p = matrix_op(
    "eigh",
    (2,),
    _eigh_result,
    _eigh_impl,
    jvp=_eigh_jvp,
    multiple_results=True,
    lower=Library(flops=lambda ins, outs, params: 9 * ins[0].size * ins[0].shape[-1]),
)


def eigh(
    x: Any, *, lower: bool = True, symmetrize_input: bool = True, sort_eigenvalues: bool = True,
    subset_by_index: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Eigenvectors and eigenvalues of symmetric or Hermitian matrices.

    Args:
        x: matrices of shape (..., n, n).
        lower: which triangle is read where ``symmetrize_input`` is False.
        symmetrize_input: whether to take the mean of ``x`` and its adjoint first.
        sort_eigenvalues: must the values ascend; they always do.
        subset_by_index: a range of values to return, (start, stop); without derivatives.

    Returns:
        (vectors, values), the vectors in the columns of (..., n, n), the real values ascending.

    Raises:
        ValueError: matrices that are not square, or no such range.
    """
    if symmetrize_input and aval_of(x).ndim >= 2 and len(set(aval_of(x).shape[-2:])) == 1:
        x = symmetrized(x)
    vectors, values = eigh_p.bind(
        x,
        lower=bool(lower),
        sort_eigenvalues=bool(sort_eigenvalues),
        subset_by_index=plain_subset(subset_by_index),
        compute_vectors=True,
    )
    return vectors, values


def eigh_values(x: Any, *, lower: bool = True, symmetrize_input: bool = True) -> Any:
    """The eigenvalues alone, as ``eigh`` gives them, for half of the work."""
    if symmetrize_input and aval_of(x).ndim >= 2 and len(set(aval_of(x).shape[-2:])) == 1:
        x = symmetrized(x)
    (values,) = eigh_p.bind(
        x,
        lower=bool(lower),
        sort_eigenvalues=True,
        subset_by_index=None,
        compute_vectors=False,
    )
    return values


# --- svd -----------------------------------------------------------------------------------


def _svd_result(
    shape: Shape, dtype: Any, *, full_matrices: bool, compute_uv: bool, subset_by_index: Subset
) -> Outputs:
    m, n = shape
    size = count = min(m, n)
    check_subset("svd", subset_by_index, size)
    if subset_by_index is not None:
        check(
            not full_matrices or subset_by_index == (0, size),
            lambda: (
                "[svd] subset_by_index needs full_matrices=False; got "
                f"{subset_by_index} with full matrices. Fix: full_matrices=False."
            ),
            ValueError,
        )
        count = subset_by_index[1] - subset_by_index[0]
    values = ((count,), real_dtype(dtype))
    if not compute_uv:
        return [values]
    left, right = (m, m if full_matrices else count), (n if full_matrices else count, n)
    return [values, (left, dtype), (right, dtype)]


def _svd_impl(
    xp: Any, a: Any, *, full_matrices: bool, compute_uv: bool, subset_by_index: Subset
) -> list[Any]:
    if not a.size:
        outs = _svd_result(
            a.shape[-2:], a.dtype, full_matrices=full_matrices, compute_uv=compute_uv,
            subset_by_index=None,
        )  # fmt: skip
        found = [xp.zeros((*a.shape[:-2], *shape), dtype) for shape, dtype in outs]
        for out, (shape, _) in zip(found[1:], outs[1:]):
            out[...] = xp.eye(*shape, dtype=a.dtype)
        return found
    chosen = slice(*(subset_by_index or (None,)))
    if not compute_uv:
        (values,) = _library(xp, lambda x: [xp.linalg.svd(x, compute_uv=False)], a)
        return [values[..., chosen]]
    left, values, right = _library(xp, lambda x: xp.linalg.svd(x, full_matrices), a)
    if subset_by_index is None:
        return [values, left, right]
    return [values[..., chosen], left[..., chosen], right[..., chosen, :]]


def _svd_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, full_matrices: bool, compute_uv: bool,
    subset_by_index: Subset,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """First-order perturbation of a matrix with distinct singular values.

    Source: Giles (2008), 3.2; the part beyond the square from Townsend, Differentiating the
    singular value decomposition (2016). For complex matrices the free phases are shared so that
    the imaginary part of the diagonal turns the left vectors.
    """
    (a,), (tangent,) = primals, tangents
    m, n = aval_of(a).shape[-2:]
    check(
        not (compute_uv and full_matrices and m != n),
        lambda: (
            f"[svd] derivatives of full matrices need square ones; got {aval_of(a)}. "
            "Fix: full_matrices=False."
        ),
        NotImplementedError,
    )
    values, left, right = svd_p.bind(
        a, full_matrices=False, compute_uv=True, subset_by_index=subset_by_index
    )
    inner = matmul(matmul(adjoint(left), tangent), adjoint(right))
    d_values = _real(diagonal_of(inner))
    if not compute_uv:
        return [values], [d_values]
    d_left, d_right = _vector_tangents(tangent, values, left, adjoint(right), inner)
    return [values, left, right], [d_values, d_left, adjoint(d_right)]


def _vector_tangents(tangent: Any, values: Any, left: Any, right: Any, inner: Any) -> Any:
    """The tangents of both sets of vectors, as columns."""
    dtype = aval_of(inner).dtype
    row, column = as_row(values), as_column(values)
    # The difference of squares as a product, which loses no digits.
    gaps = to_dtype(_inverse_off_diagonal(mul(add(row, column), sub(row, column))), dtype)
    by_row = mul(to_dtype(row, dtype), inner)
    by_column = mul(to_dtype(column, dtype), inner)
    is_zero = eq(values, 0)
    inverse = where(is_zero, 0, div(1, where(is_zero, 1, values)))
    diagonal = is_diagonal(aval_of(inner).shape)
    phase = mul(mul(sub(inner, adjoint(inner)), 0.5), to_dtype(as_row(inverse), dtype))
    turn = add(mul(gaps, add(by_row, adjoint(by_row))), where(diagonal, phase, 0))
    d_left = matmul(left, turn)
    d_right = matmul(right, mul(gaps, add(by_column, adjoint(by_column))))
    scale = to_dtype(row, dtype)
    m, n = aval_of(tangent).shape[-2:]
    if m > n:
        d_left = add(d_left, _beyond(matmul(tangent, right), left, scale))
    if n > m:
        d_right = add(d_right, _beyond(matmul(adjoint(tangent), left), right, scale))
    return d_left, d_right


def _beyond(change: Any, vectors: Any, scale: Any) -> Any:
    """The part of ``change`` outside of the space of ``vectors``."""
    return div(sub(change, matmul(vectors, matmul(adjoint(vectors), change))), scale)


svd_p = matrix_op(
    "svd",
    (2,),
    _svd_result,
    _svd_impl,
    jvp=_svd_jvp,
    multiple_results=True,
    lower=Library(flops=lambda ins, outs, params: 20 * ins[0].size * min(ins[0].shape[-2:])),
)


def svd(
    x: Any, *, full_matrices: bool = True, compute_uv: bool = True, subset_by_index: Any = None
) -> Any:
    """The singular value decomposition ``x == U @ diag(s) @ Vh``.

    Args:
        x: matrices of shape (..., m, n).
        full_matrices: whether U and Vh are square, or have min(m, n) columns and rows.
        compute_uv: whether to give more than the singular values.
        subset_by_index: a range of values to return, (start, stop).

    Returns:
        (U, s, Vh), or s; the real values ``s`` fall.

    Raises:
        ValueError: no such range.
    """
    outs = svd_p.bind(
        x,
        full_matrices=bool(full_matrices),
        compute_uv=bool(compute_uv),
        subset_by_index=plain_subset(subset_by_index),
    )
    if not compute_uv:
        return outs[0]
    values, left, right = outs
    return left, values, right
