"""Polynomials given by coefficients, the highest power first.

Tests: tests/numpy/test_numpy_functions.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, as_arrays, known, static_int
from gpuflow.numpy.convolutions import convolve
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.decompositions import eigvals
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.lengths import trim_zeros
from gpuflow.numpy.logic import where
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    convert,
    promote_dtypes,
    promote_dtypes_inexact,
)
from gpuflow.numpy.ranges import diag
from gpuflow.numpy.ranks import atleast_1d
from gpuflow.numpy.shaping import broadcast_to
from gpuflow.numpy.ufuncs import abs as absolute
from gpuflow.numpy.ufuncs import negative

# Polynomials up to this degree are written out; longer ones run in a loop.
_WRITTEN_OUT = 32


@composite
def polyval(p: ArrayLike, x: ArrayLike, *, unroll: int = 16) -> Array:
    """Evaluate a polynomial by Horner's rule.

    Args:
        p: coefficients along the first axis, highest power first; other axes broadcast with ``x``.
            A scalar is a constant polynomial.
        x: evaluation points; array of any shape.
        unroll: number of steps per iteration of the loop, if the degree is high.

    Returns:
        An array of the common shape of ``x`` and a coefficient.

    Example:
        >>> jnp.polyval(jnp.array([1, 0, 3]), jnp.array([0, 2]))  # x**2 + 3
        Array([3, 7], dtype=int32)
    """
    p, x = promote_dtypes(*as_arrays("polyval", p, x))
    p = atleast_1d(p)
    shape = broadcast_shapes(aval_of(p).shape[1:], aval_of(x).shape, name="polyval")
    dtype, count = aval_of(x).dtype, aval_of(p).shape[0]
    x = broadcast_to(x, shape)
    if count > _WRITTEN_OUT:
        start = lax.full(shape, 0, dtype)
        return lax.scan(lambda y, c: (y * x + c, None), start, p, unroll=unroll)[0]
    if not count:
        return lax.full_like(x, 0)
    # The first step of Horner's rule multiplies 0 by x, which matters for infinite x.
    value = convert(0, dtype) * x
    for k in range(count):
        value = (value if k == 0 else value * x) + p[k]
    return value


@composite
def polyadd(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Add two polynomials.

    Args:
        a1, a2: coefficients, highest power first; vectors, or scalars for constants.

    Returns:
        A vector with the length of the longer one, of the common dtype.

    Example:
        >>> jnp.polyadd(jnp.array([1, 2, 3]), jnp.array([10, 20]))
        Array([ 1, 12, 23], dtype=int32)
    """
    first, second = atleast_1d(*promote_dtypes(*as_arrays("polyadd", a1, a2)))
    length = max(aval_of(first).shape[0], aval_of(second).shape[0])
    return lax.add(*[_padded(c, length) for c in (first, second)])


def _padded(coefficients: Any, length: int) -> Any:
    """Coefficients with leading zeros."""
    aval = aval_of(coefficients)
    missing = length - aval.shape[0]
    return lax.pad(coefficients, convert(0, aval.dtype), [(missing, 0, 0)])


