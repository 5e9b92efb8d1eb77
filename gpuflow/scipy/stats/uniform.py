"""The uniform distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, strong_operands
from gpuflow.scipy.stats.common import guarded, quantile, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale = standardize("uniform.logpdf", x, loc, scale, prepare=real_operands)
    log = jnp.where((y < 0.0) | (y > 1.0), -jnp.inf, -jnp.log(scale))
    return guarded(log, scale > 0.0, ~jnp.isnan(y))


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale = standardize("uniform.pdf", x, loc, scale, prepare=real_operands)
    density = jnp.where((y < 0.0) | (y > 1.0), 0.0, 1.0 / scale)
    return guarded(density, scale > 0.0, ~jnp.isnan(y))


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale = standardize("uniform.cdf", x, loc, scale, prepare=strong_operands)
    return guarded(jnp.clip(y, 0.0, 1.0), scale > 0.0)


@composite
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``cdf`` takes to ``q``."""
    q, loc, scale = real_operands("uniform.ppf", q, loc, scale)
    return guarded(quantile(loc + scale * q, q), scale > 0.0)
