"""Logarithms of gamma functions whose large terms cancel, and the deviance.

``gammaln(x) = (x - 1/2) log(x) - x + log(2 pi) / 2 + delta(x)``, where delta is about 1 / (12 x).
Differences of gammaln lose all their digits for large arguments; written with delta they do not.
Source: C. Loader, Fast and accurate computation of binomial probabilities, 2000.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.scipy.special import tables
from gpuflow.scipy.special.common import (
    at_least,
    chebyshev,
    least_normal,
    on_interval,
    with_derivatives,
)

HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
# From here on the formulas with delta are better than differences of gammaln.
_LARGE = 2.0


def stirling_remainder(x: Any) -> Any:
    """delta(x) for x >= 1; smaller values count as 1."""
    # That is on_ray(1, 2, x); one division does for both.
    inverse = 1.0 / (at_least(x, 1.0) + 1.0)
    return inverse * chebyshev(tables.STIRLING, 1.0 - 4.0 * inverse)


def _like(out: Any, tangent: Any) -> Any:
    return jnp.broadcast_to(tangent, jnp.shape(out))


@with_derivatives(lambda t, out, x, y: _like(out, t / x), lambda t, out, x, y: _like(out, -t / y))
def _log_ratio(x: Any, y: Any) -> Any:
    near = jnp.abs(x - y) < 0.5 * y
    ratio = x / y
    # Outside of the normal numbers the ratio has lost digits, or all of them.
    exact = (ratio >= least_normal(ratio)) & (ratio < jnp.inf)
    far = jnp.where(exact, jnp.log(ratio), jnp.log(x) - jnp.log(y))
    return jnp.where(near, jnp.log1p(jnp.where(near, (x - y) / y, 0.0)), far)


def log_ratio(x: Any, y: Any) -> Any:
    """``log(x / y)`` of positive numbers, whose ratio may be too large or small for the dtype."""
    return _log_ratio(x, y)


@with_derivatives(lambda t, out, x, m: t * log_ratio(x, m), lambda t, out, x, m: t * (1.0 - x / m))
def _deviance(x: Any, m: Any) -> Any:
    v = (x - m) / (x + m)
    square = jnp.square(v)
    series = v * square * chebyshev(tables.ATANH, on_interval(0.0, 1.0 / 9.0, square))
    near = (x - m) * v + 2.0 * x * series
    far = x * log_ratio(x, m) + (m - x)
    return jnp.where(x == 0.0, m, jnp.where(square < 1.0 / 9.0, near, far))


def deviance(x: Any, m: Any) -> Any:
    """``x log(x / m) + m - x`` for ``x >= 0`` and ``m > 0``, never negative."""
    return _deviance(x, m)


def betaln_large(small: Any, large: Any, gammaln_small: Any) -> Any:
    """betaln where ``large`` is at least 2 and ``small`` is the lesser one.

    Where that is less than 2, the logarithm of its gamma function is a term: ``gammaln_small``.
    """
    total = small + large
    shrink = (large - 0.5) * jnp.log1p(small / large)
    one = gammaln_small - small * jnp.log(total) + (small - shrink)
    remainders = stirling_remainder(large) - stirling_remainder(total)
    return jnp.where(small >= _LARGE, _betaln_both(small, large), one + remainders)


def _betaln_both(small: Any, large: Any) -> Any:
    """betaln where both are at least 2."""
    total = small + large
    shrink = (large - 0.5) * jnp.log1p(small / large)
    both = small * jnp.log(small / total) - shrink - 0.5 * jnp.log(small) + HALF_LOG_2_PI
    remainders = stirling_remainder(large) - stirling_remainder(total)
    return both + stirling_remainder(small) + remainders


def _betaln_slope(a: Any, b: Any) -> Any:
    return lax.digamma(a) - lax.digamma(a + b)


@with_derivatives(
    lambda t, out, a, b: t * _betaln_slope(a, b), lambda t, out, a, b: t * _betaln_slope(b, a)
)
def _log_beta(a: Any, b: Any) -> Any:
    small, large = jnp.minimum(a, b), jnp.maximum(a, b)
    safe = (small > 0.0) & (large >= _LARGE)
    gammaln = lax.lgamma(small)
    by_series = betaln_large(jnp.where(safe, small, 1.0), jnp.where(safe, large, _LARGE), gammaln)
    plain = gammaln + (lax.lgamma(large) - lax.lgamma(a + b))
    result = jnp.where(safe, by_series, plain)
    # At infinite operands and poles terms of the formulas would be infinities of both signs.
    result = jnp.where((small > 0.0) & jnp.isinf(large), -jnp.inf, result)
    return jnp.where((a == 0.0) | (b == 0.0), jnp.inf, result)


def log_beta(a: Any, b: Any) -> Any:
    """``log(abs(beta(a, b)))``."""
    return _log_beta(a, b)


@with_derivatives(
    lambda t, out, n, k: t * (lax.digamma(n + 1.0) - lax.digamma(n - k + 1.0)),
    lambda t, out, n, k: t * (lax.digamma(n - k + 1.0) - lax.digamma(k + 1.0)),
)
def log_choose(n: Any, k: Any) -> Any:
    """The logarithm of the binomial coefficient, for ``0 <= k <= n``."""
    # betaln(x, y) is that of x + 1 and y + 1, where its series is good, and of these quotients.
    x, y = jnp.maximum(n - k, k) + 1.0, jnp.minimum(n - k, k) + 1.0
    quotients = jnp.log((n + 2.0) / x) + jnp.log((n + 3.0) / y)
    return -jnp.log1p(n) - quotients - _betaln_both(y + 1.0, x + 1.0)


def _rising_slope(x: Any, m: Any) -> Any:
    return lax.digamma(x + m) - lax.digamma(x)


@with_derivatives(
    lambda t, out, x, m: t * _rising_slope(x, m), lambda t, out, x, m: t * lax.digamma(x + m)
)
def _log_rising(x: Any, m: Any) -> Any:
    safe = jnp.minimum(x, x + m) >= 2.0 * _LARGE
    low = jnp.where(safe, x, 2.0 * _LARGE)
    step = jnp.where(safe, m, 0.0)
    high = low + step
    series = (high - 0.5) * jnp.log1p(step / low) + step * jnp.log(low) - step
    series = series + (stirling_remainder(high) - stirling_remainder(low))
    return jnp.where(safe, series, lax.lgamma(x + m) - lax.lgamma(x))


def log_rising(x: Any, m: Any) -> Any:
    """``gammaln(x + m) - gammaln(x)`` for positive ``x`` and ``x + m``."""
    return _log_rising(x, m)


def log_rising_far(low: Any, step: Any) -> Any:
    """``log_rising`` with an absolute error of a few ulps: sufficient for exponentials."""
    high, base = low + step, low + 2.0 * _LARGE
    series = (high + (2.0 * _LARGE - 0.5)) * jnp.log1p(step / base) + step * jnp.log(base) - step
    series = series + (stirling_remainder(high + 2.0 * _LARGE) - stirling_remainder(base))
    # gamma(x) is gamma(x + 4) over x (x + 1) (x + 2) (x + 3).
    first = (low / high) * ((low + 1.0) / (high + 1.0))
    second = ((low + 2.0) / (high + 2.0)) * ((low + 3.0) / (high + 3.0))
    return series + jnp.log(first) + jnp.log(second)
