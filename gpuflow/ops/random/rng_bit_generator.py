"""rng_bit_generator: random bits from a raw state, in XLA's layouts.

A state is (key, counter), each of 64 bits, as u32[4] or u64[2]; each call advances the counter.

Source: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3; counters
    and the layout of the output are those of XLA's RngBitGenerator.

Tests: tests/ops/test_random_bits.py, tests/lax/test_lax_definitions.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, zero_tangent
from gpuflow.core.types import Array, DTypeLike, ShardingLike
from gpuflow.ops.collectives.named_axes import row
from gpuflow.ops.define import define
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.layout.axes import insert_axis
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.random.philox import FACTORS, ROUNDS, STEPS, philox_bits
from gpuflow.ops.random.threefry import HALF, hash_pairs
from gpuflow.ops.written_out import written_out

Shape = tuple[int, ...]


class RandomAlgorithm(enum.IntEnum):
    """Algorithms for random bits; the default is Philox, as on JAX's CPU and GPU."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2

    def __str__(self) -> str:
        return self.name


def _shape(
    key: ShapedArray, *, shape: Shape, dtype: Any, algorithm: RandomAlgorithm, is_shared: bool
) -> list[ShapedArray]:
    del algorithm, is_shared
    check(
        (key.dtype, key.shape[-1:]) in ((dtypes.uint32, (4,)), (dtypes.uint64, (2,))),
        lambda: (
            f"[rng_bit_generator] the state must be u32[4] or u64[2]; got {key}. "
            "Fix: jnp.array([0, 1, 0, 0], 'uint32'), or gpuflow.random, which has typed keys."
        ),
    )
    check(
        dtype.kind == "u",
        lambda: (
            "[rng_bit_generator] dtype must be uint8, uint16, uint32 or uint64; got "
            f"{dtype}. Fix: dtype='uint32'."
        ),
    )
    check(
        all(size >= 0 for size in shape),
        lambda: (
            f"[rng_bit_generator] sizes must not be negative; got {shape}. Fix: use sizes >= 0."
        ),
        ValueError,
    )
    return [key, ShapedArray((*key.shape[:-1], *shape), dtype)]


def _impl(
    xp: Any, key: Any, *, shape: Shape, dtype: Any, algorithm: RandomAlgorithm, is_shared: bool
) -> list[Any]:
    del is_shared
    lead = key.shape[:-1]
    states = xp.ascontiguousarray(key).view(np.uint64).reshape(-1, 2)
    keys, starts = states[:, :1], states[:, 1:]
    draw = _threefry if algorithm is RandomAlgorithm.RNG_THREE_FRY else _philox
    width = 64 if dtype.itemsize == 8 else 32
    bits, used = draw(xp, keys, starts, shape, width)
    advanced = xp.concatenate([keys, starts + np.uint64(used)], axis=1)
    state = advanced.view(key.dtype).reshape(key.shape)
    return [state, bits.reshape((*lead, *shape)).astype(dtype, copy=False)]


def _counters(xp: Any, starts: Any, count: int) -> Any:
    """u64[states, count]: consecutive counters from each start."""
    return starts + xp.arange(count, dtype=np.uint64)


def _halves(x: Any) -> tuple[Any, Any]:
    return x.astype(np.uint32), (x >> HALF).astype(np.uint32)


def _merged(low: Any, high: Any) -> Any:
    return low.astype(np.uint64) | (high.astype(np.uint64) << HALF)


