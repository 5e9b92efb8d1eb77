"""Philox-4x32 as elementwise ops, which kernels fuse.

Source: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3; counters
    and the layout of the output are those of XLA's RngBitGenerator.

Tests: tests/ops/test_random_bits.py, tests/random/test_rbg_keys.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuflow.core.aval import aval_of
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.comparison import (
    bitwise_or,
    bitwise_xor,
    lt,
    shift_left,
    shift_right_logical,
)
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import broadcast_in_dim, insert_axis, reshape
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim

ROUNDS = 10
FACTORS = 0xD2511F53, 0xCD9E8D57
STEPS = 0x9E3779B9, 0xBB67AE85

Shape = tuple[int, ...]


def philox_bits(state: Any, *, shape: Shape, dtype: Any) -> list[Any]:
    """The advanced states and the bits of ``rng_bit_generator``.

    Args:
        state: u32[..., 4] or u64[..., 2].
        shape: sizes of each state's bits.
        dtype: an unsigned integer dtype.
    """
    lead = aval_of(state).shape[:-1]
    keys, starts = _pairs(state)
    width = 2 if dtype.itemsize == 8 else 1  # uint32 of a result
    size = prod(shape)
    count = -(-size * width // 4)
    grid = (*lead, count)

    def expanded(x: Any) -> Any:
        return broadcast_in_dim(x, grid, range(len(lead)))

    all_starts, all_keys = expanded(starts), expanded(keys)
    low = add(all_starts, iota(np.uint64, grid, len(lead)))
    carry = convert_element_type(lt(low, all_starts), np.uint64)
    x = [*_halves(low), *_halves(add(all_keys, carry))]
    k0, k1 = _halves(all_keys)
    for _ in range(ROUNDS):
        (low0, high0), (low1, high1) = (
            _halves(mul(_wide(value), _constant(keys, factor)))
            for value, factor in zip((x[0], x[2]), FACTORS, strict=True)
        )
        x = [
            bitwise_xor(bitwise_xor(high1, x[1]), k0),
            low1,
            bitwise_xor(bitwise_xor(high0, x[3]), k1),
            low0,
        ]
        k0, k1 = (add(k, _constant(k, step)) for k, step in zip((k0, k1), STEPS, strict=True))
    draws = x if width == 1 else [_merged(x[0], x[1]), _merged(x[2], x[3])]
    bits = concatenate([insert_axis(draw, len(grid)) for draw in draws], len(grid))
    bits = reshape(bits, (*lead, count * len(draws)))
    bits = reshape(slice_in_dim(bits, 0, size, 1, len(lead)), (*lead, *shape))
    ends = add(starts, _constant(starts, count))
    return [_state(keys, ends, aval_of(state).dtype), convert_element_type(bits, dtype)]


def _pairs(state: Any) -> tuple[Any, Any]:
    """The key and the counter of each state, as u64[...]."""
    *lead, size = aval_of(state).shape
    last = len(lead)
    columns = [reshape(slice_in_dim(state, k, k + 1, 1, last), tuple(lead)) for k in range(size)]
    return (columns[0], columns[1]) if size == 2 else (_merged(*columns[:2]), _merged(*columns[2:]))


def _state(keys: Any, counters: Any, dtype: Any) -> Any:
    columns = [keys, counters]
    if dtype == np.uint32:
        columns = [half for pair in columns for half in _halves(pair)]
    last = aval_of(keys).ndim
    return concatenate([insert_axis(column, last) for column in columns], last)


def _constant(x: Any, value: int) -> Any:
    return np.asarray(value, aval_of(x).dtype)[()]


def _wide(x: Any) -> Any:
    return convert_element_type(x, np.uint64)


def _halves(x: Any) -> tuple[Any, Any]:
    """The lower and upper halves of u64[...]."""
    high = shift_right_logical(x, _constant(x, 32))
    return convert_element_type(x, np.uint32), convert_element_type(high, np.uint32)


def _merged(low: Any, high: Any) -> Any:
    wide = _wide(high)
    return bitwise_or(_wide(low), shift_left(wide, _constant(wide, 32)))
