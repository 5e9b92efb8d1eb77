"""The uniform distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, strong_operands
from gpuflow.scipy.stats.common import distribution, guarded, quantile, standardize

_function = distribution()


@_function
def logpdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the uniform distribution at ``x``.

    Example:
        >>> gf.scipy.stats.uniform.logpdf(jnp.array([0.5, 3.0]), 0.0, 4.0).round(4)
        Array([-1.3863, -1.3863], dtype=float32, weak_type=True)
    """
    y, scale = standardize("uniform.logpdf", x, loc, scale, prepare=real_operands)
    log = jnp.where((y < 0.0) | (y > 1.0), -jnp.inf, -jnp.log(scale))
    return guarded(log, scale > 0.0, ~jnp.isnan(y))


@_function
def pdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the uniform distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``1 / scale``, for ``y`` from 0 to 1.

    Example:
        >>> gf.scipy.stats.uniform.pdf(jnp.array([0.5, 3.0]), 0.0, 4.0).round(4)
        Array([0.25, 0.25], dtype=float32, weak_type=True)
    """
    y, scale = standardize("uniform.pdf", x, loc, scale, prepare=real_operands)
    density = jnp.where((y < 0.0) | (y > 1.0), 0.0, 1.0 / scale)
    return guarded(density, scale > 0.0, ~jnp.isnan(y))


@_function
def cdf(x: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the uniform distribution.

    Example:
        >>> gf.scipy.stats.uniform.cdf(jnp.array([0.5, 3.0]), 0.0, 4.0).round(4)
        Array([0.125, 0.75 ], dtype=float32)
    """
    y, scale = standardize("uniform.cdf", x, loc, scale, prepare=strong_operands)
    return guarded(jnp.clip(y, 0.0, 1.0), scale > 0.0)


@_function
def ppf(q: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``q`` of the uniform distribution, the inverse of ``cdf``.

    Example:
        >>> gf.scipy.stats.uniform.ppf(jnp.array([0.25, 0.9]), 0.0, 4.0).round(4)
        Array([1. , 3.6], dtype=float32)
    """
    q, loc, scale = real_operands("uniform.ppf", q, loc, scale)
    return guarded(quantile(loc + scale * q, q), scale > 0.0)


publish(globals(), "stats.uniform", public_names(globals(), __name__))
