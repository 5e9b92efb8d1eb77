"""The threefry2x32 hash: on arrays of keys and counters, and as a primitive.

A key is two 32-bit integers (k0, k1), stored as one uint64 with k0 in the low half.

Tests: tests/ops/test_random_bits.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Elementwise
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import define, types_text
from gpuflow.ops.elementwise.nary import batch_elementwise, broadcast_shape

HALF = np.uint64(32)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
# Elements hashed at a time: a few buffers of this many uint32 stay in the L2 cache.
_TILE = 1 << 15


# --- the hash ------------------------------------------------------------------------------


def hash_pairs(xp: Any, k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds on uint32 arrays, which broadcast.

    Source: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
    """
    shape = np.broadcast_shapes(k0.shape, k1.shape, x0.shape, x1.shape)
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    first, second, spare = (xp.empty(shape, np.uint32) for _ in range(3))
    xp.add(x0, k0, out=first)
    xp.add(x1, k1, out=second)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            xp.add(first, second, out=first)
            xp.left_shift(second, np.uint32(rotation), out=spare)
            xp.right_shift(second, np.uint32(32 - rotation), out=second)
            xp.bitwise_or(second, spare, out=second)
            xp.bitwise_xor(second, first, out=second)
        xp.add(first, keys[(group + 1) % 3], out=first)
        xp.add(second, keys[(group + 2) % 3] + np.uint32(group + 1), out=second)
    return first, second


def key_halves(keys: Any) -> tuple[Any, Any]:
    """The two uint32 halves of stored keys: (k0, k1)."""
    return keys.astype(np.uint32), (keys >> HALF).astype(np.uint32)


def stored_keys(k0: Any, k1: Any) -> Any:
    """Stored keys from uint32 halves."""
    return k0.astype(np.uint64) | (k1.astype(np.uint64) << HALF)


def _tiles(xp: Any, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Split a grid into tiles that fit the cache; on a GPU the grid is one tile."""
    limit = _TILE if xp is np else max(rows * columns, 1)
    width = max(1, min(columns, limit))
    height = max(1, limit // width)
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, min(top + height, rows)), slice(left, min(left + width, columns))


def counted_hashes(xp: Any, keys: Any, size: int) -> Iterator[tuple[slice, slice, Any, Any]]:
    """Hashes of the counters 0 .. size - 1 under each of ``keys[n]``, tile by tile."""
    k0, k1 = key_halves(keys.reshape(-1, 1))
    for rows, columns in _tiles(xp, k0.shape[0], size):
        counter = xp.arange(columns.start, columns.stop, dtype=np.uint64)
        high, low = (counter >> HALF).astype(np.uint32), counter.astype(np.uint32)
        yield rows, columns, *hash_pairs(xp, k0[rows], k1[rows], high, low)


def paired_hashes(xp: Any, keys: Any, count: int) -> Iterator[tuple[slice, slice, Any, Any]]:
    """Hashes of the pairs (i, i + half) for i < half = ceil(count / 2); if odd, the last is 0."""
    k0, k1 = key_halves(keys.reshape(-1, 1))
    half = -(-count // 2)
    for rows, columns in _tiles(xp, k0.shape[0], half):
        x0 = xp.arange(columns.start, columns.stop, dtype=np.uint32)
        partner = xp.arange(columns.start + half, columns.stop + half, dtype=np.int64)
        x1 = xp.where(partner < count, partner, 0).astype(np.uint32)
        yield rows, columns, *hash_pairs(xp, k0[rows], k1[rows], x0, x1)


def fill_legacy_bits(xp: Any, keys: Any, out: Any) -> None:
    """Fill ``out``, uint32[number of keys, count], in the legacy layout."""
    count = out.shape[1]
    half = -(-count // 2)
    for rows, columns, a, b in paired_hashes(xp, keys, count):
        out[rows, columns] = a
        second = slice(columns.start + half, min(columns.stop + half, count))
        out[rows, second] = b[:, : second.stop - second.start]


# --- threefry2x32 --------------------------------------------------------------------------


def _hash_shape(*avals: ShapedArray) -> list[ShapedArray]:
    check(
        all(aval.dtype == dtypes.uint32 for aval in avals),
        lambda: (
            f"[threefry2x32] operands must be uint32; got {types_text(avals)}. "
            "Fix: convert with x.astype('uint32')."
        ),
    )
    return [ShapedArray(broadcast_shape("threefry2x32", avals), dtypes.uint32)] * 2


def _hash_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int]]:
    outs, dim = batch_elementwise(threefry2x32)(axis, operands, dims)
    return list(outs), [dim, dim]


def threefry2x32(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Hash the counter (x0, x1) under the key (k0, k1): two uint32 arrays.

    Args:
        k0, k1, x0, x1: uint32 arrays of one shape, up to sizes of 1 and rank 0.
    """
    first, second = threefry2x32_p.bind(k0, k1, x0, x1)
    return first, second


threefry2x32_p = define(
    "threefry2x32",
    multiple_results=True,
    shape=_hash_shape,
    impl=hash_pairs,
    batch=_hash_batch,
    lower=Elementwise(
        lambda builder, values, in_avals, out_aval, params: builder.apply("threefry2x32", *values)
    ),
)
