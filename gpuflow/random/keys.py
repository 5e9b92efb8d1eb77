"""Keys: made from a seed, split, folded with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import KEY_DTYPES, KeyDType, aval_of, is_value
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.shaping import as_shape
from gpuflow.ops import keys as key_ops
from gpuflow.ops import random as random_ops


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


def key(seed: Any, *, impl: str | None = None, dtype: Any = None) -> Any:
    """A typed key from an integer seed; ``dtype`` is another way to name the generator.

    Raises:
        ValueError: both are given.
    """
    return _seeded("key", seed, _generator("key", impl, dtype))


def _generator(op: str, impl: str | None, dtype: Any) -> str | None:
    """The generator that ``impl=`` or ``dtype=`` names."""
    if dtype is None:
        return impl
    check(
        impl is None,
        lambda: f"[{op}] only one of impl and dtype may be given; got {impl!r} and {dtype}. "
        "Fix: leave out dtype=.",
        ValueError,
    )
    check(
        isinstance(dtype, str | KeyDType),
        lambda: f"[{op}] dtype must be that of a key; got {dtype!r}. Fix: random.key_dtype().",
    )
    return dtype.implementation if isinstance(dtype, KeyDType) else dtype


def PRNGKey(seed: Any, *, impl: str | None = None) -> Any:
    """A raw key, u32[2], from an integer seed."""
    return key_ops.random_unwrap(_seeded("PRNGKey", seed, impl))


def check_raw(name: str, key: Any) -> None:
    """Raise TypeError unless the operand holds raw keys."""
    aval = aval_of(key)
    check(
        aval.dtype == dtypes.uint32 and aval.shape[-1:] == (2,),
        lambda: (
            f"[{name}] the key must be a typed one, or a raw one of u32[2]; got {aval}. "
            "Fix: random.key(0)."
        ),
    )


def typed_key(name: str, key: Any) -> tuple[Any, bool]:
    """The typed form of one key, and whether it was raw."""
    check(
        is_value(key),
        lambda: f"[{name}] the key must be an array; got {key!r}. Fix: random.key(0).",
    )
    raw = not key_ops.is_key(aval_of(key).dtype)
    if raw:
        check_raw(name, key)
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
    typed, raw = typed_key("split", key)
    keys = random_ops.random_split(typed, as_shape("split", num))
    return key_ops.random_unwrap(keys) if raw else keys


def fold_in(key: Any, data: Any) -> Any:
    """A key that also depends on an integer, such as a step number.

    Raises:
        TypeError: ``data`` is not one number.
    """
    typed, raw = typed_key("fold_in", key)
    check(
        is_value(data) and aval_of(data).shape == (),
        lambda: f"[fold_in] data must be one integer; got {data!r}. Fix: use gpuflow.vmap.",
    )
    word = data if type(data) is int else convert(data, dtypes.uint32)
    folded = key_ops.random_fold_in(typed, word)
    return key_ops.random_unwrap(folded) if raw else folded


def key_data(keys: Any) -> Any:
    """The uint32 numbers inside keys, u32[..., 2]; raw keys are returned as they are.

    Raises:
        TypeError: ``keys`` are no keys.
    """
    aval = aval_of(keys)
    if key_ops.is_key(aval.dtype):
        return key_ops.random_unwrap(keys)
    check(
        aval.dtype == dtypes.uint32 and aval.shape[-1:] == (2,),
        lambda: f"[key_data] the argument must be keys; got {aval}. Fix: random.key(0).",
    )
    return keys


def wrap_key_data(key_bits_array: Any, *, impl: str | None = None, dtype: Any = None) -> Any:
    """Typed keys from their uint32 numbers; ``dtype`` is another way to name the generator."""
    check_raw("wrap_key_data", key_bits_array)
    found = _generator("wrap_key_data", impl, dtype)
    return key_ops.random_wrap(key_bits_array, found or "threefry2x32")


def key_impl(keys: Any) -> str:
    """The name of the generator of a key."""
    found = aval_of(keys).dtype
    return found.implementation if key_ops.is_key(found) else "threefry2x32"


def key_dtype(impl_spec: str | KeyDType | None = None) -> KeyDType:
    """The dtype of the keys of a generator.

    Raises:
        ValueError: there is no such generator.
    """
    name = _generator("key_dtype", None, impl_spec) or "threefry2x32"
    check(
        name in KEY_DTYPES,
        lambda: (
            f"[key_dtype] the key implementation must be one of {tuple(KEY_DTYPES)}; "
            f"got {impl_spec!r}. Fix: impl_spec='threefry2x32'."
        ),
        ValueError,
    )
    return KEY_DTYPES[name]


def clone(key: Any) -> Any:
    """The key again, for a reuse that is meant."""
    return key
