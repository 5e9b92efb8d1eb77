"""Special functions: erf, erfc, erf_inv, logistic.

Tests: tests/ops/test_special_points.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.types import AccuracyLike, Array, ArrayLike
from gpuflow.ops.elementwise.accuracy import check_accuracy
from gpuflow.ops.elementwise.arithmetic import mul, neg, sub
from gpuflow.ops.elementwise.nary import elementwise, widened
from gpuflow.ops.elementwise.powers import square
from gpuflow.ops.elementwise.transcendental import exp


def load_special(xp: Any) -> ModuleType:
    """The special functions for arrays of ``xp``: slow to import, so only on first use."""
    if xp is np:
        import scipy.special

        return scipy.special
    import cupyx.scipy.special  # pyright: ignore[reportMissingImports] (optional)

    return cupyx.scipy.special


def from_library(name: str) -> Callable[..., Any]:
    return widened(lambda xp, *xs: getattr(load_special(xp), name)(*xs))


def _by_python(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A reference for the tests: ``function`` on every element, in float64."""
    return np.vectorize(function, otypes=[np.float64])


_TWO_BY_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _erf_inv_reference(y: float) -> float:
    """The root of ``erf(x) - y`` by bisection; the slope at 0 where y is small."""
    if not -1.0 < y < 1.0:
        return math.copysign(math.inf, y) if abs(y) == 1.0 else math.nan
    if abs(y) < 1e-8:
        return y / _TWO_BY_ROOT_PI
    low, high = -6.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle) < y else (low, middle)
    return (low + high) / 2


def _gauss(x: Any) -> Any:
    return exp(neg(square(x)))


erf_p = elementwise(
    "erf",
    impl=from_library("erf"),
    accepts=dtypes.is_floating,
    what="a real float",
    body="erf",
    derivatives=(lambda t, out, x: mul(mul(t, _gauss(x)), _TWO_BY_ROOT_PI),),
    domain=((-3.0, 3.0),),
    reference=_by_python(math.erf),
)

erfc_p = elementwise(
    "erfc",
    impl=from_library("erfc"),
    accepts=dtypes.is_floating,
    what="a real float",
    body="erfc",
    derivatives=(lambda t, out, x: mul(mul(t, _gauss(x)), -_TWO_BY_ROOT_PI),),
    domain=((-3.0, 3.0),),
    reference=_by_python(math.erfc),
)


_library_erf_inv = from_library("erfinv")


def _erf_inv_impl(xp: Any, x: Any) -> Any:
    # SciPy's loses the sign of zero.
    return xp.where(x == 0, x, _library_erf_inv(xp, x))


erf_inv_p = elementwise(
    "erf_inv",
    impl=_erf_inv_impl,
    accepts=dtypes.is_floating,
    what="a real float",
    body="erf_inv",
    derivatives=(lambda t, out, x: mul(mul(t, exp(square(out))), 1.0 / _TWO_BY_ROOT_PI),),
    domain=((-0.9, 0.9),),
    reference=_by_python(_erf_inv_reference),
)


def _logistic_impl(xp: Any, x: Any) -> Any:
    if dtypes.is_complex(x.dtype):
        return 1 / (1 + xp.exp(-x))
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + small), small / (1 + small))


logistic_p = elementwise(
    "logistic",
    impl=widened(_logistic_impl),
    accepts=dtypes.is_inexact,
    what="a float or complex number",
    body="logistic",
    derivatives=(lambda t, out, x: mul(t, mul(out, sub(1, out))),),
    domain=((-8.0, 8.0),),
    reference=lambda x: 1 / (1 + np.exp(-x)),
)


def erf(x: ArrayLike) -> Array:
    """Elementwise error function.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.erf(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 0.843], dtype=float32)
    """
    return erf_p.bind(x)


def erfc(x: ArrayLike) -> Array:
    """Elementwise ``1 - erf(x)``, exact for large ``x``.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.erfc(jnp.array([0.0, 1.0])).round(3)
        Array([1.   , 0.157], dtype=float32)
    """
    return erfc_p.bind(x)


def erf_inv(x: ArrayLike) -> Array:
    """Elementwise inverse of ``erf``; nan outside of [-1, 1].

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.erf_inv(jnp.array([0.0, 0.5, 1.0])).round(3)
        Array([0.   , 0.477,   inf], dtype=float32)
    """
    return erf_inv_p.bind(x)


def logistic(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise ``1 / (1 + exp(-x))``, without overflow.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.logistic(jnp.array([-1000.0, 0.0, 1000.0]))
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("logistic", accuracy)
    return logistic_p.bind(x)
