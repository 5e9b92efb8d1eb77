"""The gamma distribution and samplers based on it.

Tests: tests/random/test_random_distributions.py.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.programs import jit
from gpuflow.api.vmap import vmap
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, ShardingLike
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.random import generators as random_ops
from gpuflow.ops.random.keys import random_clone
from gpuflow.random.base import (
    Shape,
    check_parameters,
    exponential,
    float_dtype,
    normal,
    normal_of,
    parameters_in,
    rademacher,
    uniform_of,
)
from gpuflow.random.continuous import drawn_shape
from gpuflow.random.keys import key_impl, typed_key

if TYPE_CHECKING:
    from gpuflow import nn
else:
    nn = LazyModule("gpuflow.nn")


def _one(key: Any, alpha: Any, in_logarithms: bool) -> Any:
    """One gamma sample, by squeezed rejection.

    Source: G. Marsaglia, W. Tsang, A simple method for generating gamma variables, 2000. Below 1
    the shape is raised by 1 and the result multiplied by ``u ** (1 / alpha)``.
    """
    dtype = aval_of(alpha).dtype
    zero, one = (np.asarray(v, dtype)[()] for v in (0, 1))
    is_raised = lax.lt(alpha, one)
    raised = jnp.where(is_raised, alpha + 1, alpha)
    d = raised - np.asarray(1 / 3, dtype)
    c = np.asarray(1 / 3, dtype) / lax.sqrt(d)

    def is_rejected(state: Any) -> Any:
        _, square, cube, u = state
        may_reject = u >= 1 - np.asarray(0.0331, dtype) * square * square
        return may_reject & (lax.log(u) >= square * 0.5 + d * (1 - cube + lax.log(cube)))

    def draw_positive(state: Any) -> Any:
        keys = random_ops.random_split(state[0], (2,))
        x = normal_of(keys[1], (), dtype)
        return keys[0], x, 1 + x * c

    def draw(state: Any) -> Any:
        keys = random_ops.random_split(state[0], (3,))
        _, x, v = lax.while_loop(
            lambda candidate: candidate[2] <= 0,
            draw_positive,
            (keys[1], zero, np.asarray(-1, dtype)[()]),
        )
        return keys[0], x * x, v * v * v, uniform_of(keys[2], (), dtype, zero, one)

    keys = random_ops.random_split(key, (2,))
    start = keys[0], zero, one, np.asarray(2, dtype)[()]
    cube = lax.while_loop(is_rejected, draw, start)[2]
    uniform = 1 - uniform_of(keys[1], (), dtype, zero, one)
    if not in_logarithms:
        return d * cube * jnp.where(is_raised, lax.pow(uniform, 1 / alpha), one)
    logarithm = lax.neg(exponential(random_clone(keys[1]), (), dtype))  # the same sample
    keeps = ~is_raised | (logarithm == 0)
    return lax.log(d) + lax.log(cube) + jnp.where(keeps, zero, logarithm * (1 / alpha))


@partial(custom_jvp, nondiff_argnums=(2,))
def _gamma(key: Any, alpha: Any, in_logarithms: bool) -> Any:
    """One sample for each element of ``alpha``, each from a separate key."""
    shape = aval_of(alpha).shape
    keys = random_ops.random_split(key, (math.prod(shape),))
    pairs = keys, jnp.reshape(alpha, -1)
    # Generators that draw a batch from its first key would give correlated samples.
    if key_impl(key) == "threefry2x32":
        draws = vmap(lambda key, a: _one(key, a, in_logarithms))(*pairs)
    else:
        draws = lax.map(lambda pair: _one(*pair, in_logarithms), pairs)
    return jnp.reshape(draws, shape)


@_gamma.defjvp
def _gamma_jvp(in_logarithms: bool, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The derivative at a fixed value of the distribution function.

    Source: M. Figurnov, S. Mohamed, A. Mnih, Implicit reparameterization gradients, 2018.
    """
    key, alpha = primals
    sample = _gamma(key, alpha, in_logarithms)
    if not in_logarithms:
        return sample, tangents[1] * lax.random_gamma_grad(alpha, sample)
    value = lax.exp(sample)
    tiny = np.asarray(ml_dtypes.finfo(aval_of(sample).dtype).tiny, aval_of(sample).dtype)[()]
    value = jnp.where(value == 0, tiny, value)
    return sample, tangents[1] * lax.random_gamma_grad(alpha, value) / value


