"""The QR decomposition, and products of Householder reflections.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_linalg_rest.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Qr
from gpuflow.core.lowering import Library, OnHost
from gpuflow.core.rules import zero_tangent
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, sub
from gpuflow.ops.elementwise.complex_numbers import complex as complex_number
from gpuflow.ops.elementwise.complex_numbers import imag
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.linalg import device_lapack
from gpuflow.ops.linalg.algebra import (
    Shape,
    adjoint,
    columns,
    exact_matmul,
    identity_like,
    is_diagonal,
    rows,
    swap,
    through_float32,
    triangle,
)

# --- geqrf, householder_product ------------------------------------------------------------
from gpuflow.ops.linalg.algorithms import check_no_magma
from gpuflow.ops.linalg.common import (
    NO_ROUTINE,
    Outputs,
    decomposition,
    each_matrix,
    is_large,
    lapack,
    load_scipy,
    matrix_op,
)
from gpuflow.ops.linalg.lu import permute_rows, solve_matrices
from gpuflow.ops.linalg.solve import triangular_solve
from gpuflow.ops.zeros import full


def _geqrf_result(shape: Shape, dtype: Any) -> Outputs:
    return [(shape, dtype), ((min(shape),), dtype)]


def _geqrf_impl(xp: Any, a: Any) -> list[Any]:
    if not a.size:
        return [xp.zeros(a.shape, a.dtype), xp.zeros((*a.shape[:-2], min(a.shape[-2:])), a.dtype)]
    if xp is not np:
        return device_lapack.geqrf(xp, a)
    reflectors, factors = np.linalg.qr(a, mode="raw")
    return [reflectors.swapaxes(-1, -2), factors]


geqrf_p = matrix_op("geqrf", (2,), _geqrf_result, _geqrf_impl, multiple_results=True)


@explained
@through_float32
def geqrf(a: Any) -> tuple[Any, Any]:
    """Compute the QR decomposition in LAPACK's compact form.

    Args:
        a: matrices of shape (..., m, n).

    Returns:
        An array like ``a`` with R on and above the diagonal and the Householder vectors below it;
        and their factors (..., min(m, n)), see ``householder_product``.

    Example:
        >>> reflectors, factors = lax.linalg.geqrf(jnp.array([[3.0], [4.0]]))
        >>> abs(reflectors[0]).round(3), factors.shape
        (Array([5.], dtype=float32), (1,))
    """
    reflectors, factors = geqrf_p.bind(a)
    return reflectors, factors


def _householder_result(shape: Shape, factors: Shape, dtype: Any) -> Outputs:
    check(
        shape[0] >= shape[1],
        lambda: (
            "[householder_product] there must be at least as many rows as columns; got "
            f"{shape}. Fix: drop columns, a[..., :, :m]."
        ),
        ValueError,
    )
    check(
        factors[0] <= shape[1],
        lambda: (
            "[householder_product] there must not be more factors than columns; got "
            f"{factors[0]} for {shape}. Fix: drop factors."
        ),
        ValueError,
    )
    return [(shape, dtype)]


def _householder_impl(xp: Any, a: Any, factors: Any) -> Any:
    if not a.size or not factors.shape[-1]:
        return xp.broadcast_to(xp.eye(*a.shape[-2:], dtype=a.dtype), a.shape)
    if xp is not np:
        return device_lapack.householder_product(xp, a, factors)
    (orgqr,) = lapack(["ungqr" if a.dtype.kind == "c" else "orgqr"], a)

    def product(reflectors: np.ndarray, tau: np.ndarray) -> Sequence[np.ndarray] | None:
        q, _, info = orgqr(reflectors, tau)
        return [q] if info == 0 else None

    return each_matrix(product, [a, factors], [2, 1], [(a.shape[-2:], a.dtype)])[0]


householder_product_p = matrix_op(
    "householder_product", (2, 1), _householder_result, _householder_impl
)


@explained
@through_float32
def householder_product(a: ArrayLike, taus: ArrayLike) -> Array:
    """Return the first columns of the product of Householder reflections of ``geqrf``.

    Args:
        a: vectors below the diagonal of matrices of shape (..., m, n), m >= n.
        taus: factors of the reflectors, of shape (..., k), k <= n.

    Returns:
        Matrices of shape (..., m, n) with orthonormal columns.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> reflectors, factors = lax.linalg.geqrf(jnp.array([[3.0, 1.0], [4.0, 2.0]]))
        >>> q = lax.linalg.householder_product(reflectors, factors)
        >>> bool(jnp.allclose(q.T @ q, jnp.eye(2), atol=1e-5))
        True
    """
    return householder_product_p.bind(a, taus)


# --- qr ------------------------------------------------------------------------------------


def _qr_result(shape: Shape, dtype: Any, *, pivoting: bool, full_matrices: bool) -> Outputs:
    m, n = shape
    inner = m if full_matrices else min(m, n)
    outs = [((m, inner), dtype), ((inner, n), dtype)]
    return [*outs, ((n,), dtypes.int32)] if pivoting else outs


def _qr_impl(xp: Any, a: Any, *, pivoting: bool, full_matrices: bool) -> list[Any]:
    if not a.size:
        outs = _qr_result(a.shape[-2:], a.dtype, pivoting=pivoting, full_matrices=full_matrices)
        empty = [xp.zeros((*a.shape[:-2], *shape), dtype) for shape, dtype in outs]
        empty[0][...] = xp.eye(*outs[0][0], dtype=a.dtype)
        return empty
    if xp is not np and pivoting:
        raise OnHost("with pivoting", NO_ROUTINE)
    if pivoting or (xp is np and is_large(a)):
        return _by_scipy(a, pivoting=pivoting, full_matrices=full_matrices)
    return list(xp.linalg.qr(a, mode="complete" if full_matrices else "reduced"))


def _by_scipy(a: np.ndarray, *, pivoting: bool, full_matrices: bool) -> list[np.ndarray]:
    mode = "full" if full_matrices else "economic"
    results = load_scipy().qr(a, mode=mode, pivoting=pivoting, check_finite=False)
    return [*results[:2], *[order.astype(np.int32) for order in results[2:]]]


def _thin_tangents(q: Any, r: Any, tangent: Any) -> tuple[Any, Any]:
    """Tangents for at least as many rows as columns: Q^H dA R^-1 is dR R^-1 plus a skew matrix.

    Source: Walter and Lehmann, Algorithmic differentiation of linear algebra functions (2010).
    The diagonal of dR is real, so the diagonal of the skew matrix is the imaginary part.
    """
    right = triangular_solve(r, tangent)
    inner = exact_matmul(adjoint(q), right)
    below = triangle(inner, True, -1)
    skew = sub(below, adjoint(below))
    if dtypes.is_complex(aval_of(inner).dtype):
        rotation = imag(inner)
        zero = full(aval_of(rotation).shape, 0, aval_of(rotation).dtype)
        rotation = complex_number(zero, rotation)
        skew = add(skew, where(is_diagonal(aval_of(inner).shape), rotation, 0))
    d_q = add(exact_matmul(q, sub(skew, inner)), right)
    return d_q, exact_matmul(sub(inner, skew), r)


def _further_columns(q: Any, d_q: Any, width: int) -> Any:
    """Tangents of the columns of Q beyond those of A, as chosen by Householder's algorithm.

    Source: the derivative of the full QR decomposition, arXiv 2409.13374, equations 32 and 33.
    """
    height = aval_of(q).shape[-2]
    thin, others = columns(q, 0, width), columns(q, width, height)
    top, bottom = rows(thin, 0, width), rows(thin, width, height)
    shifted = sub(top, identity_like(top))
    z_adjoint = solve_matrices(adjoint(shifted), adjoint(bottom))
    z = adjoint(z_adjoint)
    change = sub(rows(d_q, width, height), exact_matmul(z, rows(d_q, 0, width)))
    rotation_term = exact_matmul(add(thin, exact_matmul(others, z)), adjoint(change))
    return sub(exact_matmul(d_q, z_adjoint), rotation_term)


def _qr_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, pivoting: bool, full_matrices: bool
) -> tuple[list[Any], list[Any]]:
    (x,), (tangent,) = primals, tangents
    q, r, *order = qr_p.bind(x, pivoting=pivoting, full_matrices=full_matrices)
    if pivoting:
        x, tangent = (swap(permute_rows(swap(v), order[0])) for v in (x, tangent))
    m, n = aval_of(x).shape[-2:]
    last = aval_of(x).ndim - 1
    if m < n:
        # The square part of A determines Q, and R = Q^H A.
        d_q, d_square = _thin_tangents(q, columns(r, 0, m), columns(tangent, 0, m))
        d_others = add(
            exact_matmul(adjoint(d_q), columns(x, m, n)),
            exact_matmul(adjoint(q), columns(tangent, m, n)),
        )
        d_r = concatenate([d_square, d_others], last)
    else:
        d_q, d_r = _thin_tangents(columns(q, 0, n), rows(r, 0, n), tangent)
        if full_matrices and m > n:
            d_q = concatenate([d_q, _further_columns(q, d_q, n)], last)
            zeros = full((*aval_of(x).shape[:-2], m - n, n), 0, aval_of(x).dtype)
            d_r = concatenate([d_r, zeros], last - 1)
    return [q, r, *order], [d_q, d_r, *[zero_tangent(p) for p in order]]


def _what(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> Qr | None:
    del outs
    return None if params["pivoting"] else decomposition(Qr, ins, params)


qr_p = matrix_op(
    "qr",
    (2,),
    _qr_result,
    _qr_impl,
    jvp=_qr_jvp,
    multiple_results=True,
    lower=Library(
        flops=lambda ins, outs, params: 4 * ins[0].size * min(ins[0].shape[-2:]),
        what=_what,
    ),
)


@explained
@through_float32
def qr(
    x: ArrayLike,
    *,
    pivoting: bool = False,
    full_matrices: bool = True,
    use_magma: bool | None = None,
) -> tuple[Array, ...]:
    """Compute ``x == Q @ R`` with orthonormal columns of Q and upper triangular R.

    Args:
        x: matrices of shape (..., m, n).
        pivoting: whether to permute columns so that the diagonal of R is descending; the third
            result is then i32[..., n] with ``x[..., permutation] == Q @ R``.
        full_matrices: whether Q has m columns instead of min(m, n).
        use_magma: must not be True: MAGMA is not supported.

    Returns:
        (Q, R), and the permutation with ``pivoting``: arrays of shapes (..., m, k) and (..., k, n),
        with k = m for ``full_matrices``, else min(m, n).

    Raises:
        ValueError: if it is empty.

    Example:
        >>> q, r = lax.linalg.qr(jnp.array([[3.0, 1.0], [4.0, 2.0]]))
        >>> (q @ r).round(3), abs(r[0, 0]).round(3)
        (Array([[3., 1.],
               [4., 2.]], dtype=float32), Array(5., dtype=float32))
    """
    check_no_magma("qr", use_magma)
    return tuple(qr_p.bind(x, pivoting=bool(pivoting), full_matrices=bool(full_matrices)))
