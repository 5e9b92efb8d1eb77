"""The Cholesky decomposition and its rank-one update.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Cholesky
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, div, mul
from gpuflow.ops.linalg import device_lapack
from gpuflow.ops.linalg.algebra import (
    Shape,
    as_column,
    as_row,
    exact_matmul,
    identity_like,
    swap,
    symmetrized,
    through_float32,
    triangle,
)
from gpuflow.ops.linalg.common import (
    Outputs,
    check_square,
    decomposition,
    each_matrix,
    is_large,
    lapack,
    load_scipy,
    matrix_op,
)
from gpuflow.ops.linalg.small_matrices import is_small_batch, small_cholesky
from gpuflow.ops.linalg.solve import triangular_solve
from gpuflow.ops.written_out import written_out
from gpuflow.ops.zeros import instantiate


def _cholesky_result(shape: Shape, dtype: Any) -> Outputs:
    check_square("cholesky", shape)
    return [(shape, dtype)]


def _cholesky_impl(xp: Any, a: Any) -> Any:
    """Read the lower triangle; elements above the diagonal of the result are not cleared."""
    if xp is not np:
        return device_lapack.cholesky(xp, a) if a.size else xp.zeros(a.shape, a.dtype)
    try:
        if a.size and is_large(a):
            if a.ndim == 2:
                return _large_factor(a)
            return load_scipy().cholesky(a, lower=True, check_finite=False)
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        return _cholesky_with_nan(a)


def _large_factor(a: np.ndarray) -> np.ndarray:
    """The factor of one matrix by LAPACK, which is column-major: its rows are our columns."""
    (potrf,) = lapack(["potrf"], a)
    triangle, info = potrf(a.T, lower=False, clean=False)
    if info:
        raise np.linalg.LinAlgError
    return triangle.T


def _cholesky_with_nan(a: np.ndarray) -> np.ndarray:
    """Factor matrix by matrix; those that are not positive definite become nan."""
    (potrf,) = lapack(["potrf"], a)

    def factor(matrix: np.ndarray) -> Sequence[np.ndarray] | None:
        triangle, info = potrf(matrix, lower=True, clean=True)
        return [triangle] if info == 0 else None

    return each_matrix(factor, [a], [2], [(a.shape[-2:], a.dtype)])[0]


def _half_triangle(x: Any) -> Any:
    """The lower triangle with half of the diagonal."""
    lower = triangle(x, True)
    return div(lower, add(identity_like(lower), 1))


def _factor_tangent(factor: Any, tangent: Any) -> Any:
    """Tangent of the lower factor of a matrix.

    Source: Murray, Differentiation of the Cholesky decomposition (2016), equation 8.
    """
    inner = triangular_solve(factor, tangent, lower=True, transpose_a=True, conjugate_a=True)
    inner = triangular_solve(factor, inner, left_side=True, lower=True)
    return exact_matmul(factor, _half_triangle(inner))


def _cholesky_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    factor = triangle(cholesky_p.bind(primals[0]), True)
    return factor, _factor_tangent(factor, tangents[0])


def _cholesky_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    del definition
    small = is_small_batch(eqn.inputs[0].aval)
    return written_out(small_cholesky, eqn, build) if small else None


def _what(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> Cholesky:
    del outs
    return decomposition(Cholesky, ins, params)


cholesky_p = matrix_op(
    "cholesky",
    (2,),
    _cholesky_result,
    _cholesky_impl,
    jvp=_cholesky_jvp,
    lower=Library(
        flops=lambda ins, outs, params: ins[0].size * ins[0].shape[-1] // 3,
        what=_what,
    ),
    simplify=_cholesky_simplify,
)


@explained
@through_float32
def cholesky(x: ArrayLike, *, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular ``L`` with ``L @ L.conj().T == x``.

    Args:
        x: symmetric or Hermitian positive definite matrices of shape (..., n, n).
        symmetrize_input: whether to replace ``x`` by the mean of ``x`` and its adjoint first, which
            makes the gradient symmetric; otherwise only the lower triangle is read.

    Returns:
        An array like ``x``; nan for matrices that are not positive definite.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> lax.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 10.0]]))
        Array([[2., 0.],
               [1., 3.]], dtype=float32)
    """
    if symmetrize_input and aval_of(x).ndim >= 2 and len(set(aval_of(x).shape[-2:])) == 1:
        x = symmetrized(x)
    return triangle(cholesky_p.bind(x), True)


# --- cholesky_update -----------------------------------------------------------------------