@partial(jit, static_argnums=(2,))
def _compiled_gamma(key: Any, alpha: Any, in_logarithms: bool) -> Any:
    return _gamma(key, alpha, in_logarithms)


def _draw(name: str, key: Any, a: Any, shape: Any, dtype: Any, in_logarithms: bool) -> Any:
    typed, _ = typed_key(name, key)
    dtype = float_dtype(name, dtype)
    sizes = drawn_shape(name, shape, a)
    if math.prod(sizes) == 0:
        return jnp.zeros(sizes, dtype)
    alpha = jnp.broadcast_to(convert(jnp.asarray(a), dtype), sizes)
    return _compiled_gamma(typed, alpha, in_logarithms)


@composite
def gamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return gamma random numbers with scale 1; differentiable in ``a``.

    Args:
        key: a key.
        a: array of positive numbers, the shape parameter.
        shape: shape of the result; None uses the shape of ``a``.
        dtype: a float dtype.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or ``a`` does not broadcast to ``shape``.

    Example:
        >>> bool((gf.random.gamma(gf.random.key(0), 2.0, (5,)) > 0).all())
        True
    """
    return in_sharding("gamma", _draw("gamma", key, a, shape, dtype, False), out_sharding)


@composite
def loggamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return logarithms of gamma random numbers, accurate for small ``a``.

    Args:
        key: a key from ``random.key``, or a raw key.
        a: array of positive numbers, the shape parameter.
        shape: shape of the result; None uses the shape of ``a``.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> bool(jnp.isfinite(gf.random.loggamma(gf.random.key(0), 1e-3, (5,))).all())
        True
    """
    return in_sharding("loggamma", _draw("loggamma", key, a, shape, dtype, True), out_sharding)


def _two_keys(name: str, key: Any) -> Any:
    return random_ops.random_split(typed_key(name, key)[0], (2,))


