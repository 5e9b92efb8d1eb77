"""The Bernoulli distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import typed_operands
from gpuflow.scipy.stats.common import distribution, guarded, shift

_function = distribution("p: probability of 1, in [0, 1].")


@_function
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of ``k`` in the Bernoulli distribution.

    Example:
        >>> gf.scipy.stats.bernoulli.logpmf(jnp.array([0, 1, 2]), 0.25).round(4)
        Array([-0.2877, -1.3863,    -inf], dtype=float32)
    """
    k, p = shift("bernoulli.logpmf", k, loc, p)
    log = jnp.where(k == 1.0, jnp.log(p), jnp.where(k == 0.0, jnp.log1p(-p), -jnp.inf))
    return guarded(log, (p >= 0.0) & (p <= 1.0), ~jnp.isnan(k))


@_function
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of ``k`` in the Bernoulli distribution.

    With ``j = k - loc`` it is ``p`` for 1 and ``1 - p`` for 0.

    Example:
        >>> gf.scipy.stats.bernoulli.pmf(jnp.array([0, 1, 2]), 0.25).round(4)
        Array([0.75, 0.25, 0.  ], dtype=float32)
    """
    return jnp.exp(logpmf(k, p, loc))


@_function
def cdf(k: ArrayLike, p: ArrayLike) -> Array:
    """Return the probability of at most ``k`` in the Bernoulli distribution.

    Example:
        >>> gf.scipy.stats.bernoulli.cdf(jnp.array([0, 1, 2]), 0.25).round(4)
        Array([0.75, 1.  , 1.  ], dtype=float32)
    """
    k, p = typed_operands("bernoulli.cdf", k, p)
    result = jnp.where(k < 0.0, 0.0, jnp.where(k < 1.0, 1.0 - p, 1.0))
    return guarded(result, (p >= 0.0) & (p <= 1.0), ~jnp.isnan(k))


@_function
def ppf(q: ArrayLike, p: ArrayLike) -> Array:
    """Return the smallest number with a ``cdf`` of at least ``q``, in the Bernoulli distribution.

    Example:
        >>> gf.scipy.stats.bernoulli.ppf(jnp.array([0.25, 0.9]), 0.25).round(4)
        Array([0., 1.], dtype=float32)
    """
    q, p = typed_operands("bernoulli.ppf", q, p)
    result = jnp.where(q <= 1.0 - p, jnp.zeros_like(p), 1.0)
    return guarded(result, (p >= 0.0) & (p <= 1.0), (q >= 0.0) & (q <= 1.0))


publish(globals(), "stats.bernoulli", public_names(globals(), __name__))