@composite
def polysub(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Subtract two polynomials.

    Args:
        a1, a2: coefficients, highest power first; vectors, or scalars for constants.

    Returns:
        A vector with the length of the longer one, of the common dtype.

    Example:
        >>> jnp.polysub(jnp.array([1, 2, 3]), jnp.array([10, 20]))
        Array([  1,  -8, -17], dtype=int32)
    """
    first, second = promote_dtypes(*as_arrays("polysub", a1, a2))
    return polyadd(first, negative(second))


@composite
def polymul(a1: ArrayLike, a2: ArrayLike, *, trim_leading_zeros: bool = False) -> Array:
    """Multiply two polynomials.

    Args:
        a1, a2: coefficients, highest power first; vectors, or scalars for constants. Integers are
            converted to floats.
        trim_leading_zeros: whether to drop leading zeros first; coefficients must then be static.

    Returns:
        A vector of floats or complex numbers, of m + n - 1 coefficients for m and n.

    Raises:
        ConcretizationTypeError: if coefficients are traced and ``trim_leading_zeros`` is set.

    Example:
        >>> jnp.polymul(jnp.array([1, 2]), jnp.array([1, -2]))  # (x + 2) (x - 2)
        Array([ 1.,  0., -4.], dtype=float32)
    """
    first, second = atleast_1d(*promote_dtypes_inexact(*as_arrays("polymul", a1, a2)))
    sizes = [aval_of(c).shape[0] for c in (first, second)]
    if trim_leading_zeros and max(sizes) > 1:
        first, second = trim_zeros(first, "f"), trim_zeros(second, "f")
    first, second = (_padded(c, max(aval_of(c).shape[0], 1)) for c in (first, second))
    return convolve(first, second, "full")


@composite
def polydiv(u: ArrayLike, v: ArrayLike, *, trim_leading_zeros: bool = False) -> tuple[Array, Array]:
    """Return quotient and remainder of two polynomials.

    Args:
        u, v: coefficients; the first one of ``v`` must not be 0. Integers are converted to floats.
        trim_leading_zeros: whether to drop leading zeros of the remainder; ``u`` and ``v`` must
            then be static.

    Returns:
        Two vectors of floats or complex numbers; the remainder has the size of ``u``.

    Raises:
        ConcretizationTypeError: if coefficients are traced and ``trim_leading_zeros`` is set.

    Example:
        >>> jnp.polydiv(jnp.array([1.0, 5.0, 8.0]), jnp.array([1.0, 2.0]))
        (Array([1., 3.], dtype=float32), Array([0., 0., 2.], dtype=float32))
    """
    remainder, divisor = atleast_1d(*promote_dtypes_inexact(*as_arrays("polydiv", u, v)))
    length, divisor_length = aval_of(remainder).shape[0], aval_of(divisor).shape[0]
    dtype = aval_of(remainder).dtype
    quotient = []
    scale = convert(1, dtype) / divisor[0]
    for k in range(length - divisor_length + 1):
        factor = scale * remainder[k]
        quotient.append(factor)
        remainder = remainder.at[k : k + divisor_length].add(-factor * divisor)
    if trim_leading_zeros:
        remainder = _trimmed(remainder)
    zero = lax.full((1,), 0, dtype)
    return concatenate([atleast_1d(q) for q in quotient]) if quotient else zero, remainder


def _trimmed(coefficients: Any) -> Any:
    """Coefficients without leading ones that are 0 but for rounding."""
    size = absolute(coefficients)
    tolerance = float(np.sqrt(ml_dtypes.finfo(aval_of(size).dtype).eps))
    fix = "use trim_leading_zeros=False."
    large = np.flatnonzero(known("polydiv", "the remainder", size >= tolerance, fix))
    return coefficients[int(large[0]) :] if large.size else coefficients[:0]


# --- derivatives and integrals -------------------------------------------------------------


def _order(name: str, m: Any) -> int:
    order = static_int(name, "m", m)
    check(
        order >= 0,
        lambda: f"[{name}] m must not be negative; got {order}. Fix: m=1.",
        ValueError,
    )
    return order


def _falling(powers: np.ndarray, order: int, dtype: Any) -> Any:
    """n (n - 1) ... (n - order + 1) for each of ``powers``, in ``dtype``."""
    factors = np.maximum(powers[None] - np.arange(order)[:, None], 1)
    return asarray(factors.astype(np.float64).prod(0), dtype=dtype)


@composite
def polyder(p: ArrayLike, m: int = 1) -> Array:
    """Return the coefficients of the ``m``-th derivative.

    Args:
        p: coefficients, highest power first. Integers are converted to floats.
        m: order of the derivative.

    Returns:
        A vector of floats or complex numbers, shorter by ``m``.

    Raises:
        ValueError: if ``m`` is negative.

    Example:
        >>> jnp.polyder(jnp.array([1, 0, 3]))  # of x**2 + 3
        Array([2., 0.], dtype=float32)
    """
    order = _order("polyder", m)
    (p,) = promote_dtypes_inexact(as_array("polyder", p))
    p = atleast_1d(p)
    if order == 0:
        return p
    powers = np.arange(aval_of(p).shape[0] - 1, order - 1, -1)
    return p[:-order] * _falling(powers, order, aval_of(p).dtype)


@composite
def polyint(p: ArrayLike, m: int = 1, k: ArrayLike | None = None) -> Array:
    """Return the coefficients of the ``m``-th antiderivative.

    Args:
        p: coefficients, highest power first. Integers are converted to floats.
        m: order of the antiderivative.
        k: integration constants, one or ``m`` of them; 0 by default.

    Returns:
        A vector of floats or complex numbers, longer by ``m``.

    Raises:
        ValueError: if ``m`` is negative, or the number of constants does not match.

    Example:
        >>> jnp.polyint(jnp.array([2, 3]), k=5)  # of 2 x + 3
        Array([1., 3., 5.], dtype=float32)
    """
    order = _order("polyint", m)
    p, k = promote_dtypes_inexact(*as_arrays("polyint", p, 0 if k is None else k))
    p, constants = atleast_1d(p, k)
    if aval_of(constants).shape == (1,):
        constants = broadcast_to(constants, (order,))
    check(
        aval_of(constants).shape == (order,),
        lambda: f"[polyint] k must hold 1 or {order} numbers; got {aval_of(k)}. Fix: k=0.",
        ValueError,
    )
    if order == 0:
        return p
    powers = np.arange(aval_of(p).shape[0] + order - 1, -1, -1)
    return concatenate([p, constants]) / _falling(powers, order, aval_of(p).dtype)


# --- roots ---------------------------------------------------------------------------------


@explained
def roots(p: ArrayLike, *, strip_zeros: bool = True) -> Array:
    """Return the roots of a polynomial, as eigenvalues of its companion matrix.

    Args:
        p: coefficients.
        strip_zeros: whether to drop leading zeros first; coefficients must then be static.
            Otherwise each leading zero gives a root that is nan.

    Returns:
        A vector of complex numbers, in no particular order.

    Raises:
        ValueError: if the coefficients do not have rank 1.
        ConcretizationTypeError: if coefficients are traced and ``strip_zeros`` is set.

    Example:
        >>> jnp.sort(jnp.roots(jnp.array([1.0, -3.0, 2.0])).real).round(3)
        Array([1., 2.], dtype=float32)
    """
    (p,) = promote_dtypes_inexact(as_array("roots", p))
    p = atleast_1d(p)
    aval = aval_of(p)
    check(
        aval.ndim == 1,
        lambda: f"[roots] coefficients must have rank 1; got {aval}. Fix: gpuflow.vmap.",
        ValueError,
    )
    count = aval.shape[0]
    complex_dtype = np.result_type(aval.dtype, np.complex64)
    if count < 2:
        return lax.full((0,), 0, complex_dtype)
    leading = lax.eq(lax.cumsum((p != 0).astype(int), 0), convert(0, dtypes.default_int()))
    if strip_zeros:
        fix = "use strip_zeros=False; missing roots are then nan."
        return _roots(p[int(known("roots", "the leading zeros", leading, fix).sum()) :])
    zero_count = lax.reduce_sum(leading.astype(int), (0,))
    p = where(zero_count == count, convert(1, aval.dtype), p)
    rotation = (lax.iota(dtypes.default_int(), (count,)) + zero_count) % count
    eigenvalues = _roots(p[rotation])
    # Each leading zero, rotated to the end, adds a root of 0: move these to the end.
    _, eigenvalues = lax.sort_key_val((eigenvalues == 0).astype(int), eigenvalues, 0, True)
    real = lax.iota(dtypes.default_int(), (count - 1,)) < count - 1 - zero_count
    return where(real, eigenvalues, convert(complex(np.nan, np.nan), aval_of(eigenvalues).dtype))


@composite
def _roots(p: Any) -> Any:
    """The roots of a polynomial whose first coefficient is not 0."""
    count, dtype = aval_of(p).shape[0], aval_of(p).dtype
    if count < 2:
        return lax.full((0,), 0, np.result_type(dtype, np.complex64))
    companion = diag(lax.full((count - 2,), 1, dtype), -1)
    return eigvals(companion.at[0].set(-p[1:] / p[0]))


@composite
def poly(seq_of_zeros: ArrayLike) -> Array:
    """Return the polynomial with given roots, or the characteristic polynomial of a matrix.

    Args:
        seq_of_zeros: vector of n roots, or a matrix of shape (n, n). Integers are converted to
            floats.

    Returns:
        A vector of n + 1 coefficients, starting with 1.

    Raises:
        ValueError: if the argument is neither a vector nor a square matrix.

    Example:
        >>> jnp.poly(jnp.array([1.0, 2.0]))  # (x - 1) (x - 2)
        Array([ 1., -3.,  2.], dtype=float32)
    """
    (zeros,) = promote_dtypes_inexact(as_array("poly", seq_of_zeros))
    zeros = atleast_1d(zeros)
    shape = aval_of(zeros).shape
    if len(shape) == 2 and shape[0] == shape[1] and shape[0]:
        zeros = eigvals(zeros)
    check(
        aval_of(zeros).ndim == 1,
        lambda: (
            f"[poly] roots must be a vector or a square matrix; got shape {shape}. "
            "Fix: jnp.ravel(x)."
        ),
        ValueError,
    )
    count, dtype = aval_of(zeros).shape[0], aval_of(zeros).dtype
    if not count:
        return lax.full((), 1, dtype)
    out = lax.full((1,), 1, dtype)
    for k in range(count):
        out = lax.sub(
            lax.pad(out, convert(0, dtype), [(0, 1, 0)]),
            lax.pad(out * zeros[k], convert(0, dtype), [(1, 0, 0)]),
        )
    return out
