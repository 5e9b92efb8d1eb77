"""The library's incomplete gamma functions; Temme's formula in the lower tail of a large order.

The libraries add at most 2000 terms of a series there, which needs about nine times the root of the
order: at an order of 1e8 a third of the result is lost.

Source: DLMF 8.12.3 to 8.12.11 (Temme, 1979).

Tests: tests/numpy/test_extreme_points.py, tests/ops/test_special_functions.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuflow.ops.special.error_functions import load_special
from gpuflow.ops.special.incomplete_gamma import TEMME

# Up to this order the series is complete. Above it the result is 0 for x below 0.7 a, and three
# terms in 1 / a give all digits of float64.
_LARGE = 1e5
_LEAST_RATIO = 0.7


def _lower_tail(xp: Any, a: Any, x: Any) -> Any:
    """P for ``x < a``, in float64."""
    mu = xp.maximum(x / a, _LEAST_RATIO) - 1
    half = mu - xp.log1p(mu)  # eta**2 / 2
    eta = -xp.sqrt(2 * half)
    corrections = xp.zeros_like(eta)
    for coefficients in reversed(TEMME[:3]):
        corrections = corrections / a + xp.polyval(xp.asarray(coefficients), eta)
    correction = xp.exp(-a * half) / (math.sqrt(2 * math.pi) * xp.sqrt(a)) * corrections
    return 0.5 * load_special(xp).erfc(xp.sqrt(a * half)) - correction


def _with_tail(xp: Any, name: str, a: Any, x: Any, is_lower: bool) -> Any:
    out = getattr(load_special(xp), name)(a, x)
    far = (a > _LARGE) & (x < a) & (x > 0) & xp.isfinite(a)
    if not bool(far.any()):
        return out
    order, argument = (xp.where(far, v, f).astype(np.float64) for v, f in ((a, 1.0), (x, 0.9)))
    tail = _lower_tail(xp, order, argument)
    return xp.where(far, tail if is_lower else 1 - tail, out).astype(out.dtype)


def gammainc(xp: Any, a: Any, x: Any) -> Any:
    """The regularized lower incomplete gamma function."""
    return _with_tail(xp, "gammainc", a, x, True)


def gammaincc(xp: Any, a: Any, x: Any) -> Any:
    """The regularized upper incomplete gamma function."""
    return _with_tail(xp, "gammaincc", a, x, False)
