"""Systems with tridiagonal matrices, linear in the right-hand side.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.lowering import OnHost
from gpuflow.core.rules import Zero, is_undefined
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, mul, neg
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.linalg import device_lapack
from gpuflow.ops.linalg.algebra import Shape, as_column, rows, through_float32
from gpuflow.ops.linalg.common import NO_ROUTINE, Outputs, each_matrix, lapack, matrix_op
from gpuflow.ops.zeros import add_tangents, full, instantiate


def _tridiagonal_result(
    low: Shape, middle: Shape, high: Shape, b: Shape, dtype: Any, *, perturb_singular: bool
) -> Outputs:
    del perturb_singular
    check(
        low == middle == high == b[:1],
        lambda: (
            "[tridiagonal_solve] the diagonals and the columns of b must have one size; got "
            f"{low}, {middle}, {high} and {b}. Fix: pad dl in front and du at the end."
        ),
    )
    return [(b, dtype)]


def _tridiagonal_impl(
    xp: Any, low: Any, middle: Any, high: Any, b: Any, *, perturb_singular: bool
) -> Any:
    if not b.size:
        return xp.zeros(b.shape, b.dtype)
    if xp is not np and perturb_singular:
        raise OnHost("with perturb_singular", NO_ROUTINE)
    if xp is not np:
        return device_lapack.tridiagonal_solve(xp, low, middle, high, b)
    if perturb_singular:
        return _perturbed(low, middle, high, b)
    if b.shape[-2] == 1:
        return b / middle[..., None]
    (gtsv,) = lapack(["gtsv"], middle, b)

    def solve(*system: np.ndarray) -> Sequence[np.ndarray] | None:
        below, diagonal, above, right = system
        *_, x, info = gtsv(below[1:], diagonal, above[:-1], right)
        return [x] if info == 0 else None

    return each_matrix(solve, [low, middle, high, b], [1, 1, 1, 2], [(b.shape[-2:], b.dtype)])[0]


def _perturbed(low: Any, middle: Any, high: Any, b: Any) -> Any:
    """The solution with nearly zero pivots perturbed.

    Source: LAPACK's xLAGTS with job -1, which the inverse iteration for eigenvectors uses.
    """
    gttrf, gttrs = lapack(["gttrf", "gttrs"], middle, b)
    bounds = np.finfo(b.dtype)

    def solve(*system: np.ndarray) -> Sequence[np.ndarray] | None:
        size = system[1].size
        pads = [(0, max(3 - size, 0))]  # SciPy's wrapper needs three rows: append an identity
        below, above = np.pad(system[0], pads), np.pad(system[2], pads)
        diagonal = np.pad(system[1], pads, constant_values=1)
        right = np.pad(system[3], [*pads, (0, 0)])
        lower, pivots, upper, second, order, _ = gttrf(below[1:], diagonal, above[:-1])
        largest = max(np.abs(factor).max(initial=0) for factor in (pivots, upper, second))
        pivots = _away_from_zero(pivots, largest, bounds)
        x, info = gttrs(lower, pivots, upper, second, order, right)
        return [x[:size]] if info == 0 else None

    return each_matrix(solve, [low, middle, high, b], [1, 1, 1, 2], [(b.shape[-2:], b.dtype)])[0]


def _away_from_zero(pivots: np.ndarray, largest: Any, bounds: Any) -> np.ndarray:
    """Replace pivots by which a quotient could overflow by a rounding error of the matrix."""
    least = bounds.eps * (largest or 1)
    size = np.abs(pivots)
    direction = np.where(size == 0, 1, pivots / np.where(size == 0, 1, size))
    return np.where(size < bounds.tiny / bounds.eps, direction * least, pivots).astype(pivots.dtype)


def _product(low: Any, middle: Any, high: Any, x: Any) -> Any:
    """The tridiagonal matrix times ``x``."""
    size = aval_of(x).shape[-2]
    zero = full((*aval_of(x).shape[:-2], 1, aval_of(x).shape[-1]), 0, aval_of(x).dtype)
    axis = aval_of(x).ndim - 2
    above = concatenate([rows(x, 1, size), zero], axis)
    below = concatenate([zero, rows(x, 0, size - 1)], axis)
    terms = [mul(as_column(d), v) for d, v in ((low, below), (middle, x), (high, above))]
    return add(add(terms[0], terms[1]), terms[2])


def _tridiagonal_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    x = tridiagonal_solve_p.bind(*primals, **params)
    right = tangents[3]
    if any(type(t) is not Zero for t in tangents[:3]):
        low, middle, high = (instantiate(t) for t in tangents[:3])
        change = _product(low, middle, high, x)
        right = add_tangents(right, neg(change))
    if type(right) is Zero:
        return x, right
    return x, tridiagonal_solve_p.bind(*primals[:3], right, **params)


def _tridiagonal_transpose(
    cotangent: Any, low: Any, middle: Any, high: Any, b: Any, **params: Any
) -> list[Any]:
    if any(is_undefined(diagonal) for diagonal in (low, middle, high)):  # not linear in them
        return [None, None, None, None]
    if type(cotangent) is Zero:
        return [None, None, None, Zero(b.aval.tangent())]
    axis, size = aval_of(middle).ndim - 1, aval_of(middle).shape[-1]
    zero = full((*aval_of(middle).shape[:-1], min(size, 1)), 0, aval_of(middle).dtype)
    last = max(size - 1, 0)
    below = concatenate([zero, slice_in_dim(high, 0, last, axis=axis)], axis)
    above = concatenate([slice_in_dim(low, min(size, 1), size, axis=axis), zero], axis)
    solved = tridiagonal_solve_p.bind(below, middle, above, cotangent, **params)
    return [None, None, None, solved]


tridiagonal_solve_p = matrix_op(
    "tridiagonal_solve",
    (1, 1, 1, 2),
    _tridiagonal_result,
    _tridiagonal_impl,
    jvp=_tridiagonal_jvp,
    transpose=_tridiagonal_transpose,
)


@explained
@through_float32
def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturb_singular: bool = False
) -> Array:
    """Solve ``A X = B`` for a tridiagonal matrix.

    Args:
        dl: the diagonal below the main one, of shape (..., m): ``dl[i] = A[i, i-1]``.
        d: the main diagonal, of shape (..., m).
        du: the diagonal above it, of shape (..., m): ``du[i] = A[i, i+1]``.
        b: right-hand sides of shape (..., m, n).
        perturb_singular: whether to replace pivots that are 0, or so small that quotients overflow,
            by a rounding error of the matrix; otherwise a singular matrix gives nan.

    Returns:
        An array like ``b``.

    Raises:
        TypeError: if sizes or dtypes differ.

    Example:
        >>> dl, du = jnp.array([0.0, 1.0, 1.0]), jnp.array([1.0, 1.0, 0.0])
        >>> d, b = jnp.array([4.0, 4.0, 4.0]), jnp.array([[6.0], [12.0], [14.0]])
        >>> lax.linalg.tridiagonal_solve(dl, d, du, b).round(3)
        Array([[1.],
               [2.],
               [3.]], dtype=float32)
    """
    return tridiagonal_solve_p.bind(dl, d, du, b, perturb_singular=bool(perturb_singular))
