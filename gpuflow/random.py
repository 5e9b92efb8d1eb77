"""Random numbers from explicit keys, bit for bit those of JAX.

A key is a typed one (``key``) or the two raw uint32 numbers inside (``PRNGKey``); functions that
make keys return the form they were given. Source: threefry2x32, Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3"; the samplers follow jax.random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.names import missing_name, public_names
from gpuflow.base.util import canonicalize_axis
from gpuflow.core.aval import aval_of, is_value
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    convert,
    promote_dtypes_inexact,
    user_dtype,
)
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops import keys as key_ops
from gpuflow.ops import random as random_ops
from gpuflow.ops.selection import where as select_where

Shape = int | Sequence[int]


# --- keys ----------------------------------------------------------------------------------


def _seeded(name: str, seed: Any, impl: str | None) -> Any:
    if isinstance(seed, np.integer):
        seed = int(seed)
    check(
        is_value(seed) and aval_of(seed).shape == (),
        lambda: (
            f"[{name}] the seed must be one integer; got {seed!r}. "
            "Fix: use gpuflow.vmap for several seeds."
        ),
    )
    return key_ops.random_seed(seed, impl or "threefry2x32")


def key(seed: Any, *, impl: str | None = None) -> Any:
    """A typed key from an integer seed."""
    return _seeded("key", seed, impl)


def PRNGKey(seed: Any, *, impl: str | None = None) -> Any:
    """A raw key, u32[2], from an integer seed."""
    return key_ops.random_unwrap(_seeded("PRNGKey", seed, impl))


def _typed(name: str, key: Any) -> tuple[Any, bool]:
    """The typed form of one key, and whether it was raw."""
    check(
        is_value(key),
        lambda: f"[{name}] the key must be an array; got {key!r}. Fix: random.key(0).",
    )
    raw = not key_ops.is_key(aval_of(key).dtype)
    typed = key_ops.random_wrap(key) if raw else key
    check(
        aval_of(typed).ndim == 0,
        lambda: (
            f"[{name}] the key must be a single one; got an array of keys of shape "
            f"{aval_of(typed).shape}. Fix: use gpuflow.vmap, or index it."
        ),
        ValueError,
    )
    return typed, raw


def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """New keys from one: an array of ``num`` keys.

    Args:
        key: a key, which must not be used again.
        num: how many, or a shape.
    """
    typed, raw = _typed("split", key)
    keys = random_ops.random_split(typed, as_shape("split", num))
    return key_ops.random_unwrap(keys) if raw else keys


def fold_in(key: Any, data: Any) -> Any:
    """A key that also depends on an integer, such as a step number.

    Raises:
        TypeError: ``data`` is not one number.
    """
    typed, raw = _typed("fold_in", key)
    check(
        is_value(data) and aval_of(data).shape == (),
        lambda: f"[fold_in] data must be one integer; got {data!r}. Fix: use gpuflow.vmap.",
    )
    word = data if type(data) is int else convert(data, dtypes.uint32)
    folded = key_ops.random_fold_in(typed, word)
    return key_ops.random_unwrap(folded) if raw else folded


def key_data(keys: Any) -> Any:
    """The uint32 numbers inside keys, u32[..., 2]."""
    return key_ops.random_unwrap(keys) if key_ops.is_key(aval_of(keys).dtype) else keys


def wrap_key_data(key_bits_array: Any, *, impl: str | None = None) -> Any:
    """Typed keys from their uint32 numbers."""
    return key_ops.random_wrap(key_bits_array, impl or "threefry2x32")


def key_impl(keys: Any) -> str:
    """The name of the generator of a key."""
    found = aval_of(keys).dtype
    return found.implementation if key_ops.is_key(found) else "threefry2x32"


def clone(key: Any) -> Any:
    """The key again, for a reuse that is meant."""
    return key


# --- bits and uniform numbers --------------------------------------------------------------


def _float_dtype(name: str, dtype: Any) -> Any:
    found = user_dtype(float if dtype is None else dtype, name)
    check(
        dtypes.is_floating(found),
        lambda: f"[{name}] dtype must be a float dtype; got {found}. Fix: dtype=jnp.float32.",
        ValueError,
    )
    return found


def bits(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Uniform random bits as unsigned integers.

    Raises:
        ValueError: a dtype that is no unsigned integer dtype.
    """
    typed, _ = _typed("bits", key)
    found = user_dtype(np.uint32 if dtype is None else dtype, "bits")
    check(
        found.kind == "u",
        lambda: f"[bits] dtype must be an unsigned integer; got {found}. Fix: jnp.uint32.",
        ValueError,
    )
    return random_ops.random_bits(typed, 8 * found.itemsize, as_shape("bits", shape))


