"""The truncated normal distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.error_functions import erfcx, ndtr
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI
from gpuflow.scipy.stats.common import distribution, guarded, log_complement, standardize

_ROOT_HALF = math.sqrt(0.5)
# From here on the tail is its first term, and erfcx has no digits left in float32.
_FAR = 1e10
# Below such a width the mass is a series about the middle.
_NARROW = 0.1

_function = distribution(
    "a, b: lower and upper bounds of the truncation in units of ``(x - loc) / scale``; a < b."
)


def _scaled_tail(x: Any) -> Any:
    """``log(ndtr(-x)) + x**2 / 2`` for ``x >= 0``, which is near ``-log(x)`` for large ``x``."""
    far = x > _FAR
    near = jnp.log(0.5 * erfcx(jnp.where(far, 1.0, x) * _ROOT_HALF))
    return jnp.where(far, -jnp.log(jnp.where(far, x, 1.0)) - HALF_LOG_2_PI, near)


def _log_mass(a: Any, b: Any) -> tuple[Any, Any]:
    """The normal probability between ``a < b`` as ``exp(log - nearest**2 / 2)``.

    ``nearest`` is the point of the interval that is closest to 0. Squares far out overflow or hide
    all digits of the logarithm; ``_log_decay`` forms their differences without them.
    """
    central = (a <= 0.0) & (b > 0.0)
    near = jnp.where(central, 1.0, jnp.where(a > 0.0, a, -b))
    far = jnp.where(central, 2.0, jnp.where(a > 0.0, b, -a))
    ratio = _scaled_tail(far) - _scaled_tail(near) + _log_decay(far, near)
    tail = _scaled_tail(near) + log_complement(jnp.minimum(ratio, 0.0))
    outer_mass = ndtr(jnp.where(central, a, -1.0)) + ndtr(jnp.where(central, -b, -1.0))
    nearest = jnp.where(central, 0.0, jnp.where(a > 0.0, a, b))
    log = jnp.where(central, jnp.log1p(-outer_mass), tail)
    return nearest, _where_narrow(a, b, nearest, log)


def _where_narrow(a: Any, b: Any, nearest: Any, log: Any) -> Any:
    """``log``, but the density in the middle times the width where differences of tails are lost.

    The mass is that times ``1 + (m**2 - 1) w**2 / 24 + (m**4 - 6 m**2 + 3) w**4 / 1920 + ...``.
    """
    width, middle = b - a, 0.5 * a + 0.5 * b
    narrow = (width > 0.0) & (width < _NARROW) & (width * jnp.abs(middle) < _NARROW)
    w, m = jnp.where(narrow, width, _NARROW), jnp.where(narrow, middle, 0.0)
    square, across = w * w, (w * m) * (w * m)
    second = (across - square) / 24.0
    fourth = (across * across - 6.0 * across * square + 3.0 * square * square) / 1920.0
    decay = jnp.where(narrow, _log_decay(m, jnp.where(narrow, nearest, 0.0)), 0.0)
    series = jnp.log(w) - HALF_LOG_2_PI + decay + jnp.log1p(second + fourth)
    return jnp.where(narrow, series, log)


def _log_decay(y: Any, near: Any) -> Any:
    """The logarithm of the normal density at ``y`` relative to that at ``near``."""
    return -(y - near) * (0.5 * y + 0.5 * near)


def _log_share(inner: tuple[Any, Any], whole: tuple[Any, Any]) -> Any:
    """The logarithm of the quotient of two masses."""
    return inner[1] - whole[1] + _log_decay(inner[0], whole[0])


def _log_below(y: Any, a: Any, b: Any) -> Any:
    """The logarithm of the probability of less than ``y``."""
    within = (y > a) & (y < b)
    one_sided = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(b), 0.0, b - 1.0), a + 1.0)
    middle = jnp.where(jnp.isinf(a) | jnp.isinf(b), one_sided, 0.5 * a + 0.5 * b)
    safe = jnp.where(within | jnp.isnan(y), y, middle)
    mass = _log_mass(a, b)
    below, above = _log_share(_log_mass(a, safe), mass), _log_share(_log_mass(safe, b), mass)
    # Near 1 the complement has the digits.
    log = jnp.where(below > -0.1, log_complement(jnp.minimum(above, 0.0)), below)
    return jnp.where(y <= a, -jnp.inf, jnp.where(y >= b, 0.0, log))


@_function
def logpdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the logarithm of the density of the truncated normal distribution at ``x``.

    Example:
        >>> gf.scipy.stats.truncnorm.logpdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([-0.7188, -1.2188], dtype=float32)
    """
    y, scale, a, b = standardize("truncnorm.logpdf", x, loc, scale, a, b)
    nearest, mass = _log_mass(a, b)
    log = _log_decay(y, nearest) - HALF_LOG_2_PI - mass - jnp.log(scale)
    return guarded(jnp.where((y < a) | (y > b), -jnp.inf, log), scale > 0.0, a < b)


@_function
def pdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the density of the truncated normal distribution at ``x``.

    With ``y = (x - loc) / scale`` it is the normal density of ``y`` divided by its mass between a
    and b.

    Example:
        >>> gf.scipy.stats.truncnorm.pdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([0.4874, 0.2956], dtype=float32)
    """
    return jnp.exp(logpdf(x, a, b, loc, scale))


@_function
def logcdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the log probability of at most ``x`` in the truncated normal distribution.

    Example:
        >>> gf.scipy.stats.truncnorm.logcdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([-0.8747, -0.1815], dtype=float32)
    """
    y, scale, a, b = standardize("truncnorm.logcdf", x, loc, scale, a, b)
    return guarded(_log_below(y, a, b), scale > 0.0, a < b)


@_function
def cdf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the probability of at most ``x`` in the truncated normal distribution.

    Example:
        >>> gf.scipy.stats.truncnorm.cdf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([0.417, 0.834], dtype=float32)
    """
    return jnp.exp(logcdf(x, a, b, loc, scale))


@_function
def logsf(
    x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1
) -> Array:
    """Return the log probability of more than ``x`` in the truncated normal distribution.

    Example:
        >>> gf.scipy.stats.truncnorm.logsf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([-0.5395, -1.7956], dtype=float32)
    """
    y, scale, a, b = standardize("truncnorm.logsf", x, loc, scale, a, b)
    return guarded(_log_below(-y, -b, -a), scale > 0.0, a < b)


@_function
def sf(x: ArrayLike, a: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the truncated normal distribution.

    Example:
        >>> gf.scipy.stats.truncnorm.sf(jnp.array([0.0, 1.0]), -1.0, 2.0).round(4)
        Array([0.583, 0.166], dtype=float32)
    """
    return jnp.exp(logsf(x, a, b, loc, scale))


publish(globals(), "stats.truncnorm", public_names(globals(), __name__))
