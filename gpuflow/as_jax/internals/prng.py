"""``jax.extend.random``: user-defined random number generators, and those of gpuflow.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from gpuflow.core.aval import KeyDType, key_dtype_of
from gpuflow.ops.random.generators import register_generator
from gpuflow.ops.random.keys import key_dtype
from gpuflow.random.keys import key as _key

rbg_prng_impl = key_dtype("rbg")
threefry_prng_impl = key_dtype("threefry2x32")
unsafe_rbg_prng_impl = key_dtype("unsafe_rbg")


def define_prng_impl(
    *,
    key_shape: tuple[int, ...],
    seed: Callable[..., Any],
    split: Callable[..., Any],
    random_bits: Callable[..., Any],
    fold_in: Callable[..., Any],
    name: str = "<unnamed>",
    tag: str = "?",
) -> Hashable:
    """A generator whose keys are arrays of uint32; ``jax.random.key(0, impl=it)`` makes one.

    Args:
        key_shape: ``(2,)`` or ``(4,)``.
        seed: ``integer -> u32[key_shape]``.
        split: ``(u32[key_shape], shape) -> u32[*shape, *key_shape]``.
        random_bits: ``(u32[key_shape], bit_width, shape) -> unsigned integers of shape``.
        fold_in: ``(u32[key_shape], integer) -> u32[key_shape]``.
        name, tag: for printing.

    Returns:
        The dtype of its keys.

    Raises:
        NotImplementedError: if keys have another shape.
    """
    if tuple(key_shape) not in ((2,), (4,)):
        raise NotImplementedError(
            f"[define_prng_impl] key_shape must be (2,) or (4,); got {tuple(key_shape)}. Fix: keep "
            "two or four uint32 numbers in a key."
        )
    return register_generator(name, tag, key_shape[0], seed, split, fold_in, random_bits)


def random_seed(seeds: Any, impl: str | KeyDType) -> Any:
    """A key from an integer."""
    return _key(seeds, impl=impl)


def seed_with_impl(impl: str | KeyDType, seed: Any) -> Any:
    """A key of a generator from an integer."""
    return _key(seed, impl=impl if isinstance(impl, KeyDType) else key_dtype_of(impl))
