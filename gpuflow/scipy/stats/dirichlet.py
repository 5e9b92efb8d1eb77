"""The Dirichlet distribution.

Tests: tests/scipy_surface/test_stats_samples.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import promote_dtypes_inexact
from gpuflow.scipy.special.common import precision
from gpuflow.scipy.special.logarithms import xlogy
from gpuflow.scipy.special.stirling import log_ratio
from gpuflow.scipy.stats.common import LARGE, log_poisson

# How far the sum of a point may be from 1, if rounding its entries does not move it further.
_TOLERANCE = 1e-6


def _log_density(x: Any, alpha: Any, column: Any) -> Any:
    """The logarithm for ``x`` above 0; ``column`` is ``alpha`` along the first axis.

    Large terms of the gamma functions cancel; then it is a product of Poisson probabilities, given
    the sum.
    """
    total = jnp.sum(alpha)
    constant = lax.lgamma(total) - jnp.sum(lax.lgamma(alpha))
    small = jnp.sum(xlogy(column - 1.0, x), 0) + constant
    terms = log_poisson(column, total * x) + log_ratio(column, x)
    excess = total * (jnp.sum(x, 0) - 1.0)
    large = jnp.sum(terms, 0) + excess - log_poisson(total, total) - jnp.log(total)
    return jnp.where(total > LARGE, large, small)


@composite
def logpdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Return the logarithm of the density of the Dirichlet distribution at ``x``.

    Args:
        x: f32[n, ...] or f32[n - 1, ...], points; the last component may be omitted.
        alpha: f32[n], concentrations, above 0.

    Returns:
        f32[...]: -inf if an entry is negative or the sum is not 1, nan for invalid concentrations.
        If an entry is 0, the result is -inf for a concentration above 1, and inf below 1.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> gf.scipy.stats.dirichlet.logpdf(jnp.array([0.25, 0.75]), jnp.array([2.0, 2.0])).round(3)
        Array(0.118, dtype=float32)
    """
    x, alpha = promote_dtypes_inexact(jnp.asarray(x), jnp.asarray(alpha))
    shape, count = aval_of(x).shape, aval_of(alpha).shape
    check(
        len(count) == 1,
        lambda: (
            f"[dirichlet.logpdf] `alpha` must be one-dimensional; got alpha.shape={count}. "
            "Fix: one concentration for each number of a point."
        ),
        ValueError,
    )
    check(
        len(shape) > 0 and shape[0] in (count[0], count[0] - 1),
        lambda: (
            "[dirichlet.logpdf] `x` must have as many entries as `alpha` or one entry fewer; got "
            f"x.shape={shape}, alpha.shape={count}. Fix: points along axis 0."
        ),
        ValueError,
    )
    if shape[:1] != count:
        x = jnp.concatenate([x, 1.0 - jnp.sum(x, 0, keepdims=True)], 0)
    column = alpha.reshape(count + (1,) * (len(shape) - 1))
    powers = column - 1.0
    tolerance = max(_TOLERANCE, count[0] * precision(x))
    on_simplex = jnp.all(x >= 0.0, 0) & (jnp.abs(jnp.sum(x, 0) - 1.0) < tolerance)
    # On an edge a power above 0 makes the density 0; else one below 0 makes it infinite.
    edge = x == 0.0
    vanishes, diverges = jnp.any(edge & (powers > 0.0), 0), jnp.any(edge & (powers < 0.0), 0)
    log = _log_density(jnp.where(x > 0.0, x, 1.0), alpha, column)
    log = jnp.where(diverges, jnp.inf, log)
    log = jnp.where(on_simplex & ~vanishes, log, -jnp.inf)
    return jnp.where(jnp.all(alpha > 0.0), log, jnp.nan)


@composite
def pdf(x: ArrayLike, alpha: ArrayLike) -> Array:
    """Return the density of the Dirichlet distribution at ``x``.

    Args:
        x: f32[n, ...] or f32[n - 1, ...], points; the last component may be omitted.
        alpha: f32[n], concentrations, above 0.

    Returns:
        f32[...], proportional to ``prod(x**(alpha - 1))``; 0 if an entry is negative or the sum is
        not 1, nan for invalid concentrations. If an entry is 0, the density is 0 for a
        concentration above 1, and inf below 1.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> gf.scipy.stats.dirichlet.pdf(jnp.array([0.25, 0.75]), jnp.array([2.0, 2.0])).round(3)
        Array(1.125, dtype=float32)
    """
    return jnp.exp(logpdf(x, alpha))


publish(globals(), "stats.dirichlet", public_names(globals(), __name__))
