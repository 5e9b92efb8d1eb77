"""Keys: created from a seed, split, folded with integers.

Tests: tests/random/test_random_keys.py, tests/random/test_rbg_keys.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import KeyDType, aval_of, is_value
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops.random import generators as random_ops
from gpuflow.ops.random import keys as key_ops


def _seeded(name: str, seed: Any, impl: str | None) -> Any:
    if isinstance(seed, np.integer | bool | np.bool_):
        seed = int(np.asarray(seed).astype(np.int64))
    check(
        is_value(seed) and aval_of(seed).shape == (),
        lambda: (
            f"[{name}] the seed must be one integer; got {seed!r}. "
            "Fix: use gpuflow.vmap for several seeds."
        ),
    )
    offset = config.trace_context().random_seed_offset
    if offset:
        seed = seed + offset
    return random_ops.random_seed(seed, impl or default_implementation())


def key(seed: ArrayLike, *, impl: str | KeyDType | None = None, dtype: Any = None) -> Array:
    """Create a typed key from an integer seed.

    Args:
        seed: an integer; it may be traced.
        impl: the name of the generator, ``"threefry2x32"``, ``"rbg"`` or ``"unsafe_rbg"``; by
            default the setting ``default_prng_impl``.
        dtype: the dtype of the generator's keys; use it instead of ``impl``.

    Returns:
        A key, of shape ().

    Raises:
        TypeError: if ``seed`` is not an integer.
        ValueError: if both ``impl`` and ``dtype`` are given, or the generator is unknown.

    Example:
        >>> gf.random.key(42)
        Array((), dtype=key<fry>) overlaying:
        [ 0 42]
    """
    return _seeded("key", seed, _generator("key", impl, dtype))


def default_implementation() -> str:
    """The default key generator."""
    return config.trace_context().default_prng_impl


def _generator(op: str, impl: Any, dtype: Any = None) -> str | None:
    """The generator given by ``impl=`` or ``dtype=``: its name, or the dtype of its keys."""
    check(
        impl is None or dtype is None,
        lambda: (
            f"[{op}] only one of impl and dtype may be given; got {impl!r} and {dtype}. "
            "Fix: leave out dtype=."
        ),
        ValueError,
    )
    generator = impl if dtype is None else dtype
    check(
        generator is None or isinstance(generator, str | KeyDType),
        lambda: (
            f"[{op}] the generator must be a name or the dtype of its keys; got {generator!r}. "
            "Fix: impl='threefry2x32'."
        ),
    )
    return generator.implementation if isinstance(generator, KeyDType) else generator


def PRNGKey(seed: ArrayLike, *, impl: str | KeyDType | None = None) -> Array:
    """Create a raw key from an integer seed; use ``key`` for a typed one.

    Args:
        seed: an integer; it may be traced.
        impl: the name of the generator; by default the setting ``default_prng_impl``.

    Returns:
        u32[2], or u32[4], depending on the generator; with the setting ``enable_custom_prng`` a
        typed key.

    Raises:
        TypeError: if ``seed`` is not an integer.
        ValueError: if the generator is unknown.

    Example:
        >>> gf.random.PRNGKey(42)
        Array([ 0, 42], dtype=uint32)
    """
    return _in_form(_seeded("PRNGKey", seed, _generator("PRNGKey", impl)), True)


def _in_form(typed: Any, raw: bool) -> Any:
    """Keys in raw form, unless the setting ``enable_custom_prng`` requests typed ones."""
    as_typed = not raw or config.trace_context().enable_custom_prng
    return typed if as_typed else key_ops.random_unwrap(typed)


def check_raw(name: str, key: Any, implementation: str) -> None:
    """Raise TypeError unless the operand holds raw keys."""
    aval, width = aval_of(key), key_ops.key_dtype(implementation).key_shape
    check(
        aval.dtype == dtypes.uint32 and aval.shape[-1:] == width,
        lambda: (
            f"[{name}] the key must be a typed one, or a raw one of u32[{width[0]}]; got {aval}. "
            f"Fix: {_with_key(name)}."
        ),
    )


def _with_key(name: str) -> str:
    """The suggested call for an error about a first argument that is not a key."""
    return f"pass a key first, as in random.{name}(random.key(0), ...)"


def typed_key(name: str, key: Any) -> tuple[Any, bool]:
    """The typed form of one key, and whether it was raw."""
    check(
        is_value(key),
        lambda: f"[{name}] the key must be an array; got {key!r}. Fix: {_with_key(name)}.",
    )
    raw = not key_ops.is_key(aval_of(key).dtype)
    typed = key
    if raw:
        implementation = default_implementation()
        check_raw(name, key, implementation)
        typed = key_ops.random_wrap(key, implementation)
    check(
        aval_of(typed).ndim == 0,
        lambda: (
            f"[{name}] the key must be a single one; got an array of keys of shape "
            f"{aval_of(typed).shape}. Fix: use gpuflow.vmap, or index it."
        ),
        ValueError,
    )
    return typed, raw


def split(key: ArrayLike, num: int | Sequence[int] = 2) -> Array:
    """Split a key into new keys.

    Args:
        key: a key; do not use it again.
        num: number of keys, or a shape.

    Returns:
        An array of ``num`` keys; for a raw key, raw keys u32[num..., 2 or 4].

    Raises:
        ValueError: if ``key`` is an array of keys.

    Example:
        >>> key = gf.random.key(0)
        >>> key, subkey = gf.random.split(key)
        >>> gf.random.split(key, 3).shape
        (3,)
    """
    shape = as_shape("split", num)
    if is_value(key) and not key_ops.is_key(aval_of(key).dtype):
        return _split_raw(key, shape)
    return random_ops.random_split(typed_key("split", key)[0], shape)


@composite
def _split_raw(key: ArrayLike, shape: tuple[int, ...]) -> Array:
    return _in_form(random_ops.random_split(typed_key("split", key)[0], shape), True)


def fold_in(key: ArrayLike, data: ArrayLike) -> Array:
    """Derive a key from a key and an integer, such as a step number.

    Args:
        key: a key.
        data: an integer, which may be traced; its lowest 32 bits are used.

    Returns:
        A key.

    Raises:
        TypeError: if ``data`` is not a scalar.
        ValueError: if ``key`` is an array of keys.

    Example:
        >>> gf.random.key_data(gf.random.fold_in(gf.random.key(0), 7))
        Array([2716826189,  292468403], dtype=uint32)
    """
    typed, raw = typed_key("fold_in", key)
    check(
        is_value(data) and aval_of(data).shape == (),
        lambda: f"[fold_in] data must be one integer; got {data!r}. Fix: use gpuflow.vmap.",
    )
    data_bits = data if type(data) is int else convert(data, dtypes.uint32)
    folded = random_ops.random_fold_in(typed, data_bits)
    return _in_form(folded, raw)


def key_data(keys: ArrayLike) -> Array:
    """Return the uint32 data of keys; raw keys are returned unchanged.

    Args:
        keys: an array of keys.

    Returns:
        u32[..., 2], or u32[..., 4], depending on the generator.

    Raises:
        TypeError: if ``keys`` are not keys.

    Example:
        >>> gf.random.key_data(gf.random.key(42))
        Array([ 0, 42], dtype=uint32)
    """
    if key_ops.is_key(aval_of(keys).dtype):
        return key_ops.random_unwrap(keys)
    check_raw("key_data", keys, default_implementation())
    return asarray(keys)


def wrap_key_data(
    key_bits_array: ArrayLike, *, impl: str | KeyDType | None = None, dtype: Any = None
) -> Array:
    """Create typed keys from their uint32 data.

    Args:
        key_bits_array: u32[..., 2], or u32[..., 4], depending on the generator.
        impl: the name of the generator; by default the setting ``default_prng_impl``.
        dtype: the dtype of the generator's keys; use it instead of ``impl``.

    Returns:
        An array of keys of the leading shape.

    Raises:
        TypeError: if the dtype or shape is invalid.
        ValueError: if both ``impl`` and ``dtype`` are given, or the generator is unknown.

    Example:
        >>> gf.random.wrap_key_data(jnp.array([0, 42], jnp.uint32))
        Array((), dtype=key<fry>) overlaying:
        [ 0 42]
    """
    implementation = _generator("wrap_key_data", impl, dtype) or default_implementation()
    check_raw("wrap_key_data", key_bits_array, implementation)
    return key_ops.random_wrap(key_bits_array, implementation)


def key_impl(keys: ArrayLike) -> str:
    """Return the name of the generator of keys.

    Args:
        keys: an array of keys.

    Returns:
        A string.

    Raises:
        TypeError: if ``keys`` are not keys.

    Example:
        >>> gf.random.key_impl(gf.random.key(0))
        'threefry2x32'
    """
    dtype = aval_of(keys).dtype
    if key_ops.is_key(dtype):
        return dtype.implementation
    check_raw("key_impl", keys, default_implementation())
    return default_implementation()


def key_dtype(impl_spec: str | KeyDType | None = None) -> KeyDType:
    """Return the dtype of the keys of a generator.

    Args:
        impl_spec: the name of the generator, or its dtype; by default the setting
            ``default_prng_impl``.

    Returns:
        A dtype.

    Raises:
        ValueError: if the generator is unknown.

    Example:
        >>> gf.random.key_dtype("rbg")
        key<rbg>
    """
    return key_ops.key_dtype(_generator("key_dtype", impl_spec) or default_implementation())


def clone(key: ArrayLike) -> Array:
    """Copy a key for an intended reuse: ``debug_key_reuse`` treats the copy as a new key.

    Args:
        key: a key.

    Returns:
        A key with the same numbers.

    Example:
        >>> key = gf.random.key(0)
        >>> with gf.debug_key_reuse():
        ...     x, y = gf.random.normal(key), gf.random.normal(gf.random.clone(key))
        >>> bool(x == y)
        True
    """
    return key_ops.random_clone(key) if key_ops.is_key(aval_of(key).dtype) else asarray(key)
