"""The left-skewed Gumbel distribution.

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
    """Return the logarithm of the density of the left-skewed Gumbel distribution at ``x``.

    Example:
        >>> gf.scipy.stats.gumbel_l.logpdf(jnp.array([-1.0, 0.0])).round(4)
        Array([-1.3679, -1.    ], dtype=float32)
    """
    y, scale = standardize("gumbel_l.logpdf", x, loc, scale, prepare=real_operands)
    return guarded(_log_density(y) - jnp.log(scale), scale > 0.0)


def _log_density(y: Any) -> Any:
    # At the end where the exponential is infinite, so is the difference, not nan.
    log = y - jnp.exp(y)
    return jnp.where(jnp.isinf(y), -jnp.inf, log)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the left-skewed Gumbel distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(y - exp(y)) / scale``.

    Example:
        >>> gf.scipy.stats.gumbel_l.pdf(jnp.array([-1.0, 0.0])).round(4)
        Array([0.2546, 0.3679], dtype=float32)
    """
    y, scale = standardize("gumbel_l.pdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(_log_density(y)) / scale, scale > 0.0)


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the left-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_l.cdf(jnp.array([-1.0, 0.0])).round(4)
        Array([0.3078, 0.6321], dtype=float32)
    """
    y, scale = standardize("gumbel_l.cdf", x, loc, scale, prepare=real_operands)
    return guarded(-jnp.expm1(-jnp.exp(y)), scale > 0.0)


@_function
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the log probability of at most ``x`` in the left-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_l.logcdf(jnp.array([-1.0, 0.0])).round(4)
        Array([-1.1783, -0.4587], dtype=float32)
    """
    y, scale = standardize("gumbel_l.logcdf", x, loc, scale, prepare=real_operands)
    return guarded(log_rare(y), scale > 0.0)


@_function
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the left-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_l.sf(jnp.array([-1.0, 0.0])).round(4)
        Array([0.6922, 0.3679], dtype=float32)
    """
    y, scale = standardize("gumbel_l.sf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(-jnp.exp(y)), scale > 0.0)


@_function
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the log probability of more than ``x`` in the left-skewed Gumbel distribution.

    Example:
        >>> gf.scipy.stats.gumbel_l.logsf(jnp.array([-1.0, 0.0])).round(4)
        Array([-0.3679, -1.    ], dtype=float32)
    """
    y, scale = standardize("gumbel_l.logsf", x, loc, scale, prepare=real_operands)
    return guarded(-jnp.exp(y), scale > 0.0)


@_function
def ppf(p: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``p`` of the left-skewed Gumbel distribution, the inverse of ``cdf``.

    Example:
        >>> gf.scipy.stats.gumbel_l.ppf(jnp.array([0.25, 0.9])).round(4)
        Array([-1.2459,  0.834 ], dtype=float32)
    """
    p, loc, scale = real_operands("gumbel_l.ppf", p, loc, scale)
    return guarded(quantile(loc + scale * jnp.log(-jnp.log1p(-p)), p), scale > 0.0)


publish(globals(), "stats.gumbel_l", public_names(globals(), __name__))
