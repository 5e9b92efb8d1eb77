"""Systems of linear equations, with SciPy's names and arguments.

Tests: tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.base.util import warn
from gpuflow.control.loops.fori import fori_loop
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.decompositions import matrices
from gpuflow.numpy.exact_products import exact_dot
from gpuflow.numpy.promotion import broadcast_shapes, promote_dtypes_inexact
from gpuflow.numpy.solvers import check_square
from gpuflow.numpy.vectorizing import vectorize
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import (
    adjoint,
    conjugate,
    exact_matmul,
    is_diagonal,
    through_float32,
    to_dtype,
    with_batch,
)
from gpuflow.ops.linalg.lu import lu_solve as solve_with_lu
from gpuflow.scipy.linalg.forms import schur

_TRANSPOSED = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
_KINDS = ("gen", "sym", "her", "pos")


def _columns(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """The matrices and the right-hand sides with equal batches; whether those are vectors."""
    a, b = (jnp.asarray(x) for x in promote_dtypes_inexact(jnp.asarray(a), jnp.asarray(b)))
    check_square(name, a)
    rank, size = aval_of(a).ndim, aval_of(a).shape[-1]
    shape = aval_of(b).shape
    vector = len(shape) == 1
    if len(shape) > 1 and rank == len(shape) + 1 and shape[-1] == size:
        vector = True
        warn(
            f"[{name}] b must have a last axis of right-hand sides; got {aval_of(b)}, which is "
            f"taken as a batch of vectors. Fix: {name}(a, b[..., None])[..., 0].",
            FutureWarning,
        )
    check(
        len(shape) > 0 and shape[-1 if vector else -2] == size,
        lambda: (
            f"[{name}] b must have as many rows as the matrix; got {aval_of(a)} and "
            f"{aval_of(b)}. Fix: a vector of {size} elements, or (..., {size}, k)."
        ),
        ValueError,
    )
    if vector:
        b = jnp.expand_dims(b, -1)
    batch = broadcast_shapes(aval_of(a).shape[:-2], aval_of(b).shape[:-2], name=name)
    return with_batch(a, batch, 2), with_batch(b, batch, 2), vector


def _restored(x: Any, vector: bool) -> Any:
    return jnp.squeeze(x, -1) if vector else x


def _check_transposed(name: str, trans: Any) -> int:
    check(
        trans in _TRANSPOSED,
        lambda: f"[{name}] trans must be 0, 1, 2, 'N', 'T' or 'C'; got {trans!r}. Fix: trans=0.",
        ValueError,
    )
    return _TRANSPOSED[trans]


@explained
def solve_triangular(
    a: ArrayLike,
    b: ArrayLike,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Array:
    """Solve ``a @ x == b`` for triangular matrices.

    Args:
        a: matrices of shape (..., n, n); only one triangle is read.
        b: a vector of n elements, or matrices of shape (..., n, k).
        trans: 0 or "N": ``a``; 1 or "T": its transpose; 2 or "C": its adjoint.
        lower: whether ``a`` is lower triangular.
        unit_diagonal: whether the diagonal is assumed to be ones and not read.
        overwrite_b, debug, check_finite: accepted; no effect.

    Returns:
        An array of the shape of ``b``, with broadcast batch dimensions.

    Raises:
        ValueError: if shapes do not match, or ``trans`` is invalid.

    Example:
        >>> gf.scipy.linalg.solve_triangular(jnp.array([[2., 1.], [0., 4.]]), jnp.array([4., 8.]))
        Array([1., 2.], dtype=float32)
    """
    del overwrite_b, debug, check_finite
    kind = _check_transposed("solve_triangular", trans)
    a, b, vector = _columns("solve_triangular", a, b)
    out = lax.linalg.triangular_solve(
        a,
        b,
        left_side=True,
        lower=lower,
        transpose_a=kind > 0,
        conjugate_a=kind == 2,
        unit_diagonal=unit_diagonal,
    )
    return _restored(out, vector)


@explained
def cho_solve(
    c_and_lower: tuple[Any, bool],
    b: ArrayLike,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve ``a @ x == b``, given the result of ``cho_factor`` for ``a``.

    Args:
        c_and_lower: (factor, lower).
        b: a vector of n elements, or matrices of shape (..., n, k).
        overwrite_b, check_finite: accepted; no effect.

    Returns:
        An array of the shape of ``b``, with broadcast batch dimensions.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> factor = gf.scipy.linalg.cho_factor(jnp.array([[4., 0.], [0., 16.]]))
        >>> gf.scipy.linalg.cho_solve(factor, jnp.array([8., 16.]))
        Array([2., 1.], dtype=float32)
    """
    del overwrite_b, check_finite
    c, lower = c_and_lower
    c, b, vector = _columns("cho_solve", c, b)
    return _restored(_solve_with_factor(c, b, bool(lower)), vector)


