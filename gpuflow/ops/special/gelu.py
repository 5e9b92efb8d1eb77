"""The Gaussian error linear unit by its tanh approximation, and its slope.

``nn.gelu`` differentiates with them. Epilogues of matrix products are matched against them
(ops/contractions/product_epilogues.py), so formulas must be the same.

Source: Hendrycks and Gimpel 2016, "Gaussian error linear units".

Tests: tests/ops/test_special_points.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.epilogues import GELU_CUBE, GELU_LIMIT, GELU_SLOPE
from gpuflow.ops.elementwise.arithmetic import add, mul, neg, sub
from gpuflow.ops.elementwise.powers import integer_pow
from gpuflow.ops.elementwise.select import clamp
from gpuflow.ops.elementwise.transcendental import tanh


def _constant(value: float, x: Any) -> Any:
    return np.asarray(value).astype(aval_of(x).dtype)[()]


def gelu_share(x: Any) -> Any:
    """``(1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2``."""
    cubic = add(x, mul(_constant(GELU_CUBE, x), integer_pow(x, 3)))
    bent = tanh(mul(_constant(GELU_SLOPE, x), cubic))
    return mul(_constant(0.5, x), add(_constant(1, x), bent))


def gelu_limited(x: Any) -> Any:
    """``x`` clamped to where the slope of the share is not 0, so that squares do not overflow."""
    if dtypes.is_complex(aval_of(x).dtype):
        return x
    limit = _constant(min(GELU_LIMIT, float(ml_dtypes.finfo(aval_of(x).dtype).max)), x)
    return clamp(neg(limit), x, limit)


def gelu_share_slope(near: Any, share: Any) -> Any:
    """The derivative of ``gelu_share`` at ``near``, where it is ``share``."""
    inner = add(_constant(1, near), mul(_constant(3 * GELU_CUBE, near), integer_pow(near, 2)))
    twice = mul(_constant(2 * GELU_SLOPE, near), inner)
    return mul(mul(share, sub(_constant(1, near), share)), twice)


def gelu_slope(x: Any, share: Any) -> Any:
    """The derivative of ``x * gelu_share(x)``, where ``share`` is the second factor."""
    near = gelu_limited(x)
    return add(share, mul(near, gelu_share_slope(near, share)))
