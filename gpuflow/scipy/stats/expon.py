"""The exponential distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import (
    distribution,
    guarded,
    in_support,
    log_complement,
    quantile,
    standardize,
)

_function = distribution()


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the exponential distribution at ``x``.

    Example:
        >>> gf.scipy.stats.expon.logpdf(jnp.array([1.0, 2.0])).round(4)
        Array([-1., -2.], dtype=float32)
    """
    y, scale = standardize("expon.logpdf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.where(y < 0.0, -jnp.inf, -y - jnp.log(scale)), scale > 0.0)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the exponential distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(-y) / scale``, for ``y`` from 0 on.

    Example:
        >>> gf.scipy.stats.expon.pdf(jnp.array([1.0, 2.0])).round(4)
        Array([0.3679, 0.1353], dtype=float32)
    """
    y, scale = standardize("expon.pdf", x, loc, scale, prepare=real_operands)
    density = jnp.exp(-in_support(y >= 0.0, y, 0.0)) / scale
    return guarded(jnp.where(y < 0.0, 0.0, density), scale > 0.0)


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the exponential distribution.

    Example:
        >>> gf.scipy.stats.expon.cdf(jnp.array([1.0, 2.0])).round(4)
        Array([0.6321, 0.8647], dtype=float32)
    """
    y, scale = standardize("expon.cdf", x, loc, scale, prepare=real_operands)
    return guarded(-jnp.expm1(-in_support(y > 0.0, y, 0.0)), scale > 0.0)


@_function
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the exponential distribution.

    Example:
        >>> gf.scipy.stats.expon.logcdf(jnp.array([1.0, 2.0])).round(4)
        Array([-0.4587, -0.1454], dtype=float32)
    """
    y, scale = standardize("expon.logcdf", x, loc, scale, prepare=real_operands)
    log = log_complement(-in_support(y > 0.0, y, 1.0))
    return guarded(jnp.where(y <= 0.0, -jnp.inf, log), scale > 0.0)


@_function
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the exponential distribution.

    Example:
        >>> gf.scipy.stats.expon.sf(jnp.array([1.0, 2.0])).round(4)
        Array([0.3679, 0.1353], dtype=float32)
    """
    y, scale = standardize("expon.sf", x, loc, scale, prepare=real_operands)
    return guarded(jnp.exp(-in_support(y > 0.0, y, 0.0)), scale > 0.0)


@_function
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the exponential distribution.

    Example:
        >>> gf.scipy.stats.expon.logsf(jnp.array([1.0, 2.0])).round(4)
        Array([-1., -2.], dtype=float32)
    """
    y, scale = standardize("expon.logsf", x, loc, scale, prepare=real_operands)
    return guarded(-in_support(y > 0.0, y, 0.0), scale > 0.0)


@_function
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``q`` of the exponential distribution, the inverse of ``cdf``.

    Example:
        >>> gf.scipy.stats.expon.ppf(jnp.array([0.25, 0.9])).round(4)
        Array([0.2877, 2.3026], dtype=float32)
    """
    q, loc, scale = real_operands("expon.ppf", q, loc, scale)
    return guarded(quantile(loc - scale * jnp.log1p(-q), q), scale > 0.0)


publish(globals(), "stats.expon", public_names(globals(), __name__))
