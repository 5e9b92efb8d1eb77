"""bitcast_convert_type: reinterpret the bits of one dtype as another.

Tests: tests/ops/test_elementwise_rules.py, tests/ops/test_dtypes_storage.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.kir.scalar import NARROW_DTYPES
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.comparison import shift_left, shift_right_logical
from gpuflow.ops.elementwise.convert import batch_unary, convert_element_type
from gpuflow.ops.elementwise.nary import zero_jvp
from gpuflow.ops.layout.axes import insert_axis, reduce_sum


def _bitcast_shape(x: ShapedArray, *, new_dtype: Any) -> ShapedArray:
    plain = not any(dtype.kind in "bcX" for dtype in (x.dtype, new_dtype))
    check(
        plain or x.dtype == new_dtype,
        lambda: (
            "[bitcast_convert_type] dtypes must be integers or real floats, unless equal; "
            f"got {x} and {dtypes.short_name(new_dtype)}. Fix: use x.view(dtype)."
        ),
    )
    check(
        dtypes.bits_of(x.dtype) == dtypes.bits_of(new_dtype),
        lambda: (
            "[bitcast_convert_type] the primitive needs dtypes of one width; "
            f"got {x} and {dtypes.short_name(new_dtype)}. "
            "Fix: call the function bitcast_convert_type, which splits and joins elements."
        ),
        ValueError,
    )
    return ShapedArray(x.shape, new_dtype)


def _bitcast_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del params
    source, target = in_avals[0].dtype, out_aval.dtype
    if source == target:
        return values[0]
    value = values[0]
    if source.name in NARROW_DTYPES:
        value, source = bits_of_float(builder, value, source), np.dtype(np.uint16)
    if target.name in NARROW_DTYPES:
        bits = builder.apply("bitcast_uint16", value) if source.name != "uint16" else value
        return float_of_bits(builder, bits, target)
    return builder.apply(f"bitcast_{target.name}", value) if source != target else value


def bits_of_float(builder: Any, value: Any, dtype: np.dtype) -> Any:
    """Bits of a float of ``dtype`` as an unsigned integer, in a body; not for 8-bit floats."""
    name = dtype.name
    if name not in NARROW_DTYPES:
        return builder.apply(f"bitcast_uint{8 * dtype.itemsize}", value)
    bits = _narrow_to_bits(builder, builder.round(value, name), name)
    # Rounding to 16 bits on a GPU loses the bits of a NaN. Unrounded, a NaN that does not fit
    # 16 bits could become an infinity.
    exact = _narrow_to_bits(builder, value, name)
    largest = builder.const("uint16", 0x7F80 if name == "bfloat16" else 0x7C00)
    magnitude = builder.apply("and", exact, builder.const("uint16", 0x7FFF))
    is_nan = builder.apply(
        "and", builder.apply("ne", value, value), builder.apply("gt", magnitude, largest)
    )
    return builder.select(is_nan, exact, bits)


def float_of_bits(builder: Any, bits: Any, dtype: np.dtype) -> Any:
    """The float of ``dtype`` with the given bits; inverse of ``bits_of_float``."""
    if dtype.name in NARROW_DTYPES:
        return _bits_to_narrow(builder, bits, dtype.name)
    return builder.apply(f"bitcast_{dtype.name}", bits)


def _in_kernels(x: ShapedArray, out: ShapedArray) -> bool:
    """Whether kernels have all bits: they hold 8-bit floats as float32, without nan's payload."""
    is_small = any(aval.dtype in dtypes.NARROW_FLOATS for aval in (x, out))
    return x.dtype == out.dtype or not is_small


def _narrow_to_bits(builder: Any, value: Any, name: str) -> Any:
    """The 16 bits of a float16 or bfloat16 held as float32."""
    u32 = partial(builder.const, "uint32")
    bits = builder.apply("bitcast_uint32", value)
    high = builder.apply("shift_right_logical", bits, u32(16))
    if name == "bfloat16":
        return builder.cast(high, "uint16")
    magnitude = builder.apply("and", bits, u32(0x7FFFFFFF))
    # float32 has 13 more bits of mantissa and a bias larger by 112.
    fraction = builder.apply("shift_right_logical", magnitude, u32(13))
    normal = builder.apply("sub", fraction, u32(112 << 10))
    special = builder.apply("or", u32(0x7C00), builder.apply("and", fraction, u32(0x3FF)))
    units = builder.apply("mul", builder.apply("abs", value), builder.const("float32", 2.0**24))
    subnormal = builder.cast(units, "uint32")
    is_special = builder.apply("ge", magnitude, u32(0x7F800000))
    is_normal = builder.apply("ge", magnitude, u32(113 << 23))
    low = builder.select(is_normal, normal, subnormal)
    low = builder.select(is_special, special, low)
    sign = builder.apply("and", high, u32(0x8000))
    return builder.cast(builder.apply("or", sign, low), "uint16")


