"""The Poisson distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import kernel, real_operands, scalar_like, typed_operands
from gpuflow.scipy.stats.common import distribution, guarded, is_whole, log_poisson, shift

# Up to this mean the entropy is a sum; beyond, an asymptotic series.
_LARGE_MEAN = 100.0
_ENTROPY_TERMS = 230

_function = distribution("mu: mean, nonnegative.")


@_function
def logpmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of ``k`` in the Poisson distribution.

    Example:
        >>> gf.scipy.stats.poisson.logpmf(jnp.array([0, 1, 2]), 1.0).round(4)
        Array([-1.    , -1.    , -1.6931], dtype=float32, weak_type=True)
    """
    k, mu = jnp.broadcast_arrays(*shift("poisson.logpmf", k, loc, mu, prepare=real_operands))
    possible = (k >= 0.0) & is_whole(k) & ~jnp.isinf(k)
    log = log_poisson(jnp.where(possible, k, 0.0), mu)
    return guarded(jnp.where(possible, log, -jnp.inf), mu >= 0.0, ~jnp.isnan(k))


@_function
def pmf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of ``k`` in the Poisson distribution.

    With ``j = k - loc`` it is ``exp(-mu) * mu**j / j!``.

    Example:
        >>> gf.scipy.stats.poisson.pmf(jnp.array([0, 1, 2]), 1.0).round(4)
        Array([0.3679, 0.3679, 0.1839], dtype=float32, weak_type=True)
    """
    return jnp.exp(logpmf(k, mu, loc))


@_function
def cdf(k: ArrayLike, mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of at most ``k`` in the Poisson distribution.

    Example:
        >>> gf.scipy.stats.poisson.cdf(jnp.array([0, 1, 2]), 1.0).round(4)
        Array([0.3679, 0.7358, 0.9197], dtype=float32)
    """
    k, mu = jnp.broadcast_arrays(*shift("poisson.cdf", k, loc, mu))
    some = (k >= 0.0) & (mu >= 0.0) & ~jnp.isinf(k)
    order = jnp.where(some, jnp.floor(k) + 1.0, 1.0)
    result = lax.igammac(order, jnp.where(mu >= 0.0, mu, 0.0))
    result = jnp.where(k < 0.0, 0.0, jnp.where(jnp.isposinf(k), 1.0, result))
    return guarded(result, mu >= 0.0, ~jnp.isnan(k))


@kernel
def _entropy(mu: Any) -> Any:
    small = mu < _LARGE_MEAN
    mean = jnp.where(small & (mu > 0.0), mu, 1.0)

    def add_term(i: Any, total: Any) -> Any:
        log = log_poisson(scalar_like(i, mu), mean)
        return total - log * jnp.exp(log)

    by_sum = lax.fori_loop(0, _ENTROPY_TERMS, add_term, jnp.zeros_like(mu))
    # Source: R. J. Evans and J. Boersma, The entropy of a Poisson distribution, 1988.
    large = jnp.where(small, _LARGE_MEAN, mu)
    inverse = 1.0 / large
    series = 1.0 / 12.0 + inverse * (1.0 / 24.0 + inverse * (19.0 / 360.0 + inverse * 9.0 / 80.0))
    by_series = 0.5 * jnp.log(2.0 * math.pi * math.e * large) - inverse * series
    result = jnp.where(small, by_sum, by_series)
    return guarded(jnp.where(mu == 0.0, 0.0, result), mu >= 0.0)


@_function
def entropy(mu: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the entropy of the Poisson distribution in nats; it does not depend on ``loc``.

    Args:
        mu: mean, nonnegative.
        loc: location parameter; it only broadcasts.

    Returns:
        An array of floats of the common shape; nan if ``mu`` is negative.

    Example:
        >>> gf.scipy.stats.poisson.entropy(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 1.305], dtype=float32)
    """
    mu, loc = typed_operands("poisson.entropy", mu, loc)
    return _entropy(jnp.broadcast_arrays(mu, loc)[0])


publish(globals(), "stats.poisson", public_names(globals(), __name__))
