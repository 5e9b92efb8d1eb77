"""The beta-binomial distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.stirling import log_beta, log_choose
from gpuflow.scipy.stats.common import guarded, is_whole, shift


@composite
def logpmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of ``k``."""
    k, n, a, b = shift("betabinom.logpmf", k, loc, n, a, b)
    k, n, a, b = jnp.broadcast_arrays(k, n, a, b)
    possible = (k >= 0.0) & (k <= n) & is_whole(k)
    count = jnp.where(possible, k, 0.0)
    log = log_choose(n, count) + log_beta(count + a, n - count + b) - log_beta(a, b)
    log = jnp.where(possible, log, -jnp.inf)
    return guarded(log, (n >= 0.0) & is_whole(n), a > 0.0, b > 0.0, ~jnp.isnan(k))


@composite
def pmf(k: ArrayLike, n: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of ``k``."""
    return jnp.exp(logpmf(k, n, a, b, loc))
