"""The negative binomial distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import guarded, is_whole, log_binomial, shift


@composite
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of ``k``."""
    k, n, p = shift("nbinom.logpmf", k, loc, n, p)
    k, n, p = jnp.broadcast_arrays(k, n, p)
    possible = (k >= 0.0) & is_whole(k) & ~jnp.isinf(k)
    count = jnp.where(possible, k, 0.0)
    log = jnp.log(n / (n + count)) + log_binomial(n, n + count, p, 1.0 - p)
    log = jnp.where(possible, log, -jnp.inf)
    return guarded(log, n > 0.0, (p > 0.0) & (p <= 1.0), ~jnp.isnan(k))


@composite
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of ``k``."""
    return jnp.exp(logpmf(k, n, p, loc))
