"""The right-skewed Gumbel distribution."""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import guarded, log_rare, quantile, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale = standardize("gumbel_r.logpdf", x, loc, scale, prepare=real_operands)
    return guarded(_log_density(y) - jnp.log(scale), scale > 0.0)


def _log_density(y: Any) -> Any:
    # At the end where the exponential is infinite, so is the difference, not nan.
    log = -y - jnp.exp(-y)
    return jnp.where(jnp.isinf(y), -jnp.inf, log)


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale = standardize("gumbel_r.pdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(_log_density(y)) / scale, scale > 0.0)


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale = standardize("gumbel_r.cdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(-jnp.exp(-y)), scale > 0.0)


@composite
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    y, scale = standardize("gumbel_r.logcdf", x, loc, scale, prepare=real_operands)
    return guarded(-jnp.exp(-y), scale > 0.0)


@composite
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x``."""
    y, scale = standardize("gumbel_r.sf", x, loc, scale)
    return guarded(-jnp.expm1(-jnp.exp(-y)), scale > 0.0)


@composite
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    y, scale = standardize("gumbel_r.logsf", x, loc, scale, prepare=real_operands)
    return guarded(log_rare(-y), scale > 0.0)


@composite
def ppf(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``cdf`` takes to ``p``."""
    p, loc, scale = real_operands("gumbel_r.ppf", p, loc, scale)
    return guarded(quantile(loc - scale * jnp.log(-jnp.log(p)), p), scale > 0.0)
