"""Ops on the bits of integers and floats: counts, nextafter, mulhi, rounding to fewer bits.

Tests: tests/lax/test_lax_shapes.py, tests/lax/test_lax_definitions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer
from gpuflow.base.caches import cache
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Elementwise
from gpuflow.core.rules import AxisData, Zero
from gpuflow.core.types import Array, ArrayLike
from gpuflow.kir import reference
from gpuflow.kir.scalar import compute_dtype
from gpuflow.ops.define import check_kind, define, unary_transpose
from gpuflow.ops.elementwise.bitcast import bits_of_float, float_of_bits
from gpuflow.ops.elementwise.nary import elementwise, match_scalars


def _has_bits(*avals: ShapedArray) -> bool:
    """Whether kernels have the bits of floats: they hold 8-bit floats as float32."""
    return not any(aval.dtype in dtypes.NARROW_FLOATS for aval in avals)


def _uint_name(dtype: np.dtype) -> str:
    """Name of the unsigned integer dtype of the same width."""
    return f"uint{8 * dtype.itemsize}"


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
    "population_count",
    impl=_population_count_impl,
    accepts=dtypes.is_integer,
    what="an integer",
    body="population_count",
)
clz_p = elementwise(
    "clz",
    impl=_clz_impl,
    accepts=dtypes.is_integer,
    what="an integer",
    body="clz",
)


# --- neighbors -----------------------------------------------------------------------------


def _nextafter_impl(xp: Any, x: Any, y: Any) -> Any:
    """NumPy's; for equal float16 operands the second one, because NumPy ignores signs of zeros."""
    out = xp.nextafter(x, y)
    return xp.where(x == y, y, out) if x.dtype == np.float16 else out


def _nextafter_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """Bits without the sign are ordered by magnitude: the neighbor differs by one."""
    del in_avals, params
    (x, y), dtype, apply = values, out_aval.dtype, builder.apply
    uint, compute = _uint_name(dtype), compute_dtype(dtype.name)
    one, sign = builder.const(uint, 1), builder.const(uint, 1 << 8 * dtype.itemsize - 1)
    bits, towards = (bits_of_float(builder, v, dtype) for v in (x, y))
    is_negative = apply("ge", bits, sign)
    is_larger = apply("xor", apply("gt", y, x), is_negative)
    stepped = builder.select(is_larger, apply("add", bits, one), apply("sub", bits, one))
    is_zero = apply("eq", x, builder.const(compute, 0.0))
    smallest = apply("or", apply("and", towards, sign), one)
    stepped = builder.select(is_zero, smallest, stepped)
    stepped = builder.select(apply("eq", x, y), towards, stepped)
    is_nan = apply("or", apply("ne", x, x), apply("ne", y, y))
    return builder.select(is_nan, apply("add", x, y), float_of_bits(builder, stepped, dtype))


nextafter_p = elementwise(
    "nextafter",
    impl=_nextafter_impl,
    accepts=dtypes.is_floating,
    what="a real float",
    arity=2,
    body=_nextafter_body,
    holds=_has_bits,
)


# --- mulhi ---------------------------------------------------------------------------------


def _mulhi_impl(xp: Any, x: Any, y: Any) -> Any:
    width = 8 * x.dtype.itemsize
    if width < 64:
        wide = np.dtype(f"{x.dtype.kind}8")
        return ((x.astype(wide) * y.astype(wide)) >> wide.type(width)).astype(x.dtype)
    high = _high_half(x.view(np.uint64), y.view(np.uint64))
    if x.dtype.kind == "u":
        return high
    # As unsigned, a negative number is larger by 2**64.
    zero = np.int64(0)
    return high.view(np.int64) - xp.where(x < 0, y, zero) - xp.where(y < 0, x, zero)


def _high_half(x: Any, y: Any) -> Any:
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
    high = _high_half_body(builder, *unsigned)
    if dtype.kind == "u":
        return high
    high, zero = builder.cast(high, "int64"), builder.const("int64", 0)
    for sign, other in ((x, y), (y, x)):
        excess = builder.select(builder.apply("lt", sign, zero), other, zero)
        high = builder.apply("sub", high, excess)
    return high


def _high_half_body(builder: Any, x: Any, y: Any) -> Any:
    """``_high_half`` in a kernel."""
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
    "mulhi",
    impl=_mulhi_impl,
    accepts=dtypes.is_integer,
    what="an integer",
    arity=2,
    body=_mulhi_body,
)


