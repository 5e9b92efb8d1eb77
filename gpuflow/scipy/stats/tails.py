"""Incomplete gamma and beta functions, and their logarithms where they underflow.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.ops.special.incomplete_beta import betainc_complement
from gpuflow.scipy.special.common import precision, scalar_like
from gpuflow.scipy.special.stirling import log_ratio
from gpuflow.scipy.stats.common import in_support, log_binomial, log_poisson, log_probability

# Terms of the series and of the continued fractions; far in a tail these are plenty.
_TERMS = 100


def _floor(x: Any) -> float:
    """Below this a probability is taken from the formulas for its logarithm."""
    return 1e-290 if precision(x) < 1e-10 else 1e-30


def _log_of(p: Any, q: Any) -> Any:
    """``log(p)`` where ``p`` has not underflown; ``q`` is its complement."""
    none = p == 0.0
    return log_probability(jnp.where(none, 1.0, p), jnp.where(none, 0.0, q))


def _gamma_operands(a: Any, x: Any) -> tuple[Any, Any]:
    a, x = jnp.broadcast_arrays(a, x)
    return jnp.where(a > 0.0, a, 1.0), in_support(x > 0.0, x, 0.0)


def gamma_lower(a: Any, x: Any) -> Any:
    """The regularized lower incomplete gamma function, and 0 for negative ``x``."""
    return lax.igamma(*_gamma_operands(a, x))


def gamma_upper(a: Any, x: Any) -> Any:
    """The regularized upper incomplete gamma function, and 1 for negative ``x``."""
    return lax.igammac(*_gamma_operands(a, x))


def _log_lower_series(a: Any, x: Any) -> Any:
    """For ``0 < x < a``. Source: DLMF 8.7.1."""

    def add_term(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        total, term = state
        term = term * x / (a + 1.0 + scalar_like(i, x))
        return total + term, term

    one = jnp.ones_like(x)
    total, term = lax.fori_loop(0, _TERMS, add_term, (one, one))
    # What is left of the series of a large a is nearly geometric.
    remainder = term * x / (a + (_TERMS + 1.0) - x)
    return log_poisson(a, x) + jnp.log(total + remainder)


def _log_upper_fraction(a: Any, x: Any) -> Any:
    """For ``x > a``. Source: DLMF 8.9.2, after contraction, from the last term to the first."""

    def add_term(i: Any, tail: Any) -> Any:
        k = _TERMS - scalar_like(i, x)
        return x - a + 2.0 * k - 1.0 + k * (a - k) / tail

    tail = lax.fori_loop(0, _TERMS, add_term, x - a + 2.0 * _TERMS + 1.0)
    return log_poisson(a, x) + log_ratio(a, tail)


def log_gamma_lower(a: Any, x: Any) -> Any:
    """The logarithm of ``gamma_lower``."""
    a, x = _gamma_operands(a, x)
    lower, upper = lax.igamma(a, x), lax.igammac(a, x)
    tiny = (lower < _floor(x)) & (x > 0.0)
    log = jnp.where(x == 0.0, -jnp.inf, _log_of(lower, upper))
    return jnp.where(tiny, _log_lower_series(a, jnp.where(tiny, x, a)), log)


def log_gamma_upper(a: Any, x: Any) -> Any:
    """The logarithm of ``gamma_upper``."""
    a, x = _gamma_operands(a, x)
    lower, upper = lax.igamma(a, x), lax.igammac(a, x)
    # Near 0 it is small only because a is; there the fraction does not converge.
    tiny = (upper < _floor(x)) & (x > 1.0) & (x < jnp.inf)
    log = jnp.where(jnp.isposinf(x), -jnp.inf, _log_of(upper, lower))
    return jnp.where(tiny, _log_upper_fraction(a, jnp.where(tiny, x, a + 1.0)), log)


def _beta_operands(a: Any, b: Any, x: Any) -> tuple[Any, Any, Any]:
    a, b, x = jnp.broadcast_arrays(a, b, x)
    positive = (a > 0.0) & (b > 0.0)
    return jnp.where(positive, a, 1.0), jnp.where(positive, b, 1.0), jnp.clip(x, 0.0, 1.0)


def beta_lower(a: Any, b: Any, x: Any) -> Any:
    """The regularized incomplete beta function, 0 for negative ``x`` and 1 above 1."""
    return lax.betainc(*_beta_operands(a, b, x))


def beta_upper(a: Any, b: Any, x: Any) -> Any:
    """``1 - beta_lower(a, b, x)``, with all its digits near 0."""
    return betainc_complement(*_beta_operands(a, b, x))


def _log_beta_fraction(a: Any, b: Any, x: Any, complement: Any) -> Any:
    """For x below the mean. Source: DLMF 8.17.22, from the last term to the first."""

    def add_term(i: Any, tail: Any) -> Any:
        m = _TERMS - scalar_like(i, x)
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        odd = -(a + m - 1.0) * (a + b + m - 1.0) * x / ((a + 2.0 * m - 2.0) * (a + 2.0 * m - 1.0))
        return 1.0 + odd / (1.0 + even / tail)

    tail = lax.fori_loop(0, _TERMS, add_term, jnp.ones_like(x))
    return log_binomial(a, b, x, complement) + jnp.log(b / ((a + b) * tail))


def _log_beta(a: Any, b: Any, x: Any, complement: Any, p: Any, q: Any) -> Any:
    """``log(p)``, for ``p`` the function of ``x``, ``q = 1 - p`` and ``complement = 1 - x``."""
    tiny = (p < _floor(x)) & (x > 0.0)
    log = jnp.where(x == 0.0, -jnp.inf, _log_of(p, q))
    middle = a / (a + b)
    point, other = jnp.where(tiny, x, 0.5 * middle), jnp.where(tiny, complement, 1.0 - 0.5 * middle)
    return jnp.where(tiny, _log_beta_fraction(a, b, point, other), log)


def log_beta_lower(a: Any, b: Any, x: Any) -> Any:
    """The logarithm of ``beta_lower``."""
    a, b, x = _beta_operands(a, b, x)
    return _log_beta(a, b, x, 1.0 - x, beta_lower(a, b, x), beta_upper(a, b, x))


def log_beta_upper(a: Any, b: Any, x: Any) -> Any:
    """The logarithm of ``beta_upper``."""
    a, b, x = _beta_operands(a, b, x)
    return _log_beta(b, a, 1.0 - x, x, beta_upper(a, b, x), beta_lower(a, b, x))
