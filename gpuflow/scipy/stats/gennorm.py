"""The generalized normal distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import guarded


@composite
def logpdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The logarithm of the density at ``x``."""
    x, beta = real_operands("gennorm.logpdf", x, beta)
    log = jnp.log(0.5 * beta) - lax.lgamma(1.0 / beta) - jnp.power(jnp.abs(x), beta)
    return guarded(log, beta > 0.0)


@composite
def pdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The density at ``x``."""
    return jnp.exp(logpdf(x, beta))


@composite
def cdf(x: ArrayLike, beta: ArrayLike) -> Array:
    """The probability of at most ``x``."""
    x, beta = real_operands("gennorm.cdf", x, beta)
    x, beta = jnp.broadcast_arrays(x, beta)
    tail = 0.5 * lax.igammac(1.0 / beta, jnp.power(jnp.abs(x), beta))
    return guarded(jnp.where(x > 0.0, 1.0 - tail, tail), beta > 0.0)
