"""Determinants.

Tests: tests/numpy/test_numpy_linalg.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.lax import linalg as lax_linalg
from gpuflow.numpy import reductions
from gpuflow.numpy.decompositions import matrices
from gpuflow.numpy.matrices import diagonal, trace
from gpuflow.numpy.promotion import like
from gpuflow.numpy.shaping import expand_dims
from gpuflow.numpy.solvers import check_square, solve_batched
from gpuflow.numpy.sorting import cumprod
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import is_diagonal, real_dtype, rows, through_float32, to_dtype
from gpuflow.ops.linalg.lu import permute_rows


class SlogdetResult(NamedTuple):
    """Result of ``slogdet``."""

    sign: Array
    logabsdet: Array


@composite
def det(a: ArrayLike) -> Array:
    """Return the determinants of square matrices.

    Args:
        a: matrices of shape (..., n, n).

    Returns:
        Floats or complex numbers of shape (...).

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> jnp.linalg.det(jnp.array([[1., 2.], [3., 4.]]))
        Array(-2., dtype=float32)
    """
    (a,) = matrices("det", a)
    check_square("det", a)
    return _determinant(a)


@through_float32
def _determinant(a: Any) -> Any:
    size = aval_of(a).shape[-1]
    return _expanded(a, size) if size in (2, 3) else _det(a)


def _entry(a: Any, row: int, column: int) -> Any:
    rank = aval_of(a).ndim
    picked = lax.slice_in_dim(rows(a, row, row + 1), column, column + 1, axis=rank - 1)
    return lax.squeeze(picked, (rank - 2, rank - 1))


def _expanded(a: Any, size: int) -> Any:
    """Determinants of small matrices as sums of products, differentiable at singular matrices."""
    if size == 2:
        return lax.sub(
            lax.mul(_entry(a, 0, 0), _entry(a, 1, 1)), lax.mul(_entry(a, 0, 1), _entry(a, 1, 0))
        )
    total = None
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        minor = lax.sub(
            lax.mul(_entry(a, 1, i), _entry(a, 2, j)), lax.mul(_entry(a, 1, j), _entry(a, 2, i))
        )
        term = lax.mul(_entry(a, 0, k), minor)
        total = term if total is None else lax.add(total, term)
    return total


def _parity(pivots: Any, dtype: Any) -> Any:
    """1 or -1, by the number of rows that were exchanged."""
    last = aval_of(pivots).ndim - 1
    swapped = lax.ne(pivots, lax.iota(np.int32, aval_of(pivots).shape, last))
    count, two = lax.reduce_sum(lax.convert_element_type(swapped, np.int32), (last,)), np.int32(2)
    parity = lax.sub(np.int32(1), lax.mul(lax.rem(count, two), two))
    return lax.convert_element_type(parity, dtype)


@custom_jvp
def _det(a: Any) -> Any:
    factors, pivots, _ = lax_linalg.lu(a)
    product = reductions.prod(diagonal(factors, 0, -2, -1), -1)
    return lax.mul(product, _parity(pivots, aval_of(a).dtype))


@_det.defjvp
def _det_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, product = _adjugate_times(primals[0], tangents[0])
    return value, trace(product, 0, -2, -1)


def _adjugate_times(a: Any, b: Any) -> tuple[Any, Any]:
    """The determinant and ``adj(a) @ b``, also for matrices that lack one rank.

    adj(A) B = det(A) A^-1 B. With A = P L U only the last diagonal element of U is then 0. The
    determinant over it is the product of the others, so the last row of the solution is that
    product times the right-hand side; the other rows follow from it. Where another element is 0
    too, the product is taken to be 0, as in JAX.
    """
    size, dtype = aval_of(a).shape[-1], aval_of(a).dtype
    if size == 0:
        return _det(a), b
    if size == 1:
        return _entry(a, 0, 0), b
    factors, pivots, permutation = lax_linalg.lu(a)
    partial_products = cumprod(diagonal(factors, 0, -2, -1), -1)
    last = aval_of(partial_products).ndim - 1
    before, value = (
        lax.mul(
            lax.squeeze(lax.slice_in_dim(partial_products, k, k + 1, axis=last), (last,)),
            _parity(pivots, dtype),
        )
        for k in (size - 2, size - 1)
    )
    before, column = expand_dims(before, (-2, -1)), expand_dims(value, (-2, -1))
    too_singular = lax.eq(before, like(0, before))
    corner = lax.div(dtype.type(1), where(too_singular, 1, before))
    shape = aval_of(factors).shape
    row_index = lax.iota(np.int32, (*(1,) * last, *shape[-2:]), last)
    is_corner = lax.bitwise_and(is_diagonal(shape), lax.eq(row_index, np.int32(size - 1)))
    upper = where(is_corner, corner, factors)
    # Mask before and after the solves, for derivatives and their transposes.
    x = permute_rows(where(too_singular, 0, b), permutation)
    x = lax_linalg.triangular_solve(factors, x, left_side=True, lower=True, unit_diagonal=True)
    top = lax.mul(rows(x, 0, size - 1), column)
    x = lax.concatenate([top, rows(x, size - 1, size)], last)
    x = lax_linalg.triangular_solve(upper, x, left_side=True)
    return value, where(too_singular, 0, x)


@composite
def slogdet(a: ArrayLike, *, method: str | None = None) -> SlogdetResult:
    """Return the signs and the logarithms of the absolute values of determinants.

    Args:
        a: matrices of shape (..., n, n).
        method: ``"lu"`` (also for None) or ``"qr"``.

    Returns:
        (sign, logabsdet): for complex matrices the sign is on the unit circle; 0 and -inf for
        singular ones.

    Raises:
        ValueError: if the matrices are not square, or the method is unknown.

    Example:
        >>> sign, size = jnp.linalg.slogdet(jnp.array([[1., 2.], [3., 4.]]))
        >>> sign, round(float(size), 3)
        (Array(-1., dtype=float32), 0.693)
    """
    (a,) = matrices("slogdet", a)
    check_square("slogdet", a)
    check(
        method in (None, "lu", "qr"),
        lambda: f"[slogdet] method must be 'lu' or 'qr'; got {method!r}. Fix: method='lu'.",
        ValueError,
    )
    return SlogdetResult(*through_float32(_slogdet)(a, method == "qr"))


@partial(custom_jvp, nondiff_argnums=(1,))
def _slogdet(a: Any, by_qr: bool) -> tuple[Any, Any]:
    if by_qr:
        factors, reflections = lax_linalg.geqrf(a)
        odd = lax.ne(reflections, like(0, reflections))
        flips = where(odd, aval_of(a).dtype.type(-1), aval_of(a).dtype.type(1))
        start = reductions.prod(flips, -1)
    else:
        factors, pivots, _ = lax_linalg.lu(a)
        start = _parity(pivots, aval_of(a).dtype)
    elements = diagonal(factors, 0, -2, -1)
    sign = lax.mul(start, reductions.prod(lax.sign(elements), -1))
    return sign, reductions.sum(lax.log(lax.abs(elements)), -1)


@_slogdet.defjvp
def _slogdet_jvp(by_qr: bool, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Jacobi's formula: the derivative of log det A is the trace of A^-1 dA."""
    (a,), (d_a,) = primals, tangents
    sign, size = _slogdet(a, by_qr)
    change = trace(solve_batched(a, d_a), 0, -2, -1)
    if aval_of(a).dtype == real_dtype(aval_of(a).dtype):
        return (sign, size), (lax.mul(sign, like(0, sign)), change)
    along = lax.real(change)
    turning = lax.sub(change, to_dtype(along, aval_of(change).dtype))
    return (sign, size), (lax.mul(turning, sign), along)
