"""The geometric distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import guarded, is_whole, log_power, shift


@composite
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of ``k``."""
    k, p = shift("geom.logpmf", k, loc, p)
    possible = (k >= 1.0) & is_whole(k)
    log = log_power(jnp.where(possible, k - 1.0, 0.0), 1.0 - p, p) + jnp.log(p)
    log = jnp.where(possible, log, -jnp.inf)
    return guarded(log, (p > 0.0) & (p <= 1.0), ~jnp.isnan(k))


@composite
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of ``k``."""
    return jnp.exp(logpmf(k, p, loc))
