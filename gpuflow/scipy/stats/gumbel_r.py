"""The right-skewed Gumbel distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import distribution, guarded, log_rare, quantile, standardize

_function = distribution("p: probabilities, in [0, 1].")


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the right-skewed Gumbel distribution at ``x``.

    Example:
        >>> gf.scipy.stats.gumbel_r.logpdf(jnp.array([0.0, 1.0])).round(4)
        Array([-1.    , -1.3679], dtype=float32)
    """
    y, scale = standardize("gumbel_r.logpdf", x, loc, scale, prepare=real_operands)
    return guarded(_log_density(y) - jnp.log(scale), scale > 0.0)


def _log_density(y: Any) -> Any:
    # At the end where the exponential is infinite, so is the difference, not nan.
    log = -y - jnp.exp(-y)
    return jnp.where(jnp.isinf(y), -jnp.inf, log)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the right-skewed Gumbel distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(-y - exp(-y)) / scale``.

    Example:
        >>> gf.scipy.stats.gumbel_r.pdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.3679, 0.2546], dtype=float32)
    """
    y, scale = standardize("gumbel_r.pdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(_log_density(y)) / scale, scale > 0.0)


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the right-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_r.cdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.3679, 0.6922], dtype=float32)
    """
    y, scale = standardize("gumbel_r.cdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(-jnp.exp(-y)), scale > 0.0)


@_function
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the log probability of at most ``x`` in the right-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_r.logcdf(jnp.array([0.0, 1.0])).round(4)
        Array([-1.    , -0.3679], dtype=float32)
    """
    y, scale = standardize("gumbel_r.logcdf", x, loc, scale, prepare=real_operands)
    return guarded(-jnp.exp(-y), scale > 0.0)


@_function
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the right-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_r.sf(jnp.array([0.0, 1.0])).round(4)
        Array([0.6321, 0.3078], dtype=float32)
    """
    y, scale = standardize("gumbel_r.sf", x, loc, scale)
    return guarded(-jnp.expm1(-jnp.exp(-y)), scale > 0.0)


@_function
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the log probability of more than ``x`` in the right-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_r.logsf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.4587, -1.1783], dtype=float32)
    """
    y, scale = standardize("gumbel_r.logsf", x, loc, scale, prepare=real_operands)
    return guarded(log_rare(-y), scale > 0.0)


@_function
def ppf(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``p`` of the right-skewed Gumbel distribution, the inverse of ``cdf``.

    Example:
        >>> gf.scipy.stats.gumbel_r.ppf(jnp.array([0.25, 0.9])).round(4)
        Array([-0.3266,  2.2504], dtype=float32)
    """
    p, loc, scale = real_operands("gumbel_r.ppf", p, loc, scale)
    return guarded(quantile(loc - scale * jnp.log(-jnp.log(p)), p), scale > 0.0)


publish(globals(), "stats.gumbel_r", public_names(globals(), __name__))
