"""Eigenvalues and eigenvectors of symmetric matrices.

Tests: tests/ops/test_linalg_rest.py, tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Eigh
from gpuflow.core.lowering import Library
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import div, mul, sub
from gpuflow.ops.elementwise.complex_numbers import real
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import (
    Shape,
    adjoint,
    as_column,
    as_row,
    diagonal_of,
    exact_matmul,
    is_diagonal,
    real_dtype,
    symmetrized,
    through_float32,
    to_dtype,
)
from gpuflow.ops.linalg.algorithms import EIGH_IMPLEMENTATIONS, EighImplementation, check_algorithm
from gpuflow.ops.linalg.common import (
    Outputs,
    check_square,
    check_subset,
    decomposition,
    failing_as_nan,
    is_large,
    load_scipy,
    matrix_op,
    not_finite_as_nan,
    plain_subset,
)

Subset = tuple[int, int] | None


def real_of(x: Any) -> Any:
    return real(x) if real_dtype(aval_of(x).dtype) != aval_of(x).dtype else x


def library(xp: Any, function: Any, a: Any) -> list[Any]:
    """Call a batched routine with finite matrices only; others give nan.

    On devices the result is undefined if the routine does not converge: a check would synchronize.
    """
    if xp is np:
        return failing_as_nan(function, a)
    return not_finite_as_nan(xp, function, a)


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
    xp: Any,
    a: Any,
    *,
    lower: bool,
    sort_eigenvalues: bool,
    subset_by_index: Subset,
    compute_vectors: bool,
) -> list[Any]:
    del sort_eigenvalues  # LAPACK sorts in any case
    side = "L" if lower else "U"
    selected = slice(*(subset_by_index or (None,)))
    if not a.size:
        values = xp.zeros(a.shape[:-1], real_dtype(a.dtype))
        return [xp.zeros(a.shape, a.dtype), values] if compute_vectors else [values]
    large = xp is np and is_large(a)

    def decompose(x: Any) -> Any:
        if large:
            results = load_scipy().eigh(
                x, lower=lower, eigvals_only=not compute_vectors, check_finite=False, driver="evd"
            )
        else:
            results = xp.linalg.eigh(x, side) if compute_vectors else xp.linalg.eigvalsh(x, side)
        return results if compute_vectors else [results]

    values, *other_outputs = library(xp, decompose, _one_side(xp, a, lower))
    if not compute_vectors:
        return [values[..., selected]]
    (vectors,) = other_outputs
    return [vectors[..., selected], values[..., selected]]


def _one_side(xp: Any, a: Any, lower: bool) -> Any:
    """Clear the triangle that is not read, which may be nan; a check on a device would wait."""
    if xp is np and np.isfinite(a).all():
        return a
    return xp.tril(a) if lower else xp.triu(a)


def _eigh_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    subset_by_index: Subset,
    compute_vectors: bool,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
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
    inner = exact_matmul(exact_matmul(adjoint(vectors), tangent), vectors)
    d_values = real_of(diagonal_of(inner))
    if not compute_vectors:
        return [values], [d_values]
    gaps = sub(as_row(values), as_column(values))
    rotation = mul(to_dtype(inverse_off_diagonal(gaps), aval_of(a).dtype), inner)
    return [vectors, values], [exact_matmul(vectors, rotation), d_values]


def inverse_off_diagonal(gaps: Any) -> Any:
    """``1 / gaps`` off the diagonal and 0 on it."""
    diagonal = is_diagonal(aval_of(gaps).shape)
    return where(diagonal, 0, div(1, where(diagonal, 1, gaps)))


def _what(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> Eigh:
    del outs
    return decomposition(Eigh, ins, params)


eigh_p = matrix_op(
    "eigh",
    (2,),
    _eigh_result,
    _eigh_impl,
    jvp=_eigh_jvp,
    multiple_results=True,
    lower=Library(
        flops=lambda ins, outs, params: 9 * ins[0].size * ins[0].shape[-1],
        what=_what,
    ),
)


@explained
@through_float32
def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Array, Array]:
    """Return eigenvectors and eigenvalues of symmetric or Hermitian matrices.

    Args:
        x: matrices of shape (..., n, n).
        lower: whether to read the lower triangle if ``symmetrize_input`` is False.
        symmetrize_input: whether to replace ``x`` by the mean of ``x`` and its adjoint first.
        sort_eigenvalues: whether eigenvalues must ascend; they always do.
        subset_by_index: index range (start, stop) of the values to return; not differentiable.
        implementation: an ``EighImplementation`` of LAPACK.

    Returns:
        (vectors, values): eigenvectors are the columns of (..., n, n), eigenvalues are real and
        ascend.

    Raises:
        ValueError: if the matrices are not square, or the index range is invalid.
        NotImplementedError: if the implementation is not supported.

    Example:
        >>> vectors, values = lax.linalg.eigh(jnp.array([[2.0, 1.0], [1.0, 2.0]]))
        >>> values.round(3), abs(vectors).round(3)
        (Array([1., 3.], dtype=float32), Array([[0.707, 0.707],
               [0.707, 0.707]], dtype=float32))
    """
    check_algorithm("eigh", "implementation", implementation, EIGH_IMPLEMENTATIONS)
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


@through_float32
def eigh_values(x: Any, *, lower: bool = True, symmetrize_input: bool = True) -> Any:
    """Only the eigenvalues of ``eigh``, for half of the work."""
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
