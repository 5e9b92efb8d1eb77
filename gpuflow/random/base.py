"""The basic samplers: bits, uniform and normal numbers, and simple functions of them.

Tests: tests/test_random.py, tests/random/test_random_distributions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import TypePromotionError, check
from gpuflow.control.composite import composite
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.types import Array, ArrayLike, DTypeLike, ShardingLike
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_rank_promotion,
    common_type,
    convert,
    user_dtype,
)
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.select import where as select_where
from gpuflow.ops.random import generators as random_ops
from gpuflow.random.keys import typed_key

Shape = int | Sequence[int]

# --- bits and uniform numbers --------------------------------------------------------------


def float_dtype(name: str, dtype: Any) -> Any:
    dtype = user_dtype(float if dtype is None else dtype, name)
    check(
        dtypes.is_floating(dtype),
        lambda: f"[{name}] dtype must be a float dtype; got {dtype}. Fix: dtype=jnp.float32.",
        ValueError,
    )
    return dtype


def parameters_in(name: str, dtype: Any, *values: Any) -> list[Any]:
    """Parameters of a distribution in the dtype of its samples.

    Raises:
        TypePromotionError: if one promotes to a wider dtype, or, under strict promotion, to
            another dtype.
    """
    for value in values:
        promoted, _ = common_type([aval_of(value), ShapedArray((), dtype)])
        check(
            promoted == dtype,
            lambda value=value: (
                f"[{name}] parameters must fit the dtype of the samples, {dtype}; got "
                f"{aval_of(value)}. Fix: x.astype({dtype.name!r}), or a wider dtype."
            ),
            TypePromotionError,
        )
    return [convert(value, dtype) for value in values]


def bits(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return uniform random bits as unsigned integers.

    Args:
        key: a key from ``random.key``, or a raw key.
        shape: shape of the result; a scalar by default.
        dtype: an unsigned integer dtype; by default as wide as the default integer dtype: uint32.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not an unsigned integer dtype.

    Example:
        >>> gf.random.bits(gf.random.key(0), (3,), jnp.uint8)
        Array([167, 146,  40], dtype=uint8)
    """
    typed, _ = typed_key("bits", key)
    out_dtype = dtypes.canonicalize(np.uint64) if dtype is None else user_dtype(dtype, "bits")
    check(
        out_dtype.kind == "u",
        lambda: f"[bits] dtype must be an unsigned integer; got {out_dtype}. Fix: jnp.uint32.",
        ValueError,
    )
    out = random_ops.random_bits(typed, 8 * out_dtype.itemsize, as_shape("bits", shape))
    return in_sharding("bits", out, out_sharding)


@composite
def uniform(
    key: ArrayLike, shape: Shape = (), dtype: DTypeLike | None = None, minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0, *, out_sharding: ShardingLike = None,
) -> Array:  # fmt: skip
    """Return uniform random floats in [minval, maxval).

    Args:
        key: a key from ``random.key``, or a raw key.
        shape: shape of the result; a scalar by default.
        dtype: a float dtype; float32 by default.
        minval: lower bound (included), a scalar or an array that broadcasts to ``shape``.
        maxval: upper bound (excluded), in the same form.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or bounds do not broadcast to ``shape``.

    Example:
        >>> x = gf.random.uniform(gf.random.key(0), (3,), minval=2, maxval=5)
        >>> x.shape, bool(((x >= 2) & (x < 5)).all())
        ((3,), True)
    """
    typed, _ = typed_key("uniform", key)
    dtype, sizes = float_dtype("uniform", dtype), as_shape("uniform", shape)
    return in_sharding("uniform", uniform_of(typed, sizes, dtype, minval, maxval), out_sharding)


