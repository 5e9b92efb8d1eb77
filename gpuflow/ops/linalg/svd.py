"""The singular value decomposition.

Tests: tests/ops/test_linalg_rest.py, tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Svd
from gpuflow.core.lowering import Library
from gpuflow.core.types import ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, div, mul, sub
from gpuflow.ops.elementwise.comparison import eq
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
    through_float32,
    to_dtype,
)
from gpuflow.ops.linalg.algorithms import SVD_ALGORITHMS, SvdAlgorithm, check_algorithm
from gpuflow.ops.linalg.common import (
    Outputs,
    check_subset,
    decomposition,
    is_large,
    load_scipy,
    matrix_op,
    plain_subset,
)
from gpuflow.ops.linalg.eigh import Subset, inverse_off_diagonal, library, real_of


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
            a.shape[-2:],
            a.dtype,
            full_matrices=full_matrices,
            compute_uv=compute_uv,
            subset_by_index=None,
        )
        empty = [xp.zeros((*a.shape[:-2], *shape), dtype) for shape, dtype in outs]
        for out, (shape, _) in zip(empty[1:], outs[1:]):
            out[...] = xp.eye(*shape, dtype=a.dtype)
        return empty
    selected = slice(*(subset_by_index or (None,)))
    large = xp is np and is_large(a)

    def decompose(x: Any) -> Any:
        if large:
            results = load_scipy().svd(x, full_matrices, compute_uv, check_finite=False)
        else:
            results = xp.linalg.svd(x, full_matrices, compute_uv)
        return results if compute_uv else [results]

    if not compute_uv:
        (values,) = library(xp, decompose, a)
        return [values[..., selected]]
    left, values, right = library(xp, decompose, a)
    if subset_by_index is None:
        return [values, left, right]
    return [values[..., selected], left[..., selected], right[..., selected, :]]


def _svd_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: Subset,
) -> tuple[list[Any], list[Any]]:
    """First-order perturbation of a matrix with distinct singular values.

    Source: Giles (2008), 3.2; the part beyond the square from Townsend, Differentiating the
    singular value decomposition (2016). For complex matrices the free phases are chosen so that
    the imaginary part of the diagonal rotates the left vectors.
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
    inner = exact_matmul(exact_matmul(adjoint(left), tangent), adjoint(right))
    d_values = real_of(diagonal_of(inner))
    if not compute_uv:
        return [values], [d_values]
    d_left, d_right = _vector_tangents(tangent, values, left, adjoint(right), inner)
    return [values, left, right], [d_values, d_left, adjoint(d_right)]


def _vector_tangents(tangent: Any, values: Any, left: Any, right: Any, inner: Any) -> Any:
    """Tangents of the left and right vectors, as columns."""
    dtype = aval_of(inner).dtype
    row, column = as_row(values), as_column(values)
    # The difference of squares as a product, to avoid cancellation.
    gaps = to_dtype(inverse_off_diagonal(mul(add(row, column), sub(row, column))), dtype)
    by_row = mul(to_dtype(row, dtype), inner)
    by_column = mul(to_dtype(column, dtype), inner)
    is_zero = eq(values, 0)
    inverse = where(is_zero, 0, div(1, where(is_zero, 1, values)))
    diagonal = is_diagonal(aval_of(inner).shape)
    phase = mul(mul(sub(inner, adjoint(inner)), 0.5), to_dtype(as_row(inverse), dtype))
    rotation = add(mul(gaps, add(by_row, adjoint(by_row))), where(diagonal, phase, 0))
    d_left = exact_matmul(left, rotation)
    d_right = exact_matmul(right, mul(gaps, add(by_column, adjoint(by_column))))
    scale = to_dtype(row, dtype)
    m, n = aval_of(tangent).shape[-2:]
    if m > n:
        d_left = add(d_left, _beyond(exact_matmul(tangent, right), left, scale))
    if n > m:
        d_right = add(d_right, _beyond(exact_matmul(adjoint(tangent), left), right, scale))
    return d_left, d_right


def _beyond(change: Any, vectors: Any, scale: Any) -> Any:
    """The component of ``change`` orthogonal to ``vectors``, over ``scale``."""
    return div(sub(change, exact_matmul(vectors, exact_matmul(adjoint(vectors), change))), scale)


def _what(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> Svd:
    del outs
    return decomposition(Svd, ins, params)


svd_p = matrix_op(
    "svd",
    (2,),
    _svd_result,
    _svd_impl,
    jvp=_svd_jvp,
    multiple_results=True,
    lower=Library(
        flops=lambda ins, outs, params: 20 * ins[0].size * min(ins[0].shape[-2:]),
        what=_what,
    ),
)


@explained
@through_float32
def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Any:
    """Compute the singular value decomposition ``x == U @ diag(s) @ Vh``.

    Args:
        x: matrices of shape (..., m, n).
        full_matrices: whether U and Vh are square; otherwise they have min(m, n) columns and rows.
        compute_uv: whether to return the singular vectors too.
        subset_by_index: index range (start, stop) of the values to return.
        algorithm: a ``SvdAlgorithm`` of LAPACK; all give the same result.

    Returns:
        (U, s, Vh), or s; ``s`` is real and descending.

    Raises:
        ValueError: if the index range is invalid.
        NotImplementedError: if the algorithm is not supported.

    Example:
        >>> u, s, vh = lax.linalg.svd(jnp.array([[0.0, 2.0], [5.0, 0.0]]))
        >>> s.round(3), (u * s @ vh).round(3) + 0.0
        (Array([5., 2.], dtype=float32), Array([[0., 2.],
               [5., 0.]], dtype=float32))
    """
    check_algorithm("svd", "algorithm", algorithm, SVD_ALGORITHMS)
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