def _update_result(factor: Shape, vector: Shape, dtype: Any) -> Outputs:
    check(
        factor[0] == factor[1] == vector[0],
        lambda: (
            "[cholesky_update] there must be a square matrix and a vector of its size; got "
            f"{factor} and {vector}. Fix: pass shapes (n, n) and (n,)."
        ),
        ValueError,
    )
    check(
        not dtypes.is_complex(dtype),
        lambda: f"[cholesky_update] matrices must be real; got {dtype}. Fix: use cholesky.",
    )
    return [(factor, dtype)]


def _update_impl(xp: Any, factor: Any, vector: Any) -> Any:
    """A plane rotation for each row that zeros the vector's element.

    Source: Golub and Van Loan, Matrix Computations, section 6.5.4.
    """
    factor, vector = factor.copy(), vector.copy()
    for k in range(factor.shape[-1]):
        diagonal, element = factor[..., k, k, None], vector[..., k, None]
        radius = xp.hypot(diagonal, element)
        is_rotated = element != 0
        cosine = xp.where(is_rotated, diagonal / radius, 1)
        sine = xp.where(is_rotated, element / radius, 0)
        row = factor[..., k, :].copy()
        factor[..., k, :] = cosine * row + sine * vector
        vector = cosine * vector - sine * row
    return factor


def _update_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """The result is the adjoint of the lower factor of ``R^T R + w w^T``."""
    (factor, vector), (d_factor, d_vector) = primals, map(instantiate, tangents)
    out = cholesky_update_p.bind(factor, vector)
    by_factor = exact_matmul(swap(d_factor), factor)
    one_side = add(by_factor, exact_matmul(as_column(d_vector), as_row(vector)))
    return out, swap(_factor_tangent(swap(out), add(one_side, swap(one_side))))


cholesky_update_p = matrix_op(
    "cholesky_update", (2, 1), _update_result, _update_impl, jvp=_update_jvp
)


@explained
@through_float32
def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Array:
    """Return the upper factor of ``R.T @ R + outer(w, w)``, given the upper triangular ``R``.

    Args:
        r_matrix: real upper triangular matrices of shape (..., n, n).
        w_vector: vectors of shape (..., n).

    Returns:
        Upper triangular matrices of the shape and dtype of ``r_matrix``.

    Raises:
        ValueError: if sizes do not match.

    Example:
        >>> r = lax.linalg.cholesky_update(jnp.eye(2), jnp.array([1.0, 0.0]))
        >>> (r.T @ r).round(3)
        Array([[2., 0.],
               [0., 1.]], dtype=float32)
    """
    return cholesky_update_p.bind(r_matrix, w_vector)


@explained
@through_float32
def symmetric_product(
    a_matrix: ArrayLike,
    c_matrix: ArrayLike,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    symmetrize_output: bool = False,
) -> Any:
    """Compute ``alpha * A @ A.T + beta * C`` for a symmetric matrix ``C``.

    Args:
        a_matrix: matrices of shape (..., m, n).
        c_matrix: symmetric matrices of shape (..., m, m).
        alpha, beta: scalars.
        symmetrize_output: whether to copy the lower triangle to the upper one.

    Returns:
        Matrices of the shape and dtype of ``c_matrix``; elements above the diagonal are undefined
        unless ``symmetrize_output`` is set.

    Raises:
        TypeError: if dtypes differ or are not floats. ValueError: if sizes do not match.

    Example:
        >>> a = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> lax.linalg.symmetric_product(a, jnp.eye(2), beta=10.0, symmetrize_output=True)
        Array([[15.,  2.],
               [ 2., 11.]], dtype=float32)
    """
    a, c = aval_of(a_matrix), aval_of(c_matrix)
    check(
        a.ndim == c.ndim >= 2 and c.shape == (*a.shape[:-1], a.shape[-2]),
        lambda: (
            "[symmetric_product] shapes must be (..., m, n) and (..., m, m); got "
            f"{a} and {c}. Fix: reshape one operand."
        ),
        ValueError,
    )
    check(
        a.dtype == c.dtype and dtypes.is_floating(a.dtype),
        lambda: (
            f"[symmetric_product] operands must have one float dtype; got {a} and {c}. "
            "Fix: x.astype(jnp.float32)."
        ),
    )
    product = exact_matmul(a_matrix, swap(a_matrix))
    out = add(mul(product, float(alpha)), mul(c_matrix, float(beta)))
    if not symmetrize_output:
        return out
    return add(triangle(out, True), swap(triangle(out, True, -1)))