@composite
def uniform_of(typed: Any, shape: tuple[int, ...], dtype: Any, minval: Any, maxval: Any) -> Any:
    """``uniform`` for a typed key."""
    low, high = (convert(v, dtype) for v in (minval, maxval))
    check_parameters("uniform", shape, low, high)
    low, high = (to_shape(v, shape) for v in (low, high))
    limits = ml_dtypes.finfo(dtype)
    # Random mantissa bits under the exponent of 1 make floats in [1, 2).
    width = 8 if limits.nmant < 8 else limits.bits
    raw_bits = random_ops.random_bits(typed, width, shape)
    unsigned = np.dtype(f"u{limits.bits // 8}")
    raw_bits = convert(raw_bits, unsigned)
    mantissa = lax.shift_right_logical(raw_bits, unsigned.type(width - limits.nmant))
    one = np.array(1, dtype)
    pattern = lax.bitwise_or(mantissa, one.view(unsigned)[()])
    unit = lax.sub(lax.bitcast_convert_type(pattern, dtype), one[()])
    return lax.max(low, lax.add(lax.mul(unit, lax.sub(high, low)), low))


def check_parameters(name: str, shape: tuple[int, ...], *values: Any) -> None:
    parameter_shapes = [aval_of(v).shape for v in values]
    check(
        broadcast_shapes(shape, *parameter_shapes, name=name) == shape,
        lambda: (
            f"[{name}] parameters must broadcast to the shape; got {parameter_shapes} for shape "
            f"{shape}. Fix: choose a larger shape."
        ),
        ValueError,
    )


def to_shape(x: Any, shape: tuple[int, ...]) -> Any:
    x_shape = aval_of(x).shape
    return x if not x_shape else jnp.broadcast_to(x, shape)


# --- samplers ------------------------------------------------------------------------------


