"""The Poisson, binomial and multinomial distributions.

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
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, ShardingLike
from gpuflow.numpy.promotion import broadcast_shapes, convert, promote_dtypes_inexact, user_dtype
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.random import generators as random_ops
from gpuflow.ops.random.keys import random_clone
from gpuflow.random.base import Shape, float_dtype, uniform_of
from gpuflow.random.continuous import drawn_shape
from gpuflow.random.keys import key_impl, typed_key

if TYPE_CHECKING:
    from gpuflow.scipy.stats import common as probabilities
else:
    probabilities = LazyModule("gpuflow.scipy.stats.common")

# Below this mean, waiting times are added up; above it, rejection takes less draws.
SMALL_MEAN = 10


# --- Poisson -------------------------------------------------------------------------------


def _by_waiting(key: Any, mean: Any, dtype: Any, most: Any) -> Any:
    """Poisson by inversion: the number of waiting times within ``mean``.

    Source: D. Knuth, The Art of Computer Programming, volume 2, section 3.4.1.
    """
    shape = aval_of(mean).shape

    def goes_on(state: Any) -> Any:
        count, _, _, waited = state
        return jnp.any(waited > -mean) & (count < most)

    def wait(state: Any) -> Any:
        count, arrivals, key, waited = state
        keys = random_ops.random_split(key, (2,))
        arrivals = jnp.where(waited > -mean, arrivals + 1, arrivals)
        u = uniform_of(keys[1], shape, np.dtype(np.float32), 0.0, 1.0)
        return count + 1, arrivals, keys[0], waited + jnp.log(u)

    start = np.zeros((), dtype), jnp.zeros(shape, dtype), key, jnp.zeros(shape, np.float32)
    return lax.while_loop(goes_on, wait, start)[1] - 1


def _by_rejection(key: Any, mean: Any, dtype: Any, most: Any) -> Any:
    """Transformed rejection with squeeze, for large means.

    Source: W. Hormann, The transformed rejection method for generating Poisson random variables,
    1993: algorithm PTRS.
    """
    shape, mean_dtype = aval_of(mean).shape, aval_of(mean).dtype
    b = 0.931 + 2.53 * lax.sqrt(mean)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    quick = 0.9277 - 3.6224 / (b - 2)

    def goes_on(state: Any) -> Any:
        count, _, accepted, _ = state
        return jnp.any(~accepted) & (count < most)

    def draw(state: Any) -> Any:
        count, samples, accepted, key = state
        keys = random_ops.random_split(key, (3,))
        u = uniform_of(keys[1], shape, mean_dtype, 0.0, 1.0) - 0.5
        v = uniform_of(keys[2], shape, mean_dtype, 0.0, 1.0)
        room = 0.5 - jnp.abs(u)
        k = lax.floor((2 * a / room + b) * u + mean + 0.43)
        height = lax.log(v * inverse / (a / (room * room) + b))
        # Its terms are much larger than their sum, and would cancel to no digits in float32.
        bound = probabilities.log_poisson(jnp.maximum(k, 0), mean)
        quick_accept = (room >= 0.07) & (v <= quick)
        quick_reject = (k < 0) | ((room < 0.013) & (v > room))
        taken = quick_accept | (~quick_reject & (height <= bound))
        return count + 1, jnp.where(taken, k, samples), accepted | taken, keys[0]

    start = (np.zeros((), dtype), jnp.full(shape, -1, mean_dtype), jnp.zeros(shape, bool), key)
    return lax.while_loop(goes_on, draw, start)[1].astype(dtype)


@partial(jit, static_argnums=(2,))
def _poisson(key: Any, mean: Any, dtype: Any) -> Any:
    waits = jnp.isnan(mean) | (mean < SMALL_MEAN)
    most = np.asarray(ml_dtypes.iinfo(dtype).max, dtype)[()]
    # Each element takes one of the two samples of a key.
    small = _by_waiting(random_clone(key), jnp.where(waits, mean, 0.0), dtype, most)
    large = _by_rejection(key, jnp.where(waits, 1e5, mean), dtype, most)
    return jnp.where(mean == 0, np.zeros((), dtype), jnp.where(waits, small, large))


@composite
def poisson(
    key: ArrayLike,
    lam: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return Poisson random integers with mean ``lam``.

    Args:
        key: a threefry2x32 key.
        lam: array of nonnegative numbers, the rates.
        shape: shape of the result; None uses the shape of ``lam``.
        dtype: an integer dtype; int32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        NotImplementedError: if the key belongs to another generator.
        ValueError: if the dtype is not an integer dtype, or ``lam`` does not broadcast to
            ``shape``.

    Example:
        >>> x = gf.random.poisson(gf.random.key(0), 3.0, (1000,))
        >>> round(float(x.mean()))
        3
    """
    if out_sharding is not None:
        out = poisson(key, lam, shape, dtype)
        return in_sharding("poisson", out, out_sharding)
    typed, _ = typed_key("poisson", key)
    if key_impl(typed) != "threefry2x32":
        raise NotImplementedError(
            f"[poisson] the key must be one of threefry2x32; got {aval_of(typed)}. "
            "Fix: random.key(seed, impl='threefry2x32')."
        )
    dtype = user_dtype(int if dtype is None else dtype, "poisson")
    check(
        dtypes.is_integer(dtype),
        lambda: f"[poisson] dtype must be an integer dtype; got {dtype}. Fix: dtype=jnp.int32.",
        ValueError,
    )
    sizes = drawn_shape("poisson", shape, lam)
    if math.prod(sizes) == 0:
        return jnp.zeros(sizes, dtype)
    mean = jnp.broadcast_to(convert(jnp.asarray(lam), np.float32), sizes)
    return _poisson(typed, mean, dtype)


