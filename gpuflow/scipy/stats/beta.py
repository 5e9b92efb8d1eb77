"""The beta distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.stirling import log_beta, log_ratio
from gpuflow.scipy.stats.common import (
    LARGE,
    distribution,
    guarded,
    in_support,
    log_binomial,
    standardize,
)
from gpuflow.scipy.stats.tails import beta_lower, beta_upper, log_beta_lower, log_beta_upper

_function = distribution("a, b: shape parameters, above 0.")


def _log_density(y: Any, a: Any, b: Any) -> Any:
    """The logarithm of ``y**(a - 1) (1 - y)**(b - 1) / beta(a, b)``."""
    some = (y > 0.0) & (y < 1.0)
    safe = in_support(some, y, 0.5)
    complement = 1.0 - safe
    ratios = log_ratio(a, safe) + log_ratio(b, (a + b) * complement)
    large = log_binomial(a, b, safe, complement) + ratios
    small = (a - 1.0) * jnp.log(safe) + (b - 1.0) * jnp.log1p(-safe) - log_beta(a, b)
    log = jnp.where(jnp.minimum(a, b) > LARGE, large, small)
    log = jnp.where(y == 0.0, _at_edge(a, b), jnp.where(y == 1.0, _at_edge(b, a), log))
    return jnp.where((y < 0.0) | (y > 1.0), -jnp.inf, log)


def _at_edge(a: Any, b: Any) -> Any:
    return jnp.where(a < 1.0, jnp.inf, jnp.where(a == 1.0, jnp.log(b), -jnp.inf))


@_function
def logpdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the density of the beta distribution at ``x``.

    Example:
        >>> gf.scipy.stats.beta.logpdf(jnp.array([0.25, 0.5]), 2.0, 3.0).round(4)
        Array([0.5232, 0.4055], dtype=float32)
    """
    y, scale, a, b = standardize("beta.logpdf", x, loc, scale, a, b)
    return guarded(_log_density(y, a, b) - jnp.log(scale), scale > 0.0, a > 0.0, b > 0.0)


@_function
def pdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the density of the beta distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``y**(a - 1) * (1 - y)**(b - 1) / beta(a, b) / scale``, for
    ``y`` from 0 to 1.

    Example:
        >>> gf.scipy.stats.beta.pdf(jnp.array([0.25, 0.5]), 2.0, 3.0).round(4)
        Array([1.6875, 1.5   ], dtype=float32)
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@_function
def cdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the probability of at most ``x`` in the beta distribution.

    Example:
        >>> gf.scipy.stats.beta.cdf(jnp.array([0.25, 0.5]), 2.0, 3.0).round(4)
        Array([0.2617, 0.6875], dtype=float32)
    """
    y, scale, a, b = standardize("beta.cdf", x, loc, scale, a, b)
    return guarded(beta_lower(a, b, y), scale > 0.0, a > 0.0, b > 0.0)


@_function
def logcdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the beta distribution.

    Example:
        >>> gf.scipy.stats.beta.logcdf(jnp.array([0.25, 0.5]), 2.0, 3.0).round(4)
        Array([-1.3405, -0.3747], dtype=float32)
    """
    y, scale, a, b = standardize("beta.logcdf", x, loc, scale, a, b)
    return guarded(log_beta_lower(a, b, y), scale > 0.0, a > 0.0, b > 0.0)


@_function
def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the beta distribution.

    Example:
        >>> gf.scipy.stats.beta.sf(jnp.array([0.25, 0.5]), 2.0, 3.0).round(4)
        Array([0.7383, 0.3125], dtype=float32)
    """
    y, scale, a, b = standardize("beta.sf", x, loc, scale, a, b)
    return guarded(beta_upper(a, b, y), scale > 0.0, a > 0.0, b > 0.0)


@_function
def logsf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the beta distribution.

    Example:
        >>> gf.scipy.stats.beta.logsf(jnp.array([0.25, 0.5]), 2.0, 3.0).round(4)
        Array([-0.3034, -1.1632], dtype=float32)
    """
    y, scale, a, b = standardize("beta.logsf", x, loc, scale, a, b)
    return guarded(log_beta_upper(a, b, y), scale > 0.0, a > 0.0, b > 0.0)


publish(globals(), "stats.beta", public_names(globals(), __name__))
