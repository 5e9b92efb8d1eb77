"""The beta-binomial distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.stirling import log_ratio
from gpuflow.scipy.stats.common import distribution, guarded, is_whole, log_binomial, shift

_function = distribution(
    "n: number of trials, a nonnegative integer.",
    "a, b: parameters of the beta distribution of the probability, above 0.",
)


def _log_probability(k: Any, m: Any, a: Any, b: Any) -> Any:
    """The logarithm of ``choose(k + m, k) beta(k + a, m + b) / beta(a, b)``.

    As binomial probabilities of k and of a, over that of k + a; any ``p`` does. With the mean of
    the last one large terms do not cancel.
    """
    first, second = k + a, m + b
    total = first + second
    p, q = first / total, second / total
    log = log_binomial(k, m, p, q) + log_binomial(a, b, p, q) - log_binomial(first, second, p, q)
    return log + log_ratio(a, first) + log_ratio(b, second) - log_ratio(a + b, total)


@_function
def logpmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the logarithm of the probability of ``k`` in the beta-binomial distribution.

    Example:
        >>> gf.scipy.stats.betabinom.logpmf(jnp.array([0, 1, 2]), 2, 1.0, 1.0).round(4)
        Array([-1.0986, -1.0986, -1.0986], dtype=float32)
    """
    k, n, a, b = shift("betabinom.logpmf", k, loc, n, a, b)
    k, n, a, b = jnp.broadcast_arrays(k, n, a, b)
    possible = (k >= 0.0) & (k <= n) & is_whole(k)
    count = jnp.where(possible, k, 0.0)
    log = _log_probability(count, n - count, a, b)
    log = jnp.where(possible, log, -jnp.inf)
    return guarded(log, (n >= 0.0) & is_whole(n), a > 0.0, b > 0.0, ~jnp.isnan(k))


@_function
def pmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """Return the probability of ``k`` in the beta-binomial distribution.

    With ``j = k - loc`` it is ``choose(n, j) * beta(j + a, n - j + b) / beta(a, b)``.

    Example:
        >>> gf.scipy.stats.betabinom.pmf(jnp.array([0, 1, 2]), 2, 1.0, 1.0).round(4)
        Array([0.3333, 0.3333, 0.3333], dtype=float32)
    """
    return jnp.exp(logpmf(k, n, a, b, loc))


publish(globals(), "stats.betabinom", public_names(globals(), __name__))
