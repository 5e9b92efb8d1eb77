"""qdwh: the polar decomposition by Halley's iteration with weights.

Tests: tests/ops/test_linalg_rest.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.loops.fori import while_loop
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.ops.elementwise.arithmetic import add, mul, sub
from gpuflow.ops.elementwise.comparison import bitwise_and, bitwise_not, eq, gt, lt
from gpuflow.ops.elementwise.complex_numbers import abs as absolute
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.powers import rsqrt, sqrt
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.linalg.algebra import (
    adjoint,
    exact_matmul,
    identity_like,
    real_dtype,
    rows,
    through_float32,
    to_dtype,
)
from gpuflow.ops.linalg.cholesky import cholesky
from gpuflow.ops.linalg.qr import qr
from gpuflow.ops.linalg.solve import triangular_solve
from gpuflow.ops.reductions.reduce import reduce_max

# Above this weight the Cholesky decomposition would lose too many digits.
_CHOLESKY_LIMIT = 100.0


def _weights(eps: float, most: int) -> list[tuple[float, float, float]]:
    """(a, b, c) of each iteration x <- x (a + b x^2) / (1 + c x^2), from the bounds of x."""
    low, weights = eps, []
    while low + 5.0 * eps < 1 and len(weights) < most:
        square = low * low
        d = (4 * (1 / square - 1) / square) ** (1 / 3)
        root = (1.0 + d) ** 0.5
        a = root + (2 - d + 2 * (2 - square) / (square * root)) ** 0.5
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        low = low * (a + b * square) / (1 + c * square)
        weights.append((a, b, c))
    return weights


def _identity(x: Any) -> Any:
    """The unit matrix with as many columns as ``x``."""
    return identity_like(exact_matmul(adjoint(x), x))


def _by_qr(x: Any, a: float, b: float, c: float) -> Any:
    height = aval_of(x).shape[0]
    stacked = concatenate([mul(x, np.asarray(c**0.5, aval_of(x).dtype)), _identity(x)], 0)
    q, _ = qr(stacked, full_matrices=False)
    product = exact_matmul(rows(q, 0, height), adjoint(rows(q, height, aval_of(q).shape[0])))
    return _combined(x, product, b / c, (a - b / c) / c**0.5)


def _by_cholesky(x: Any, a: float, b: float, c: float) -> Any:
    gram = add(mul(exact_matmul(adjoint(x), x), np.asarray(c, aval_of(x).dtype)), _identity(x))
    factor = cholesky(gram, symmetrize_input=False)
    solved = triangular_solve(factor, adjoint(x), left_side=True, lower=True)
    solved = triangular_solve(
        factor, solved, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )
    return _combined(x, adjoint(solved), b / c, a - b / c)


def _combined(x: Any, y: Any, of_x: float, of_y: float) -> Any:
    dtype = aval_of(x).dtype
    return add(mul(x, np.asarray(of_x, dtype)), mul(y, np.asarray(of_y, dtype)))


def _distance(x: Any, y: Any) -> Any:
    difference = absolute(sub(x, y))
    return sqrt(reduce_sum(mul(difference, difference), (0, 1)))


def _scaled(x: Any) -> Any:
    """``x`` divided by an upper bound of its largest singular value."""
    sizes = absolute(x)
    by_column = reduce_max(reduce_sum(sizes, (0,)), (0,))
    by_row = reduce_max(reduce_sum(sizes, (1,)), (0,))
    inverse = mul(rsqrt(by_column), rsqrt(by_row))
    return mul(x, to_dtype(where(eq(by_column, 0), 1, inverse), aval_of(x).dtype))


@through_float32
@explained
def qdwh(
    x: Any,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[Any, Any] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Compute the polar decomposition ``x == u @ h`` with orthonormal columns and Hermitian h.

    Args:
        x: a matrix of full rank, of shape (m, n) with m >= n.
        is_hermitian: accepted as in JAX.
        max_iterations: maximum number of iterations; None means 10.
        eps: target precision; None uses that of the dtype.
        dynamic_shape: (rows, columns) of the valid submatrix; other elements count as zero.

    Returns:
        u, h, the number of iterations, and whether they converged.

    Raises:
        TypeError: if the argument is not a matrix. ValueError: if it has fewer rows than columns.

    Source: Nakatsukasa, Bai and Gygi, Optimizing Halley's iteration for computing the matrix polar
    decomposition, SIAM J. Matrix Anal. Appl. 31 (2010), 2700.

    Example:
        >>> x = jnp.array([[0.0, -2.0], [3.0, 0.0]])
        >>> u, h, count, converged = lax.linalg.qdwh(x)
        >>> jnp.diag(h).round(3), bool(jnp.allclose(u @ h, x, atol=1e-5)), bool(converged)
        (Array([3., 2.], dtype=float32), True, True)
    """
    del is_hermitian
    aval = aval_of(x)
    check(
        aval.ndim == 2,
        lambda: f"[qdwh] the operand must be one matrix; got {aval}. Fix: vmap for stacks.",
    )
    check(
        aval.shape[0] >= aval.shape[1],
        lambda: f"[qdwh] there must not be fewer rows than columns; got {aval}. Fix: x.T.",
        ValueError,
    )
    most = 10 if max_iterations is None else int(max_iterations)
    precision = float(ml_dtypes.finfo(aval.dtype).eps) if eps is None else float(eps)
    check(
        precision > 0,
        lambda: f"[qdwh] eps must be positive; got {brief(eps)}. Fix: eps=None.",
        ValueError,
    )
    limit = np.asarray(np.cbrt(5.0 * precision), real_dtype(aval.dtype))
    if dynamic_shape is not None:
        for d, size in enumerate(dynamic_shape):
            in_bounds = lt(iota(np.int32, aval.shape, d), convert_element_type(size, np.int32))
            x = where(in_bounds, x, 0)
    u = _scaled(x)
    is_changing: Any = np.True_
    weights = _weights(precision, most)
    for a, b, c in weights:
        before = u
        if c > _CHOLESKY_LIMIT:
            u = _by_qr(u, a, b, c)
        else:
            u = _by_cholesky(u, a, b, c)
            is_changing = gt(_distance(u, before), limit)

    def goes_on(state: tuple[Any, Any, Any]) -> Any:
        return bitwise_and(state[2], lt(state[0], most))

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        count, old, _ = state
        new = _by_cholesky(old, 3.0, 1.0, 3.0)
        return add(count, 1), new, gt(_distance(new, old), limit)

    count, u, is_changing = while_loop(goes_on, step, (len(weights), u, is_changing))
    # A Newton-Schulz iteration, which squares the error.
    u = _combined(u, exact_matmul(u, exact_matmul(adjoint(u), u)), 1.5, -0.5)
    h = exact_matmul(adjoint(u), x)
    h = mul(add(h, adjoint(h)), np.asarray(0.5, aval.dtype))
    return u, h, count, bitwise_not(is_changing)