@composite
def beta(
    key: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return beta random numbers, in [0, 1].

    Args:
        key: a key from ``random.key``, or a raw key.
        a: array of positive numbers.
        b: array of positive numbers.
        shape: shape of the result; None uses the shape of the parameters.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> x = gf.random.beta(gf.random.key(0), 2.0, 3.0, (5,))
        >>> bool(((x >= 0) & (x <= 1)).all())
        True
    """
    dtype = float_dtype("beta", dtype)
    sizes = drawn_shape("beta", shape, a, b)
    a, b = parameters_in("beta", dtype, a, b)
    keys = _two_keys("beta", key)
    first, second = loggamma(keys[0], a, sizes, dtype), loggamma(keys[1], b, sizes, dtype)
    largest = lax.max(first, second)
    x, y = lax.exp(first - largest), lax.exp(second - largest)
    return in_sharding("beta", x / (x + y), out_sharding)


@composite
def dirichlet(
    key: ArrayLike,
    alpha: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Dirichlet random probabilities.

    Args:
        key: a key.
        alpha: float[..., n], positive.
        shape: batch shape of the result; None uses the batch shape of ``alpha``.
        dtype: a float dtype.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of shape ``shape + (n,)`` that sums to 1 along its last axis.

    Raises:
        ValueError: if ``alpha`` is a scalar, or does not broadcast to ``shape``.

    Example:
        >>> x = gf.random.dirichlet(gf.random.key(0), jnp.ones(3), (2,))
        >>> x.shape, bool(jnp.allclose(x.sum(-1), 1))
        ((2, 3), True)
    """
    dtype = float_dtype("dirichlet", dtype)
    alpha = jnp.asarray(alpha)
    check(
        alpha.ndim >= 1,
        lambda: (
            f"[dirichlet] alpha must have an axis; got {aval_of(alpha)}. "
            "Fix: one number for each probability."
        ),
        ValueError,
    )
    batch = alpha.shape[:-1] if shape is None else as_shape("dirichlet", shape)
    check_parameters("dirichlet", batch, np.zeros(alpha.shape[:-1], np.bool_))
    out = nn.softmax(loggamma(key, alpha, (*batch, alpha.shape[-1]), dtype), -1)
    return in_sharding("dirichlet", out, out_sharding)


@composite
def chisquare(
    key: ArrayLike,
    df: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return chi-square random numbers.

    Args:
        key: a key from ``random.key``, or a raw key.
        df: array of positive numbers, the degrees of freedom.
        shape: shape of the result; None uses the shape of ``df``.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> bool((gf.random.chisquare(gf.random.key(0), 3.0, (5,)) > 0).all())
        True
    """
    dtype = float_dtype("chisquare", dtype)
    half = parameters_in("chisquare", dtype, jnp.asarray(df))[0] / 2
    return in_sharding("chisquare", lax.exp(loggamma(key, half, shape, dtype)) * 2, out_sharding)


@composite
def f(
    key: ArrayLike,
    dfnum: ArrayLike,
    dfden: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return F random numbers.

    Args:
        key: a key from ``random.key``, or a raw key.
        dfnum: array of positive numbers, the degrees of freedom of the numerator.
        dfden: array of positive numbers, the degrees of freedom of the denominator.
        shape: shape of the result; None uses the shape of the parameters.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> bool((gf.random.f(gf.random.key(0), 3.0, 4.0, (5,)) > 0).all())
        True
    """
    dtype = float_dtype("f", dtype)
    sizes = drawn_shape("f", shape, dfnum, dfden)
    keys = _two_keys("f", key)
    dfnum, dfden = parameters_in("f", dtype, jnp.asarray(dfnum), jnp.asarray(dfden))
    above = chisquare(keys[1], dfnum, sizes, dtype) / dfnum
    below = chisquare(keys[0], dfden, sizes, dtype) / dfden
    return in_sharding("f", above / below, out_sharding)


@composite
def t(
    key: ArrayLike,
    df: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Student's t random numbers.

    Args:
        key: a key from ``random.key``, or a raw key.
        df: array of positive numbers, the degrees of freedom.
        shape: shape of the result; None uses the shape of ``df``.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> gf.random.t(gf.random.key(0), jnp.array([3.0, 5.0])).shape
        (2,)
    """
    dtype = float_dtype("t", dtype)
    sizes = drawn_shape("t", shape, df)
    keys = _two_keys("t", key)
    half = parameters_in("t", dtype, jnp.asarray(df))[0] / 2
    noise = normal(keys[0], sizes, dtype)
    out = noise * jnp.sqrt(half / gamma(keys[1], half, sizes, dtype))
    return in_sharding("t", out, out_sharding)


@composite
def generalized_normal(
    key: ArrayLike,
    p: Any,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return random numbers with density proportional to ``exp(-abs(x) ** p)``.

    Args:
        key: a key from ``random.key``, or a raw key.
        p: a positive scalar; 2 gives a normal, 1 a Laplace distribution.
        shape: shape of the result; a scalar by default.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype.

    Example:
        >>> gf.random.generalized_normal(gf.random.key(0), 4.0, (2, 3)).shape
        (2, 3)
    """
    dtype = float_dtype("generalized_normal", dtype)
    sizes = as_shape("generalized_normal", shape)
    keys = _two_keys("generalized_normal", key)
    power = 1 / parameters_in("generalized_normal", dtype, jnp.asarray(p))[0]
    # The logarithm does not underflow where p is large.
    size = lax.exp(power * loggamma(keys[0], power, sizes, dtype))
    out = rademacher(keys[1], sizes, dtype) * size
    return in_sharding("generalized_normal", out, out_sharding)


@composite
def ball(
    key: ArrayLike,
    d: int,
    p: Any = 2,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return uniform random points in the unit ball of the p-norm.

    Args:
        key: a key from ``random.key``, or a raw key.
        d: number of dimensions.
        p: order of the norm, a positive number.
        shape: batch shape of the result.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        float[shape..., d].

    Raises:
        ValueError: if the dtype is not a float dtype.

    Source: F. Barthe, O. Guedon, S. Mendelson, A. Naor, A probabilistic approach to the geometry of
        the l_p^n-ball, 2005.

    Example:
        >>> x = gf.random.ball(gf.random.key(0), 3, shape=(5,))
        >>> x.shape, bool((jnp.linalg.norm(x, axis=-1) <= 1).all())
        ((5, 3), True)
    """
    dtype = float_dtype("ball", dtype)
    sizes = as_shape("ball", shape)
    keys = _two_keys("ball", key)
    g = generalized_normal(keys[0], p, (*sizes, d), dtype)
    total = jnp.sum(jnp.abs(g) ** p, -1) + exponential(keys[1], sizes, dtype)
    return in_sharding("ball", g / (total ** (1 / p))[..., None], out_sharding)
