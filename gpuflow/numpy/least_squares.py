"""Least squares and pseudo-inverses, by singular values.

Tests: tests/numpy/test_numpy_linalg.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy import reductions
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.decompositions import matrices, svd
from gpuflow.numpy.exact_products import exact_matmul
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    check_rank_promotion,
    promote_dtypes_inexact,
)
from gpuflow.numpy.scalar_types import finfo
from gpuflow.numpy.shaping import expand_dims, ravel
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import (
    adjoint,
    real_dtype,
    swap,
    symmetrized,
    through_float32,
    to_dtype,
    with_batch,
)


@composite
def lstsq(
    a: ArrayLike, b: ArrayLike, rcond: Any = None, *, numpy_resid: bool = False
) -> tuple[Array, ...]:
    """Solve ``a @ x == b`` by least squares, with the ``x`` of minimum norm.

    Args:
        a: a matrix of shape (m, n).
        b: a vector of m elements, or a matrix of shape (m, k).
        rcond: singular values below ``rcond`` times the largest one count as 0; eps times the
            larger size by default.
        numpy_resid: whether residuals are empty when NumPy omits them; not under jit.

    Returns:
        (x, squared residuals, rank, singular values): floats of shape (n,) or (n, k), floats of
        shape (1,) or (k,), an integer, and floats in descending order.

    Raises:
        ValueError: if sizes do not match.
        TypeError: if an argument has batch axes.

    Example:
        >>> a = jnp.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
        >>> x, residuals, rank, values = jnp.linalg.lstsq(a, jnp.array([1.0, 3.0, 5.0]))
        >>> x.round(3), rank
        (Array([2., 1.], dtype=float32), Array(2, dtype=int32))
    """
    a, b = check_arraylike("lstsq", a, b)
    a, b = (asarray(x) for x in promote_dtypes_inexact(a, b))
    check(
        aval_of(a).ndim == 2 and aval_of(b).ndim in (1, 2),
        lambda: (
            f"[lstsq] operands must be a matrix and a vector or matrix; got {aval_of(a)} and "
            f"{aval_of(b)}. Fix: use vmap for batches."
        ),
    )
    m, n = aval_of(a).shape
    check(
        aval_of(b).shape[0] == m,
        lambda: (
            f"[lstsq] operands must have equally many rows; got {aval_of(a)} and "
            f"{aval_of(b)}. Fix: transpose one."
        ),
        ValueError,
    )
    vector = aval_of(b).ndim == 1
    right = expand_dims(b, 1) if vector else b
    rtype = real_dtype(aval_of(a).dtype)
    x, residuals, rank, values = _least_squares(a, right, _bound(rcond, rtype, max(m, n)))
    if numpy_resid and (int(rank) < n or m <= n):
        residuals = asarray([], rtype)
    return (ravel(x) if vector else x), residuals, rank, values


def _bound(rcond: Any, rtype: Any, size: int) -> Any:
    """``rcond``, or by default eps times the size, as an array."""
    eps = float(finfo(rtype).eps)
    if rcond is None:
        return asarray(eps * size, rtype)
    bound = asarray(rcond, rtype)
    return where(lax.lt(bound, rtype.type(0)), rtype.type(eps), bound)


@through_float32
def _least_squares(a: Any, b: Any, bound: Any) -> tuple[Any, Any, Any, Any]:
    x, rank, values = _minimizer(a, b, bound)
    size = lax.abs(lax.sub(b, exact_matmul(a, x)))
    return x, reductions.sum(lax.mul(size, size), 0), rank, values


def _minimizer(a: Any, b: Any, bound: Any) -> tuple[Any, Any, Any]:
    dtype, rtype = aval_of(a).dtype, real_dtype(aval_of(a).dtype)
    (m, n), count = aval_of(a).shape, aval_of(b).shape[1]
    if m == 0 or n == 0:
        x = asarray(np.zeros((n, count), dtype))
        return x, asarray(0), asarray(np.zeros(0, rtype))
    u, values, vh = svd(a, full_matrices=False)
    largest = lax.squeeze(lax.slice_in_dim(values, 0, 1), (0,))
    used = lax.bitwise_and(lax.gt(values, rtype.type(0)), lax.ge(values, lax.mul(bound, largest)))
    inverse = where(used, lax.div(rtype.type(1), where(used, values, 1)), 0)
    scaled = lax.mul(expand_dims(to_dtype(inverse, dtype), 1), exact_matmul(adjoint(u), b))
    return exact_matmul(adjoint(vh), scaled), reductions.sum(used), values


@composite
def pinv(
    a: ArrayLike,
    rtol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rcond: ArrayLike | None = None,
) -> Array:
    """Return the pseudo-inverses of matrices.

    Args:
        a: matrices of shape (..., m, n).
        rtol: singular values below ``rtol`` times the largest one count as 0; by default 10 times
            eps times the larger size. It may be an array with one value for each matrix.
        hermitian: whether ``a`` is Hermitian.
        rcond: another name of ``rtol``.

    Returns:
        An array of shape (..., n, m).

    Raises:
        ValueError: if both names of an argument are used, or shapes do not broadcast.

    Example:
        >>> jnp.linalg.pinv(jnp.array([[2.0, 0.0], [0.0, 4.0], [0.0, 0.0]])).round(3)
        Array([[0.5 , 0.  , 0.  ],
               [0.  , 0.25, 0.  ]], dtype=float32)
    """
    check(
        rtol is None or rcond is None,
        lambda: "[pinv] only one of rtol and rcond may be given; got both. Fix: rtol=...",
        ValueError,
    )
    (a,) = matrices("pinv", a)
    rtype = real_dtype(aval_of(a).dtype)
    bound = rcond if rtol is None else rtol
    if bound is None:
        bound = 10.0 * max((*aval_of(a).shape[-2:], 1)) * float(finfo(rtype).eps)
    bound = asarray(bound)
    if dtypes.is_complex(aval_of(bound).dtype):
        bound = lax.real(bound)
    bound = asarray(bound, rtype)
    if aval_of(bound).ndim > aval_of(a).ndim - 2:
        check_rank_promotion("pinv", [aval_of(bound).shape, aval_of(a).shape[:-2]])
    return through_float32(_pinv)(a, bound, hermitian)


@partial(custom_jvp, nondiff_argnums=(2,))
def _pinv(a: Any, rtol: Any, hermitian: bool) -> Any:
    if aval_of(a).size == 0:
        return swap(a)
    u, values, vh = svd(a, full_matrices=False, hermitian=hermitian)
    batch = broadcast_shapes(aval_of(a).shape[:-2], aval_of(rtol).shape, name="pinv")
    u, vh, values = with_batch(u, batch, 2), with_batch(vh, batch, 2), with_batch(values, batch, 1)
    largest = lax.slice_in_dim(values, 0, 1, axis=len(batch))
    bound = lax.mul(with_batch(expand_dims(rtol, -1), batch, 1), largest)
    inverse = where(lax.gt(values, bound), lax.div(aval_of(values).dtype.type(1), values), 0)
    scaled = lax.mul(expand_dims(to_dtype(inverse, aval_of(u).dtype), -1), adjoint(u))
    return exact_matmul(adjoint(vh), scaled)


@_pinv.defjvp
def _pinv_jvp(hermitian: bool, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The derivative where the rank does not change.

    Source: Golub and Pereyra, The differentiation of pseudo-inverses and nonlinear least squares
    problems whose variables separate (1973), equation 4.12.
    """
    (a, rtol), d_a = primals, tangents[0]
    p = _pinv(a, rtol, hermitian)
    a, d_a = (with_batch(x, aval_of(p).shape[:-2], 2) for x in (a, d_a))
    if hermitian:
        # Only the Hermitian part was decomposed.
        a, d_a = (symmetrized(x) for x in (a, d_a))
    change = adjoint(d_a)
    first = _product_of_three(p, adjoint(p), change)
    second = _product_of_three(change, adjoint(p), p)
    outside = lax.sub(first, _product_of_three(first, a, p))
    beyond = lax.sub(second, _product_of_three(p, a, second))
    return p, lax.sub(lax.add(outside, beyond), _product_of_three(p, d_a, p))


def _product_of_three(a: Any, b: Any, c: Any) -> Any:
    """``a b c``, in the order that takes fewer operations and avoids the larger square matrix."""
    (m, n), (k, q) = aval_of(a).shape[-2:], aval_of(c).shape[-2:]
    if m * k * (n + q) <= n * q * (k + m):
        return exact_matmul(exact_matmul(a, b), c)
    return exact_matmul(a, exact_matmul(b, c))
