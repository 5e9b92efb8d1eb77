"""Ops on the bits of integers and floats: counts, neighbors, rounding to fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData, Zero
from gpuflow.core.types import Array, ArrayLike
from gpuflow.kir import reference
from gpuflow.ops.define import check_kind, define, unary_transpose
from gpuflow.ops.elementwise.nary import elementwise, match_scalars


def _population_count_impl(xp: Any, x: Any) -> Any:
    del xp
    width = dtypes.bits_of(x.dtype)
    if width < 8:
        x = x.astype(np.uint8) & np.uint8(2**width - 1)
    return reference.population_count(x)


def _clz_impl(xp: Any, x: Any) -> Any:
    del xp
    width = dtypes.bits_of(x.dtype)
    if width < 8:  # a byte has more zeros in front
        x = x.astype(np.uint8) & np.uint8(2**width - 1)
        return reference.clz(x) - np.uint8(8 - width)
    return reference.clz(x)


population_count_p = elementwise(
    "population_count", impl=_population_count_impl,
    accepts=dtypes.is_integer, what="an integer", body="population_count",
)  # fmt: skip
clz_p = elementwise(
    "clz", impl=_clz_impl, accepts=dtypes.is_integer, what="an integer",
    body="clz",
)  # fmt: skip
nextafter_p = elementwise(
    "nextafter", impl=lambda xp, x, y: xp.nextafter(x, y), accepts=dtypes.is_floating,
    what="a real float", arity=2,
    # Kernels compute 16-bit floats in float32, whose neighbors are others.
    body=None,
)  # fmt: skip


# --- mulhi ---------------------------------------------------------------------------------


def _mulhi_impl(xp: Any, x: Any, y: Any) -> Any:
    width = 8 * x.dtype.itemsize
    if width < 64:
        wide = np.dtype(f"{x.dtype.kind}8")
        return ((x.astype(wide) * y.astype(wide)) >> wide.type(width)).astype(x.dtype)
    high = _high_word(x.view(np.uint64), y.view(np.uint64))
    if x.dtype.kind == "u":
        return high
    # A negative number counts 2**64 more as an unsigned one.
    zero = np.int64(0)
    return high.view(np.int64) - xp.where(x < 0, y, zero) - xp.where(y < 0, x, zero)


def _high_word(x: Any, y: Any) -> Any:
    """The upper 64 bits of a product of uint64, from 32-bit halves."""
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    x_high, x_low, y_high, y_low = x >> half, x & mask, y >> half, y & mask
    middle = x_high * y_low + (x_low * y_low >> half)
    crossed = x_low * y_high + (middle & mask)
    return x_high * y_high + (middle >> half) + (crossed >> half)


def _mulhi_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, params
    dtype = out_aval.dtype
    x, y = values
    if dtype.itemsize < 8:
        wide = "int64" if dtype.kind == "i" else "uint64"
        product = builder.apply("mul", builder.cast(x, wide), builder.cast(y, wide))
        shift = builder.const(wide, 8 * dtype.itemsize)
        shifted = "shift_right_arithmetic" if dtype.kind == "i" else "shift_right_logical"
        return builder.cast(builder.apply(shifted, product, shift), dtype.name)
    unsigned = [builder.cast(v, "uint64") for v in values]
    high = _high_word_body(builder, *unsigned)
    if dtype.kind == "u":
        return high
    high, zero = builder.cast(high, "int64"), builder.const("int64", 0)
    for sign, other in ((x, y), (y, x)):
        excess = builder.select(builder.apply("lt", sign, zero), other, zero)
        high = builder.apply("sub", high, excess)
    return high


def _high_word_body(builder: Any, x: Any, y: Any) -> Any:
    """``_high_word`` in a kernel."""
    half, mask = builder.const("uint64", 32), builder.const("uint64", 2**32 - 1)

    def upper(v: Any) -> Any:
        return builder.apply("shift_right_logical", v, half)

    def lower(v: Any) -> Any:
        return builder.apply("and", v, mask)

    def sum_of_product(a: Any, b: Any, c: Any) -> Any:
        return builder.apply("add", builder.apply("mul", a, b), c)

    carry = upper(builder.apply("mul", lower(x), lower(y)))
    middle = sum_of_product(upper(x), lower(y), carry)
    crossed = sum_of_product(lower(x), upper(y), lower(middle))
    return builder.apply("add", sum_of_product(upper(x), upper(y), upper(middle)), upper(crossed))


mulhi_p = elementwise(
    "mulhi", impl=_mulhi_impl, accepts=dtypes.is_integer, what="an integer", arity=2,
    body=_mulhi_body,
)  # fmt: skip


def mulhi(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise upper half of the product: of 2 n bits for integers of n."""
    return mulhi_p.bind(*match_scalars(x, y))


