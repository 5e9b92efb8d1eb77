"""The Cauchy distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import typed_operands
from gpuflow.scipy.stats.common import distribution, guarded, log_probability, quantile, standardize

# From here on adding 1 to the square has no effect, and the square might overflow.
_FAR = 1e10

_function = distribution()


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Cauchy distribution at ``x``.

    Example:
        >>> gf.scipy.stats.cauchy.logpdf(jnp.array([0.0, 1.0])).round(4)
        Array([-1.1447, -1.8379], dtype=float32)
    """
    y, scale = standardize("cauchy.logpdf", x, loc, scale)
    size = jnp.abs(y)
    far = size > _FAR
    log = jnp.where(
        far,
        2.0 * jnp.log(jnp.where(far, size, 1.0)),
        jnp.log1p(jnp.square(jnp.where(far, 0.0, y))),
    )
    return guarded(-log - jnp.log(scale) - math.log(math.pi), scale > 0.0)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Cauchy distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``1 / (pi * (1 + y**2)) / scale``.

    Example:
        >>> gf.scipy.stats.cauchy.pdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.3183, 0.1592], dtype=float32)
    """
    y, scale = standardize("cauchy.pdf", x, loc, scale)
    return guarded(1.0 / (math.pi * scale * (1.0 + jnp.square(y))), scale > 0.0)


def _below(y: Any) -> Any:
    """The probability of less than ``y``, without cancellation in the lower tail."""
    return jnp.arctan2(jnp.ones_like(y), -y) / math.pi


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the Cauchy distribution.

    Example:
        >>> gf.scipy.stats.cauchy.cdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5 , 0.75], dtype=float32)
    """
    y, scale = standardize("cauchy.cdf", x, loc, scale)
    return guarded(_below(y), scale > 0.0)


@_function
def logcdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the Cauchy distribution.

    Example:
        >>> gf.scipy.stats.cauchy.logcdf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.6931, -0.2877], dtype=float32)
    """
    y, scale = standardize("cauchy.logcdf", x, loc, scale)
    return guarded(log_probability(_below(y), _below(-y)), scale > 0.0)


@_function
def sf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the Cauchy distribution.

    Example:
        >>> gf.scipy.stats.cauchy.sf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5 , 0.25], dtype=float32)
    """
    y, scale = standardize("cauchy.sf", x, loc, scale)
    return guarded(_below(-y), scale > 0.0)


@_function
def logsf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the Cauchy distribution.

    Example:
        >>> gf.scipy.stats.cauchy.logsf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.6931, -1.3863], dtype=float32)
    """
    y, scale = standardize("cauchy.logsf", x, loc, scale)
    return guarded(log_probability(_below(-y), _below(y)), scale > 0.0)


def _standard_quantile(q: Any) -> Any:
    central = jnp.abs(q - 0.5) <= 0.25
    upper = q > 0.5
    tail = jnp.where(central, 0.25, jnp.where(upper, 1.0 - q, q))
    far = 1.0 / jnp.tan(math.pi * jnp.abs(tail))  # -0.0 too is the probability of the lower end
    near = jnp.tan(math.pi * (jnp.where(central, q, 0.5) - 0.5))
    return quantile(jnp.where(central, near, jnp.where(upper, far, -far)), q)


@_function
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``q`` of the Cauchy distribution, the inverse of ``cdf``.

    Example:
        >>> gf.scipy.stats.cauchy.ppf(jnp.array([0.25, 0.9])).round(4)
        Array([-1.    ,  3.0777], dtype=float32)
    """
    q, loc, scale = typed_operands("cauchy.ppf", q, loc, scale)
    return guarded(_standard_quantile(q) * scale + loc, scale > 0.0)


@_function
def isf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the value that the Cauchy distribution exceeds with probability ``q``.

    Example:
        >>> gf.scipy.stats.cauchy.isf(jnp.array([0.25, 0.9])).round(4)
        Array([ 1.    , -3.0777], dtype=float32)
    """
    q, loc, scale = typed_operands("cauchy.isf", q, loc, scale)
    return guarded(loc - _standard_quantile(q) * scale, scale > 0.0)


publish(globals(), "stats.cauchy", public_names(globals(), __name__))
