"""Random bits: splitting keys and drawing bits from them.

Bits are hashes of counters under a key, in one of two layouts, which give different values:

    partitionable   element i hashes only the counter i: (high half of i, low half of i)
    legacy          uint32 i of n is paired with uint32 i + n/2, and both come from one hash

All results are bit for bit those of JAX 0.10. All ops are integer: there are no derivatives.

Tests: tests/ops/test_random_bits.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Indexed
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.comparison import bitwise_xor
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.nary import zero_jvp
from gpuflow.ops.layout.axes import broadcast_in_dim, squeeze
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.random.keys import check_keys, packed_key, random_unwrap, unpacked_key
from gpuflow.ops.random.threefry import (
    counted_hashes,
    fill_legacy_bits,
    paired_hashes,
    stored_keys,
    threefry2x32,
)
from gpuflow.ops.zeros import full

BIT_WIDTHS = (8, 16, 32, 64)


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(as_index(size) for size in shape)


def _check_sizes(name: str, shape: tuple[int, ...]) -> None:
    check(
        all(size >= 0 for size in shape),
        lambda: f"[{name}] sizes must not be negative; got {shape}. Fix: use sizes >= 0.",
        ValueError,
    )


def _partitionable() -> bool:
    return config.trace_context().threefry_partitionable


# --- random_bits ---------------------------------------------------------------------------


def _check_legacy_count(name: str, count: int) -> None:
    check(
        count < 2**32 - 1,
        lambda: (
            f"[{name}] the legacy layout has at most 2**32 - 2 integers for each key; got {count}. "
            "Fix: config.update('threefry_partitionable', True), or split the key and draw several "
            "arrays."
        ),
        ValueError,
    )


def _uint32_count(bit_width: int, size: int) -> int:
    """Number of uint32 that hold ``size`` elements."""
    return -(-bit_width * size // 32)


def _bits_shape(
    keys: ShapedArray, *, bit_width: int, shape: tuple[int, ...], partitionable: bool
) -> ShapedArray:
    check_keys("random_bits", keys)
    _check_sizes("random_bits", shape)
    check(
        bit_width in BIT_WIDTHS,
        lambda: (
            f"[random_bits] bit_width must be one of {BIT_WIDTHS}; got {bit_width!r}. "
            "Fix: bit_width=32."
        ),
    )
    if not partitionable:
        _check_legacy_count("random_bits", _uint32_count(bit_width, prod(shape)))
    return ShapedArray((*keys.shape, *shape), np.dtype(f"uint{bit_width}"))


def _bits_impl(
    xp: Any, keys: Any, *, bit_width: int, shape: tuple[int, ...], partitionable: bool
) -> Any:
    out = xp.empty((*keys.shape, *shape), f"uint{bit_width}")
    size = prod(shape)
    if out.size == 0:
        return out
    grid = out.reshape(keys.size, size)
    if partitionable or bit_width == 64:
        # In the legacy layout the pairs of 64-bit draws are the two halves of each element.
        hashes = (
            counted_hashes(xp, keys, size) if partitionable else paired_hashes(xp, keys, 2 * size)
        )
        for rows, columns, a, b in hashes:
            grid[rows, columns] = stored_keys(b, a) if bit_width == 64 else a ^ b
    elif bit_width == 32:
        fill_legacy_bits(xp, keys, grid)
    else:
        bits = xp.empty((keys.size, _uint32_count(bit_width, size)), np.uint32)
        fill_legacy_bits(xp, keys, bits)
        grid[...] = bits.view(out.dtype)[:, :size]
    return out


def _bits_scalars(in_avals: Any, params: Any) -> list[int]:
    del in_avals
    width, size = params["bit_width"], prod(params["shape"])
    if params["partitionable"]:
        return []
    return [size] if width == 64 else _halves(_uint32_count(width, size))


def _halves(count: int) -> list[int]:
    """The scalars of ``_legacy_bits``: the middle and the end of ``count`` uint32."""
    return [-(-count // 2), count]


def _bits_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    rank = in_avals[0].ndim
    builder = context.builder
    key = unpacked_key(builder, context.element(0, range(rank)))
    width = params["bit_width"]
    index = context.linear_index(rank)
    if params["partitionable"]:
        a, b = _hash_count(builder, key, index)
        return _wide(builder, a, b) if width == 64 else _narrow(builder, a, b, out)
    if width == 64:
        partner = builder.apply("add", index, context.number(0))
        return _wide(builder, *_hash_pair(builder, key, index, partner))
    return _legacy_element(context, key, index, width, out)


def _hash_count(builder: Any, key: Any, index: Any) -> tuple[Any, Any]:
    """The hash of one int64 counter."""
    high = builder.apply("shift_right_logical", index, builder.const("int64", 32))
    counter = builder.cast(high, "uint32"), builder.cast(index, "uint32")
    return builder.apply("threefry2x32", *key, *counter)


def _hash_pair(builder: Any, key: Any, index: Any, partner: Any) -> tuple[Any, Any]:
    counter = builder.cast(index, "uint32"), builder.cast(partner, "uint32")
    return builder.apply("threefry2x32", *key, *counter)


def _legacy_bits(context: Any, key: Any, indices: Sequence[Any]) -> list[Any]:
    """The uint32 at ``indices`` in the legacy layout."""
    builder = context.builder
    half, end = context.number(0), context.number(1)
    draws = []
    for index in indices:
        is_first = builder.apply("lt", index, half)
        pair = builder.select(is_first, index, builder.apply("sub", index, half))
        partner = builder.apply("add", pair, half)
        # The partner of an odd last uint32 is 0.
        exists = builder.apply("lt", partner, end)
        partner = builder.select(exists, partner, builder.const("int64", 0))
        draws.append(builder.select(is_first, *_hash_pair(builder, key, pair, partner)))
    return draws


def _legacy_element(context: Any, key: Any, index: Any, width: int, out: ShapedArray) -> Any:
    builder = context.builder
    if width == 32:
        return _legacy_bits(context, key, [index])[0]
    # 32 / width elements share a uint32, the lowest bits first.
    shared = builder.const("int64", 32 // width)
    (packed,) = _legacy_bits(context, key, [builder.apply("div", index, shared)])
    position = builder.cast(builder.apply("rem", index, shared), "uint32")
    shift = builder.apply("mul", position, builder.const("uint32", width))
    return builder.cast(builder.apply("shift_right_logical", packed, shift), out.dtype.name)


def _wide(builder: Any, a: Any, b: Any) -> Any:
    return packed_key(builder, b, a)


def _narrow(builder: Any, a: Any, b: Any, out: ShapedArray) -> Any:
    return builder.cast(builder.apply("xor", a, b), out.dtype.name)


def _leading_batch(apply: Any) -> Any:
    """Batch rule of an op on keys of any shape: the mapped dimension is one more leading one."""

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
    ) -> tuple[Any, int]:
        del axis
        return apply(move_axis(operands[0], dims[0], 0), **params), 0

    return batch


def random_bits(
    keys: Any, bit_width: int, shape: Sequence[int], partitionable: bool | None = None
) -> Any:
    """Draw uniform random bits.

    Args:
        keys: typed keys of any shape.
        bit_width: 8, 16, 32 or 64.
        shape: shape of the draws of each key.
        partitionable: the layout; None: ``config.threefry_partitionable``.

    Returns:
        Unsigned integers of that width, of shape ``keys.shape + shape``.

    Raises:
        TypeError: if operands are not typed keys, or the width is not supported.
        ValueError: if a size is negative, or there are too many elements for the legacy layout.
    """
    return random_bits_p.bind(
        keys,
        bit_width=bit_width,
        shape=_sizes(shape),
        partitionable=_partitionable() if partitionable is None else partitionable,
    )


def _bits_block(
    starts: Sequence[Any],
    sizes: Sequence[int],
    keys: Any,
    *,
    bit_width: int,
    shape: tuple[int, ...],
    partitionable: bool,
) -> Any:
    """A block of the bits of one key: each element is the hash of its row-major index."""
    if aval_of(keys).ndim or not partitionable or bit_width == 64 or prod(shape) > 1 << 32:
        return None
    sizes = tuple(sizes)

    def spread(scalar: Any) -> Any:
        return broadcast_in_dim(scalar, sizes, ())

    zeros = counter = full(sizes, 0, np.dtype(np.uint32))
    for dim, start in enumerate(starts):
        index = add(iota(np.uint32, sizes, dim), spread(convert_element_type(start, np.uint32)))
        stride = full(sizes, prod(shape[dim + 1 :]), np.dtype(np.uint32))
        counter = add(counter, mul(index, stride))
    data = random_unwrap(keys)
    halves = [spread(squeeze(slice_in_dim(data, k, k + 1), (0,))) for k in (0, 1)]
    a, b = threefry2x32(*halves, zeros, counter)
    return convert_element_type(bitwise_xor(a, b), np.dtype(f"uint{bit_width}"))


random_bits_p = define(
    "random_bits",
    shape=_bits_shape,
    impl=_bits_impl,
    jvp=zero_jvp(lambda: random_bits_p),
    batch=_leading_batch(random_bits),
    lower=Indexed(_bits_body, _bits_scalars),
    size_params=frozenset({"shape"}),
    block=_bits_block,
)


# --- random_split --------------------------------------------------------------------------


def _split_shape(keys: ShapedArray, *, shape: tuple[int, ...], partitionable: bool) -> ShapedArray:
    check_keys("random_split", keys)
    _check_sizes("random_split", shape)
    if not partitionable:
        _check_legacy_count("random_split", 2 * prod(shape))
    return ShapedArray((*keys.shape, *shape), keys.dtype)


def _split_impl(xp: Any, keys: Any, *, shape: tuple[int, ...], partitionable: bool) -> Any:
    out = xp.empty((*keys.shape, *shape), np.uint64)
    if out.size == 0:
        return out
    grid = out.reshape(keys.size, -1)
    if partitionable:
        for rows, columns, a, b in counted_hashes(xp, keys, grid.shape[1]):
            grid[rows, columns] = stored_keys(a, b)
    else:
        # Key i consists of uint32 2 i and 2 i + 1: on a little-endian machine, one uint64.
        fill_legacy_bits(xp, keys, grid.view(np.uint32))
    return out


def _split_scalars(in_avals: Any, params: Any) -> list[int]:
    del in_avals
    return [] if params["partitionable"] else _halves(2 * prod(params["shape"]))


def _split_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    del out
    rank = in_avals[0].ndim
    builder = context.builder
    key = unpacked_key(builder, context.element(0, range(rank)))
    index = context.linear_index(rank)
    if params["partitionable"]:
        return packed_key(builder, *_hash_count(builder, key, index))
    even = builder.apply("add", index, index)
    odd = builder.apply("add", even, builder.const("int64", 1))
    return packed_key(builder, *_legacy_bits(context, key, [even, odd]))


def random_split(keys: Any, shape: Sequence[int], partitionable: bool | None = None) -> Any:
    """Split each key into new keys of ``shape``.

    Args:
        keys: typed keys of any shape.
        shape: shape of the new keys of each key.
        partitionable: as in ``random_bits``.

    Returns:
        Keys of shape ``keys.shape + shape``.

    Raises:
        TypeError: if operands are not typed keys.
        ValueError: if a size is negative.
    """
    return random_split_p.bind(
        keys,
        shape=_sizes(shape),
        partitionable=_partitionable() if partitionable is None else partitionable,
    )


random_split_p = define(
    "random_split",
    shape=_split_shape,
    impl=_split_impl,
    jvp=zero_jvp(lambda: random_split_p),
    batch=_leading_batch(random_split),
    lower=Indexed(_split_body, _split_scalars),
    size_params=frozenset({"shape"}),
)
