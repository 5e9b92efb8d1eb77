"""The logistic distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, typed_operands
from gpuflow.scipy.special.logarithms import expit, logit
from gpuflow.scipy.stats.common import guarded, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale = standardize("logistic.logpdf", x, loc, scale)
    size = jnp.abs(y)
    return guarded(-size - 2.0 * jnp.log1p(jnp.exp(-size)) - jnp.log(scale), scale > 0.0)


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale = standardize("logistic.pdf", x, loc, scale)
    small = jnp.exp(-jnp.abs(y))
    return guarded(small / (scale * jnp.square(1.0 + small)), scale > 0.0)


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale = standardize("logistic.cdf", x, loc, scale, prepare=real_operands)
    return guarded(expit(y), scale > 0.0)


@composite
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x``."""
    y, scale = standardize("logistic.sf", x, loc, scale, prepare=real_operands)
    return guarded(expit(-y), scale > 0.0)


@composite
def ppf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``cdf`` takes to ``x``."""
    x, loc, scale = typed_operands("logistic.ppf", x, loc, scale)
    return guarded(loc + scale * logit(x), scale > 0.0)


@composite
def isf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``sf`` takes to ``x``."""
    x, loc, scale = typed_operands("logistic.isf", x, loc, scale)
    return guarded(loc - scale * logit(x), scale > 0.0)