@composite
def normal(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return standard normal random numbers; complex ones have variance 1.

    Args:
        key: a key from ``random.key``, or a raw key.
        shape: shape of the result; a scalar by default.
        dtype: a float or complex dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is neither float nor complex.

    Source: the inverse of the distribution function, ``sqrt(2) * erf_inv(u)``.

    Example:
        >>> x = gf.random.normal(gf.random.key(0), (1000,))
        >>> bool(abs(x.mean()) < 0.1), round(float(x.std()), 1)
        (True, 1.0)
    """
    if out_sharding is not None:
        out = normal(key, shape, dtype)
        return in_sharding("normal", out, out_sharding)
    typed, _ = typed_key("normal", key)
    dtype = user_dtype(float if dtype is None else dtype, "normal")
    sizes = as_shape("normal", shape)
    if dtypes.is_complex(dtype):
        real_type = np.zeros(0, dtype).real.dtype
        keys = random_ops.random_split(typed, (2,))
        real, imag = (normal_of(keys[k], sizes, real_type) for k in (0, 1))
        return lax.div(lax.complex(real, imag), np.sqrt(2).astype(dtype))
    return normal_of(typed, sizes, float_dtype("normal", dtype))


@composite
def normal_of(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """``normal`` for a typed key and a real dtype."""
    low = np.nextafter(np.array(-1, dtype), np.array(0, dtype), dtype=dtype)[()]
    u = uniform_of(typed, shape, dtype, low, np.array(1, dtype)[()])
    return lax.mul(np.array(np.sqrt(2), dtype)[()], lax.erf_inv(u))


@composite
def truncated_normal(
    key: ArrayLike, lower: ArrayLike, upper: ArrayLike, shape: Shape | None = None,
    dtype: DTypeLike | None = None, *, out_sharding: ShardingLike = None,
) -> Array:  # fmt: skip
    """Return standard normal random numbers in the open interval (lower, upper).

    Args:
        key: a key from ``random.key``, or a raw key.
        lower: array of floats, lower bounds.
        upper: array of floats, upper bounds.
        shape: shape of the result; None uses the shape of the bounds.
        dtype: a float dtype; float32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        ValueError: if the dtype is not a float dtype, or parameters do not broadcast to ``shape``.

    Example:
        >>> x = gf.random.truncated_normal(gf.random.key(0), -1.0, 1.0, (3,))
        >>> bool((abs(x) < 1).all())
        True
    """
    typed, _ = typed_key("truncated_normal", key)
    dtype = float_dtype("truncated_normal", dtype)
    low, high = (convert(v, dtype) for v in (lower, upper))
    bounds_shape = broadcast_shapes(aval_of(low).shape, aval_of(high).shape)
    sizes = bounds_shape if shape is None else as_shape("truncated_normal", shape)
    return in_sharding("truncated_normal", _truncated(typed, sizes, dtype, low, high), out_sharding)


@composite
def _truncated(typed: Any, shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> Any:
    root = np.array(np.sqrt(2), dtype)[()]
    a, b = (lax.erf(lax.div(v, root)) for v in (low, high))
    out = lax.mul(root, lax.erf_inv(uniform_of(typed, shape, dtype, a, b)))
    # Rounding may reach the bounds; clamp to their inner neighbors.
    return jnp.clip(out, _next_after(low, np.inf), _next_after(high, -np.inf))


def _next_after(x: Any, towards: float) -> Any:
    """The neighbor of ``x`` in the direction of an infinity; its derivative is 0."""
    dtype = aval_of(x).dtype
    if not hasattr(x, "aval"):
        return np.nextafter(np.array(x, dtype), np.array(towards, dtype), dtype=dtype)[()]
    x = lax.stop_gradient(x)
    signed = np.dtype(f"i{dtype.itemsize}")
    pattern = lax.bitcast_convert_type(x, signed)
    # Patterns of positive floats grow with the float, those of negative ones shrink.
    grows = lax.gt(x, convert(0, dtype)) if towards > 0 else lax.lt(x, convert(0, dtype))
    step = select_where(grows, signed.type(1), signed.type(-1))
    neighbor = lax.bitcast_convert_type(lax.add(pattern, step), dtype)
    smallest = np.nextafter(np.array(0, dtype), np.array(towards, dtype), dtype=dtype)[()]
    neighbor = select_where(lax.eq(x, convert(0, dtype)), smallest, neighbor)
    stays = lax.bitwise_or(lax.ne(x, x), lax.eq(x, convert(towards, dtype)))
    return select_where(stays, x, neighbor)


@composite
def bernoulli(
    key: ArrayLike, p: ArrayLike = 0.5, shape: Shape | None = None, mode: str = "low", *,
    out_sharding: ShardingLike = None,
) -> Array:  # fmt: skip
    """Return random bools that are True with probability ``p``.

    Args:
        key: a key from ``random.key``, or a raw key.
        p: array of floats, probabilities.
        shape: shape of the result; None uses the shape of ``p``.
        mode: ``"high"`` uses twice as many bits, for probabilities below 1e-6; otherwise ``"low"``.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        bool array of ``shape``.

    Raises:
        TypeError: if ``p`` is not a float.
        ValueError: if the mode is unknown, or ``p`` does not broadcast to ``shape``.

    Example:
        >>> gf.random.bernoulli(gf.random.key(0), 0.5, (4,))
        Array([False, False,  True,  True], dtype=bool)
    """
    if out_sharding is not None:
        out = bernoulli(key, p, shape, mode)
        return in_sharding("bernoulli", out, out_sharding)
    typed, _ = typed_key("bernoulli", key)
    check(
        is_value(p) and dtypes.is_floating(aval_of(p).dtype),
        lambda: f"[bernoulli] p must be a float; got {p!r}. Fix: p=0.5.",
    )
    check_mode("bernoulli", mode, ("low", "high"))
    sizes = aval_of(p).shape if shape is None else as_shape("bernoulli", shape)
    check_parameters("bernoulli", sizes, p)
    if aval_of(p).ndim not in (0, len(sizes)):
        check_rank_promotion("bernoulli", [sizes, aval_of(p).shape])
    dtype = aval_of(p).dtype
    p = to_shape(convert(p, dtype), sizes)
    if mode == "low":
        return lax.lt(uniform_of(typed, sizes, dtype, 0.0, 1.0), p)
    both = uniform_of(typed, (2, *sizes), dtype, 0.0, 1.0)
    return lax.lt(both[1] * resolution(dtype), lax.sub(p, both[0]))


def resolution(dtype: Any) -> Any:
    """The distance of neighboring uniform numbers."""
    return np.asarray(2.0 ** -ml_dtypes.finfo(dtype).nmant, dtype)[()]


def check_mode(name: str, mode: str, modes: tuple[str, ...]) -> None:
    check(
        mode in modes,
        lambda: f"[{name}] mode must be one of {modes}; got {mode!r}. Fix: mode='low'.",
        ValueError,
    )


@composite
def rademacher(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return -1 or 1, each with probability one half.

    Args:
        key: a key from ``random.key``, or a raw key.
        shape: shape of the result; a scalar by default.
        dtype: dtype of the result; int32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Example:
        >>> gf.random.rademacher(gf.random.key(0), (4,))
        Array([-1, -1,  1,  1], dtype=int32)
    """
    dtype = user_dtype(int if dtype is None else dtype, "rademacher")
    heads = bernoulli(key, 0.5, as_shape("rademacher", shape))
    out = select_where(heads, convert(1, dtype), convert(-1, dtype))
    return in_sharding("rademacher", out, out_sharding)


@composite
def randint(
    key: ArrayLike, shape: Shape, minval: ArrayLike, maxval: ArrayLike,
    dtype: DTypeLike | None = None, *, out_sharding: ShardingLike = None,
) -> Array:  # fmt: skip
    """Return uniform random integers in [minval, maxval).

    Args:
        key: a key from ``random.key``, or a raw key.
        shape: shape of the result.
        minval: lower bound (included), an integer or an array that broadcasts to ``shape``.
        maxval: upper bound (excluded), in the same form.
        dtype: an integer dtype; int32 by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        TypeError: if the dtype is not an integer dtype.
        ValueError: if the bounds do not broadcast to ``shape``.

    Example:
        >>> gf.random.randint(gf.random.key(0), (5,), 0, 10)
        Array([9, 0, 2, 3, 1], dtype=int32)
    """
    typed, _ = typed_key("randint", key)
    dtype = user_dtype(int if dtype is None else dtype, "randint")
    sizes = as_shape("randint", shape)
    check(
        dtypes.is_integer(dtype),
        lambda: f"[randint] dtype must be an integer dtype; got {dtype}. Fix: jnp.int32.",
    )
    limits = ml_dtypes.iinfo(dtype)
    work = dtype if limits.bits >= 32 else np.dtype(np.int32)
    low, high = (_integer(v) for v in (minval, maxval))
    if limits.bits < 32:
        low = jnp.clip(convert(low, work), int(limits.min), int(limits.max))
        high = jnp.clip(convert(high, work), int(limits.min), int(limits.max) + 1)
    check_parameters("randint", sizes, low, high)
    out = convert(_randint(typed, sizes, low, high, work), dtype)
    return in_sharding("randint", out, out_sharding)


def _integer(value: Any) -> Any:
    array = jnp.asarray(value)
    is_integer = dtypes.is_integer(aval_of(array).dtype)
    return array if is_integer else convert(array, dtypes.default_int())


def _clip_to(value: Any, dtype: Any) -> Any:
    """Clip an integer array to the range of ``dtype``, in that dtype."""
    source, target = ml_dtypes.iinfo(aval_of(value).dtype), ml_dtypes.iinfo(dtype)
    low, high = max(source.min, target.min), min(source.max, target.max)
    limited = lax.clamp(source.dtype.type(low), value, source.dtype.type(high))
    return convert(limited, dtype)


def _randint(typed: Any, shape: tuple[int, ...], minval: Any, maxval: Any, dtype: Any) -> Any:
    """Twice as many bits as needed, modulo the span: the bias is negligible."""
    top = _clip_to(jnp.asarray(np.array(np.iinfo(dtype).max, dtype)), aval_of(maxval).dtype)
    beyond = lax.gt(maxval, top)
    low, high = (to_shape(_clip_to(v, dtype), shape) for v in (minval, maxval))
    beyond = to_shape(beyond, shape)
    width = 8 * dtype.itemsize
    keys = random_ops.random_split(typed, (2,))
    upper, lower = (random_ops.random_bits(keys[k], width, shape) for k in (0, 1))
    unsigned = np.dtype(f"u{dtype.itemsize}")
    one = unsigned.type(1)
    span = convert(lax.sub(high, low), unsigned)
    span = select_where(lax.le(high, low), one, span)
    # A maximum beyond the dtype makes the span one larger; where it wraps to 0, rem by 0 is
    # the identity, as it should be.
    wider = lax.bitwise_and(beyond, lax.gt(high, low))
    span = select_where(wider, lax.add(span, one), span)
    factor = lax.rem(unsigned.type(2 ** (width // 2)), span)
    factor = lax.rem(lax.mul(factor, factor), span)
    offset = lax.add(lax.mul(lax.rem(upper, span), factor), lax.rem(lower, span))
    return lax.add(low, convert(lax.rem(offset, span), dtype))


@composite
def exponential(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return exponential random numbers with mean 1.

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
        >>> x = gf.random.exponential(gf.random.key(0), (1000,))
        >>> bool((x >= 0).all()), round(float(x.mean()))
        (True, 1)
    """
    out = drawn("exponential", _exponential, key, shape, dtype)
    return in_sharding("exponential", out, out_sharding)


@composite
def laplace(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return standard Laplace random numbers, with density ``exp(-abs(x)) / 2``.

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
        >>> gf.random.laplace(gf.random.key(0), (2, 3)).shape
        (2, 3)
    """
    return in_sharding("laplace", drawn("laplace", _laplace, key, shape, dtype), out_sharding)


@composite
def logistic(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return standard logistic random numbers, ``log(u / (1 - u))`` of uniform ``u``.

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
        >>> gf.random.logistic(gf.random.key(0), (2, 3)).shape
        (2, 3)
    """
    return in_sharding("logistic", drawn("logistic", _logistic, key, shape, dtype), out_sharding)


@composite
def cauchy(
    key: ArrayLike,
    shape: Shape = (),
    dtype: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return standard Cauchy random numbers, with density ``1 / (pi * (1 + x**2))``.

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
        >>> gf.random.cauchy(gf.random.key(0), (2, 3)).shape
        (2, 3)
    """
    return in_sharding("cauchy", drawn("cauchy", _cauchy, key, shape, dtype), out_sharding)


def drawn(name: str, draw: Callable[..., Any], key: Any, shape: Shape, dtype: Any) -> Any:
    typed, _ = typed_key(name, key)
    return draw(typed, as_shape(name, shape), float_dtype(name, dtype))


@composite
def _exponential(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return lax.neg(lax.log1p(lax.neg(uniform_of(typed, shape, dtype, 0.0, 1.0))))


@composite
def _laplace(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    low = -1.0 + float(ml_dtypes.finfo(dtype).epsneg)
    u = uniform_of(typed, shape, dtype, low, 1.0)
    return lax.mul(lax.sign(u), lax.log1p(lax.neg(lax.abs(u))))


@composite
def _logistic(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    u = uniform_of(typed, shape, dtype, ml_dtypes.finfo(dtype).tiny, 1.0)
    return lax.sub(lax.log(u), lax.log1p(lax.neg(u)))


@composite
def _cauchy(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    u = uniform_of(typed, shape, dtype, ml_dtypes.finfo(dtype).eps, 1.0)
    return lax.tan(lax.mul(convert(np.pi, dtype), lax.sub(u, convert(0.5, dtype))))
