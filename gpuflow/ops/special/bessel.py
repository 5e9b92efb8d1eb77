"""Modified Bessel functions of the first kind, scaled by exp(-abs(x)): orders 0 and 1.

Tests: tests/ops/test_special_functions.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, div, mul, sub
from gpuflow.ops.elementwise.comparison import lt
from gpuflow.ops.elementwise.complex_numbers import abs, sign
from gpuflow.ops.elementwise.nary import elementwise
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.special.bessel_series import i0e_body, i1e_body
from gpuflow.ops.special.error_functions import from_library, load_special


def _first_derivative(t: Any, out: Any, x: Any) -> Any:
    """Abramowitz and Stegun, 9.6.27, with the derivative of the scale."""
    return mul(t, sub(bessel_i1e(x), mul(sign(x), out)))


def _second_derivative(t: Any, out: Any, x: Any) -> Any:
    """``i0e - i1e (sign(x) + 1/x)``, which is about ``1/2 - abs(x)`` near 0."""
    dtype = aval_of(x).dtype
    bound, half = (np.asarray(v, dtype)[()] for v in (small_enough(dtype), 0.5))
    size = abs(x)
    near = lt(size, bound)
    safe = where(near, half, x)
    slope = sub(bessel_i0e(safe), mul(out, add(sign(safe), div(_one(x), safe))))
    return mul(t, where(near, sub(half, size), slope))


def small_enough(dtype: Any) -> float:
    """Root of the least normal number: below, two terms of most series at 0 are enough."""
    return float(ml_dtypes.finfo(dtype).smallest_normal) ** 0.5


def _one(x: Any) -> Any:
    return np.asarray(1, aval_of(x).dtype)[()]


bessel_i0e_p = elementwise(
    "bessel_i0e",
    impl=from_library("i0e"),
    accepts=dtypes.is_floating,
    what="a real float",
    body=i0e_body,
    derivatives=(_first_derivative,),
    domain=((-6.0, 6.0),),
    reference=lambda x: load_special(np).i0e(x),
    tolerance=40,
)
bessel_i1e_p = elementwise(
    "bessel_i1e",
    impl=from_library("i1e"),
    accepts=dtypes.is_floating,
    what="a real float",
    body=i1e_body,
    derivatives=(_second_derivative,),
    domain=((-6.0, 6.0),),
    reference=lambda x: load_special(np).i1e(x),
    tolerance=40,
)


def bessel_i0e(x: ArrayLike) -> Array:
    """Elementwise ``exp(-abs(x)) I0(x)``, with the modified Bessel function of order 0.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.bessel_i0e(jnp.array([0.0, 1.0])).round(3)
        Array([1.   , 0.466], dtype=float32)
    """
    return bessel_i0e_p.bind(x)


def bessel_i1e(x: ArrayLike) -> Array:
    """Elementwise ``exp(-abs(x)) I1(x)``, with the modified Bessel function of order 1.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.bessel_i1e(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 0.208], dtype=float32)
    """
    return bessel_i1e_p.bind(x)
