"""The Laplace distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import guarded, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale = standardize("laplace.logpdf", x, loc, scale)
    return guarded(-jnp.abs(y) - jnp.log(2.0 * scale), scale > 0.0)


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale = standardize("laplace.pdf", x, loc, scale)
    return guarded(jnp.exp(-jnp.abs(y)) / (2.0 * scale), scale > 0.0)


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale = standardize("laplace.cdf", x, loc, scale)
    tail = 0.5 * jnp.exp(-jnp.abs(y))
    return guarded(jnp.where(y > 0.0, 1.0 - tail, tail), scale > 0.0)
