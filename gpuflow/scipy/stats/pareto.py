"""The Pareto distribution.

Tests: tests/scipy_surface/test_stats_distributions.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.base.names import public_names, publish
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, typed_operands
from gpuflow.scipy.stats.common import (
    distribution,
    guarded,
    in_support,
    log_complement,
    quantile,
    standardize,
)

_function = distribution("b: shape parameter, above 0.")


def _log_tail(y: Any, b: Any) -> Any:
    """The logarithm of the probability of more than ``y``."""
    return -b * jnp.log(in_support(y > 1.0, y, 1.0))


@_function
def logpdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the density of the Pareto distribution at ``x``.

    Example:
        >>> gf.scipy.stats.pareto.logpdf(jnp.array([2.0, 4.0]), 3.0).round(4)
        Array([-1.674 , -4.4466], dtype=float32)
    """
    y, scale, b = standardize("pareto.logpdf", x, loc, scale, b)
    log = jnp.log(b) - (b + 1.0) * jnp.log(in_support(y >= 1.0, y, 1.0)) - jnp.log(scale)
    return guarded(jnp.where(y < 1.0, -jnp.inf, log), scale > 0.0, b > 0.0)


@_function
def pdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the density of the Pareto distribution at ``x``.

    With ``y = (x - loc) / scale`` it is ``b / y**(b + 1) / scale``, for ``y`` from 1 on.

    Example:
        >>> gf.scipy.stats.pareto.pdf(jnp.array([2.0, 4.0]), 3.0).round(4)
        Array([0.1875, 0.0117], dtype=float32)
    """
    y, scale, b = standardize("pareto.pdf", x, loc, scale, b)
    density = b / scale * jnp.power(in_support(y >= 1.0, y, 1.0), -b - 1.0)
    return guarded(jnp.where(y < 1.0, 0.0, density), scale > 0.0, b > 0.0)


@_function
def cdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of at most ``x`` in the Pareto distribution.

    Example:
        >>> gf.scipy.stats.pareto.cdf(jnp.array([2.0, 4.0]), 3.0).round(4)
        Array([0.875 , 0.9844], dtype=float32)
    """
    y, scale, b = standardize("pareto.cdf", x, loc, scale, b)
    return guarded(-jnp.expm1(_log_tail(y, b)), scale > 0.0, b > 0.0)


@_function
def logcdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of at most ``x`` in the Pareto distribution.

    Example:
        >>> gf.scipy.stats.pareto.logcdf(jnp.array([2.0, 4.0]), 3.0).round(4)
        Array([-0.1335, -0.0157], dtype=float32)
    """
    y, scale, b = standardize("pareto.logcdf", x, loc, scale, b, prepare=real_operands)
    log = log_complement(-b * jnp.log(in_support(y > 1.0, y, 2.0)))
    return guarded(jnp.where(y <= 1.0, -jnp.inf, log), scale > 0.0, b > 0.0)


@_function
def sf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the probability of more than ``x`` in the Pareto distribution.

    Example:
        >>> gf.scipy.stats.pareto.sf(jnp.array([2.0, 4.0]), 3.0).round(4)
        Array([0.125 , 0.0156], dtype=float32)
    """
    y, scale, b = standardize("pareto.sf", x, loc, scale, b)
    return guarded(jnp.power(in_support(y > 1.0, y, 1.0), -b), scale > 0.0, b > 0.0)


@_function
def logsf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the logarithm of the probability of more than ``x`` in the Pareto distribution.

    Example:
        >>> gf.scipy.stats.pareto.logsf(jnp.array([2.0, 4.0]), 3.0).round(4)
        Array([-2.0794, -4.1589], dtype=float32)
    """
    y, scale, b = standardize("pareto.logsf", x, loc, scale, b)
    return guarded(_log_tail(y, b), scale > 0.0, b > 0.0)


@_function
def ppf(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """Return the quantile ``q`` of the Pareto distribution, the inverse of ``cdf``.

    Example:
        >>> gf.scipy.stats.pareto.ppf(jnp.array([0.25, 0.9]), 3.0).round(4)
        Array([1.1006, 2.1544], dtype=float32)
    """
    q, b, loc, scale = typed_operands("pareto.ppf", q, b, loc, scale)
    result = loc + scale * jnp.exp(-jnp.log1p(-q) / b)
    return guarded(quantile(result, q), scale > 0.0, b > 0.0)


publish(globals(), "stats.pareto", public_names(globals(), __name__))
