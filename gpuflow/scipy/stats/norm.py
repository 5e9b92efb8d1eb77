"""The normal distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.error_functions import log_ndtr, ndtr, ndtri, normal_density
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI
from gpuflow.scipy.stats.common import distribution, guarded, standardize

_function = distribution()


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the normal distribution at ``x``.

    Example:
        >>> gf.scipy.stats.norm.logpdf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.9189, -1.4189], dtype=float32)
    """
    y, scale = standardize("norm.logpdf", x, loc, scale)
    return guarded(-(0.5 * y) * y - HALF_LOG_2_PI - jnp.log(scale), scale > 0.0)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the normal distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(-(y**2) / 2) / sqrt(2 * pi) / scale``.

    Example:
        >>> gf.scipy.stats.norm.pdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.3989, 0.242 ], dtype=float32)
    """
    y, scale = standardize("norm.pdf", x, loc, scale)
    return guarded(normal_density(y) / scale, scale > 0.0)


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the normal distribution.

    Example:
        >>> gf.scipy.stats.norm.cdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.8413], dtype=float32)
    """
    y, scale = standardize("norm.cdf", x, loc, scale)
    return guarded(ndtr(y), scale > 0.0)


@_function
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the normal distribution.

    Example:
        >>> gf.scipy.stats.norm.logcdf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.6931, -0.1728], dtype=float32)
    """
    y, scale = standardize("norm.logcdf", x, loc, scale)
    return guarded(log_ndtr(y), scale > 0.0)


@_function
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the normal distribution.

    Example:
        >>> gf.scipy.stats.norm.sf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.1587], dtype=float32)
    """
    y, scale = standardize("norm.sf", x, loc, scale)
    return guarded(ndtr(-y), scale > 0.0)


@_function
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the normal distribution.

    Example:
        >>> gf.scipy.stats.norm.logsf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.6931, -1.841 ], dtype=float32)
    """
    y, scale = standardize("norm.logsf", x, loc, scale)
    return guarded(log_ndtr(-y), scale > 0.0)


def _quantile(name: str, q: Any, loc: Any, scale: Any, sign: float) -> Any:
    probability, scale = ndtri(q), jnp.asarray(scale)
    quantile = guarded(sign * probability * scale + loc, scale > 0.0)
    return quantile.astype(dtypes.default_float())


@_function
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``q`` of the normal distribution, the inverse of ``cdf``.

    Raises:
        TypeError: if an argument is integer, complex or a 16-bit float.

    Example:
        >>> gf.scipy.stats.norm.ppf(jnp.array([0.25, 0.9])).round(4)
        Array([-0.6745,  1.2816], dtype=float32)
    """
    return _quantile("norm.ppf", q, loc, scale, 1.0)


@_function
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the value that the normal distribution exceeds with probability ``q``.

    Raises:
        TypeError: if an argument is integer, complex or a 16-bit float.

    Example:
        >>> gf.scipy.stats.norm.isf(jnp.array([0.25, 0.9])).round(4)
        Array([ 0.6745, -1.2816], dtype=float32)
    """
    return _quantile("norm.isf", q, loc, scale, -1.0)


publish(globals(), "stats.norm", public_names(globals(), __name__))
