"""The Bernoulli distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import typed_operands
from gpuflow.scipy.stats.common import guarded, shift


@composite
def logpmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The logarithm of the probability of ``k``."""
    k, p = shift("bernoulli.logpmf", k, loc, p)
    log = jnp.where(k == 1.0, jnp.log(p), jnp.where(k == 0.0, jnp.log1p(-p), -jnp.inf))
    return guarded(log, (p >= 0.0) & (p <= 1.0), ~jnp.isnan(k))


@composite
def pmf(k: ArrayLike, p: ArrayLike, loc: ArrayLike = 0) -> Array:
    """The probability of ``k``."""
    return jnp.exp(logpmf(k, p, loc))


@composite
def cdf(k: ArrayLike, p: ArrayLike) -> Array:
    """The probability of at most ``k``."""
    k, p = typed_operands("bernoulli.cdf", k, p)
    result = jnp.where(k < 0.0, 0.0, jnp.where(k < 1.0, 1.0 - p, 1.0))
    return guarded(result, (p >= 0.0) & (p <= 1.0), ~jnp.isnan(k))


@composite
def ppf(q: ArrayLike, p: ArrayLike) -> Array:
    """The least ``k`` whose ``cdf`` is at least ``q``."""
    q, p = typed_operands("bernoulli.ppf", q, p)
    result = jnp.where(q <= 1.0 - p, jnp.zeros_like(p), 1.0)
    return guarded(result, (p >= 0.0) & (p <= 1.0), (q >= 0.0) & (q <= 1.0))
