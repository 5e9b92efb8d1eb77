"""The multivariate normal distribution.

Tests: tests/scipy_surface/test_stats_samples.py, tests/scipy_surface/test_stats_extremes.py.
"""

from __future__ import annotations

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import promote_dtypes_inexact
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI


@composite
def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: None = None) -> Array:
    """Return the logarithm of the density of the multivariate normal distribution at ``x``.

    Args:
        x: f32[..., n].
        mean: f32[..., n], or a scalar if n is 1.
        cov: f32[..., n, n], positive definite; or a scalar, the variance of each component.
        allow_singular: must be None.

    Returns:
        f32[...]; nan if ``cov`` is not positive definite.

    Raises:
        NotImplementedError: if ``allow_singular`` is given.
        ValueError: if shapes do not match.

    Example:
        >>> x, mean = jnp.array([1.0, 2.0]), jnp.zeros(2)
        >>> gf.scipy.stats.multivariate_normal.logpdf(x, mean, jnp.eye(2)).round(3)
        Array(-4.338, dtype=float32)
    """
    if allow_singular is not None:
        raise NotImplementedError(
            "[multivariate_normal.logpdf] allow_singular must be None; got "
            f"{allow_singular!r}. Fix: a positive definite cov."
        )
    x, mean, cov = (
        jnp.asarray(v) for v in promote_dtypes_inexact(*map(jnp.asarray, (x, mean, cov)))
    )
    if not mean.shape:
        return -0.5 * jnp.square(x - mean) / cov - HALF_LOG_2_PI - 0.5 * jnp.log(cov)
    n, offset = mean.shape[-1], x - mean
    if not cov.shape:
        squares = jnp.sum(jnp.square(offset), -1)
        return -0.5 * squares / cov - n * (HALF_LOG_2_PI + 0.5 * jnp.log(cov))
    check(
        cov.ndim >= 2 and cov.shape[-2:] == (n, n),
        lambda: (
            "[multivariate_normal.logpdf] cov must have the square of the size of mean, got "
            f"incompatible shapes; got mean {mean.shape} and cov {cov.shape}. Fix: cov of shape "
            f"(..., {n}, {n})."
        ),
        ValueError,
    )
    root = lax.linalg.cholesky(cov)
    batch = jnp.broadcast_shapes(offset.shape[:-1], root.shape[:-2])
    root = jnp.broadcast_to(root, (*batch, n, n))
    offset = jnp.broadcast_to(offset, (*batch, n))[..., None]
    y = lax.linalg.triangular_solve(root, offset, left_side=True, lower=True)[..., 0]
    log_root = jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), -1)
    return -0.5 * jnp.sum(jnp.square(y), -1) - n * HALF_LOG_2_PI - log_root


@composite
def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """Return the density of the multivariate normal distribution at ``x``.

    Args:
        x: f32[..., n].
        mean: f32[..., n], or a scalar if n is 1.
        cov: f32[..., n, n], positive definite; or a scalar, the variance of each component.

    Returns:
        f32[...]; nan if ``cov`` is not positive definite.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> x, mean = jnp.array([1.0, 0.0]), jnp.zeros(2)
        >>> gf.scipy.stats.multivariate_normal.pdf(x, mean, jnp.eye(2)).round(3)
        Array(0.097, dtype=float32)
    """
    return jnp.exp(logpdf(x, mean, cov))


publish(globals(), "stats.multivariate_normal", public_names(globals(), __name__))
