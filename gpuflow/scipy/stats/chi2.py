"""The chi-squared distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import guarded, standardize
from gpuflow.scipy.stats.gamma import log_density
from gpuflow.scipy.stats.tails import gamma_lower, gamma_upper, log_gamma_lower, log_gamma_upper


@composite
def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale, df = standardize("chi2.logpdf", x, loc, scale, df)
    log = log_density(0.5 * y, 0.5 * df) - jnp.log(2.0 * scale)
    return guarded(log, scale > 0.0, df > 0.0)


@composite
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    return jnp.exp(logpdf(x, df, loc, scale))


@composite
def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale, df = standardize("chi2.cdf", x, loc, scale, df)
    return guarded(gamma_lower(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


@composite
def logcdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    y, scale, df = standardize("chi2.logcdf", x, loc, scale, df)
    return guarded(log_gamma_lower(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


@composite
def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x``."""
    y, scale, df = standardize("chi2.sf", x, loc, scale, df)
    return guarded(gamma_upper(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


@composite
def logsf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    y, scale, df = standardize("chi2.logsf", x, loc, scale, df)
    return guarded(log_gamma_upper(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)
