"""The wrapped Cauchy distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import math

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import distribution, guarded

_function = distribution("c: shape parameter, between 0 and 1.")


@_function
def logpdf(x: ArrayLike, c: ArrayLike) -> Array:
    """Return the logarithm of the density of the wrapped Cauchy distribution at ``x``.

    Example:
        >>> gf.scipy.stats.wrapcauchy.logpdf(jnp.array([0.0, 1.0]), 0.5).round(4)
        Array([-0.7393, -1.7826], dtype=float32)
    """
    x, c = real_operands("wrapcauchy.logpdf", x, c)
    possible = (c > 0.0) & (c < 1.0)
    c = jnp.where(possible, c, 0.5)
    # 1 + c**2 - 2 c cos(x) without cancellation.
    denominator = jnp.square(1.0 - c) + 4.0 * c * jnp.square(jnp.sin(0.5 * x))
    log = jnp.log1p(-c * c) - jnp.log(2.0 * math.pi * denominator)
    log = jnp.where((x < 0.0) | (x > 2.0 * math.pi), -jnp.inf, log)
    return guarded(log, possible)


@_function
def pdf(x: ArrayLike, c: ArrayLike) -> Array:
    """Return the density of the wrapped Cauchy distribution at ``x``.

    It is ``(1 - c**2) / (2 * pi * (1 + c**2 - 2 * c * cos(x)))``, for ``x`` from 0 to 2 pi.

    Example:
        >>> gf.scipy.stats.wrapcauchy.pdf(jnp.array([0.0, 1.0]), 0.5).round(4)
        Array([0.4775, 0.1682], dtype=float32)
    """
    return jnp.exp(logpdf(x, c))


publish(globals(), "stats.wrapcauchy", public_names(globals(), __name__))
