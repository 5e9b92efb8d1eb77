"""The Pareto distribution."""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, typed_operands
from gpuflow.scipy.stats.common import guarded, inside, log_complement, quantile, standardize


def _log_tail(y: Any, b: Any) -> Any:
    """The logarithm of the probability of more than ``y``."""
    return -b * jnp.log(inside(y > 1.0, y, 1.0))


@composite
def logpdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of the density at ``x``."""
    y, scale, b = standardize("pareto.logpdf", x, loc, scale, b)
    log = jnp.log(b) - (b + 1.0) * jnp.log(inside(y >= 1.0, y, 1.0)) - jnp.log(scale)
    return guarded(jnp.where(y < 1.0, -jnp.inf, log), scale > 0.0, b > 0.0)


@composite
def pdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The density at ``x``."""
    y, scale, b = standardize("pareto.pdf", x, loc, scale, b)
    density = b / scale * jnp.power(inside(y >= 1.0, y, 1.0), -b - 1.0)
    return guarded(jnp.where(y < 1.0, 0.0, density), scale > 0.0, b > 0.0)


@composite
def cdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of at most ``x``."""
    y, scale, b = standardize("pareto.cdf", x, loc, scale, b)
    return guarded(-jnp.expm1(_log_tail(y, b)), scale > 0.0, b > 0.0)


@composite
def logcdf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``cdf``."""
    y, scale, b = standardize("pareto.logcdf", x, loc, scale, b, prepare=real_operands)
    log = log_complement(-b * jnp.log(inside(y > 1.0, y, 2.0)))
    return guarded(jnp.where(y <= 1.0, -jnp.inf, log), scale > 0.0, b > 0.0)


@composite
def sf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The probability of more than ``x``."""
    y, scale, b = standardize("pareto.sf", x, loc, scale, b)
    return guarded(jnp.power(inside(y > 1.0, y, 1.0), -b), scale > 0.0, b > 0.0)


@composite
def logsf(x: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The logarithm of ``sf``."""
    y, scale, b = standardize("pareto.logsf", x, loc, scale, b)
    return guarded(_log_tail(y, b), scale > 0.0, b > 0.0)


@composite
def ppf(q: ArrayLike, b: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1) -> Array:
    """The number that ``cdf`` takes to ``q``."""
    q, b, loc, scale = typed_operands("pareto.ppf", q, b, loc, scale)
    result = loc + scale * jnp.exp(-jnp.log1p(-q) / b)
    return guarded(quantile(result, q), scale > 0.0, b > 0.0)
