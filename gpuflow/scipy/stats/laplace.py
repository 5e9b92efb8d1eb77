"""The Laplace distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import distribution, guarded, standardize

_function = distribution()


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Laplace distribution at ``x``.

    Example:
        >>> gf.scipy.stats.laplace.logpdf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.6931, -1.6931], dtype=float32)
    """
    y, scale = standardize("laplace.logpdf", x, loc, scale)
    return guarded(-jnp.abs(y) - jnp.log(2.0 * scale), scale > 0.0)


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Laplace distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(-abs(y)) / 2 / scale``.

    Example:
        >>> gf.scipy.stats.laplace.pdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.1839], dtype=float32)
    """
    y, scale = standardize("laplace.pdf", x, loc, scale)
    return guarded(jnp.exp(-jnp.abs(y)) / (2.0 * scale), scale > 0.0)


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the Laplace distribution.

    Example:
        >>> gf.scipy.stats.laplace.cdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.8161], dtype=float32)
    """
    y, scale = standardize("laplace.cdf", x, loc, scale)
    tail = 0.5 * jnp.exp(-jnp.abs(y))
    return guarded(jnp.where(y > 0.0, 1.0 - tail, tail), scale > 0.0)


publish(globals(), "stats.laplace", public_names(globals(), __name__))
