"""The negative binomial distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import distribution, guarded, is_whole, log_binomial, shift

_function = distribution(
    "n: number of successes, above 0.", "p: probability of success of a trial, in (0, 1]."
)


@_function
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of ``k`` in the negative binomial distribution.

    Example:
        >>> gf.scipy.stats.nbinom.logpmf(jnp.array([0, 1, 2]), 2, 0.5).round(4)
        Array([-1.3863, -1.3863, -1.674 ], dtype=float32)
    """
    k, n, p = shift("nbinom.logpmf", k, loc, n, p)
    k, n, p = jnp.broadcast_arrays(k, n, p)
    possible = (k >= 0.0) & is_whole(k) & ~jnp.isinf(k)
    count = jnp.where(possible, k, 0.0)
    log = jnp.log(n / (n + count)) + log_binomial(n, count, p, 1.0 - p)
    log = jnp.where(possible, log, -jnp.inf)
    return guarded(log, n > 0.0, (p > 0.0) & (p <= 1.0), ~jnp.isnan(k))


@_function
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of ``k`` in the negative binomial distribution.

    With ``j = k - loc`` it is ``choose(j + n - 1, n - 1) * p**n * (1 - p)**j``.

    Example:
        >>> gf.scipy.stats.nbinom.pmf(jnp.array([0, 1, 2]), 2, 0.5).round(4)
        Array([0.25  , 0.25  , 0.1875], dtype=float32)
    """
    return jnp.exp(logpmf(k, n, p, loc))


publish(globals(), "stats.nbinom", public_names(globals(), __name__))
