"""The gamma distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands
from gpuflow.scipy.stats.common import distribution, guarded, log_gamma_density, standardize
from gpuflow.scipy.stats.tails import gamma_lower, gamma_upper, log_gamma_lower, log_gamma_upper

_function = distribution("a: shape parameter, above 0.")


@_function
def logpdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the gamma distribution at ``x``.

    Example:
        >>> gf.scipy.stats.gamma.logpdf(jnp.array([1.0, 2.0]), 2.0).round(4)
        Array([-1.    , -1.3069], dtype=float32)
    """
    y, scale, a = standardize("gamma.logpdf", x, loc, scale, a)
    return guarded(log_gamma_density(y, a) - jnp.log(scale), scale > 0.0, a > 0.0)


@_function
def pdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the gamma distribution at ``x``.

    With ``y = (x - loc) / scale`` it is
    ``y**(a - 1) * exp(-y) / gamma(a) / scale``, for ``y`` from 0 on.

    Example:
        >>> gf.scipy.stats.gamma.pdf(jnp.array([1.0, 2.0]), 2.0).round(4)
        Array([0.3679, 0.2707], dtype=float32)
    """
    return jnp.exp(logpdf(x, a, loc, scale))


@_function
def cdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the gamma distribution.

    Example:
        >>> gf.scipy.stats.gamma.cdf(jnp.array([1.0, 2.0]), 2.0).round(4)
        Array([0.2642, 0.594 ], dtype=float32)
    """
    y, scale, a = standardize("gamma.cdf", x, loc, scale, a)
    return guarded(gamma_lower(a, y), scale > 0.0, a > 0.0)


@_function
def logcdf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the gamma distribution.

    Example:
        >>> gf.scipy.stats.gamma.logcdf(jnp.array([1.0, 2.0]), 2.0).round(4)
        Array([-1.3309, -0.5209], dtype=float32)
    """
    y, scale, a = standardize("gamma.logcdf", x, loc, scale, a)
    return guarded(log_gamma_lower(a, y), scale > 0.0, a > 0.0)


@_function
def sf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the gamma distribution.

    Example:
        >>> gf.scipy.stats.gamma.sf(jnp.array([1.0, 2.0]), 2.0).round(4)
        Array([0.7358, 0.406 ], dtype=float32)
    """
    y, scale, a = standardize("gamma.sf", x, loc, scale, a, prepare=real_operands)
    return guarded(gamma_upper(a, y), scale > 0.0, a > 0.0)


@_function
def logsf(x: ArrayLike, a: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the gamma distribution.

    Example:
        >>> gf.scipy.stats.gamma.logsf(jnp.array([1.0, 2.0]), 2.0).round(4)
        Array([-0.3069, -0.9014], dtype=float32)
    """
    y, scale, a = standardize("gamma.logsf", x, loc, scale, a, prepare=real_operands)
    return guarded(log_gamma_upper(a, y), scale > 0.0, a > 0.0)


publish(globals(), "stats.gamma", public_names(globals(), __name__))
