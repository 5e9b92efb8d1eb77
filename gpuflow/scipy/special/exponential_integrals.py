"""Exponential, sine and cosine integrals.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special import tables
from gpuflow.scipy.special.common import (
    chebyshev,
    kernel,
    on_interval,
    on_ray,
    precision,
    scalar_like,
    strong_operands,
    with_derivatives,
)


def log_and_root(x: Any, root: tuple[float, float], series: tuple[float, ...]) -> Any:
    """``log(x / root) + (x - root) series(x)`` for ``0 < x <= 4``, precise near the root too."""
    high, low = root
    offset = (x - high) - low
    near = jnp.abs(offset) < 0.5 * high
    log = jnp.where(
        near,
        jnp.log1p(jnp.where(near, offset, 0.0) / (high + low)),
        jnp.log(x) - math.log(high + low),
    )
    return log + offset * chebyshev(series, on_interval(0.0, 4.0, x))


# --- exp1 and expi --------------------------------------------------------------------------


def _exp1_right(x: Any) -> Any:
    """exp1 of x >= 0."""
    near = chebyshev(tables.E1_NEAR, on_interval(0.0, 1.0, x)) - jnp.log(x)
    far = jnp.exp(-x) * chebyshev(tables.E1_FAR, on_ray(1.0, 4.0, x)) / x
    return jnp.where(x <= 1.0, near, jnp.where(jnp.isinf(x), 0.0, far))


def _expi_right(x: Any) -> Any:
    """expi of x >= 0."""
    near = log_and_root(x, tables.EI_ROOT, tables.EI_NEAR)
    inverse = 1.0 / jnp.maximum(x, 4.0)
    middle = chebyshev(tables.EI_MIDDLE, on_interval(4.0, 12.0, x))
    large = chebyshev(tables.EI_LARGE, on_interval(1.0 / 40.0, 1.0 / 12.0, inverse))
    far = chebyshev(tables.EI_FAR, on_interval(0.0, 1.0 / 40.0, inverse))
    scaled = jnp.where(x < 12.0, middle, jnp.where(x < 40.0, large, far))
    # The exponential overflows before the quotient does.
    half = jnp.exp(0.5 * x)
    beyond = jnp.where(jnp.isinf(half), jnp.inf, scaled * inverse * half * half)
    return jnp.where(x <= 4.0, near, jnp.where(x < 80.0, scaled * inverse * jnp.exp(x), beyond))


@with_derivatives(lambda t, out, x: t * jnp.exp(x) / x)
def _expi(x: Any) -> Any:
    size = jnp.abs(x)
    return jnp.where(x < 0.0, -_exp1_right(size), _expi_right(size))


def expi(x: ArrayLike) -> Array:
    """Compute the exponential integral Ei: the integral of ``exp(t) / t`` up to ``x``.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.expi(jnp.array([1., -1.])), 3)
        Array([ 1.895, -0.219], dtype=float32)
    """
    return _expi(*strong_operands("expi", x))


@with_derivatives(lambda t, out, x: -t * jnp.exp(-x) / x)
def _exp1(x: Any) -> Any:
    return jnp.where(x < 0.0, jnp.nan, _exp1_right(x))


def exp1(x: ArrayLike) -> Array:
    """Compute the exponential integral E1: the integral of ``exp(-t) / t`` from ``x``; nan below 0.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.exp1(jnp.array([1., 0.])), 3)
        Array([0.219,   inf], dtype=float32)
    """
    return _exp1(*strong_operands("exp1", x))


# --- expn -----------------------------------------------------------------------------------

# Terms of the power series for x <= 1, by bytes of the dtype, and of the continued fraction.
_SERIES_TERMS = {4: 12, 8: 20}
_FRACTION_TERMS = {4: 28, 8: 90}
# From this order on three terms in 1 / (x + n) are enough.
_LARGE_ORDER = 5000.0


def _expn_series(n: Any, x: Any) -> Any:
    """Source: DLMF 8.19.8, for integers n >= 1 and x <= 1."""
    order = n - 1.0
    count = _SERIES_TERMS[_bytes(x)]

    def add_term(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        total, power = state
        k = scalar_like(k, x)
        gap = k - order
        term = jnp.where(gap == 0.0, 0.0, power / jnp.where(gap == 0.0, 1.0, gap))
        return total - term, -power * x / (k + 1.0)

    one = jnp.ones_like(x)
    total, _ = lax.fori_loop(0, count, add_term, (jnp.zeros_like(x), one))
    power = jnp.where(order == 0.0, 1.0, jnp.power(x, order))
    sign = 1.0 - 2.0 * (order - 2.0 * jnp.floor(0.5 * order))
    logarithm = lax.digamma(n) - jnp.log(x)
    return total + sign * power * jnp.exp(-lax.lgamma(n)) * logarithm


def _expn_fraction(n: Any, x: Any) -> Any:
    """Source: DLMF 8.19.17 after Lentz, from the last term to the first, for x > 1."""
    count = _FRACTION_TERMS[_bytes(x)]

    def add_term(i: Any, tail: Any) -> Any:
        k = count - scalar_like(i, x)
        return x + n + 2.0 * k - 2.0 - k * (n + k - 1.0) / tail

    start = x + n + 2.0 * count
    tail = lax.fori_loop(0, count, lambda i, tail: add_term(i, tail), start)
    return jnp.exp(-x) / tail


def _expn_asymptotic(n: Any, x: Any) -> Any:
    """Source: DLMF 8.20.6, for large n."""
    inverse = 1.0 / (x + n)
    step = n * inverse * inverse
    small = x / n
    series = 1.0 + step * ((1.0 - 2.0 * small) + step * (1.0 - 8.0 * small + 6.0 * small * small))
    return jnp.exp(-x) * inverse * (1.0 + step * series)


def _bytes(x: Any) -> int:
    return 8 if precision(x) < 1e-10 else 4


@with_derivatives(None, lambda t, out, n, x: -t * _lower_order(n, x))
def _expn(n: Any, x: Any) -> Any:
    n, x = jnp.broadcast_arrays(n, x)
    order = jnp.clip(n, 1.0, _LARGE_ORDER)
    series = _expn_series(order, jnp.minimum(x, 1.0))
    fraction = _expn_fraction(order, jnp.maximum(x, 1.0))
    result = jnp.where(x <= 1.0, series, fraction)
    result = jnp.where(n == 1.0, _exp1_right(x), result)
    result = jnp.where(n >= _LARGE_ORDER, _expn_asymptotic(jnp.maximum(n, _LARGE_ORDER), x), result)
    result = jnp.where(n == 0.0, jnp.exp(-x) / x, result)
    # The derivative of the function of order 0.
    result = jnp.where(n == -1.0, jnp.exp(-x) * (1.0 + x) / (x * x), result)
    at_zero = jnp.where(n < 2.0, jnp.inf, 1.0 / jnp.where(n < 2.0, 1.0, n - 1.0))
    result = jnp.where(x == 0.0, at_zero, jnp.where(jnp.isinf(x), 0.0, result))
    return jnp.where((n >= -1.0) & (x >= 0.0), result, jnp.nan)


def _lower_order(n: Any, x: Any) -> Any:
    """The negative derivative of ``_expn``."""
    return _expn(n - 1.0, x)


def expn(n: ArrayLike, x: ArrayLike) -> Array:
    """Compute the exponential integral of order ``n``: the integral of ``exp(-x t) / t**n`` from 1.

    Args:
        n: integers >= 0; not differentiated.
        x: nonnegative real numbers, which broadcast with ``n``; the result is nan for negative
            ones.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.expn(2, jnp.array([0., 1.])), 3)
        Array([1.   , 0.148], dtype=float32)
    """
    n, x = strong_operands("expn", n, x)
    return jnp.where(n < 0.0, jnp.nan, _expn(lax.stop_gradient(n), x))


# --- sici -----------------------------------------------------------------------------------


def _sine_of_quotient(x: Any) -> Any:
    """``sin(x) / x``, which is 1 at 0."""
    safe = jnp.where(x == 0.0, 1.0, x)
    return jnp.where(x == 0.0, 1.0, jnp.sin(safe) / safe)


def _sici_right(x: Any) -> tuple[Any, Any]:
    """Both integrals of x >= 0. Source of the auxiliary functions: DLMF 6.2.17 to 6.2.20."""
    square = jnp.square(jnp.minimum(x, 4.0))
    near_sine = x * chebyshev(tables.SI_NEAR, on_interval(0.0, 16.0, square))
    near_cosine = log_and_root(x, tables.CI_ROOT, tables.CI_NEAR)
    inverse = 1.0 / jnp.maximum(x, 4.0)
    argument = on_ray(4.0, 12.0, x)
    f = chebyshev(tables.SI_F, argument) * inverse
    g = chebyshev(tables.SI_G, argument) * inverse * inverse
    finite = jnp.where(jnp.isinf(x), 0.0, x)
    sine, cosine = jnp.sin(finite), jnp.cos(finite)
    far_sine = 0.5 * math.pi - f * cosine - g * sine
    far_cosine = f * sine - g * cosine
    near = x <= 4.0
    return jnp.where(near, near_sine, far_sine), jnp.where(near, near_cosine, far_cosine)


def _sici_rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return _sici(x), (t * _sine_of_quotient(x), t * jnp.cos(x) / x)


@custom_jvp
@kernel
def _sici(x: Any) -> tuple[Any, Any]:
    sine, cosine = _sici_right(jnp.abs(x))
    sine = jnp.where(x < 0.0, -sine, sine)
    # SciPy has the real part for negative numbers, and nan where that has no limit.
    return sine, jnp.where(jnp.isneginf(x), jnp.nan, cosine)


_sici.defjvp(_sici_rule)


def sici(x: ArrayLike) -> tuple[Array, Array]:
    """Compute the sine and cosine integrals Si and Ci; the real part of Ci for negative numbers.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        (Si, Ci), floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> si, ci = gf.scipy.special.sici(jnp.array([1.]))
        >>> jnp.round(si, 3), jnp.round(ci, 3)
        (Array([0.946], dtype=float32), Array([0.337], dtype=float32))
    """
    return _sici(*strong_operands("sici", x))
