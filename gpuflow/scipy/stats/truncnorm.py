"""The truncated normal distribution."""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.error_functions import log_ndtr, ndtr
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI
from gpuflow.scipy.stats.common import guarded, log_complement, standardize


def _log_mass(a: Any, b: Any) -> Any:
    """The logarithm of the normal probability between ``a < b``, from the tail that they are in."""
    right = a > 0.0
    low, high = jnp.where(right, -b, a), jnp.where(right, -a, b)
    central = (a <= 0.0) & (b > 0.0)
    top = log_ndtr(jnp.where(central, -1.0, high))
    gap = log_ndtr(jnp.where(central, -2.0, low)) - top
    tail = top + log_complement(jnp.minimum(gap, 0.0))
    rest = ndtr(jnp.where(central, a, -1.0)) + ndtr(jnp.where(central, -b, -1.0))
    return jnp.where(central, jnp.log1p(-rest), tail)


def _log_below(y: Any, a: Any, b: Any) -> Any:
    """The logarithm of the probability of less than ``y``."""
    within = (y > a) & (y < b)
    safe = jnp.where(within | jnp.isnan(y), y, 0.5 * (jnp.maximum(a, -9.0) + jnp.minimum(b, 9.0)))
    mass = _log_mass(a, b)
    below, above = _log_mass(a, safe) - mass, _log_mass(safe, b) - mass
    # Near 1 the complement has the digits.
    log = jnp.where(below > -0.1, log_complement(jnp.minimum(above, 0.0)), below)
    return jnp.where(y <= a, -jnp.inf, jnp.where(y >= b, 0.0, log))


@composite
def logpdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the density of the truncated normal distribution at ``x``.

    Args:
        x: array of real numbers; all arguments broadcast.
        a, b: where it is cut off below and above, as values of ``(x - loc) / scale``; a < b.
        loc: by how much it is shifted.
        scale: by how much it is stretched, above 0.

    Returns:
        An array of floats of the common shape; nan where a parameter is not possible.

    Raises:
        ValueError: complex numbers.

    Example:
        >>> gf.scipy.stats.truncnorm.logpdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([-0.7188, -1.2188], dtype=float32)
    """
    y, scale, a, b = standardize("truncnorm.logpdf", x, loc, scale, a, b)
    log = -0.5 * jnp.square(y) - HALF_LOG_2_PI - _log_mass(a, b) - jnp.log(scale)
    return guarded(jnp.where((y < a) | (y > b), -jnp.inf, log), scale > 0.0, a < b)


@composite
def pdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The density of the truncated normal distribution at ``x``.

    With ``y = (x - loc) / scale`` it is the normal density of ``y`` at its mass from a to b.

    Args:
        x: array of real numbers; all arguments broadcast.
        a, b: where it is cut off below and above, as values of ``(x - loc) / scale``; a < b.
        loc: by how much it is shifted.
        scale: by how much it is stretched, above 0.

    Returns:
        An array of floats of the common shape; nan where a parameter is not possible.

    Raises:
        ValueError: complex numbers.

    Example:
        >>> gf.scipy.stats.truncnorm.pdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([0.4874, 0.2956], dtype=float32)
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@composite
def logcdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the probability of at most ``x`` in the truncated normal distribution.

    Args:
        x: array of real numbers; all arguments broadcast.
        a, b: where it is cut off below and above, as values of ``(x - loc) / scale``; a < b.
        loc: by how much it is shifted.
        scale: by how much it is stretched, above 0.

    Returns:
        An array of floats of the common shape; nan where a parameter is not possible.

    Raises:
        ValueError: complex numbers.

    Example:
        >>> gf.scipy.stats.truncnorm.logcdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([-0.8747, -0.1815], dtype=float32)
    """
    y, scale, a, b = standardize("truncnorm.logcdf", x, loc, scale, a, b)
    return guarded(_log_below(y, a, b), scale > 0.0, a < b)


@composite
def cdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The probability of at most ``x`` in the truncated normal distribution.

    Args:
        x: array of real numbers; all arguments broadcast.
        a, b: where it is cut off below and above, as values of ``(x - loc) / scale``; a < b.
        loc: by how much it is shifted.
        scale: by how much it is stretched, above 0.

    Returns:
        An array of floats of the common shape; nan where a parameter is not possible.

    Raises:
        ValueError: complex numbers.

    Example:
        >>> gf.scipy.stats.truncnorm.cdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([0.417, 0.834], dtype=float32)
    """
    return jnp.exp(logcdf(x, a, b, loc, scale))


@composite
def logsf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """The logarithm of the probability of more than ``x`` in the truncated normal distribution.

    Args:
        x: array of real numbers; all arguments broadcast.
        a, b: where it is cut off below and above, as values of ``(x - loc) / scale``; a < b.
        loc: by how much it is shifted.
        scale: by how much it is stretched, above 0.

    Returns:
        An array of floats of the common shape; nan where a parameter is not possible.

    Raises:
        ValueError: complex numbers.

    Example:
        >>> gf.scipy.stats.truncnorm.logsf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([-0.5395, -1.7956], dtype=float32)
    """
    y, scale, a, b = standardize("truncnorm.logsf", x, loc, scale, a, b)
    return guarded(_log_below(-y, -b, -a), scale > 0.0, a < b)


@composite
def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x`` in the truncated normal distribution.

    Args:
        x: array of real numbers; all arguments broadcast.
        a, b: where it is cut off below and above, as values of ``(x - loc) / scale``; a < b.
        loc: by how much it is shifted.
        scale: by how much it is stretched, above 0.

    Returns:
        An array of floats of the common shape; nan where a parameter is not possible.

    Raises:
        ValueError: complex numbers.

    Example:
        >>> gf.scipy.stats.truncnorm.sf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([0.583, 0.166], dtype=float32)
    """
    return jnp.exp(logsf(x, a, b, loc, scale))


publish(globals(), "stats.truncnorm", public_names(globals(), __name__))
