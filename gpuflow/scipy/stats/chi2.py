"""The chi-squared distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import distribution, guarded, log_gamma_density, standardize
from gpuflow.scipy.stats.tails import gamma_lower, gamma_upper, log_gamma_lower, log_gamma_upper

_function = distribution("df: degrees of freedom, above 0.")


@_function
def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the chi-squared distribution at ``x``.

    Example:
        >>> gf.scipy.stats.chi2.logpdf(jnp.array([1.0, 3.0]), 2.0).round(4)
        Array([-1.1931, -2.1931], dtype=float32)
    """
    y, scale, df = standardize("chi2.logpdf", x, loc, scale, df)
    log = log_gamma_density(0.5 * y, 0.5 * df) - jnp.log(2.0 * scale)
    return guarded(log, scale > 0.0, df > 0.0)


@_function
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the chi-squared distribution at ``x``.

    With ``y = (x - loc) / scale`` it is
    ``y**(df / 2 - 1) * exp(-y / 2) / (2**(df / 2) * gamma(df / 2)) / scale``, for ``y`` from 0 on.

    Example:
        >>> gf.scipy.stats.chi2.pdf(jnp.array([1.0, 3.0]), 2.0).round(4)
        Array([0.3033, 0.1116], dtype=float32)
    """
    return jnp.exp(logpdf(x, df, loc, scale))


@_function
def cdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the chi-squared distribution.

    Example:
        >>> gf.scipy.stats.chi2.cdf(jnp.array([1.0, 3.0]), 2.0).round(4)
        Array([0.3935, 0.7769], dtype=float32)
    """
    y, scale, df = standardize("chi2.cdf", x, loc, scale, df)
    return guarded(gamma_lower(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


@_function
def logcdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the chi-squared distribution.

    Example:
        >>> gf.scipy.stats.chi2.logcdf(jnp.array([1.0, 3.0]), 2.0).round(4)
        Array([-0.9328, -0.2525], dtype=float32)
    """
    y, scale, df = standardize("chi2.logcdf", x, loc, scale, df)
    return guarded(log_gamma_lower(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


@_function
def sf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the chi-squared distribution.

    Example:
        >>> gf.scipy.stats.chi2.sf(jnp.array([1.0, 3.0]), 2.0).round(4)
        Array([0.6065, 0.2231], dtype=float32)
    """
    y, scale, df = standardize("chi2.sf", x, loc, scale, df)
    return guarded(gamma_upper(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


@_function
def logsf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the chi-squared distribution.

    Example:
        >>> gf.scipy.stats.chi2.logsf(jnp.array([1.0, 3.0]), 2.0).round(4)
        Array([-0.5, -1.5], dtype=float32)
    """
    y, scale, df = standardize("chi2.logsf", x, loc, scale, df)
    return guarded(log_gamma_upper(0.5 * df, 0.5 * y), scale > 0.0, df > 0.0)


publish(globals(), "stats.chi2", public_names(globals(), __name__))
