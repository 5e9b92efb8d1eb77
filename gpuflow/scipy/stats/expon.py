"""The exponential distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import guarded, inside, log_complement, quantile, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale = standardize("expon.logpdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.where(y < 0.0, -jnp.inf, -y - jnp.log(scale)), scale > 0.0)


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale = standardize("expon.pdf", x, loc, scale, prepare=real_operands)
    density = jnp.exp(-inside(y >= 0.0, y, 0.0)) / scale
    return guarded(jnp.where(y < 0.0, 0.0, density), scale > 0.0)


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale = standardize("expon.cdf", x, loc, scale, prepare=real_operands)
    return guarded(-jnp.expm1(-inside(y > 0.0, y, 0.0)), scale > 0.0)


@composite
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    y, scale = standardize("expon.logcdf", x, loc, scale, prepare=real_operands)
    log = log_complement(-inside(y > 0.0, y, 1.0))
    return guarded(jnp.where(y <= 0.0, -jnp.inf, log), scale > 0.0)


@composite
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x``."""
    y, scale = standardize("expon.sf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(-inside(y > 0.0, y, 0.0)), scale > 0.0)


@composite
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    y, scale = standardize("expon.logsf", x, loc, scale, prepare=real_operands)
    return guarded(-inside(y > 0.0, y, 0.0), scale > 0.0)


@composite
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``cdf`` takes to ``q``."""
    q, loc, scale = real_operands("expon.ppf", q, loc, scale)
    return guarded(quantile(loc - scale * jnp.log1p(-q), q), scale > 0.0)