def mulhi(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise high half of the product: n of 2 n bits for n-bit integers.

    Args:
        x: array of integers.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.mulhi(jnp.uint8(200), jnp.uint8(200)), 200 * 200 >> 8
        (Array(156, dtype=uint8), 156)
    """
    return mulhi_p.bind(*match_scalars(x, y))


def population_count(x: ArrayLike) -> Array:
    """Elementwise number of bits that are 1, in two's complement for negative integers.

    Args:
        x: array of integers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.population_count(jnp.array([0, 7, -1]))
        Array([ 0,  3, 32], dtype=int32)
    """
    return population_count_p.bind(x)


def clz(x: ArrayLike) -> Array:
    """Elementwise number of leading bits that are 0.

    Args:
        x: array of integers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.clz(jnp.array([1, 255], jnp.uint8))
        Array([7, 0], dtype=uint8)
    """
    return clz_p.bind(x)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Elementwise neighbor of ``x1`` in the direction of ``x2``; it has no derivative.

    Args:
        x1: array of real floats.
        x2: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.nextafter(jnp.float32(1), jnp.float32(2)) - 1 == jnp.finfo(jnp.float32).eps
        Array(True, dtype=bool)
    """
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


class _Rounding(NamedTuple):
    """Constants for rounding bits to a format.

    Attributes:
        shift: number of dropped mantissa bits.
        sign, exponent: masks.
        over, under: exponent bits above which values overflow the format, and up to which they are
            below its normal range; None: all exponents stay.
    """

    shift: int
    sign: int
    exponent: int
    over: int | None
    under: int | None


@cache
def _rounding(dtype: np.dtype, of: np.dtype, exponent_bits: int, mantissa_bits: int) -> _Rounding:
    """Constants for rounding bits of ``dtype`` that hold a value of ``of``."""
    info = ml_dtypes.finfo(dtype)
    shift = max(info.nmant - mantissa_bits, 0)
    sign = 1 << dtype.itemsize * 8 - 1
    exponent, bias = sign - (1 << info.nmant), 2 ** (info.nexp - 1) - 1
    if exponent_bits >= ml_dtypes.finfo(of).nexp:
        return _Rounding(shift, sign, exponent, None, None)
    reach = 2 ** (exponent_bits - 1) - 1
    return _Rounding(
        shift, sign, exponent, (bias + reach) << info.nmant, (bias - reach) << info.nmant
    )


def _precision_impl(xp: Any, x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    """Round to nearest even at the bit ``mantissa_bits``; small values become 0, large inf."""
    stored = x.astype(np.float32) if x.dtype in dtypes.NARROW_FLOATS else x
    rounding = _rounding(stored.dtype, x.dtype, exponent_bits, mantissa_bits)
    uint = np.dtype(_uint_name(stored.dtype)).type
    bits = xp.ascontiguousarray(stored).reshape(x.shape).view(uint)
    out = bits
    if rounding.shift:
        last = (out >> uint(rounding.shift)) & uint(1)
        half = uint((1 << rounding.shift - 1) - 1)
        out = (out + last + half) >> uint(rounding.shift) << uint(rounding.shift)
    if rounding.over is not None:
        sign, exponent = out & uint(rounding.sign), out & uint(rounding.exponent)
        infinite = sign | uint(rounding.exponent)
        out = xp.where(exponent > uint(rounding.over), infinite, out)
        out = xp.where(exponent <= uint(rounding.under), sign, out)
    out = xp.where(stored != stored, bits, out)
    return out.view(stored.dtype).astype(x.dtype)


def _precision_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """As ``_precision_impl``."""
    del in_avals
    (x,), dtype, apply = values, out_aval.dtype, builder.apply
    rounding, uint = _rounding(dtype, dtype, **params), partial(builder.const, _uint_name(dtype))
    out = bits = bits_of_float(builder, x, dtype)
    if rounding.shift:
        shift = uint(rounding.shift)
        last = apply("and", apply("shift_right_logical", out, shift), uint(1))
        out = apply("add", apply("add", out, last), uint((1 << rounding.shift - 1) - 1))
        out = apply("shift_left", apply("shift_right_logical", out, shift), shift)
    if rounding.over is not None:
        sign = apply("and", out, uint(rounding.sign))
        exponent = apply("and", out, uint(rounding.exponent))
        infinite = apply("or", sign, uint(rounding.exponent))
        out = builder.select(apply("gt", exponent, uint(rounding.over)), infinite, out)
        out = builder.select(apply("le", exponent, uint(rounding.under)), sign, out)
    out = builder.select(apply("ne", x, x), bits, out)
    return float_of_bits(builder, out, dtype)


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
    lower=Elementwise(_precision_body, holds=_has_bits),
)


@explained
def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Array:
    """Elementwise rounding to a float format with fewer bits; the dtype does not change.

    Numbers below the normal range of that format become 0, too large ones infinite. If the exponent
    has as many bits as the dtype's, subnormal numbers are rounded too.

    Args:
        operand: array of real floats.
        exponent_bits: an int, at least 1.
        mantissa_bits: an int, at least 0.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if operands are not real floats.
        ValueError: if there is less than 1 exponent bit, or a negative number of mantissa bits.

    Example:
        >>> lax.reduce_precision(jnp.array([1.1, 1e6]), exponent_bits=5, mantissa_bits=2)
        Array([ 1., inf], dtype=float32)
    """
    return reduce_precision_p.bind(
        operand,
        exponent_bits=as_integer("reduce_precision", "exponent_bits", exponent_bits),
        mantissa_bits=as_integer("reduce_precision", "mantissa_bits", mantissa_bits),
    )
