"""Random number generators: the operations of each key implementation.

Threefry's are primitives (keys.py, bits.py). The others combine those with XLA's generator of
bits: an rbg key is two threefry keys, and splitting and folding work on each; unsafe_rbg uses
random bits as a hash.

Source: JAX's definition of its PRNG implementations ``rbg`` and ``unsafe_rbg``.

Tests: tests/random/test_rbg_keys.py, tests/random/test_key_reuse.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.aval import KEY_DTYPES, KeyDType, aval_of
from gpuflow.ops.collectives.named_axes import row
from gpuflow.ops.elementwise.comparison import bitwise_xor
from gpuflow.ops.layout.axes import reshape
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_p
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.random import bits as threefry_bits
from gpuflow.ops.random import keys as threefry_keys
from gpuflow.ops.random.bits import BIT_WIDTHS
from gpuflow.ops.random.keys import (
    check_keys,
    key_dtype,
    random_consume,
    random_unwrap,
    random_wrap,
)
from gpuflow.ops.random.rng_bit_generator import shared_bits

# Number of rows of bits that unsafe_rbg draws for each row that it uses.
_ROUNDS = 10


@record
class Generator:
    """The operations of the keys of an implementation.

    Attributes:
        seed: ``integer -> key``.
        split: ``(key, shape) -> keys``.
        fold_in: ``(key, integer) -> key``.
        bits: ``(key, bit_width, shape) -> unsigned integers``.
    """

    seed: Callable[[Any], Any]
    split: Callable[[Any, tuple[int, ...]], Any]
    fold_in: Callable[[Any, Any], Any]
    bits: Callable[[Any, int, tuple[int, ...]], Any]


def random_seed(seed: Any, implementation: str) -> Any:
    """A key from an integer.

    Raises:
        ValueError: if there is no such implementation.
    """
    key_dtype(implementation)
    return _GENERATORS[implementation].seed(seed)


def random_split(keys: Any, shape: Sequence[int]) -> Any:
    """New keys of ``shape`` from a key."""
    return _of("random_split", keys).split(keys, tuple(shape))


def random_fold_in(keys: Any, data: Any) -> Any:
    """A key that also depends on an integer, uint32."""
    if type(data) is int:
        data = np.uint32(data & 0xFFFFFFFF)
    return _of("random_fold_in", keys).fold_in(keys, data)


def random_bits(keys: Any, bit_width: int, shape: Sequence[int]) -> Any:
    """Uniform random bits of a key, as unsigned integers of ``shape``."""
    return _of("random_bits", keys).bits(keys, bit_width, tuple(shape))


def _of(name: str, keys: Any) -> Generator:
    aval = aval_of(keys)
    check_keys(name, aval)
    return _GENERATORS[aval.dtype.implementation]


# --- rbg and unsafe_rbg: functions of one key --------------------------------------------------


def _seed_data(seed: Any) -> Any:
    half = random_unwrap(threefry_keys.random_seed(seed))
    return concatenate([half, half], 0)


def _halves(key: Any) -> Any:
    """The two threefry keys of an rbg key."""
    return random_wrap(reshape(random_unwrap(key), (2, 2)))


def _rbg_split(key: Any, shape: tuple[int, ...]) -> Any:
    halves = _halves(random_consume(key))
    data = random_unwrap(threefry_bits.random_split(halves, shape))
    return random_wrap(reshape(move_axis(data, 0, len(shape)), (*shape, 4)), "rbg")


def _rbg_fold_in(key: Any, data: Any) -> Any:
    folded = random_unwrap(threefry_keys.random_fold_in(_halves(key), data))
    return random_wrap(reshape(folded, (4,)), "rbg")


def _rbg_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Any:
    check(
        bit_width in BIT_WIDTHS,
        lambda: (
            f"[random_bits] bit_width must be one of {BIT_WIDTHS}; got {bit_width!r}. "
            "Fix: bit_width=32."
        ),
    )
    return shared_bits(random_unwrap(random_consume(key)), shape, f"uint{bit_width}")


def _unsafe_split(key: Any, shape: tuple[int, ...]) -> Any:
    count = prod(shape)
    rows = shared_bits(random_unwrap(random_consume(key)), (_ROUNDS * count, 4), "uint32")
    selected = slice_p.bind(
        rows, start_indices=(0, 0), limit_indices=(_ROUNDS * count, 4), strides=(_ROUNDS, 1)
    )
    return random_wrap(reshape(selected, (*shape, 4)), "unsafe_rbg")


def _unsafe_fold_in(key: Any, data: Any) -> Any:
    rows = shared_bits(_seed_data(data), (_ROUNDS, 4), "uint32")
    return random_wrap(bitwise_xor(random_unwrap(key), row(rows, _ROUNDS - 1)), "unsafe_rbg")


_GENERATORS = {
    "threefry2x32": Generator(
        threefry_keys.random_seed,
        threefry_bits.random_split,
        threefry_keys.random_fold_in,
        threefry_bits.random_bits,
    ),
    "rbg": Generator(
        lambda seed: random_wrap(_seed_data(seed), "rbg"), _rbg_split, _rbg_fold_in, _rbg_bits
    ),
    "unsafe_rbg": Generator(
        lambda seed: random_wrap(_seed_data(seed), "unsafe_rbg"),
        _unsafe_split,
        _unsafe_fold_in,
        _rbg_bits,
    ),
}


def register_generator(
    name: str,
    tag: str,
    size: int,
    seed: Callable[..., Any],
    split: Callable[..., Any],
    fold_in: Callable[..., Any],
    bits: Callable[..., Any],
) -> KeyDType:
    """Register a user's generator, whose functions take and return key data (uint32).

    Args:
        name, tag: for printing; need not be unique.
        size: number of uint32 of a key, 2 or 4.
        seed, split, fold_in, bits: as of ``Generator``.

    Returns:
        The dtype of its keys.
    """
    implementation, copies = name, 1
    while implementation in KEY_DTYPES:
        copies += 1
        implementation = f"{name} {copies}"

    def wrapped(key_data: Any) -> Any:
        return random_wrap(key_data, implementation)

    def consumed(key: Any) -> Any:
        return random_unwrap(random_consume(key))

    KEY_DTYPES[implementation] = KeyDType(implementation, tag, size)
    _GENERATORS[implementation] = Generator(
        lambda value: wrapped(seed(value)),
        lambda key, shape: wrapped(split(consumed(key), shape)),
        lambda key, data: wrapped(fold_in(random_unwrap(key), data)),
        lambda key, width, shape: bits(consumed(key), width, shape),
    )
    return KEY_DTYPES[implementation]
