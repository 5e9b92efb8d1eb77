"""The error function, the normal distribution and their relatives.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import promote_args_inexact, strong
from gpuflow.scipy.special import tables
from gpuflow.scipy.special.common import (
    chebyshev,
    exp_square,
    is_complex,
    on_interval,
    strong_operands,
    with_derivatives,
)
from gpuflow.scipy.special.faddeeva import wofz_of

_ROOT_2 = math.sqrt(2.0)
_ROOT_HALF = math.sqrt(0.5)
_ROOT_PI = math.sqrt(math.pi)
_ROOT_2_PI = math.sqrt(2.0 * math.pi)
_MAX_SERIES_ORDER = 30


def erf(x: ArrayLike) -> Array:
    """Return the error function: ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to x.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.erf(jnp.array([0., 1.])), 3)
        Array([0.   , 0.843], dtype=float32)
    """
    (x,) = promote_args_inexact("erf", x)
    return lax.erf(x)


def erfc(x: ArrayLike) -> Array:
    """Compute ``1 - erf(x)``, accurate for large ``x``.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.erfc(jnp.array([0., 1.])), 3)
        Array([1.   , 0.157], dtype=float32)
    """
    (x,) = promote_args_inexact("erfc", x)
    return lax.erfc(x)


def erfinv(x: ArrayLike) -> Array:
    """Return the inverse error function.

    Args:
        x: array of real numbers; outside of [-1, 1] the result is nan.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.erfinv(jnp.array([0., 0.5, 1.])), 3)
        Array([0.   , 0.477,   inf], dtype=float32)
    """
    (x,) = promote_args_inexact("erfinv", x)
    return lax.erf_inv(x)


# --- scaled ---------------------------------------------------------------------------------


def _erfcx_right(x: Any) -> Any:
    """erfcx of x >= 0. Source: Shepherd and Laframboise, 1981, with our own coefficients."""
    # That is on_ray(0, 2, x); one division does for both.
    inverse = 1.0 / (x + 2.0)
    return inverse * chebyshev(tables.ERFCX, 1.0 - 4.0 * inverse)


@with_derivatives(lambda t, out, x: t * _erfcx_slope(out, x))
def _erfcx(x: Any) -> Any:
    right = _erfcx_right(jnp.abs(x))
    return jnp.where(x < 0, 2.0 * exp_square(jnp.minimum(x, 0.0), 1.0) - right, right)


def _erfcx_slope(out: Any, x: Any) -> Any:
    """``2 x erfcx - 2 / sqrt(pi)``; where the terms cancel, the first of its asymptotic series."""
    square = jnp.square(jnp.maximum(x, 8.0))
    far = (-1.0 + (1.5 - (3.75 - 13.125 / square) / square) / square) / (_ROOT_PI * square)
    far = jnp.where(jnp.isinf(x), 0.0, far)
    return jnp.where(x > 24.0, far, 2.0 * x * out - 2.0 / _ROOT_PI)


def erfcx(x: ArrayLike) -> Array:
    """Compute ``exp(x**2) erfc(x)``, also of complex numbers.

    Args:
        x: array of real or complex numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``; complex for complex numbers.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.erfcx(jnp.array([0., 10.])), 3)
        Array([1.   , 0.056], dtype=float32)
    """
    x = strong(*promote_args_inexact("erfcx", x))
    if is_complex(x):
        return wofz_of(lax.complex(lax.neg(lax.imag(x)), lax.real(x)))
    return _erfcx(x)


@with_derivatives(lambda t, out, x: t * _dawson_slope(out, x))
def _dawson(x: Any) -> Any:
    size = jnp.abs(x)
    square = jnp.square(jnp.minimum(size, 2.5))
    near = x * chebyshev(tables.DAWSON_NEAR, on_interval(0.0, 6.25, square))
    middle = chebyshev(tables.DAWSON_MIDDLE, on_interval(2.5, 5.0, size))
    inverse = 1.0 / jnp.maximum(size, 5.0)
    far = chebyshev(tables.DAWSON_FAR, on_interval(0.0, 0.04, jnp.square(inverse)))
    return jnp.where(size < 2.5, near, jnp.where(size < 5.0, middle, far) / x)


def _dawson_slope(out: Any, x: Any) -> Any:
    """``1 - 2 x F(x)``; where the terms cancel, the first of its asymptotic series."""
    inverse = 1.0 / jnp.square(jnp.maximum(jnp.abs(x), 8.0))
    far = -0.5 * inverse * (1.0 + inverse * (1.5 + inverse * (3.75 + inverse * 13.125)))
    return jnp.where(jnp.abs(x) > 16.0, far, 1.0 - 2.0 * x * out)


def dawsn(x: ArrayLike) -> Array:
    """Compute Dawson's integral: ``exp(-x**2)`` times the integral of ``exp(t**2)`` from 0 to x.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.dawsn(jnp.array([0., 1.])), 3)
        Array([0.   , 0.538], dtype=float32)
    """
    return _dawson(*strong_operands("dawsn", x))


# --- the normal distribution ----------------------------------------------------------------


def _wide_float(name: str, x: Any) -> Any:
    if aval_of(x).dtype not in (np.float32, np.float64):
        raise TypeError(
            f"[{name}] x must be float32 or float64, its dtype is not supported; got "
            f"{aval_of(x)}. Fix: x.astype(jnp.float32)."
        )
    return strong(x)


def normal_density(x: Any) -> Any:
    """``exp(-x**2 / 2) / sqrt(2 pi)`` with all its digits in the tails."""
    return exp_square(x, -0.5) / _ROOT_2_PI


def _normal_tail(x: Any) -> Any:
    """The probability of more than ``x >= 0``; erfc of ``x / sqrt(2)`` has fewer digits."""
    return 0.5 * _erfcx_right(x * _ROOT_HALF) * exp_square(x, -0.5)


def _normal_center(x: Any) -> Any:
    """The probability of less than ``x``, less 1/2, for ``abs(x) <= 1``."""
    return x * chebyshev(tables.NORMAL, 2.0 * jnp.square(x) - 1.0)


@with_derivatives(lambda t, out, x: t * normal_density(x))
def _ndtr(x: Any) -> Any:
    tail = _normal_tail(jnp.abs(x))
    outer = jnp.where(x < 0.0, tail, 1.0 - tail)
    return jnp.where(jnp.abs(x) < 1.0, 0.5 + _normal_center(x), outer)


def ndtr(x: ArrayLike) -> Array:
    """Return the normal cumulative distribution function: the probability of less than ``x``.

    Args:
        x: f32[...] or f64[...].

    Returns:
        Floats of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> jnp.round(gf.scipy.special.ndtr(jnp.array([0., 1.])), 3)
        Array([0.5  , 0.841], dtype=float32)
    """
    return _ndtr(_wide_float("ndtr", jnp.asarray(x)))


@with_derivatives(lambda t, out, x: t * (2.0 / _ROOT_2_PI) / _erfcx(-x / _ROOT_2))
def _log_ndtr(x: Any) -> Any:
    """One logarithm: of half of erfcx, of the center, or of ``1 - tail``."""
    size = jnp.abs(x)
    half = 0.5 * _erfcx_right(size * _ROOT_HALF)
    tail = half * exp_square(size, -0.5)
    outer = jnp.where(x < 0.0, half, 1.0 - tail)
    argument = jnp.where(size < 1.0, 0.5 + _normal_center(x), outer)
    # What 1 - tail lost is some 1 / argument, near 1, of the logarithm.
    lost = (2.0 - argument) * ((1.0 - argument) - tail)
    further = jnp.where(x < 0.0, -(0.5 * x) * x, lost)
    result = jnp.log(argument) + jnp.where(size < 1.0, 0.0, further)
    # Where all of it was lost; of 0 that keeps the sign.
    return jnp.where(argument == 1.0, -tail, result)


def log_ndtr(x: ArrayLike, series_order: int = 3) -> Array:
    """Compute ``log(ndtr(x))``, accurate in the tails.

    Args:
        x: f32[...] or f64[...].
        series_order: accepted as in JAX; the series always has enough terms for full precision.

    Returns:
        Floats of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported, or the order is not an int.
        ValueError: if the order is below 0 or above 30.

    Example:
        >>> jnp.round(gf.scipy.special.log_ndtr(jnp.array([0., -10.])), 3)
        Array([ -0.693, -53.231], dtype=float32)
    """
    if not isinstance(series_order, int):
        raise TypeError(
            f"[log_ndtr] series_order must be a Python integer; got {series_order!r}. Fix: 3."
        )
    if not 0 <= series_order <= _MAX_SERIES_ORDER:
        raise ValueError(
            "[log_ndtr] series_order must be non-negative and <= 30; "
            f"got {index(series_order)}. Fix: 3."
        )
    return _log_ndtr(_wide_float("log_ndtr", jnp.asarray(x)))


@with_derivatives(lambda t, out, p: t * _ROOT_2_PI * exp_square(out, 0.5))
def _ndtri(p: Any) -> Any:
    offset = p - 0.5
    center = offset * chebyshev(
        tables.QUANTILE_CENTER, on_interval(0.0, 0.140625, jnp.square(offset))
    )
    smaller = jnp.minimum(p, 1.0 - p)
    depth = jnp.sqrt(-2.0 * jnp.log(smaller))
    tail = chebyshev(tables.QUANTILE_TAIL, on_interval(1.99, 8.0, depth))
    far = chebyshev(tables.QUANTILE_FAR, on_interval(0.025, 0.125, 1.0 / jnp.maximum(depth, 8.0)))
    outer = depth - jnp.where(depth < 8.0, tail, far)
    outer = jnp.where(jnp.isinf(depth), jnp.inf, outer)
    result = jnp.where(jnp.abs(offset) <= 0.365, center, jnp.where(p < 0.5, -outer, outer))
    return jnp.where((p >= 0.0) & (p <= 1.0), result, jnp.nan)


def ndtri(p: ArrayLike) -> Array:
    """Return the inverse of ``ndtr``; nan outside of [0, 1].

    Args:
        p: f32[...] or f64[...], probabilities.

    Returns:
        Floats of the shape and dtype of ``p``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> jnp.round(gf.scipy.special.ndtri(jnp.array([0.5, 0.975])), 3)
        Array([0.  , 1.96], dtype=float32)
    """
    return _ndtri(_wide_float("ndtri", p))


# --- Owen's T function ----------------------------------------------------------------------

# Gauss and Legendre's rule on (0, 1).
_NODES, _WEIGHTS = (v.tolist() for v in np.polynomial.legendre.leggauss(20))
_RULE = [((1.0 + node) / 2, weight / 2) for node, weight in zip(_NODES, _WEIGHTS, strict=True)]
# exp(-x**2 / 2) no longer counts from here on, in float64.
_REACH = 8.75


def _owens_integral(h: Any, a: Any) -> Any:
    """The integral over ``0 <= t <= a <= 1``, as far as it counts, without ``exp(-h**2 / 2)``."""
    width = jnp.minimum(a, _REACH / jnp.maximum(h, 1.0))
    total: Any = 0.0
    for node, weight in _RULE:
        t = width * node
        total = total + weight * jnp.exp(-0.5 * jnp.square(h * t)) / (1.0 + jnp.square(t))
    return width * total / (2.0 * math.pi)


@with_derivatives(
    lambda t, out, h, a: -t * normal_density(h) * 0.5 * lax.erf(a * h / _ROOT_2),
    lambda t, out, h, a: (
        t * exp_square(h, -0.5) * exp_square(a * h, -0.5) / (2.0 * math.pi * (1.0 + jnp.square(a)))
    ),
)
def _owens_t(h: Any, a: Any) -> Any:
    h, size = jnp.abs(h), jnp.abs(a)
    steep = size > 1.0
    product = jnp.where(h == 0.0, 0.0, h * size)
    flat = jnp.where(steep, 1.0 / size, size)
    # Beyond 64 all is 0, and infinity times 0 does not come up.
    height = jnp.minimum(jnp.where(steep, product, h), 64.0)
    direct = exp_square(height, -0.5) * _owens_integral(height, flat)
    above, above_product = _normal_tail(h), _normal_tail(product)
    # T(h, a) + T(a h, 1 / a) in terms of the normal distribution; Owen's equation 2.4.
    both = 0.5 * (above + above_product) - above * above_product
    result = jnp.where(steep, both - direct, direct)
    return jnp.where(jnp.isnan(h), jnp.nan, jnp.sign(a) * result)


def owens_t(h: ArrayLike, a: ArrayLike) -> Array:
    """Compute Owen's T: the probability of ``X > h`` and ``0 < Y < a X`` for normal X and Y.

    Args:
        h, a: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Source:
        D. B. Owen, Tables for computing bivariate normal probabilities, 1956.

    Example:
        >>> jnp.round(gf.scipy.special.owens_t(jnp.array([0., 1.]), 1.), 3)
        Array([0.125, 0.067], dtype=float32)
    """
    return _owens_t(*strong_operands("owens_t", h, a))
