"""The logistic distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, typed_operands
from gpuflow.scipy.special.logarithms import expit, logit
from gpuflow.scipy.stats.common import distribution, guarded, standardize

_function = distribution()


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the logistic distribution at ``x``.

    Example:
        >>> gf.scipy.stats.logistic.logpdf(jnp.array([0.0, 1.0])).round(4)
        Array([-1.3863, -1.6265], dtype=float32)
    """
    y, scale = standardize("logistic.logpdf", x, loc, scale)
    size = jnp.abs(y)
    return guarded(-size - 2.0 * jnp.log1p(jnp.exp(-size)) - jnp.log(scale), scale > 0.0)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the logistic distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(-y) / (1 + exp(-y))**2 / scale``.

    Example:
        >>> gf.scipy.stats.logistic.pdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.25  , 0.1966], dtype=float32)
    """
    y, scale = standardize("logistic.pdf", x, loc, scale)
    small = jnp.exp(-jnp.abs(y))
    return guarded(small / (scale * jnp.square(1.0 + small)), scale > 0.0)


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the logistic distribution.

    Example:
        >>> gf.scipy.stats.logistic.cdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.7311], dtype=float32)
    """
    y, scale = standardize("logistic.cdf", x, loc, scale, prepare=real_operands)
    return guarded(expit(y), scale > 0.0)


@_function
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the logistic distribution.

    Example:
        >>> gf.scipy.stats.logistic.sf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.2689], dtype=float32)
    """
    y, scale = standardize("logistic.sf", x, loc, scale, prepare=real_operands)
    return guarded(expit(-y), scale > 0.0)


@_function
def ppf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``x`` of the logistic distribution, the inverse of ``cdf``.

    Args:
        x: probabilities, in [0, 1].
        loc: location parameter (shift).
        scale: scale parameter, above 0.

    Example:
        >>> gf.scipy.stats.logistic.ppf(jnp.array([0.25, 0.9])).round(4)
        Array([-1.0986,  2.1972], dtype=float32)
    """
    x, loc, scale = typed_operands("logistic.ppf", x, loc, scale)
    return guarded(loc + scale * logit(x), scale > 0.0)


@_function
def isf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the value that the logistic distribution exceeds with probability ``x``.

    Args:
        x: probabilities, in [0, 1].
        loc: location parameter (shift).
        scale: scale parameter, above 0.

    Example:
        >>> gf.scipy.stats.logistic.isf(jnp.array([0.25, 0.9])).round(4)
        Array([ 1.0986, -2.1972], dtype=float32)
    """
    x, loc, scale = typed_operands("logistic.isf", x, loc, scale)
    return guarded(loc - scale * logit(x), scale > 0.0)


publish(globals(), "stats.logistic", public_names(globals(), __name__))
