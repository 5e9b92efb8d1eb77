"""Typed random keys: creation from seeds or key data, unwrapping, and fold_in.

Tests: tests/random/test_rbg_keys.py, tests/random/test_random_keys.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import KEY_DTYPES, KeyDType, ShapedArray
from gpuflow.core.key_use import use_all, use_none
from gpuflow.core.lowering import Elementwise, Indexed
from gpuflow.core.primitive import Primitive
from gpuflow.kir.builder import ComplexPair
from gpuflow.ops.define import check_kind, define
from gpuflow.ops.elementwise.nary import batch_elementwise, broadcast_shape, zero_jvp
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.random.threefry import HALF, hash_pairs, key_halves, stored_keys


def is_key(dtype: Any) -> bool:
    """Whether ``dtype`` is a dtype of typed random keys."""
    return isinstance(dtype, KeyDType)


def check_keys(name: str, keys: ShapedArray) -> None:
    """Raise TypeError unless the operand holds typed keys."""
    check(
        is_key(keys.dtype),
        lambda: (
            f"[{name}] the operand must be typed random keys; got {keys}. "
            "Fix: make keys with random.key(seed), or wrap raw ones with random.wrap_key_data."
        ),
    )


def key_dtype(implementation: str) -> KeyDType:
    """The dtype of the keys of an implementation.

    Raises:
        ValueError: if there is no such implementation.
    """
    check(
        implementation in KEY_DTYPES,
        lambda: (
            f"[random] the key implementation must be one of {tuple(KEY_DTYPES)}; "
            f"got {implementation!r}. Fix: impl='threefry2x32'."
        ),
        ValueError,
    )
    return KEY_DTYPES[implementation]


# --- random_seed, random_wrap, random_unwrap -------------------------------------------------


def _seed_shape(seeds: ShapedArray, *, impl: str) -> ShapedArray:
    check_kind("random_seed", seeds, dtypes.is_integer, "integer seeds")
    check(
        impl == "threefry2x32",
        lambda: (
            f"[random_seed] the key implementation must be one of ('threefry2x32',); got {impl!r}. "
            "Fix: random.key(seed, impl=...) makes keys of the others."
        ),
        ValueError,
    )
    return ShapedArray(seeds.shape, key_dtype(impl))


def _seed_impl(xp: Any, seeds: Any, *, impl: str) -> Any:
    del impl
    wide = seeds.astype(np.uint64)
    k0 = wide >> HALF if seeds.dtype.itemsize == 8 else xp.zeros_like(wide)
    return k0 | (wide << HALF)


def _seed_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del out_aval, params
    half = builder.const("uint64", 32)
    wide = builder.cast(values[0], "uint64")
    k1 = builder.apply("shift_left", wide, half)
    if in_avals[0].dtype.itemsize < 8:
        return k1
    return builder.apply("or", k1, builder.apply("shift_right_logical", wide, half))


def random_seed(seeds: Any, impl: str = "threefry2x32") -> Any:
    """Return keys from integer seeds, one for each element.

    Args:
        seeds: integers of any shape; a Python int is taken modulo 2**32 (2**64 with x64).
        impl: the key implementation.

    Returns:
        Keys of the shape of ``seeds``.

    Raises:
        TypeError: if seeds are not integers.
        OverflowError: if a Python int does not fit into 64 bits.
    """
    if type(seeds) is int:
        check(
            -(2**63) <= seeds < 2**63,
            lambda: (
                f"[random_seed] a seed must fit into 64 bits; got {seeds}. "
                "Fix: take it modulo 2**63."
            ),
            OverflowError,
        )
        seeds = np.asarray(seeds, np.int64).astype(dtypes.default_int())[()]
    return random_seed_p.bind(seeds, impl=impl)


random_seed_p = define(
    "random_seed",
    shape=_seed_shape,
    impl=_seed_impl,
    jvp=zero_jvp(lambda: random_seed_p),
    batch=lambda axis, operands, dims, *, impl: (random_seed(operands[0], impl), dims[0]),
    lower=Elementwise(_seed_body),
)


def _wrap_shape(data: ShapedArray, *, impl: str) -> ShapedArray:
    dtype = key_dtype(impl)
    check(
        data.dtype == dtypes.uint32 and data.shape[-1:] == dtype.key_shape,
        lambda: (
            f"[random_wrap] raw keys must be uint32 with a last dimension of {dtype.key_shape[0]} "
            f"for {impl}; got {data}. Fix: wrap the result of random.PRNGKey or random.key_data."
        ),
    )
    return ShapedArray(data.shape[:-1], dtype)


def _wrap_impl(xp: Any, data: Any, *, impl: str) -> Any:
    return key_dtype(impl).stored(xp.array(data, order="C"))


def _wrap_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    del in_avals, params
    batch, builder = [context.index(d) for d in range(out.ndim)], context.builder
    data = [
        context.load(0, [*batch, builder.const("int64", index)])
        for index in range(out.dtype.key_shape[0])
    ]
    halves = [packed_key(builder, *data[k : k + 2]) for k in range(0, len(data), 2)]
    if len(halves) == 1:
        return halves[0]
    return ComplexPair(*[builder.apply("bitcast_float64", half) for half in halves])


def packed_key(builder: Any, k0: Any, k1: Any) -> Any:
    """A stored key from two uint32 values in a kernel."""
    high = builder.apply("shift_left", builder.cast(k1, "uint64"), builder.const("uint64", 32))
    return builder.apply("or", builder.cast(k0, "uint64"), high)


def unpacked_key(builder: Any, key: Any) -> tuple[Any, Any]:
    """The two uint32 values of a stored key in a kernel."""
    high = builder.apply("shift_right_logical", key, builder.const("uint64", 32))
    return builder.cast(key, "uint32"), builder.cast(high, "uint32")


def random_wrap(data: Any, impl: str = "threefry2x32") -> Any:
    """Typed keys from raw ones: u32[..., 2] to key[...], u32[..., 4] for the rbg ones."""
    return random_wrap_p.bind(data, impl=impl)


random_wrap_p = define(
    "random_wrap",
    shape=_wrap_shape,
    impl=_wrap_impl,
    jvp=zero_jvp(lambda: random_wrap_p),
    batch=lambda axis, operands, dims, *, impl: (
        random_wrap(move_axis(operands[0], dims[0], 0), impl),
        0,
    ),
    lower=Indexed(_wrap_body),
)


def _unwrap_shape(keys: ShapedArray) -> ShapedArray:
    check_keys("random_unwrap", keys)
    return ShapedArray((*keys.shape, *keys.dtype.key_shape), dtypes.uint32)


def _unwrap_impl(xp: Any, keys: Any) -> Any:
    contiguous = xp.array(keys, order="C")
    return contiguous.reshape((*contiguous.shape, 1)).view(np.uint32)


def _unwrap_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    del out, params
    rank = in_avals[0].ndim
    builder = context.builder
    key = context.element(0, range(rank))
    halves = [key]
    if isinstance(key, ComplexPair):
        halves = [builder.apply("bitcast_uint64", half) for half in (key.real, key.imag)]
    values = [value for half in halves for value in unpacked_key(builder, half)]
    selected = values[-1]
    for k in range(len(values) - 2, -1, -1):
        is_it = builder.apply("eq", context.index(rank), builder.const("int64", k))
        selected = builder.select(is_it, values[k], selected)
    return selected


def random_unwrap(keys: Any) -> Any:
    """Raw keys from typed ones: key[...] to u32[..., 2] or u32[..., 4]."""
    return random_unwrap_p.bind(keys)


random_unwrap_p = define(
    "random_unwrap",
    shape=_unwrap_shape,
    impl=_unwrap_impl,
    jvp=zero_jvp(lambda: random_unwrap_p),
    batch=lambda axis, operands, dims: (random_unwrap(operands[0]), dims[0]),
    lower=Indexed(_unwrap_body),
    keys=use_none,
)


def random_clone(keys: Any) -> Any:
    """The same keys, which may be used like new ones."""
    return random_clone_p.bind(keys)


def random_consume(keys: Any) -> Any:
    """The same keys, which count as used: for generators composed of other ops."""
    return random_consume_p.bind(keys)


def _define_same(name: str, rule: Callable[..., Any]) -> Primitive:
    """Define an op that returns its keys, with its rule of key use."""

    def shape(keys: ShapedArray) -> ShapedArray:
        check_keys(name, keys)
        return keys

    primitive = define(
        name,
        shape=shape,
        impl=lambda xp, keys: keys,
        jvp=zero_jvp(lambda: primitive),
        batch=lambda axis, operands, dims: (primitive.bind(operands[0]), dims[0]),
        lower=Elementwise(lambda builder, values, in_avals, out_aval, params: values[0]),
        keys=rule,
    )
    return primitive


random_clone_p = _define_same("random_clone", use_none)
random_consume_p = _define_same("random_consume", use_all)


# --- random_fold_in ------------------------------------------------------------------------


def _fold_shape(keys: ShapedArray, data: ShapedArray) -> ShapedArray:
    check_keys("random_fold_in", keys)
    check(
        data.dtype == dtypes.uint32,
        lambda: (
            f"[random_fold_in] data must be uint32; got {data} for {keys}. "
            "Fix: convert it with data.astype('uint32')."
        ),
    )
    return ShapedArray(broadcast_shape("random_fold_in", (keys, data)), keys.dtype)


def _fold_impl(xp: Any, keys: Any, data: Any) -> Any:
    k0, k1 = key_halves(keys)
    return stored_keys(*hash_pairs(xp, k0, k1, np.zeros_like(data), data))


def _fold_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    key, data = values
    zero = builder.const("uint32", 0)
    hashed = builder.apply("threefry2x32", *unpacked_key(builder, key), zero, data)
    return packed_key(builder, *hashed)


def random_fold_in(keys: Any, data: Any) -> Any:
    """Fold integers into keys.

    Args:
        keys: typed keys.
        data: uint32, of the shape of ``keys`` up to sizes of 1 and rank 0; a Python int is taken
            modulo 2**32.

    Returns:
        Keys of the common shape, the same in both layouts.

    Raises:
        TypeError: if operands are not keys and uint32, or shapes do not match.
    """
    if type(data) is int:
        data = np.uint32(data & 0xFFFFFFFF)
    return random_fold_in_p.bind(keys, data)


random_fold_in_p = define(
    "random_fold_in",
    shape=_fold_shape,
    impl=_fold_impl,
    jvp=zero_jvp(lambda: random_fold_in_p),
    batch=batch_elementwise(random_fold_in),
    lower=Elementwise(_fold_body),
    keys=use_none,
)