def uniform(
    key: Any, shape: Shape = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0
) -> Any:
    """Uniform random floats in [minval, maxval).

    Args:
        key: a key.
        shape: sizes of the result.
        dtype: a float dtype, by default float32.
        minval, maxval: numbers or arrays that broadcast to ``shape``.

    Raises:
        ValueError: a dtype that is no float, or bounds that do not fit the shape.
    """
    typed, _ = _typed("uniform", key)
    found, sizes = _float_dtype("uniform", dtype), as_shape("uniform", shape)
    return _uniform(typed, sizes, found, minval, maxval)


def _uniform(typed: Any, shape: tuple[int, ...], dtype: Any, minval: Any, maxval: Any) -> Any:
    low, high = (convert(v, dtype) for v in (minval, maxval))
    _check_parameters("uniform", shape, low, high)
    low, high = (_to_shape(v, shape) for v in (low, high))
    limits = ml_dtypes.finfo(dtype)
    # Random mantissa bits under the exponent of 1 make floats in [1, 2).
    width = 8 if limits.nmant < 8 else limits.bits
    words = random_ops.random_bits(typed, width, shape)
    unsigned = np.dtype(f"u{limits.bits // 8}")
    words = convert(words, unsigned)
    mantissa = lax.shift_right_logical(words, unsigned.type(width - limits.nmant))
    one = np.array(1, dtype)
    pattern = lax.bitwise_or(mantissa, one.view(unsigned)[()])
    unit = lax.sub(lax.bitcast_convert_type(pattern, dtype), one[()])
    return lax.max(low, lax.add(lax.mul(unit, lax.sub(high, low)), low))


def _check_parameters(name: str, shape: tuple[int, ...], *values: Any) -> None:
    given = [aval_of(v).shape for v in values]
    check(
        broadcast_shapes(shape, *given, name=name) == shape,
        lambda: (
            f"[{name}] parameters must broadcast to the shape; got {given} for shape {shape}. "
            "Fix: choose a larger shape."
        ),
        ValueError,
    )


def _to_shape(x: Any, shape: tuple[int, ...]) -> Any:
    own = aval_of(x).shape
    return x if not own else jnp.broadcast_to(x, shape)


# --- samplers ------------------------------------------------------------------------------


