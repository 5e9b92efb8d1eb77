"""The binomial distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import guarded, is_whole, log_binomial, shift


@composite
def logpmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of ``k``."""
    k, n, p = shift("binom.logpmf", k, loc, n, p, prepare=real_operands)
    k, n, p = jnp.broadcast_arrays(k, n, p)
    possible = (k >= 0.0) & (k <= n) & is_whole(k)
    log = log_binomial(jnp.where(possible, k, 0.0), n, p, 1.0 - p)
    log = jnp.where(possible, log, -jnp.inf)
    right = (n >= 0.0) & is_whole(n) & (p >= 0.0) & (p <= 1.0)
    return guarded(log, right, ~jnp.isnan(k))


@composite
def pmf(k: ArrayLike, n: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of ``k``."""
    return jnp.exp(logpmf(k, n, p, loc))
