"""pow: powers whose exponent is an array.

Tests: tests/ops/test_elementwise_rules.py, tests/ops/test_half_powers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_kind, define
from gpuflow.ops.elementwise.arithmetic import floor, mul, sub
from gpuflow.ops.elementwise.comparison import bitwise_and, bitwise_or, eq, ne
from gpuflow.ops.elementwise.complex_powers import power
from gpuflow.ops.elementwise.convert import convert
from gpuflow.ops.elementwise.nary import (
    batch_elementwise,
    broadcast_shape,
    match_scalars,
    nary_jvp,
    widened,
)
from gpuflow.ops.elementwise.powers import half_powers
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.elementwise.slopes import has_infinite_reciprocal
from gpuflow.ops.elementwise.transcendental import log


def _pow_shape(x: ShapedArray, y: ShapedArray) -> ShapedArray:
    check_kind("pow", x, dtypes.is_inexact, "a float or complex number")
    check(
        y.dtype == x.dtype or dtypes.is_integer(y.dtype),
        lambda: (
            f"[pow] the exponent must be an integer or have the dtype of the base; got {x}, {y}. "
            "Fix: convert one with x.astype(...)."
        ),
    )
    weak = x.weak_type and y.weak_type
    return ShapedArray(broadcast_shape("pow", (x, y)), x.dtype, weak)


def _pow_jvp_base(t: Any, out: Any, x: Any, y: Any) -> Any:
    del out
    # The derivative of x ** 0 is 0, also at 0 and next to it.
    base = where(bitwise_and(has_infinite_reciprocal(x), eq(y, 0)), 1, x)
    if dtypes.is_integer(aval_of(y).dtype):
        return mul(t, mul(convert(y, aval_of(x).dtype), pow(base, sub(y, 1))))
    if dtypes.is_floating(aval_of(y).dtype):  # y - 1 may round to odd: -0 keeps its sign
        base = where(bitwise_and(eq(x, 0), ne(y, floor(y))), 0, base)
    power = pow(base, sub(y, 1))
    infinite = bitwise_or(eq(y, np.inf), eq(y, -np.inf))
    return mul(t, mul(where(bitwise_and(infinite, eq(power, 0)), 0, y), power))


def _pow_jvp_exponent(t: Any, out: Any, x: Any, y: Any) -> Any:
    del y
    is_zero = bitwise_or(eq(x, 0), eq(out, 0))
    return mul(t, mul(log(where(is_zero, 1, x)), out))


def _pow_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    x, y = values
    return builder.apply("pow", x, builder.cast(y, x.dtype))


pow_p = define(
    "pow",
    shape=_pow_shape,
    impl=widened(power),
    jvp=nary_jvp(lambda: pow_p, (_pow_jvp_base, _pow_jvp_exponent)),
    batch=batch_elementwise(lambda x, y: pow_p.bind(x, y)),
    lower=Elementwise(_pow_body, continuous=True),
    simplify=half_powers,
    domain=((0.5, 4.0), (-2.0, 2.0)),
)


def pow(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise power.

    Args:
        x: array of floats or complex numbers.
        y: array of the dtype of ``x``, or of integers, which are not converted.

    Returns:
        An array of the dtype of ``x`` and the common shape.

    Raises:
        TypeError: if dtypes do not match.

    Example:
        >>> lax.pow(jnp.array([2.0, 4.0]), jnp.array([3.0, 0.5])).round(3)
        Array([8., 2.], dtype=float32)
    """
    if dtypes.is_integer(aval_of(y).dtype):
        return pow_p.bind(x, y)
    return pow_p.bind(*match_scalars(x, y))