def normal(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Random numbers of the standard normal distribution; complex ones have variance 1.

    Source: the inverse of the distribution function, ``sqrt(2) * erf_inv(u)``.
    """
    typed, _ = _typed("normal", key)
    found, sizes = user_dtype(float if dtype is None else dtype, "normal"), as_shape("", shape)
    if dtypes.is_complex(found):
        part = np.zeros(0, found).real.dtype
        keys = random_ops.random_split(typed, (2,))
        real, imag = (_normal(keys[k], sizes, part) for k in (0, 1))
        return lax.div(lax.complex(real, imag), np.sqrt(2).astype(found))
    return _normal(typed, sizes, _float_dtype("normal", found))


def _normal(typed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    low = np.nextafter(np.array(-1, dtype), np.array(0, dtype), dtype=dtype)[()]
    u = _uniform(typed, shape, dtype, low, np.array(1, dtype)[()])
    return lax.mul(np.array(np.sqrt(2), dtype)[()], lax.erf_inv(u))


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Shape | None = None, dtype: Any = None
) -> Any:
    """Standard normal numbers inside the open interval (lower, upper)."""
    typed, _ = _typed("truncated_normal", key)
    found = _float_dtype("truncated_normal", dtype)
    low, high = (convert(v, found) for v in (lower, upper))
    own = broadcast_shapes(aval_of(low).shape, aval_of(high).shape)
    sizes = own if shape is None else as_shape("truncated_normal", shape)
    root = np.array(np.sqrt(2), found)[()]
    a, b = (lax.erf(lax.div(v, root)) for v in (low, high))
    out = lax.mul(root, lax.erf_inv(_uniform(typed, sizes, found, a, b)))
    # Rounding may reach the bounds; the neighbors inside are as far as it may go.
    return jnp.clip(out, _next_after(low, np.inf), _next_after(high, -np.inf))


def _next_after(x: Any, towards: float) -> Any:
    """The neighbor of ``x`` in the direction of an infinity; it is a constant to derivatives."""
    dtype = aval_of(x).dtype
    if not hasattr(x, "aval"):
        return np.nextafter(np.array(x, dtype), np.array(towards, dtype), dtype=dtype)[()]
    x = lax.stop_gradient(x)
    signed = np.dtype(f"i{dtype.itemsize}")
    pattern = lax.bitcast_convert_type(x, signed)
    # Patterns of positive floats grow with the float, those of negative ones shrink.
    grows = lax.gt(x, convert(0, dtype)) if towards > 0 else lax.lt(x, convert(0, dtype))
    step = select_where(grows, signed.type(1), signed.type(-1))
    moved = lax.bitcast_convert_type(lax.add(pattern, step), dtype)
    smallest = np.nextafter(np.array(0, dtype), np.array(towards, dtype), dtype=dtype)[()]
    moved = select_where(lax.eq(x, convert(0, dtype)), smallest, moved)
    stays = lax.bitwise_or(lax.ne(x, x), lax.eq(x, convert(towards, dtype)))
    return select_where(stays, x, moved)


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None) -> Any:
    """True with probability ``p``.

    Raises:
        TypeError: ``p`` is no float.
    """
    typed, _ = _typed("bernoulli", key)
    check(
        is_value(p) and dtypes.is_floating(aval_of(p).dtype),
        lambda: f"[bernoulli] p must be a float; got {p!r}. Fix: p=0.5.",
    )
    sizes = aval_of(p).shape if shape is None else as_shape("bernoulli", shape)
    _check_parameters("bernoulli", sizes, p)
    drawn = _uniform(typed, sizes, aval_of(p).dtype, 0.0, 1.0)
    return lax.lt(drawn, _to_shape(convert(p, aval_of(p).dtype), sizes))


def rademacher(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """-1 or 1, each with probability one half."""
    found = user_dtype(int if dtype is None else dtype, "rademacher")
    signs = convert(bernoulli(key, 0.5, as_shape("rademacher", shape)), found)
    return lax.sub(lax.mul(convert(2, found), signs), convert(1, found))


def randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any = None) -> Any:
    """Uniform random integers in [minval, maxval).

    Args:
        key: a key.
        shape: sizes of the result.
        minval, maxval: integers or arrays of them that broadcast to ``shape``.
        dtype: an integer dtype, by default int32.
    """
    typed, _ = _typed("randint", key)
    found, sizes = user_dtype(int if dtype is None else dtype, "randint"), as_shape("", shape)
    check(
        dtypes.is_integer(found),
        lambda: f"[randint] dtype must be an integer dtype; got {found}. Fix: jnp.int32.",
    )
    limits = np.iinfo(found)
    work = found if limits.bits >= 32 else np.dtype(np.int32)
    low, high = (_integer(v) for v in (minval, maxval))
    if limits.bits < 32:
        low = jnp.clip(convert(low, work), int(limits.min), int(limits.max))
        high = jnp.clip(convert(high, work), int(limits.min), int(limits.max) + 1)
    _check_parameters("randint", sizes, low, high)
    return convert(_randint(typed, sizes, low, high, work), found)


def _integer(value: Any) -> Any:
    array = jnp.asarray(value)
    found = dtypes.is_integer(aval_of(array).dtype)
    return array if found else convert(array, dtypes.default_int())


def _clip_to(value: Any, dtype: Any) -> Any:
    """An integer array limited to what ``dtype`` holds, in that dtype."""
    own, other = np.iinfo(aval_of(value).dtype), np.iinfo(dtype)
    low, high = max(own.min, other.min), min(own.max, other.max)
    limited = lax.clamp(own.dtype.type(low), value, own.dtype.type(high))
    return convert(limited, dtype)


def _randint(typed: Any, shape: tuple[int, ...], minval: Any, maxval: Any, dtype: Any) -> Any:
    """Twice as many bits as needed, modulo the span: the bias is negligible."""
    top = _clip_to(jnp.asarray(np.array(np.iinfo(dtype).max, dtype)), aval_of(maxval).dtype)
    beyond = lax.gt(maxval, top)
    low, high = (_to_shape(_clip_to(v, dtype), shape) for v in (minval, maxval))
    beyond = _to_shape(beyond, shape)
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


def exponential(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Random numbers of the exponential distribution with mean 1."""
    return lax.neg(lax.log1p(lax.neg(uniform(key, shape, _float_dtype("exponential", dtype)))))


def gumbel(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Random numbers of the standard Gumbel distribution."""
    found = _float_dtype("gumbel", dtype)
    tiny = ml_dtypes.finfo(found).tiny
    return lax.neg(lax.log(lax.neg(lax.log(uniform(key, shape, found, minval=tiny)))))


def laplace(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Random numbers of the standard Laplace distribution."""
    found = _float_dtype("laplace", dtype)
    low = -1.0 + float(ml_dtypes.finfo(found).epsneg)
    u = uniform(key, shape, found, minval=low)
    return lax.mul(lax.sign(u), lax.log1p(lax.neg(lax.abs(u))))


def logistic(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Random numbers of the standard logistic distribution."""
    found = _float_dtype("logistic", dtype)
    u = uniform(key, shape, found, minval=ml_dtypes.finfo(found).tiny)
    return lax.sub(lax.log(u), lax.log1p(lax.neg(u)))


def cauchy(key: Any, shape: Shape = (), dtype: Any = None) -> Any:
    """Random numbers of the standard Cauchy distribution."""
    found = _float_dtype("cauchy", dtype)
    u = uniform(key, shape, found, minval=ml_dtypes.finfo(found).eps)
    return lax.tan(lax.mul(convert(np.pi, found), lax.sub(u, convert(0.5, found))))


def categorical(key: Any, logits: Any, axis: int = -1, shape: Shape | None = None) -> Any:
    """Positions along ``axis``, with probabilities ``softmax(logits)``.

    Args:
        key: a key.
        logits: float array.
        axis: the axis of the categories.
        shape: sizes of the result; must end in those of ``logits`` without ``axis``.

    Source: the Gumbel-max trick, ``argmax(logits + gumbel)``.
    """
    logits = jnp.asarray(logits)
    own = aval_of(logits).shape
    place = axis - len(own) if axis >= 0 else axis
    batch = tuple(size for d, size in enumerate(own) if d != place + len(own))
    sizes = batch if shape is None else as_shape("categorical", shape)
    _check_parameters("categorical", sizes, np.zeros(batch, np.bool_))
    prefix = sizes[: len(sizes) - len(batch)]
    full = list(sizes[len(prefix) :])
    full.insert(place + len(own), own[place])
    noise = gumbel(key, (*prefix, *full), aval_of(logits).dtype)
    return jnp.argmax(jnp.add(noise, jnp.expand_dims(logits, tuple(range(len(prefix))))), place)


# --- permutations and choices --------------------------------------------------------------


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """The elements of ``x``, or the integers below it, in random order.

    Args:
        key: a key.
        x: array, or one integer.
        axis: the axis along which slices change places.
        independent: shuffle each vector along ``axis`` by itself.

    Raises:
        TypeError: one number that is no integer.
        ValueError: no such axis.
    """
    typed, _ = _typed("permutation", key)
    x = x if is_value(x) else jnp.asarray(x)
    rank = aval_of(x).ndim
    place = canonicalize_axis(axis, rank or 1, "permutation")
    if rank == 0:
        check(
            dtypes.is_integer(aval_of(x).dtype),
            lambda: (
                f"[permutation] a single x must be an integer; got {aval_of(x)}. "
                "Fix: pass an array, or an int."
            ),
        )
        return _shuffle(typed, jnp.arange(int(x)), 0)
    if independent or rank == 1:
        return _shuffle(typed, x, place)
    order = _shuffle(typed, jnp.arange(aval_of(x).shape[place]), 0)
    return jnp.take(x, order, place)


def _shuffle(typed: Any, x: Any, axis: int) -> Any:
    """Sorted by random 32-bit keys, in enough rounds that equal keys do not matter.

    Source: TensorFlow's random_ops.cc, as in JAX.
    """
    shape = aval_of(x).shape
    rounds = math.ceil(3 * math.log(max(1, math.prod(shape))) / math.log(2**32 - 1))
    for _ in range(rounds):
        keys = random_ops.random_split(typed, (2,))
        typed = keys[0]
        x = lax.sort_key_val(random_ops.random_bits(keys[1], 32, shape), x, axis)[1]
    return x


def choice(
    key: Any, a: Any, shape: Shape = (), replace: bool = True, p: Any = None, axis: int = 0
) -> Any:
    """Random elements of ``a``, or integers below it.

    Args:
        key: a key.
        a: array, or one integer.
        shape: how many, and in which shape they take the place of ``axis``.
        replace: whether an element may be chosen again.
        p: the probability of each element, f32[count]; None: all are equally likely.
        axis: the axis along which to choose.

    Raises:
        ValueError: nothing to choose from, more than there is without replacement, or
            probabilities of another shape.

    Source: without replacement and with ``p``, Gumbel top-k (Vieira 2014).
    """
    typed, _ = _typed("choice", key)
    array, sizes = jnp.asarray(a), as_shape("choice", shape)
    rank = aval_of(array).ndim
    if rank:
        axis = canonicalize_axis(axis, rank, "choice")
    count = aval_of(array).shape[axis] if rank else int(a)
    draws = math.prod(sizes)
    if draws == 0:
        return jnp.zeros(sizes, aval_of(array).dtype)
    check(
        count > 0,
        lambda: "[choice] there must be something to choose from; got an empty axis. Fix: axis=.",
        ValueError,
    )
    check(
        replace or draws <= count,
        lambda: (
            f"[choice] without replacement at most {count} elements can be chosen; got shape "
            f"{sizes}. Fix: replace=True, or a smaller shape."
        ),
        ValueError,
    )
    if p is None and not replace:
        shuffled = permutation(typed, array if rank else count, axis if rank else 0)
        chosen = lax.slice_in_dim(shuffled, 0, draws, 1, axis if rank else 0)
    else:
        chosen = _positions(typed, sizes, draws, count, replace, p)
        chosen = jnp.take(array, chosen, axis) if rank else chosen
    own = aval_of(array).shape
    return jnp.reshape(chosen, (*own[:axis], *sizes, *own[axis + 1 :]) if rank else sizes)


def _positions(
    typed: Any, shape: tuple[int, ...], draws: int, count: int, replace: bool, p: Any
) -> Any:
    """Random positions below ``count``, of any shape of ``draws`` elements."""
    if p is None:
        return randint(typed, shape, 0, count)
    (weights,) = promote_dtypes_inexact(jnp.asarray(p))
    check(
        aval_of(weights).shape == (count,),
        lambda: (
            f"[choice] p must have one probability for each of {count} elements; got "
            f"{aval_of(weights)}. Fix: pass an array of shape ({count},)."
        ),
        ValueError,
    )
    dtype = aval_of(weights).dtype
    if replace:
        below = jnp.cumsum(weights)
        place = lax.mul(below[-1], lax.sub(convert(1, dtype), uniform(typed, shape, dtype)))
        return jnp.searchsorted(below, place)
    noisy = lax.add(gumbel(typed, (count,), dtype), lax.log(weights))
    return convert(lax.top_k(noisy, draws)[1], dtypes.default_int())


__getattr__ = missing_name(__name__, "random", public_names(globals(), __name__))
