"""The von Mises distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import math

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.bessel import i0e
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import distribution, guarded

_function = distribution("kappa: concentration, nonnegative.")


@_function
def logpdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Return the logarithm of the density of the von Mises distribution at ``x``.

    Example:
        >>> gf.scipy.stats.vonmises.logpdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([-0.6619, -1.5813], dtype=float32)
    """
    x, kappa = real_operands("vonmises.logpdf", x, kappa)
    # cos(x) - 1 without cancellation.
    angle = -2.0 * jnp.square(jnp.sin(0.5 * x))
    return guarded(kappa * angle - jnp.log(2.0 * math.pi * i0e(kappa)), kappa >= 0.0)


@_function
def pdf(x: ArrayLike, kappa: ArrayLike) -> Array:
    """Return the density of the von Mises distribution at ``x``.

    It is ``exp(kappa * cos(x)) / (2 * pi * i0(kappa))``.

    Example:
        >>> gf.scipy.stats.vonmises.pdf(jnp.array([0.0, 1.0]), 2.0).round(4)
        Array([0.5159, 0.2057], dtype=float32)
    """
    return jnp.exp(logpdf(x, kappa))


publish(globals(), "stats.vonmises", public_names(globals(), __name__))
