"""Systems with tridiagonal matrices; they are linear in the right-hand side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.rules import Zero, is_undefined
from gpuflow.ops.elementwise import add, mul, neg
from gpuflow.ops.joining import concatenate
from gpuflow.ops.layout import slice_in_dim
from gpuflow.ops.linalg_algebra import Shape, as_column, rows
from gpuflow.ops.linalg_common import (
    Outputs,
    each_matrix,
    lapack,
    matrix_op,
    on_host,
)
from gpuflow.ops.zeros import add_tangents, full, instantiate


def _tridiagonal_result(low: Shape, middle: Shape, high: Shape, b: Shape, dtype: Any) -> Outputs:
    check(
        low == middle == high == b[:1],
        lambda: (
            "[tridiagonal_solve] the diagonals and the columns of b must have one size; got "
            f"{low}, {middle}, {high} and {b}. Fix: pad dl in front and du at the end."
        ),
    )
    return [(b, dtype)]


@on_host
def _tridiagonal_impl(xp: Any, low: Any, middle: Any, high: Any, b: Any) -> Any:
    del xp
    if not b.size:
        return np.zeros(b.shape, b.dtype)
    if b.shape[-2] == 1:
        return b / middle[..., None]
    (gtsv,) = lapack(["gtsv"], middle, b)

    def solve(*own: np.ndarray) -> Sequence[np.ndarray] | None:
        below, diagonal, above, right = own
        *_, x, info = gtsv(below[1:], diagonal, above[:-1], right)
        return [x] if info == 0 else None

    return each_matrix(solve, [low, middle, high, b], [1, 1, 1, 2], [(b.shape[-2:], b.dtype)])[0]


def _product(low: Any, middle: Any, high: Any, x: Any) -> Any:
    """The tridiagonal matrix times ``x``."""
    size = aval_of(x).shape[-2]
    zero = full((*aval_of(x).shape[:-2], 1, aval_of(x).shape[-1]), 0, aval_of(x).dtype)
    axis = aval_of(x).ndim - 2
    above = concatenate([rows(x, 1, size), zero], axis)
    below = concatenate([zero, rows(x, 0, size - 1)], axis)
    parts = [mul(as_column(d), v) for d, v in ((low, below), (middle, x), (high, above))]
    return add(add(parts[0], parts[1]), parts[2])


def _tridiagonal_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    x = tridiagonal_solve_p.bind(*primals)
    right = tangents[3]
    if any(type(t) is not Zero for t in tangents[:3]):
        low, middle, high = (instantiate(t) for t in tangents[:3])
        change = _product(low, middle, high, x)
        right = add_tangents(right, neg(change))
    if type(right) is Zero:
        return x, right
    return x, tridiagonal_solve_p.bind(*primals[:3], right)


def _tridiagonal_transpose(cotangent: Any, low: Any, middle: Any, high: Any, b: Any) -> list[Any]:
    if any(is_undefined(diagonal) for diagonal in (low, middle, high)):  # not linear in them
        return [None, None, None, None]
    if type(cotangent) is Zero:
        return [None, None, None, Zero(b.aval.tangent())]
    axis, size = aval_of(middle).ndim - 1, aval_of(middle).shape[-1]
    zero = full((*aval_of(middle).shape[:-1], min(size, 1)), 0, aval_of(middle).dtype)
    last = max(size - 1, 0)
    below = concatenate([zero, slice_in_dim(high, 0, last, axis=axis)], axis)
    above = concatenate([slice_in_dim(low, min(size, 1), size, axis=axis), zero], axis)
    return [None, None, None, tridiagonal_solve_p.bind(below, middle, above, cotangent)]


tridiagonal_solve_p = matrix_op(
    "tridiagonal_solve",
    (1, 1, 1, 2),
    _tridiagonal_result,
    _tridiagonal_impl,
    jvp=_tridiagonal_jvp,
    transpose=_tridiagonal_transpose,
)


def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any, *, perturb_singular: bool = False) -> Any:
    """Solve ``A X = B`` for a tridiagonal matrix.

    Args:
        dl: the diagonal below the main one, of shape (..., m): ``dl[i] = A[i, i-1]``.
        d: the main diagonal, of shape (..., m).
        du: the diagonal above it, of shape (..., m): ``du[i] = A[i, i+1]``.
        b: right-hand sides of shape (..., m, n).
        perturb_singular: must be False: singular matrices give nan.

    Returns:
        An array like ``b``.

    Raises:
        TypeError: sizes or dtypes that differ. NotImplementedError: ``perturb_singular``.
    """
    check(
        not perturb_singular,
        lambda: (
            "[tridiagonal_solve] perturb_singular must be False; got True. "
            "Fix: add a small number to the main diagonal."
        ),
        NotImplementedError,
    )
    return tridiagonal_solve_p.bind(dl, d, du, b)