def _threefry(xp: Any, keys: Any, starts: Any, shape: Shape, width: int) -> tuple[Any, int]:
    """Both halves of a hash are adjacent in one dimension: the first even one, or the largest."""
    if width == 64:
        count = prod(shape)
        counters = _counters(xp, starts, count)
        return _merged(*hash_pairs(xp, *_halves(keys), *_halves(counters))), count
    dim = next((d for d, n in enumerate(shape) if n % 2 == 0), None)
    if dim is None and shape:
        dim = shape.index(max(shape))
    sizes, dim = (shape, dim) if dim is not None else ((1,), 0)
    rows = keys.shape[0]
    half = (*sizes[:dim], -(-sizes[dim] // 2), *sizes[dim + 1 :])
    count = prod(half)
    pair = hash_pairs(xp, *_halves(keys), *_halves(_counters(xp, starts, count)))
    grid = xp.stack([hashes.reshape(rows, *half) for hashes in pair], axis=dim + 2)
    grid = grid.reshape(rows, *half[:dim], 2 * half[dim], *half[dim + 1 :])
    return grid[(slice(None),) * (dim + 1) + (slice(sizes[dim]),)], count


def _philox(xp: Any, keys: Any, starts: Any, shape: Shape, width: int) -> tuple[Any, int]:
    """Philox-4x32 with 10 rounds; the upper half of the 128-bit counter starts as the key."""
    size = prod(shape)
    count = -(-size * (width // 32) // 4)
    low = _counters(xp, starts, count)
    one = (low < starts).astype(np.uint64)  # the carry
    x = [*_halves(low), *_halves(keys + one)]
    k0, k1 = _halves(keys)
    for _ in range(ROUNDS):
        first = x[0].astype(np.uint64) * np.uint64(FACTORS[0])
        second = x[2].astype(np.uint64) * np.uint64(FACTORS[1])
        (low0, high0), (low1, high1) = _halves(first), _halves(second)
        x = [high1 ^ x[1] ^ k0, low1, high0 ^ x[3] ^ k1, low0]
        k0, k1 = k0 + np.uint32(STEPS[0]), k1 + np.uint32(STEPS[1])
    draws = x if width == 32 else [_merged(x[0], x[1]), _merged(x[2], x[3])]
    return xp.stack(draws, axis=2).reshape(keys.shape[0], -1)[:, :size], count


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    del tangents
    outs = rng_bit_generator_p.bind(*primals, **params)
    return outs, [zero_tangent(out) for out in outs]


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[list[Any], list[int]]:
    states = move_axis(operands[0], dims[0], 0)
    if not params["is_shared"]:
        return list(rng_bit_generator_p.bind(states, **params)), [0, 0]
    params["shape"] = (axis.size, *params["shape"])
    first, bits = rng_bit_generator_p.bind(row(states, 0), **params)
    others = slice_in_dim(states, 1, axis.size)
    return [concatenate([insert_axis(first, 0), others], 0), bits], [0, 0]


def _simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """Rewrite Philox as elementwise equations over the counters, which kernels fuse."""
    del definition
    params = eqn.params
    if params["algorithm"] is RandomAlgorithm.RNG_THREE_FRY or eqn.outputs[1].aval.size == 0:
        return None
    return written_out(philox_bits, eqn, build, shape=params["shape"], dtype=params["dtype"])


rng_bit_generator_p = define(
    "rng_bit_generator",
    multiple_results=True,
    simplify=_simplify,
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    batch=_batch,
    lower=Library(),
    size_params=frozenset({"shape"}),
)


def shared_bits(state: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Random bits; under vmap all are drawn from the first state, as in JAX.

    Args:
        state: u32[4].
        shape, dtype: as in ``rng_bit_generator``.
    """
    return rng_bit_generator_p.bind(
        state,
        shape=tuple(shape),
        dtype=np.dtype(dtype),
        algorithm=RandomAlgorithm.RNG_DEFAULT,
        is_shared=True,
    )[1]


def rng_bit_generator(
    key: Any,
    shape: Sequence[int],
    dtype: DTypeLike | None = np.uint32,
    algorithm: RandomAlgorithm = RandomAlgorithm.RNG_DEFAULT,
    *,
    out_sharding: ShardingLike = None,
) -> tuple[Array, Array]:
    """Return uniform random bits from a raw state, bit for bit those of JAX.

    Under vmap each state gives the same bits as alone (in JAX the first state is used for all).

    Args:
        key: u32[4] or u64[2]: a 64-bit key and a 64-bit counter, low half first.
        shape: shape of the result.
        dtype: an unsigned integer dtype.
        algorithm: a ``RandomAlgorithm``.
        out_sharding: the sharding of the bits; None uses the default device.

    Returns:
        The state with its counter advanced, and the bits.

    Raises:
        TypeError: if the state or dtype is invalid.
        ValueError: if a size is negative, or the algorithm is unknown.

    Example:
        >>> state, bits = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (3,))
        >>> bits.shape, bits.dtype
        ((3,), dtype('uint32'))
    """
    state = aval_of(key)
    check(
        state.ndim == 1,
        lambda: f"[rng_bit_generator] the state must be u32[4] or u64[2]; got {state}. Fix: vmap.",
    )
    check(
        algorithm in list(RandomAlgorithm),
        lambda: (
            f"[rng_bit_generator] algorithm must be a lax.RandomAlgorithm; got {algorithm!r}. "
            "Fix: lax.RandomAlgorithm.RNG_THREE_FRY."
        ),
        ValueError,
    )
    canonical = dtypes.canonicalize(dtype)
    state_out, bits = rng_bit_generator_p.bind(
        key,
        shape=tuple(map(as_index, shape)),
        dtype=canonical,
        algorithm=RandomAlgorithm(algorithm),
        is_shared=False,
    )
    return state_out, in_sharding("rng_bit_generator", bits, out_sharding)
