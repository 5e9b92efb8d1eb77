"""The normal distribution."""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.error_functions import log_ndtr, ndtr, ndtri, normal_density
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI
from gpuflow.scipy.stats.common import guarded, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale = standardize("norm.logpdf", x, loc, scale)
    return guarded(-0.5 * jnp.square(y) - HALF_LOG_2_PI - jnp.log(scale), scale > 0.0)


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale = standardize("norm.pdf", x, loc, scale)
    return guarded(normal_density(y) / scale, scale > 0.0)


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale = standardize("norm.cdf", x, loc, scale)
    return guarded(ndtr(y), scale > 0.0)


@composite
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    y, scale = standardize("norm.logcdf", x, loc, scale)
    return guarded(log_ndtr(y), scale > 0.0)


@composite
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x``."""
    y, scale = standardize("norm.sf", x, loc, scale)
    return guarded(ndtr(-y), scale > 0.0)


@composite
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    y, scale = standardize("norm.logsf", x, loc, scale)
    return guarded(log_ndtr(-y), scale > 0.0)


def _quantile(name: str, q: Any, loc: Any, scale: Any, sign: float) -> Any:
    probability, scale = ndtri(q), jnp.asarray(scale)
    quantile = guarded(sign * probability * scale + loc, scale > 0.0)
    return quantile.astype(dtypes.default_float())


@composite
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``cdf`` takes to ``q``."""
    return _quantile("norm.ppf", q, loc, scale, 1.0)


@composite
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``sf`` takes to ``q``."""
    return _quantile("norm.isf", q, loc, scale, -1.0)
