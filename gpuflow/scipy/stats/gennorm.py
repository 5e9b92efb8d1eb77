"""The generalized normal distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import distribution, guarded

_function = distribution("beta: exponent, above 0; 1 gives the Laplace distribution.")


@_function
def logpdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """Return the logarithm of the density of the generalized normal distribution at ``x``.

    Example:
        >>> gf.scipy.stats.gennorm.logpdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([-0.5724, -1.5724], dtype=float32)
    """
    x, beta = real_operands("gennorm.logpdf", x, beta)
    log = jnp.log(0.5 * beta) - lax.lgamma(1.0 / beta) - jnp.power(jnp.abs(x), beta)
    return guarded(log, beta > 0.0)


@_function
def pdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """Return the density of the generalized normal distribution at ``x``.

    It is ``beta * exp(-abs(x)**beta) / (2 * gamma(1 / beta))``.

    Example:
        >>> gf.scipy.stats.gennorm.pdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([0.5642, 0.2076], dtype=float32)
    """
    return jnp.exp(logpdf(x, beta))


@_function
def cdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """Return the probability of at most ``x`` in the generalized normal distribution.

    Example:
        >>> gf.scipy.stats.gennorm.cdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([0.5   , 0.9214], dtype=float32)
    """
    x, beta = real_operands("gennorm.cdf", x, beta)
    x, beta = jnp.broadcast_arrays(x, beta)
    tail = 0.5 * lax.igammac(1.0 / beta, jnp.power(jnp.abs(x), beta))
    return guarded(jnp.where(x > 0.0, 1.0 - tail, tail), beta > 0.0)


publish(globals(), "stats.gennorm", public_names(globals(), __name__))
