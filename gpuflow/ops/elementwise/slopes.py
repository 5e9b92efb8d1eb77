"""Derivatives of inverse functions whose squares would overflow or change branches.

Operands are replaced before a formula that does not hold for them, instead of its result: a branch
that is not selected must be finite, or else 0 times its derivative is nan.

Tests: tests/ops/test_special_points.py, tests/experimental/test_jet.py.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.ops.elementwise.arithmetic import add, div, max, min, mul, neg, sub
from gpuflow.ops.elementwise.comparison import eq, gt, lt
from gpuflow.ops.elementwise.powers import rsqrt, square
from gpuflow.ops.elementwise.select import where


def asin_slope(x: Any) -> Any:
    """``1 / sqrt(1 - x**2)``."""
    if dtypes.is_complex(aval_of(x).dtype):
        return mul(rsqrt(sub(1, x)), rsqrt(add(x, 1)))
    return rsqrt(sub(1, square(x)))


def asinh_slope(x: Any) -> Any:
    """``1 / sqrt(1 + x**2)``; the reciprocal of ``abs(x)`` if the square would overflow."""
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        rotated = mul(x, 1j)
        return mul(rsqrt(add(rotated, 1)), rsqrt(sub(1, rotated)))
    size = max(x, neg(x))
    far = gt(size, 0.5 * math.sqrt(float(ml_dtypes.finfo(dtype).max)))
    near = rsqrt(add(square(where(far, 1, x)), 1))
    return where(far, div(1, where(far, size, 1)), near)


def acosh_slope(x: Any) -> Any:
    """``1 / sqrt(x**2 - 1)``; for complex numbers on the branch of acosh."""
    return mul(rsqrt(sub(x, 1)), rsqrt(add(x, 1)))


def over_square_sum(x: Any, y: Any) -> Any:
    """``x / (x**2 + y**2)``; 0 if one is infinite.

    Source: R. L. Smith, Algorithm 116: Complex division, 1962.
    """
    if dtypes.is_complex(aval_of(x).dtype):
        return div(x, add(square(x), square(y)))
    x_size, y_size = max(x, neg(x)), max(y, neg(y))
    both_infinite = eq(min(x_size, y_size), math.inf)
    x, y = where(both_infinite, 1, x), where(both_infinite, math.inf, y)
    steep = gt(y_size, x_size)
    large, small = where(steep, y, x), where(steep, x, y)
    ratio = div(small, large)
    return div(where(steep, ratio, 1), add(large, mul(small, ratio)))


def has_infinite_reciprocal(x: Any) -> Any:
    """Whether ``1 / x`` overflows."""
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        return eq(x, 0)
    least = 1 / float(ml_dtypes.finfo(dtype).max)
    return lt(max(x, neg(x)), least)
