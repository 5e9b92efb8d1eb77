"""Continuous distributions as closed-form transforms of uniform and normal samples.

Tests: tests/random/test_random_distributions.py, tests/test_docstrings.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, ShardingLike
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    promote_dtypes_inexact,
    to_rank,
    user_dtype,
)
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.random import generators as random_ops
from gpuflow.random.base import (
    Shape,
    check_parameters,
    exponential,
    float_dtype,
    normal,
    parameters_in,
    rademacher,
    to_shape,
    uniform,
    uniform_of,
)
from gpuflow.random.keys import typed_key


def drawn_shape(name: str, shape: Shape | None, *parameters: Any) -> tuple[int, ...]:
    """The shape of a sample: as requested, or that of the parameters.

    Raises:
        ValueError: if parameters do not broadcast to it.
    """
    parameters = check_arraylike(name, *parameters)
    if shape is None:
        return broadcast_shapes(*[aval_of(p).shape for p in parameters], name=name)
    sizes = as_shape(name, shape)
    check_parameters(name, sizes, *parameters)
    return sizes


@composite
def pareto(
    key: ArrayLike,
    b: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Pareto random numbers, with density ``b x**(-b - 1)`` on [1, inf).

    Args:
        key: a key from ``random.key``, or a raw key.
        b: array of positive numbers.
        shape: shape of the result; None uses the shape of ``b``.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> bool((gf.random.pareto(gf.random.key(0), 3.0, (5,)) >= 1).all())
        True
    """
    dtype = float_dtype("pareto", dtype)
    sizes = drawn_shape("pareto", shape, b)
    (b,) = parameters_in("pareto", dtype, b)
    out = lax.exp(jnp.divide(exponential(key, sizes, dtype), b))
    return in_sharding("pareto", out, out_sharding)


