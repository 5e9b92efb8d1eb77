"""Exponentials, logarithms, circular and hyperbolic functions.

Tests: tests/ops/test_special_points.py, tests/ops/test_complex_functions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log as real_log
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.types import AccuracyLike, Array, ArrayLike
from gpuflow.ops.elementwise import complex_pairs
from gpuflow.ops.elementwise.accuracy import check_accuracy
from gpuflow.ops.elementwise.arithmetic import add, div, mul, neg, sub
from gpuflow.ops.elementwise.complex_powers import exp2_of
from gpuflow.ops.elementwise.nary import (
    elementwise,
    match_scalars,
    widened,
)
from gpuflow.ops.elementwise.powers import square
from gpuflow.ops.elementwise.slopes import (
    acosh_slope,
    asin_slope,
    asinh_slope,
    over_square_sum,
)

_ANY = ((-3.0, 3.0),)
_UNIT = ((-0.9, 0.9),)
_POSITIVE = ((0.1, 10.0),)


def _function(
    name: str,
    impl: Callable[..., Any],
    derivative: Callable[..., Any],
    domain: Any = _ANY,
    pair: Callable[..., Any] | None = None,
) -> Any:
    """Define a function of one float or complex operand; ``derivative(t, out, x)`` is its tangent.

    ``pair(builder, x)`` computes it for complex numbers in kernels; None: a library does.
    """
    return elementwise(
        name, impl=widened(impl), accepts=dtypes.is_inexact, what="a float or complex number",
        body=name, derivatives=(derivative,), domain=domain,
        pair=None if pair is None else complex_pairs.pair_body(pair),
    )  # fmt: skip


# --- exponentials and logarithms -----------------------------------------------------------

_LOG_2 = real_log(2.0)


def _expm1_impl(xp: Any, x: Any) -> Any:
    out = xp.asarray(xp.expm1(x))  # an array also for scalars: its imaginary part is written
    if dtypes.is_complex(x.dtype):
        # Real for a real number: an infinite size times sin(0) would be nan.
        out.imag[...] = xp.where(x.imag == 0, x.imag, out.imag)
    return out


def _log1p_impl(xp: Any, x: Any) -> Any:
    if not dtypes.is_complex(x.dtype):
        return xp.log1p(x)
    # NumPy adds 1 first, which loses small numbers: |1 + x| ** 2 = 1 + a (a + 2) + b ** 2.
    a, b = x.real.astype(np.float64), x.imag.astype(np.float64)
    is_small = (xp.abs(a) < 0.5) & (xp.abs(b) < 0.5)
    excess = xp.where(is_small, a * (a + 2) + b * b, 0)
    out = xp.empty_like(x)
    out.real[...] = xp.where(is_small, 0.5 * xp.log1p(excess), xp.log(xp.hypot(a + 1, b)))
    out.imag[...] = xp.arctan2(b, a + 1)
    return out


exp_p = _function(
    "exp", lambda xp, x: xp.exp(x), lambda t, out, x: mul(t, out), pair=complex_pairs.exp
)
exp2_p = _function("exp2", exp2_of, lambda t, out, x: mul(mul(t, out), _LOG_2))
# A derivative in terms of the value would lose digits where that is near -1.
expm1_p = _function("expm1", _expm1_impl, lambda t, out, x: mul(t, exp(x)))
log_p = _function(
    "log", lambda xp, x: xp.log(x), lambda t, out, x: div(t, x), _POSITIVE, complex_pairs.log
)
log1p_p = _function("log1p", _log1p_impl, lambda t, out, x: div(t, add(x, 1)), ((-0.9, 9.0),))


def exp(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise exponential.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.exp(jnp.array([-jnp.inf, 0.0, 1.0])).round(3)
        Array([0.   , 1.   , 2.718], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("exp", accuracy)
    return exp_p.bind(x)


def exp2(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise ``2 ** x``.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.exp2(jnp.array([-1.0, 0.0, 3.0]))
        Array([0.5, 1. , 8. ], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("exp2", accuracy)
    return exp2_p.bind(x)


def expm1(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise ``exp(x) - 1``, exact near 0.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.expm1(jnp.array([0.0, 1e-10, 1.0]))[1] > 0
        Array(True, dtype=bool)
    """
    if accuracy is not None:
        check_accuracy("expm1", accuracy)
    return expm1_p.bind(x)