def population_count(x: ArrayLike) -> Array:
    """Elementwise number of bits that are 1, of the two's complement for negative integers."""
    return population_count_p.bind(x)


def clz(x: ArrayLike) -> Array:
    """Elementwise number of leading bits that are 0."""
    return clz_p.bind(x)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Elementwise neighbor of ``x1`` in the direction of ``x2``; it has no derivative."""
    return nextafter_p.bind(*match_scalars(x1, x2))


# --- reduce_precision ----------------------------------------------------------------------


def _precision_shape(x: ShapedArray, *, exponent_bits: int, mantissa_bits: int) -> ShapedArray:
    check_kind("reduce_precision", x, dtypes.is_floating, "a real float")
    check(
        exponent_bits >= 1 and mantissa_bits >= 0,
        lambda: (
            "[reduce_precision] there must be at least 1 exponent bit and 0 mantissa bits; got "
            f"{exponent_bits} and {mantissa_bits}. Fix: 8 and 7 for bfloat16."
        ),
        ValueError,
    )
    return x


def _precision_impl(xp: Any, x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    """Round to nearest even at the bit ``mantissa_bits``; small numbers become 0, large inf."""
    wide = x.astype(np.float64)
    mantissa, exponent = xp.frexp(wide)  # abs(mantissa) in [1/2, 1)
    scale = 2.0 ** (mantissa_bits + 1)
    rounded = xp.ldexp(xp.rint(mantissa * scale) / scale, exponent)
    bias = 2 ** (exponent_bits - 1) - 1
    # frexp's exponent is one more than that of the significand in [1, 2).
    exponent = xp.frexp(rounded)[1] - 1
    largest = 2.0 * 2.0**bias if bias < 1023 else np.inf
    out = xp.where(xp.abs(rounded) >= largest, xp.copysign(np.inf, wide), rounded)
    out = xp.where(exponent < 1 - bias, xp.copysign(0.0, wide), out)
    out = xp.where((wide == 0) | ~xp.isfinite(wide), wide, out)
    return out.astype(x.dtype)


def _precision_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    out = reduce_precision_p.bind(*primals, **params)
    tangent = tangents[0]
    if type(tangent) is Zero:
        return out, tangent
    return out, reduce_precision_p.bind(tangent, **params)


def _precision_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[Any, int]:
    del axis
    return reduce_precision_p.bind(*operands, **params), dims[0]


reduce_precision_p = define(
    "reduce_precision",
    shape=_precision_shape,
    impl=_precision_impl,
    jvp=_precision_jvp,
    transpose=unary_transpose(lambda ct, x, **params: reduce_precision(ct, **params)),
    batch=_precision_batch,
    lower=Library(),
)


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Elementwise rounding to a float format with fewer bits; the dtype stays.

    Numbers too small for a normal number of that format become 0, too large ones infinite.

    Raises:
        TypeError: operands that are not real floats.
        ValueError: fewer than 1 exponent bit or 0 mantissa bits.
    """
    return reduce_precision_p.bind(
        operand, exponent_bits=int(exponent_bits), mantissa_bits=int(mantissa_bits)
    )