@composite
def lognormal(
    key: ArrayLike,
    sigma: ArrayLike = 1.0,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return log-normal random numbers ``exp(sigma * normal)``, also complex ones.

    Args:
        key: a key from ``random.key``, or a raw key.
        sigma: standard deviations of the logarithm.
        shape: shape of the result; None uses the shape of ``sigma``.
        dtype: a float or complex dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> bool((gf.random.lognormal(gf.random.key(0), 0.5, (5,)) > 0).all())
        True
    """
    dtype = user_dtype(float if dtype is None else dtype, "lognormal")
    check(
        dtypes.is_inexact(dtype),
        lambda: f"[lognormal] dtype must be a float dtype; got {dtype}. Fix: dtype=jnp.float32.",
        ValueError,
    )
    sizes = drawn_shape("lognormal", shape, sigma)
    (sigma,) = parameters_in("lognormal", dtype, sigma)
    out = lax.exp(jnp.multiply(normal(key, sizes, dtype), sigma))
    return in_sharding("lognormal", out, out_sharding)


@composite
def rayleigh(
    key: ArrayLike,
    scale: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Rayleigh random numbers, with density ``x exp(-x**2 / 2)`` at scale 1.

    Args:
        key: a key from ``random.key``, or a raw key.
        scale: array of positive numbers.
        shape: shape of the result; None uses the shape of ``scale``.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> bool((gf.random.rayleigh(gf.random.key(0), 2.0, (5,)) >= 0).all())
        True
    """
    dtype = float_dtype("rayleigh", dtype)
    sizes = drawn_shape("rayleigh", shape, scale)
    (scale,) = parameters_in("rayleigh", dtype, scale)
    twice = lax.mul(lax.log(uniform(key, sizes, dtype)), convert(-2, dtype))
    out = lax.mul(to_shape(scale, sizes), lax.sqrt(twice))
    return in_sharding("rayleigh", out, out_sharding)


@composite
def triangular(
    key: ArrayLike,
    left: ArrayLike,
    mode: ArrayLike,
    right: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return triangular random numbers on [left, right] with the mode ``mode``.

    Args:
        key: a key from ``random.key``, or a raw key.
        left: lower limits.
        mode: modes of the distributions.
        right: upper limits.
        shape: shape of the result; None uses the shape of the parameters.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> x = gf.random.triangular(gf.random.key(0), 1.0, 2.0, 4.0, (5,))
        >>> bool(((x >= 1) & (x <= 4)).all())
        True
    """
    dtype = float_dtype("triangular", dtype)
    sizes = drawn_shape("triangular", shape, left, mode, right)
    parameters = parameters_in("triangular", dtype, left, mode, right)
    left, mode, right = (jnp.broadcast_to(v, sizes) for v in parameters)
    u = uniform(key, sizes, dtype)
    width = right - left
    low = left + lax.sqrt(u * width * (mode - left))
    high = right - lax.sqrt((1 - u) * width * (right - mode))
    return in_sharding("triangular", jnp.where(u < (mode - left) / width, low, high), out_sharding)


@composite
def wald(
    key: ArrayLike,
    mean: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Wald (inverse Gaussian) random numbers with scale 1.

    Args:
        key: a key from ``random.key``, or a raw key.
        mean: array of positive numbers.
        shape: shape of the result; None uses the shape of ``mean``.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Source: J. Michael, W. Schucany, R. Haas, Generating random variates using transformations with
        multiple roots, 1976.

    Example:
        >>> bool((gf.random.wald(gf.random.key(0), 2.0, (5,)) > 0).all())
        True
    """
    dtype = float_dtype("wald", dtype)
    sizes = drawn_shape("wald", shape, mean)
    keys = random_ops.random_split(typed_key("wald", key)[0], (2,))
    mean = jnp.broadcast_to(parameters_in("wald", dtype, mean)[0], sizes)
    y = normal(keys[0], sizes, dtype) ** 2
    u = uniform(keys[1], sizes, dtype)
    # The roots are mean * factor and mean / factor; their difference from the mean would cancel.
    half = mean * y / 2
    factor = 1 + half + lax.sqrt(half) * lax.sqrt(2 + half)
    out = jnp.where(u <= 1 / (1 + 1 / factor), mean / factor, mean * factor)
    return in_sharding("wald", out, out_sharding)


@composite
def weibull_min(
    key: ArrayLike,
    scale: ArrayLike,
    concentration: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
) -> Array:
    """Return Weibull random numbers.

    As in JAX, numbers are drawn for ``shape`` alone: parameters with more elements share them. The
    result has the common dtype of the numbers and the parameters.

    Args:
        key: a key from ``random.key``, or a raw key.
        scale: array of positive numbers.
        concentration: array of positive numbers, the shape parameter.
        shape: shape of the samples.
        dtype: a float dtype; float32 by default.

    Returns:
        An array of the common shape of ``shape`` and the parameters.

    Raises:
        ValueError: if the dtype is not a float dtype.

    Example:
        >>> bool((gf.random.weibull_min(gf.random.key(0), 1.0, 2.0, (5,)) >= 0).all())
        True
    """
    dtype = float_dtype("weibull_min", dtype)
    scale, concentration = check_arraylike("weibull_min", scale, concentration)
    u = uniform(key, as_shape("weibull_min", shape), dtype)
    return jnp.power(-jnp.log1p(-u), jnp.divide(1.0, concentration)) * scale


@composite
def maxwell(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Maxwell random numbers with scale 1: lengths of normal 3-vectors.

    Args:
        key: a key from ``random.key``, or a raw key.
        shape: shape of the result; a scalar by default.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype.

    Example:
        >>> bool((gf.random.maxwell(gf.random.key(0), (5,)) > 0).all())
        True
    """
    dtype = float_dtype("maxwell", dtype)
    out = jnp.linalg.norm(normal(key, (*as_shape("maxwell", shape), 3), dtype), axis=-1)
    return in_sharding("maxwell", out, out_sharding)


@composite
def double_sided_maxwell(
    key: ArrayLike,
    loc: ArrayLike,
    scale: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
) -> Array:
    """Return ``loc + scale * s`` with ``s`` Maxwell-distributed and mirrored at 0.

    As in JAX, the shape of the result is ``shape`` followed by that of the parameters. Its dtype is
    the common dtype of the numbers and the parameters.

    Args:
        key: a key from ``random.key``, or a raw key.
        loc: array of floats, centers.
        scale: array of floats that broadcasts with ``loc``, scales.
        shape: leading dimensions of the result; () means only those of the parameters.
        dtype: a float dtype; float32 by default.

    Returns:
        An array of ``shape`` followed by the shape of the parameters.

    Raises:
        ValueError: if the dtype is not a float dtype.

    Example:
        >>> gf.random.double_sided_maxwell(gf.random.key(0), 0.0, 1.0, (4,)).shape
        (4,)
    """
    dtype = float_dtype("double_sided_maxwell", dtype)
    loc, scale = check_arraylike("double_sided_maxwell", loc, scale)
    parameter_shape = broadcast_shapes(aval_of(loc).shape, aval_of(scale).shape)
    sizes = (*(as_shape("double_sided_maxwell", shape) or parameter_shape), *parameter_shape)
    keys = random_ops.random_split(typed_key("double_sided_maxwell", key)[0], (2,))
    signs = rademacher(keys[1], sizes, dtype)
    sample = signs * maxwell(keys[0], sizes, dtype)
    return sample * scale + loc


@composite
def geometric(
    key: ArrayLike,
    p: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return geometric random integers: the number of trials until the first success, from 1.

    Args:
        key: a key from ``random.key``, or a raw key.
        p: array of floats, probabilities.
        shape: shape of the result; None uses the shape of ``p``.
        dtype: an integer dtype; int32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not an integer dtype, or ``p`` is complex or does not broadcast
            to ``shape``.

    Example:
        >>> bool((gf.random.geometric(gf.random.key(0), 0.3, (5,)) >= 1).all())
        True
    """
    dtype = user_dtype(int if dtype is None else dtype, "geometric")
    check(
        dtypes.is_integer(dtype),
        lambda: f"[geometric] dtype must be an integer dtype; got {dtype}. Fix: jnp.int32.",
        ValueError,
    )
    sizes = drawn_shape("geometric", shape, p)
    (p,) = promote_dtypes_inexact(p)
    check(
        dtypes.is_floating(aval_of(p).dtype),
        lambda: f"[geometric] p must be real; got {aval_of(p)}. Fix: p.real.",
        ValueError,
    )
    u = uniform_of(typed_key("geometric", key)[0], sizes, aval_of(p).dtype, 0.0, 1.0)
    u = jnp.where(u == 0, 1, u)
    count = lax.floor(jnp.divide(lax.log(u), jnp.log1p(-p))) + 1
    return in_sharding("geometric", convert(count, dtype), out_sharding)


@composite
def multivariate_normal(
    key: ArrayLike,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    method: str = "cholesky",
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return multivariate normal random vectors.

    Args:
        key: a key from ``random.key``, or a raw key.
        mean: float[..., n].
        cov: float[..., n, n], symmetric and positive semidefinite.
        shape: batch shape of the result; None uses the batch shape of the parameters.
        dtype: the float dtype of the normal numbers; None uses the common dtype of the parameters.
        method: factorization of ``cov``: ``"cholesky"``, ``"eigh"`` or ``"svd"``.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of shape ``shape + (n,)``.

    Raises:
        ValueError: if shapes do not match, or the method is unknown.

    Example:
        >>> x = gf.random.multivariate_normal(gf.random.key(0), jnp.zeros(2), jnp.eye(2), (5,))
        >>> x.shape
        (5, 2)
    """
    mean, cov = promote_dtypes_inexact(jnp.asarray(mean), jnp.asarray(cov))
    dtype = float_dtype("multivariate_normal", mean.dtype if dtype is None else dtype)
    check(
        method in ("cholesky", "eigh", "svd"),
        lambda: (
            "[multivariate_normal] method must be 'cholesky', 'eigh' or 'svd'; got "
            f"{method!r}. Fix: method='cholesky'."
        ),
        ValueError,
    )
    check(
        mean.ndim >= 1 and cov.ndim >= 2 and cov.shape[-2:] == (mean.shape[-1],) * 2,
        lambda: (
            "[multivariate_normal] mean must be [..., n] and cov [..., n, n]; got "
            f"{aval_of(mean)} and {aval_of(cov)}. Fix: jnp.atleast_1d, jnp.diag."
        ),
        ValueError,
    )
    batch = [mean.shape[:-1], cov.shape[:-2]]
    if shape is None:
        sizes = broadcast_shapes(*batch, name="multivariate_normal")
    else:
        sizes = as_shape("multivariate_normal", shape)
        check_parameters("multivariate_normal", sizes, *[np.zeros(b, np.bool_) for b in batch])
    if method == "svd":
        u, values, _ = jnp.linalg.svd(cov)
        factor = u * jnp.sqrt(values[..., None, :])
    elif method == "eigh":
        values, vectors = jnp.linalg.eigh(cov)
        factor = vectors * jnp.sqrt(values[..., None, :])
    else:
        factor = jnp.linalg.cholesky(cov)
    noise = normal(key, (*sizes, mean.shape[-1]), dtype)
    noise = jnp.einsum("...ij,...j->...i", factor, noise)
    out = to_rank(mean, aval_of(noise).ndim) + noise
    return in_sharding("multivariate_normal", out, out_sharding)


@composite
def orthogonal(
    key: ArrayLike,
    n: int,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    m: int | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return uniform random orthogonal matrices, or with ``m`` orthonormal columns.

    Args:
        key: a key from ``random.key``, or a raw key.
        n: number of rows, an int.
        shape: batch shape of the result.
        dtype: a float or complex dtype; float32 by default.
        m: number of columns; None uses ``n``.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of shape ``shape + (n, n)``, or ``shape + (n, m)``.

    Raises:
        TypeError: if ``n`` or ``m`` is not an int.
        ValueError: if the dtype is neither float nor complex.

    Source: F. Mezzadri, How to generate random matrices from the classical compact groups, 2007.

    Example:
        >>> q = gf.random.orthogonal(gf.random.key(0), 3)
        >>> bool(jnp.allclose(q @ q.T, jnp.eye(3), atol=1e-5))
        True
    """
    rows = as_integer("orthogonal", "n", n)
    columns = rows if m is None else as_integer("orthogonal", "m", m)
    dtype = float if dtype is None else dtype
    sizes = as_shape("orthogonal", shape)
    z = normal(key, (*sizes, max(rows, columns), min(rows, columns)), dtype)
    q, r = jnp.linalg.qr(z)
    signs = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
    x = q * jnp.expand_dims(signs, -2)
    return in_sharding("orthogonal", jnp.matrix_transpose(x) if rows < columns else x, out_sharding)