def log(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise natural logarithm.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.log(jnp.array([0.0, 1.0, 10.0])).round(3)
        Array([ -inf, 0.   , 2.303], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("log", accuracy)
    return log_p.bind(x)


def log1p(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise ``log(1 + x)``, exact near 0.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.log1p(jnp.array([-1.0, 0.0, 1.0])).round(3)
        Array([ -inf, 0.   , 0.693], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("log1p", accuracy)
    return log1p_p.bind(x)


# --- circular ------------------------------------------------------------------------------


def _atan2_impl(xp: Any, y: Any, x: Any) -> Any:
    if not dtypes.is_complex(x.dtype):
        return xp.arctan2(y, x)
    return -1j * xp.log((x + 1j * y) / xp.sqrt(x * x + y * y))


sin_p = _function(
    "sin", lambda xp, x: xp.sin(x), lambda t, out, x: mul(t, cos(x)), pair=complex_pairs.sin
)
cos_p = _function(
    "cos", lambda xp, x: xp.cos(x), lambda t, out, x: neg(mul(t, sin(x))), pair=complex_pairs.cos
)
tan_p = _function(
    "tan", lambda xp, x: xp.tan(x), lambda t, out, x: mul(t, add(square(out), 1)), ((-1.4, 1.4),),
    pair=complex_pairs.tan,
)  # fmt: skip
asin_p = _function(
    "asin", lambda xp, x: xp.arcsin(x), lambda t, out, x: mul(t, asin_slope(x)), _UNIT
)
acos_p = _function(
    "acos", lambda xp, x: xp.arccos(x), lambda t, out, x: neg(mul(t, asin_slope(x))), _UNIT
)
atan_p = _function("atan", lambda xp, x: xp.arctan(x), lambda t, out, x: div(t, add(square(x), 1)))
atan2_p = elementwise(
    "atan2", arity=2, impl=widened(_atan2_impl), accepts=dtypes.is_inexact,
    what="a float or complex number", body="atan2",
    derivatives=(
        lambda t, out, y, x: mul(t, over_square_sum(x, y)),
        lambda t, out, y, x: neg(mul(t, over_square_sum(y, x))),
    ),
    domain=((-3.0, 3.0), (0.5, 3.0)),
)  # fmt: skip


def sin(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise sine of radians.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.sin(jnp.array([0.0, jnp.pi / 2])).round(3)
        Array([0., 1.], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("sin", accuracy)
    return sin_p.bind(x)


def cos(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise cosine of radians.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.cos(jnp.array([0.0, jnp.pi])).round(3)
        Array([ 1., -1.], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("cos", accuracy)
    return cos_p.bind(x)


def tan(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise tangent of radians.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.tan(jnp.array([0.0, jnp.pi / 4])).round(3)
        Array([0., 1.], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("tan", accuracy)
    return tan_p.bind(x)


def asin(x: ArrayLike) -> Array:
    """Elementwise inverse sine, in radians; nan for real numbers outside of [-1, 1].

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.asin(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 1.571], dtype=float32)
    """
    return asin_p.bind(x)


def acos(x: ArrayLike) -> Array:
    """Elementwise inverse cosine, in radians; nan for real numbers outside of [-1, 1].

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.acos(jnp.array([0.0, 1.0])).round(3)
        Array([1.571, 0.   ], dtype=float32)
    """
    return acos_p.bind(x)


def atan(x: ArrayLike) -> Array:
    """Elementwise inverse tangent, in radians.

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.atan(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 0.785], dtype=float32)
    """
    return atan_p.bind(x)


def atan2(y: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise angle of the point ``(x, y)``, in radians, from -pi to pi.

    Args:
        y: array of floats or complex numbers.
        x: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.atan2(jnp.array([1.0, -1.0]), jnp.array([0.0, -1.0])).round(3)
        Array([ 1.571, -2.356], dtype=float32)
    """
    return atan2_p.bind(*match_scalars(y, x))


# --- hyperbolic ----------------------------------------------------------------------------

sinh_p = _function(
    "sinh", lambda xp, x: xp.sinh(x), lambda t, out, x: mul(t, cosh(x)), pair=complex_pairs.sinh
)
cosh_p = _function(
    "cosh", lambda xp, x: xp.cosh(x), lambda t, out, x: mul(t, sinh(x)), pair=complex_pairs.cosh
)
# (1 + out) (1 - out) loses less than 1 - out ** 2 where out is near 1.
tanh_p = _function(
    "tanh",
    lambda xp, x: xp.tanh(x),
    lambda t, out, x: mul(add(t, mul(t, out)), sub(1, out)),
    pair=complex_pairs.tanh,
)
asinh_p = _function("asinh", lambda xp, x: xp.arcsinh(x), lambda t, _, x: mul(t, asinh_slope(x)))
acosh_p = _function(
    "acosh", lambda xp, x: xp.arccosh(x), lambda t, out, x: mul(t, acosh_slope(x)), ((1.1, 10.0),)
)
atanh_p = _function(
    "atanh", lambda xp, x: xp.arctanh(x), lambda t, out, x: div(div(t, add(x, 1)), sub(1, x)),
    _UNIT,
)  # fmt: skip


def sinh(x: ArrayLike) -> Array:
    """Elementwise hyperbolic sine.

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.sinh(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 1.175], dtype=float32)
    """
    return sinh_p.bind(x)


def cosh(x: ArrayLike) -> Array:
    """Elementwise hyperbolic cosine.

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.cosh(jnp.array([0.0, 1.0])).round(3)
        Array([1.   , 1.543], dtype=float32)
    """
    return cosh_p.bind(x)


def tanh(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise hyperbolic tangent.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.tanh(jnp.array([0.0, 1.0, 100.0])).round(3)
        Array([0.   , 0.762, 1.   ], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("tanh", accuracy)
    return tanh_p.bind(x)


def asinh(x: ArrayLike) -> Array:
    """Elementwise inverse hyperbolic sine.

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.asinh(jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 0.881], dtype=float32)
    """
    return asinh_p.bind(x)


def acosh(x: ArrayLike) -> Array:
    """Elementwise inverse hyperbolic cosine; nan for real numbers below 1.

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.acosh(jnp.array([1.0, 2.0])).round(3)
        Array([0.   , 1.317], dtype=float32)
    """
    return acosh_p.bind(x)


def atanh(x: ArrayLike) -> Array:
    """Elementwise inverse hyperbolic tangent; nan for real numbers outside of [-1, 1].

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.atanh(jnp.array([0.0, 0.5, 1.0])).round(3)
        Array([0.   , 0.549,   inf], dtype=float32)
    """
    return atanh_p.bind(x)
