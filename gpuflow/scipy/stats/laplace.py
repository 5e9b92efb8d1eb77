"""The Laplace distribution."""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.stats.common import guarded, standardize


@composite
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Laplace distribution at ``x``.

    Args:
        x: array of real numbers; all arguments broadcast.
        loc: location parameter (shift).
        scale: scale parameter, above 0.

    Returns:
        An array of floats of the common shape; nan if a parameter is invalid.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> gf.scipy.stats.laplace.logpdf(jnp.array([0.0, 1.0])).round(4)
        Array([-0.6931, -1.6931], dtype=float32)
    """
    y, scale = standardize("laplace.logpdf", x, loc, scale)
    return guarded(-jnp.abs(y) - jnp.log(2.0 * scale), scale > 0.0)


@composite
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Laplace distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``exp(-abs(y)) / 2 / scale``.

    Args:
        x: array of real numbers; all arguments broadcast.
        loc: location parameter (shift).
        scale: scale parameter, above 0.

    Returns:
        An array of floats of the common shape; nan if a parameter is invalid.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> gf.scipy.stats.laplace.pdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.1839], dtype=float32)
    """
    y, scale = standardize("laplace.pdf", x, loc, scale)
    return guarded(jnp.exp(-jnp.abs(y)) / (2.0 * scale), scale > 0.0)


@composite
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the Laplace distribution.

    Args:
        x: array of real numbers; all arguments broadcast.
        loc: location parameter (shift).
        scale: scale parameter, above 0.

    Returns:
        An array of floats of the common shape; nan if a parameter is invalid.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> gf.scipy.stats.laplace.cdf(jnp.array([0.0, 1.0])).round(4)
        Array([0.5   , 0.8161], dtype=float32)
    """
    y, scale = standardize("laplace.cdf", x, loc, scale)
    tail = 0.5 * jnp.exp(-jnp.abs(y))
    return guarded(jnp.where(y > 0.0, 1.0 - tail, tail), scale > 0.0)


publish(globals(), "stats.laplace", public_names(globals(), __name__))