@through_float32
def _solve_with_factor(factor: Any, b: Any, lower: bool) -> Any:
    for transposed in (not lower, lower):
        b = lax.linalg.triangular_solve(
            factor, b, left_side=True, lower=lower, transpose_a=transposed, conjugate_a=transposed
        )
    return b


@explained
def lu_solve(
    lu_and_piv: tuple[Any, Any],
    b: ArrayLike,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Array:
    """Solve ``a @ x == b``, given the result of ``lu_factor`` for ``a``.

    Args:
        lu_and_piv: (factors, pivots).
        b: a vector of n elements, or matrices of shape (..., n, k).
        trans: 0: ``a``; 1: its transpose; 2: its adjoint.
        overwrite_b, check_finite: accepted; no effect.

    Returns:
        An array of the shape of ``b``, with broadcast batch dimensions.

    Raises:
        ValueError: if shapes do not match, or ``trans`` is invalid.

    Example:
        >>> factors = gf.scipy.linalg.lu_factor(jnp.array([[1., 2.], [2., 8.]]))
        >>> gf.scipy.linalg.lu_solve(factors, jnp.array([5., 18.]))
        Array([1., 2.], dtype=float32)
    """
    del overwrite_b, check_finite
    kind = _check_transposed("lu_solve", trans)
    factors, pivots = lu_and_piv
    factors, b, vector = _columns("lu_solve", factors, b)
    size = aval_of(factors).shape[-1]
    permutation = lax.linalg.lu_pivots_to_permutation(jnp.asarray(pivots), size)
    permutation = with_batch(permutation, aval_of(b).shape[:-2], 1)
    if kind == 2:
        # The adjoint times x is b where the transpose times the conjugate of x is that of b.
        b = conjugate(b)
    out = solve_with_lu(factors, permutation, b, transposed=kind > 0)
    return _restored(conjugate(out) if kind == 2 else out, vector)


@explained
def solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Array:
    """Solve ``a @ x == b``.

    Args:
        a: square matrices of shape (..., n, n).
        b: a vector of n elements, or matrices of shape (..., n, k); batches broadcast.
        lower: whether to read the lower triangle if ``assume_a`` is "pos".
        overwrite_a, overwrite_b, debug, check_finite: accepted; no effect.
        assume_a: "gen", "sym", "her", or "pos" for Hermitian positive definite matrices, which
            are decomposed by Cholesky.

    Returns:
        An array of the shape of ``b``, with broadcast batch dimensions.

    Raises:
        ValueError: if shapes do not match, or ``assume_a`` is unknown.

    Example:
        >>> gf.scipy.linalg.solve(jnp.array([[1., 2.], [2., 8.]]), jnp.array([5., 18.]))
        Array([1., 2.], dtype=float32)
    """
    del overwrite_a, overwrite_b, debug, check_finite
    check_choice("solve", "assume_a", assume_a, _KINDS)
    if assume_a != "pos":
        return jnp.linalg.solve(a, b)
    a, b, vector = _columns("solve", a, b)
    return _restored(_solve_positive(a, b, bool(lower)), vector)


@through_float32
def _solve_positive(a: Any, b: Any, lower: bool) -> Any:
    fixed = lax.stop_gradient(a)
    factor = lax.linalg.cholesky(fixed if lower else adjoint(fixed), symmetrize_input=False)

    def solver(matvec: Any, right: Any) -> Any:
        del matvec
        return _solve_with_factor(factor, right, True)

    def product(x: Any) -> Any:
        return exact_matmul(a, x)

    return lax.custom_linear_solve(product, b, solve=solver, symmetric=True)


@explained
def inv(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the inverses of square matrices.

    Args:
        a: matrices of shape (..., n, n).
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        Floats or complex numbers of the shape of ``a``; inf and nan for singular matrices.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> gf.scipy.linalg.inv(jnp.array([[2., 0.], [0., 4.]]))
        Array([[0.5 , 0.  ],
               [0.  , 0.25]], dtype=float32)
    """
    del overwrite_a, check_finite
    return jnp.linalg.inv(a)


@explained
def det(a: ArrayLike, overwrite_a: bool = False, check_finite: bool = True) -> Array:
    """Return the determinants of square matrices.

    Args:
        a: matrices of shape (..., n, n).
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        Floats or complex numbers of shape (...).

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> gf.scipy.linalg.det(jnp.array([[1., 2.], [3., 4.]]))
        Array(-2., dtype=float32)
    """
    del overwrite_a, check_finite
    return jnp.linalg.det(a)


# --- Sylvester -----------------------------------------------------------------------------


@explained
def solve_sylvester(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, *, method: str = "schur", tol: float = 1e-8
) -> Array:
    """Solve ``A @ X + X @ B == C``.

    Args:
        A: matrices of shape (..., m, m).
        B: matrices of shape (..., n, n).
        C: matrices of shape (..., m, n).
        method: "schur", or "eigen" for diagonalizable matrices.
        tol: if an eigenvalue of ``A`` and one of ``-B`` differ by less, the result is nan.

    Returns:
        An array of shape (..., m, n).

    Raises:
        ValueError: if shapes do not match, or the method is unknown.

    Source:
        Bartels and Stewart, Solution of the matrix equation AX + XB = C, Comm. ACM 15 (1972).

    Example:
        >>> A, B = jnp.array([[1., 1.], [0., 2.]]), jnp.array([[3.]])
        >>> jnp.round(gf.scipy.linalg.solve_sylvester(A, B, jnp.array([[5.], [5.]])), 3)
        Array([[1.],
               [1.]], dtype=float32)
    """
    check_choice("solve_sylvester", "method", method, ("schur", "eigen"))
    A, B, C = matrices("solve_sylvester", *promote_dtypes_inexact(*map(jnp.asarray, (A, B, C))))
    avals = [aval_of(x) for x in (A, B, C)]
    height, width = avals[2].shape[-2:] if avals[2].ndim > 1 else (-1, -1)
    check(
        avals[0].shape[-2:] == (height, height) and avals[1].shape[-2:] == (width, width),
        lambda: (
            "[solve_sylvester] shapes must be (..., m, m), (..., n, n) and (..., m, n); got "
            f"{', '.join(map(str, avals))}. Fix: check the shapes."
        ),
        ValueError,
    )
    by = _sylvester_by_schur if method == "schur" else _sylvester_by_eig
    solved = vectorize(by, signature="(m,m),(n,n),(m,n)->(m,n),(m),(n)")
    x, left, right = solved(A, B, C)
    sums = lax.abs(jnp.add(jnp.expand_dims(left, -1), jnp.expand_dims(right, -2)))
    close = jnp.any(jnp.less(sums, tol), (-2, -1), keepdims=True)
    if avals[2].dtype != aval_of(x).dtype:
        x = jnp.real(x)
    return jnp.where(close, jnp.nan, x)


def _sylvester_by_schur(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    """With the Schur forms R and S of A and B each column is a triangular system."""
    r, u = schur(a, output="complex")
    s, v = schur(b, output="complex")
    right = exact_matmul(exact_matmul(adjoint(u), to_dtype(c, aval_of(u).dtype)), v)
    diagonal, width = jnp.diagonal(s), aval_of(s).shape[0]
    on_diagonal = is_diagonal(aval_of(r).shape)

    def column(k: Any, y: Any) -> Any:
        # Columns from k on are still 0.
        contribution = exact_dot(y, s[:, k])
        shifted = jnp.add(r, where(on_diagonal, diagonal[k], 0))
        return y.at[:, k].set(solve_triangular(shifted, right[:, k] - contribution))

    y = fori_loop(0, width, column, jnp.zeros_like(right))
    return exact_matmul(exact_matmul(u, y), adjoint(v)), jnp.diagonal(r), diagonal


def _sylvester_by_eig(a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
    left, u = jnp.linalg.eig(a)
    right, v = jnp.linalg.eig(b)
    projected = jnp.linalg.solve(u, exact_matmul(to_dtype(c, aval_of(v).dtype), v))
    y = jnp.divide(projected, left[:, None] + right[None, :])
    return exact_matmul(exact_matmul(u, y), jnp.linalg.inv(v)), left, right