# --- binomial ------------------------------------------------------------------------------


def _by_gaps(key: Any, count: Any, p: Any, most: Any) -> Any:
    """Binomial by gaps: the number of gaps between successes within ``count`` trials.

    Source: L. Devroye, Non-Uniform Random Variate Generation, 1986, section X.4.
    """
    shape, dtype = aval_of(p).shape, aval_of(p).dtype
    scale = jnp.log1p(-p)

    def goes_on(state: Any) -> Any:
        step, _, total, _ = state
        return jnp.any(total <= count) & (step < most)

    def wait(state: Any) -> Any:
        step, successes, total, key = state
        keys = random_ops.random_split(key, (2,))
        successes = jnp.where(total <= count, successes + 1, successes)
        u = uniform_of(keys[0], shape, dtype, 0.0, 1.0)
        return step + 1, successes, total + jnp.ceil(jnp.log(u) / scale), keys[1]

    zeros = jnp.zeros(shape, dtype)
    return lax.while_loop(goes_on, wait, (np.zeros((), np.int32), zeros, zeros, key))[1] - 1


def _by_transformed_rejection(key: Any, count: Any, p: Any, unused: Any, most: Any) -> Any:
    """Transformed rejection with squeeze, for ``count * p`` of at least 10 and ``p <= 0.5``.

    Elements marked ``unused`` do not delay the loop.

    Source: W. Hormann, The generation of binomial random variates, 1993: algorithm BTRS.
    """
    shape, dtype = aval_of(p).shape, aval_of(p).dtype
    deviation = jnp.sqrt(count * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    center = count * p + 0.5
    quick = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * deviation
    mode = jnp.floor((count + 1) * p)
    at_mode = probabilities.log_binomial(mode, count - mode, p, 1 - p)

    def goes_on(state: Any) -> Any:
        step, _, accepted, _ = state
        return jnp.any(~accepted) & (step < most)

    def draw(state: Any) -> Any:
        step, samples, accepted, key = state
        keys = random_ops.random_split(key, (3,))
        u = uniform_of(keys[1], shape, dtype, 0.0, 1.0) - 0.5
        v = uniform_of(keys[2], shape, dtype, 0.0, 1.0)
        room = 0.5 - jnp.abs(u)
        quick_accept = (room >= 0.07) & (v <= quick)
        k = jnp.floor((2 * a / room + b) * u + center)
        quick_reject = (k < 0) | (k > count)
        height = jnp.log(v * alpha / (a / (room * room) + b))
        nearest = jnp.clip(k, 0, count)
        bound = probabilities.log_binomial(nearest, count - nearest, p, 1 - p) - at_mode
        taken = quick_accept | (~quick_reject & (height <= bound))
        return step + 1, jnp.where(taken, k, samples), accepted | taken, keys[0]

    start = (np.zeros((), np.int32), jnp.full(shape, -1, dtype), unused, key)
    return lax.while_loop(goes_on, draw, start)[1]


@partial(jit, static_argnums=(3,))
def _binomial(key: Any, count: Any, p: Any, dtype: Any) -> Any:
    is_small = p < 0.5
    q = jnp.where(is_small, p, 1.0 - p)
    bad_count = jnp.isnan(count) | (count < 0)
    bad_p = jnp.isnan(q) | (q < 0)
    q = jnp.where(bad_p, 0.01, q)
    waits = bad_count | (count * q <= 10.0)
    count = jnp.floor(count)
    most = np.int32(np.iinfo(np.int32).max)
    endless = jnp.isinf(count)
    # Each element takes one of the two samples of a key, or none. As in JAX, those that no element
    # takes decide how often the others are redrawn; if no element takes any, none are drawn.
    unused = endless | jnp.all(waits | endless)
    small = _by_gaps(random_clone(key), jnp.where(waits, count, 0.0), q, most)
    large = _by_transformed_rejection(
        key, jnp.where(waits, 1e4, count), jnp.where(waits, 0.5, q), unused, most
    )
    drawn = jnp.where(waits, small, large).astype(dtype)
    invalid = bad_count | bad_p
    drawn = jnp.where(invalid, np.asarray(np.nan, dtype), drawn)
    drawn = jnp.where(endless & ~invalid, np.asarray(np.inf, dtype), drawn)
    keeps = is_small | bad_count | jnp.isnan(p) | endless
    return jnp.where(keeps, drawn, count.astype(dtype) - drawn)


@composite
def binomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Return binomial random counts: successes of ``n`` trials of probability ``p``, as floats.

    Args:
        key: a key.
        n: array, numbers of trials; negative ones give nan.
        p: array of probabilities; values outside of [0, 1] give nan.
        shape: shape of the result; None uses the shape of the parameters.
        dtype: a float dtype.

    Returns:
        An array of ``shape`` and ``dtype``, of integers.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> x = gf.random.binomial(gf.random.key(0), 10, 0.5, (5,))
        >>> bool(((x >= 0) & (x <= 10)).all())
        True
    """
    typed, _ = typed_key("binomial", key)
    dtype = float_dtype("binomial", dtype)
    sizes = drawn_shape("binomial", shape, n, p)
    if math.prod(sizes) == 0:
        return jnp.zeros(sizes, dtype)
    (p,) = promote_dtypes_inexact(p)
    p_dtype = aval_of(p).dtype
    count = jnp.broadcast_to(convert(jnp.asarray(n), p_dtype), sizes)
    return _binomial(typed, count, jnp.broadcast_to(convert(p, p_dtype), sizes), dtype)


@composite
def multinomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    *,
    shape: Shape | None = None,
    dtype: DTypeLike | None = None,
    unroll: int | bool = 1,
) -> Array:
    """Return multinomial random counts: the outcomes of ``n`` trials, as floats.

    Args:
        key: a key.
        n: array, numbers of trials.
        p: the probability of each outcome, float[..., k].
        shape: shape of the result, which ends in k; None uses the shape of ``p``.
        dtype: dtype of the counts; a float dtype by default. They are drawn as floats.
        unroll: accepted as in JAX.

    Returns:
        Counts that sum to ``n`` along the last axis.

    Raises:
        ValueError: if ``p`` does not broadcast to ``shape``.

    Example:
        >>> x = gf.random.multinomial(gf.random.key(0), 10, jnp.array([0.2, 0.3, 0.5]))
        >>> x.shape, float(x.sum())
        ((3,), 10.0)
    """
    dtype = user_dtype(float if dtype is None else dtype, "multinomial")
    n, p = promote_dtypes_inexact(n, p)
    sizes = aval_of(p).shape if shape is None else as_shape("multinomial", shape)
    broadcast_shapes(sizes, aval_of(p).shape, name="multinomial")
    rows = jnp.moveaxis(jnp.broadcast_to(p, sizes), -1, 0)
    left = lax.cumsum(rows, 0, reverse=True)
    ratios = rows / jnp.where(left == 0, 1, left)
    keys = random_ops.random_split(typed_key("multinomial", key)[0], (rows.shape[0],))

    def step(remainder: Any, item: Any) -> tuple[Any, Any]:
        ratio, subkey = item
        count = binomial(subkey, remainder, jnp.clip(ratio, 0, 1), dtype=remainder.dtype)
        return remainder - count, count

    start = jnp.broadcast_to(n, sizes[:-1])
    counts = lax.scan(step, start, (ratios, keys), unroll=unroll)[1]
    return convert(jnp.moveaxis(counts, 0, -1), dtype)
