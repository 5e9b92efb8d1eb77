"""The Student's t distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import math

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI, log_rising
from gpuflow.scipy.stats.common import distribution, guarded, standardize

_LARGE = 1e16

_function = distribution("df: degrees of freedom, above 0; inf gives the normal distribution.")


@_function
def logpdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Student's t distribution at ``x``.

    Example:
        >>> gf.scipy.stats.t.logpdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([-1.0397, -1.6479], dtype=float32)
    """
    y, scale, df = standardize("t.logpdf", x, loc, scale, df)
    normal = jnp.isinf(df)
    freedom = jnp.where(normal, 1.0, df)
    # Far out the constant is that of the normal distribution, and its terms overflow.
    large = freedom > _LARGE
    some = jnp.where(large, 1.0, freedom)
    constant = log_rising(0.5 * some, 0.5) - 0.5 * jnp.log(math.pi * some)
    constant = jnp.where(large, -HALF_LOG_2_PI, constant)
    # The square of y / sqrt(df) may overflow; then adding 1 has no effect.
    ratio = y / jnp.sqrt(freedom)
    far = jnp.abs(ratio) > 1e10
    log = jnp.where(
        far,
        2.0 * jnp.log(jnp.where(far, jnp.abs(y), 1.0)) - jnp.log(freedom),
        jnp.log1p(jnp.square(jnp.where(far, 0.0, ratio))),
    )
    log = jnp.where(
        normal, -HALF_LOG_2_PI - 0.5 * jnp.square(y), constant - 0.5 * (freedom + 1.0) * log
    )
    return guarded(log - jnp.log(scale), scale > 0.0, df > 0.0)


@_function
def pdf(x: ArrayLike, df: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Student's t distribution at ``x``.

    With ``y = (x - loc) / scale`` it is proportional to ``(1 + y**2 / df)**(-(df + 1) / 2)``.

    Example:
        >>> gf.scipy.stats.t.pdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([0.3536, 0.1925], dtype=float32)
    """
    return jnp.exp(logpdf(x, df, loc, scale))


publish(globals(), "stats.t", public_names(globals(), __name__))
