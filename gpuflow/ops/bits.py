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
from gpuflow.kir import reference
from gpuflow.ops.define import check_kind, define, unary_transpose
from gpuflow.ops.nary import elementwise, match_scalars

population_count_p = elementwise(
    "population_count", impl=lambda xp, x: reference.population_count(x),
    accepts=dtypes.is_integer, what="an integer", body="population_count",
)  # fmt: skip
clz_p = elementwise(
    "clz", impl=lambda xp, x: reference.clz(x), accepts=dtypes.is_integer, what="an integer",
    body="clz",
)  # fmt: skip
nextafter_p = elementwise(
    "nextafter", impl=lambda xp, x, y: xp.nextafter(x, y), accepts=dtypes.is_floating,
    what="a real float", arity=2,
    # Kernels compute 16-bit floats in float32, whose neighbors are others.
    body=None,
)  # fmt: skip


def population_count(x: Any) -> Any:
    """Elementwise number of bits that are 1, of the two's complement for negative integers."""
    return population_count_p.bind(x)


def clz(x: Any) -> Any:
    """Elementwise number of leading bits that are 0."""
    return clz_p.bind(x)


def nextafter(x: Any, y: Any) -> Any:
    """Elementwise neighbor of ``x`` in the direction of ``y``; it has no derivative."""
    return nextafter_p.bind(*match_scalars(x, y))


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


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Elementwise rounding to a float format with fewer bits; the dtype stays.

    Numbers too small for a normal number of that format become 0, too large ones infinite.

    Raises:
        TypeError: operands that are not real floats.
        ValueError: fewer than 1 exponent bit or 0 mantissa bits.
    """
    return reduce_precision_p.bind(
        operand, exponent_bits=int(exponent_bits), mantissa_bits=int(mantissa_bits)
    )