def _bits_to_narrow(builder: Any, bits: Any, name: str) -> Any:
    """The float16 or bfloat16 of 16 bits, held as float32."""
    u32 = partial(builder.const, "uint32")
    wide = builder.cast(bits, "uint32")
    if name == "bfloat16":
        return builder.apply("bitcast_float32", builder.apply("shift_left", wide, u32(16)))
    low = builder.apply("and", wide, u32(0x7FFF))
    shifted = builder.apply("shift_left", low, u32(13))
    normal = builder.apply("add", shifted, u32(112 << 23))
    special = builder.apply("or", shifted, u32(0x7F800000))
    units = builder.cast(low, "float32")
    subnormal = builder.apply("mul", units, builder.const("float32", 2.0**-24))
    magnitude = builder.apply("bitcast_uint32", subnormal)
    magnitude = builder.select(builder.apply("ge", low, u32(0x400)), normal, magnitude)
    magnitude = builder.select(builder.apply("ge", low, u32(0x7C00)), special, magnitude)
    sign = builder.apply("shift_left", builder.apply("and", wide, u32(0x8000)), u32(16))
    return builder.apply("bitcast_float32", builder.apply("or", sign, magnitude))


bitcast_convert_type_p = define(
    "bitcast_convert_type",
    shape=_bitcast_shape,
    impl=lambda xp, x, *, new_dtype: xp.ascontiguousarray(x).reshape(x.shape).view(new_dtype),
    jvp=zero_jvp(lambda: bitcast_convert_type_p),
    batch=batch_unary(lambda x, **params: bitcast_convert_type_p.bind(x, **params)),
    lower=Elementwise(_bitcast_body, cheap=True, holds=_in_kernels),
)


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Array:
    """Reinterpret the bits of ``operand`` as another dtype.

    Args:
        operand: array of integers or real floats.
        new_dtype: the dtype of the result; narrowed to 32 bits unless x64 is enabled.

    Returns:
        An array of ``new_dtype``. A narrower dtype adds a last dimension, lowest bits first; a
        wider one consumes a last dimension of the ratio of the widths. int4 has 4 bits.

    Raises:
        TypeError: if a dtype is bool, complex or a key dtype.
        ValueError: if the last dimension does not make up one element.

    Example:
        >>> lax.bitcast_convert_type(jnp.array([1.0, -2.0]), jnp.uint32)
        Array([1065353216, 3221225472], dtype=uint32)
    """
    dtype = dtypes.canonicalize(new_dtype)
    aval = aval_of(operand)
    old, new = dtypes.bits_of(aval.dtype), dtypes.bits_of(dtype)
    plain = not any(kind in "bcX" for kind in (aval.dtype.kind, dtype.kind))
    if old > new and plain:
        return _split_bits(operand, aval, dtype)
    if old < new and plain:
        return _join_bits(operand, aval, dtype)
    return bitcast_convert_type_p.bind(operand, new_dtype=dtype)


def _uint(dtype: Any) -> np.dtype:
    """The unsigned integer dtype of the same width."""
    name = f"uint{dtypes.bits_of(dtype)}"
    return np.dtype(getattr(ml_dtypes, name, name))


def _bit_offsets(count: int, width: int, uint: np.dtype, rank: int) -> np.ndarray:
    """Offsets of ``count`` fields of ``width`` bits, along the last of ``rank`` dimensions."""
    offsets = (np.arange(count) * width).astype(uint)
    return offsets.reshape((1,) * (rank - 1) + (count,))


def _split_bits(x: Any, aval: ShapedArray, dtype: Any) -> Any:
    uint, width = _uint(aval.dtype), dtypes.bits_of(dtype)
    bits = bitcast_convert_type_p.bind(x, new_dtype=uint)
    offsets = _bit_offsets(dtypes.bits_of(uint) // width, width, uint, aval.ndim + 1)
    shifted = shift_right_logical(insert_axis(bits, aval.ndim), offsets)
    low = convert_element_type(shifted, _uint(dtype))
    return bitcast_convert_type_p.bind(low, new_dtype=dtype)


def _join_bits(x: Any, aval: ShapedArray, dtype: Any) -> Any:
    width = dtypes.bits_of(aval.dtype)
    count = dtypes.bits_of(dtype) // width
    check(
        aval.shape[-1:] == (count,),
        lambda: (
            f"[bitcast_convert_type] the last dimension must have size {count} to make up "
            f"{dtypes.short_name(dtype)}; got {aval}. Fix: reshape to (..., {count})."
        ),
        ValueError,
    )
    uint = _uint(dtype)
    bits = bitcast_convert_type_p.bind(x, new_dtype=_uint(aval.dtype))
    wide = convert_element_type(bits, uint)
    offsets = _bit_offsets(count, width, uint, aval.ndim)
    # The fields have no bit in common, so their sum combines them.
    combined = reduce_sum(shift_left(wide, offsets), (aval.ndim - 1,))
    return bitcast_convert_type_p.bind(combined, new_dtype=dtype)
