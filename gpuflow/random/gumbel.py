"""Gumbel samples, and categorical samples by the Gumbel-max trick.

Tests: tests/lax/test_lax_definitions.py, tests/random/test_key_reuse.py.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, ShardingLike
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.select import where as select_where
from gpuflow.ops.random import generators as random_ops
from gpuflow.random.base import (
    Shape,
    check_mode,
    check_parameters,
    drawn,
    float_dtype,
    resolution,
    uniform_of,
)


@composite
def gumbel(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    mode: str | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return standard Gumbel random numbers.

    Args:
        key: a key.
        shape: shape of the result.
        dtype: a float dtype.
        mode: ``"high"`` uses twice as many bits, for large numbers, which are rare. ``"highest"``
            makes full use of them in float32, and is like ``"high"`` in other dtypes. None means
            ``"low"``, or ``"high"`` with the setting ``high_dynamic_range_gumbel``.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the mode is unknown, or the dtype is not a float dtype.

    Example:
        >>> gf.random.gumbel(gf.random.key(0), (2, 3)).shape
        (2, 3)
    """
    if mode is None:
        mode = "high" if config.trace_context().high_dynamic_range_gumbel else "low"
    check_mode("gumbel", mode, ("low", "high", "highest"))
    is_finest = mode == "highest" and float_dtype("gumbel", dtype) == dtypes.float32
    draw = _finest_gumbel if is_finest else _gumbel if mode == "low" else _fine_gumbel
    return in_sharding("gumbel", drawn("gumbel", draw, key, shape, dtype), out_sharding)


@composite
def _gumbel(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    u = uniform_of(typed, shape, dtype, ml_dtypes.finfo(dtype).tiny, 1.0)
    return lax.neg(lax.log(lax.neg(lax.log(u))))


@composite
def _fine_gumbel(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Gumbel sample of a small uniform number refined by the bits of a second one."""
    both = uniform_of(typed, (2, *shape), dtype, 0.0, 1.0)
    high, low = both[0], both[1]
    tiny = np.asarray(ml_dtypes.finfo(dtype).tiny, dtype)[()]
    finer = lax.add(lax.add(high, lax.mul(resolution(dtype), low)), tiny)
    u = jnp.where(high >= convert(0.5, dtype), high, finer)
    return lax.neg(lax.log(lax.neg(lax.log1p(lax.neg(u)))))


@composite
def _finest_gumbel(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Gumbel sample of 64 random bits as a uniform u; the smaller of u and 1 - u is exact."""
    halves = random_ops.random_bits(typed, 32, (2, *shape))
    high, low = halves[0], halves[1]
    # 1 - u is the two's complement, whose carry reaches the upper half if the lower is 0.
    one, zero = np.uint32(1), np.uint32(0)
    carry = select_where(lax.eq(low, zero), one, zero)
    is_small = lax.lt(high, np.uint32(2**31))
    high = select_where(is_small, high, lax.add(lax.bitwise_not(high), carry))
    low = select_where(is_small, low, lax.add(lax.bitwise_not(low), one))
    x = _float_of_fraction(high, low)
    logarithm = select_where(is_small, lax.log1p(lax.neg(x)), lax.log(x))
    return lax.neg(lax.log(lax.neg(logarithm)))


def _float_of_fraction(high: Any, low: Any) -> Any:
    """The float32 of a 64-bit fraction in (0, 1), truncated to 24 significant bits."""
    empty = lax.clz(high)
    has_none = lax.eq(empty, np.uint32(32))
    beyond = lax.clz(low)
    low_bits = lax.shift_right_logical(low, lax.sub(np.uint32(32), empty))
    low_bits = select_where(has_none, lax.shift_left(low, beyond), low_bits)
    digits = lax.bitwise_or(lax.shift_left(high, empty), low_bits)
    mantissa = lax.bitwise_and(lax.shift_right_logical(digits, np.uint32(8)), np.uint32(2**23 - 1))
    leading = select_where(has_none, lax.add(np.uint32(32), beyond), empty)
    exponent = lax.shift_left(lax.sub(np.uint32(126), leading), np.uint32(23))
    return lax.bitcast_convert_type(lax.bitwise_or(exponent, mantissa), np.float32)


@composite
def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return random categories along ``axis``, with probabilities ``softmax(logits)``.

    Args:
        key: a key.
        logits: float array, unnormalized log probabilities.
        axis: the axis of the categories.
        shape: shape of the result; its last dimensions must be those of ``logits`` without
            ``axis``.
        replace: whether to draw with replacement; without it, the draws are the leading dimensions.
        mode: as in ``gumbel``.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        int32 array of ``shape``; by default the shape of ``logits`` without ``axis``.

    Raises:
        ValueError: if the shape does not match, or there are more draws without replacement than
            categories.

    Source: the Gumbel-max trick, ``argmax(logits + gumbel)``; without replacement, its top k.

    Example:
        >>> logits = jnp.log(jnp.array([0.5, 0.0, 0.5]))
        >>> x = gf.random.categorical(gf.random.key(0), logits, shape=(100,))
        >>> bool((x == 1).any()), bool((x == 2).any())
        (False, True)
    """
    if out_sharding is not None:
        out = categorical(key, logits, axis, shape, replace, mode)
        return in_sharding("categorical", out, out_sharding)
    logits = jnp.asarray(logits)
    logits_shape = aval_of(logits).shape
    dim = axis - len(logits_shape) if axis >= 0 else axis
    batch = tuple(size for d, size in enumerate(logits_shape) if d != dim + len(logits_shape))
    sizes = batch if shape is None else as_shape("categorical", shape)
    check_parameters("categorical", sizes, np.zeros(batch, np.bool_))
    prefix = sizes[: len(sizes) - len(batch)]
    if not replace:
        return _without_replacement(key, logits, dim, prefix, sizes, mode)
    full = list(sizes[len(prefix) :])
    full.insert(dim + len(logits_shape), logits_shape[dim])
    noise = gumbel(key, (*prefix, *full), aval_of(logits).dtype, mode)
    return jnp.argmax(jnp.add(noise, jnp.expand_dims(logits, tuple(range(len(prefix))))), dim)


def _without_replacement(
    key: Any, logits: Any, dim: int, prefix: tuple[int, ...], sizes: tuple[int, ...], mode: Any
) -> Any:
    count, categories = math.prod(prefix), aval_of(logits).shape[dim]
    check(
        count <= categories,
        lambda: (
            "[categorical] without replacement there must be a category for each draw; got "
            f"{count} draws and {categories} categories. Fix: replace=True, or a smaller shape."
        ),
        ValueError,
    )
    noise = gumbel(key, aval_of(logits).shape, aval_of(logits).dtype, mode)
    selected = lax.top_k(jnp.moveaxis(jnp.add(logits, noise), dim, -1), count)[1]
    return jnp.reshape(jnp.moveaxis(selected, -1, 0), sizes)
