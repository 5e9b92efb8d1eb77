"""The binomial distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import distribution, guarded, is_whole, log_binomial, shift

_function = distribution(
    "n: number of trials, a nonnegative integer.", "p: probability of success, in [0, 1]."
)


@_function
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of ``k`` in the binomial distribution.

    Example:
        >>> gf.scipy.stats.binom.logpmf(jnp.array([0, 1, 2]), 2, 0.5).round(4)
        Array([-1.3863, -0.6931, -1.3863], dtype=float32, weak_type=True)
    """
    k, n, p = shift("binom.logpmf", k, loc, n, p, prepare=real_operands)
    k, n, p = jnp.broadcast_arrays(k, n, p)
    possible = (k >= 0.0) & (k <= n) & is_whole(k)
    count = jnp.where(possible, k, 0.0)
    log = log_binomial(count, n - count, p, 1.0 - p)
    log = jnp.where(possible, log, -jnp.inf)
    right = (n >= 0.0) & is_whole(n) & (p >= 0.0) & (p <= 1.0)
    return guarded(log, right, ~jnp.isnan(k))


@_function
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of ``k`` in the binomial distribution.

    With ``j = k - loc`` it is ``choose(n, j) * p**j * (1 - p)**(n - j)``.

    Example:
        >>> gf.scipy.stats.binom.pmf(jnp.array([0, 1, 2]), 2, 0.5).round(4)
        Array([0.25, 0.5 , 0.25], dtype=float32, weak_type=True)
    """
    return jnp.exp(logpmf(k, n, p, loc))


publish(globals(), "stats.binom", public_names(globals(), __name__))
