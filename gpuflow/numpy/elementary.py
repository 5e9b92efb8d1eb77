"""Roots, exponentials, logarithms, trigonometry, rounding and complex parts, elementwise.

Tests: tests/numpy/test_numpy_array_api.py, tests/numpy/test_extreme_points.py.
"""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Binary, Unary
from gpuflow.numpy.promotion import (
    broadcastlike,
    check_numbers,
    constant,
    convert,
    like,
    no_out,
    promote_args,
    promote_args_inexact,
    strong,
)
from gpuflow.numpy.ufuncs import Ufunc, described, make_binary, make_unary
from gpuflow.ops.elementwise.select import where as select_where

# --- one op each ---------------------------------------------------------------------------


def _float_unary(name: str, op: Ufunc, first: str, takes: str, *example: str) -> Unary:
    doc = described(
        first + " Integers are converted to floats.", takes,
        "Floats of the shape of ``x``; complex for complex numbers.", *example,
    )  # fmt: skip
    return make_unary(name, op, doc, promote_args_inexact)


sqrt = _float_unary(
    "sqrt",
    lax.sqrt,
    "Elementwise square root; nan for negative floats.",
    "x: array of numbers.",
    ">>> jnp.sqrt(jnp.array([4, 9, -1]))",
    "Array([ 2.,  3., nan], dtype=float32)",
)
cbrt = _float_unary(
    "cbrt",
    lax.cbrt,
    "Elementwise cube root.",
    "x: array of real numbers.",
    ">>> jnp.round(jnp.cbrt(jnp.array([8, -27])), 3)",
    "Array([ 2., -3.], dtype=float32)",
)
exp = _float_unary(
    "exp",
    lax.exp,
    "Elementwise e to the power x.",
    "x: array of numbers.",
    ">>> jnp.exp(jnp.array([0.0, -jnp.inf]))",
    "Array([1., 0.], dtype=float32)",
)
exp2 = _float_unary(
    "exp2",
    lax.exp2,
    "Elementwise 2 to the power x.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.exp2(jnp.array([-1, 0, 3])), 3)",
    "Array([0.5, 1. , 8. ], dtype=float32)",
)
expm1 = _float_unary(
    "expm1",
    lax.expm1,
    "Elementwise ``exp(x) - 1``, exact near 0.",
    "x: array of numbers.",
    ">>> jnp.expm1(jnp.array([0.0, 1e-10]))",
    "Array([0.e+00, 1.e-10], dtype=float32)",
)
log = _float_unary(
    "log",
    lax.log,
    "Elementwise natural logarithm; nan for negative floats.",
    "x: array of numbers.",
    ">>> jnp.log(jnp.array([1.0, 0.0, -1.0]))",
    "Array([  0., -inf,  nan], dtype=float32)",
)
log1p = _float_unary(
    "log1p",
    lax.log1p,
    "Elementwise ``log(1 + x)``, exact near 0.",
    "x: array of numbers.",
    ">>> jnp.log1p(jnp.array([0.0, 1e-10]))",
    "Array([0.e+00, 1.e-10], dtype=float32)",
)


def _log_to_base(base: float) -> Ufunc:
    factor = np.log(base).item()

    def logarithm(x: Any) -> Any:
        natural_log = lax.log(x)
        if not dtypes.is_complex(aval_of(x).dtype):
            return strong(lax.div(natural_log, like(factor, x)))
        # Division by a complex number would turn infinities into nan.
        pair = [lax.real(natural_log), lax.imag(natural_log)]
        return strong(lax.complex(*[lax.div(term, like(factor, term)) for term in pair]))

    return logarithm


log2 = composite(
    _float_unary(
        "log2",
        _log_to_base(2.0),
        "Elementwise logarithm to base 2; nan for negative floats.",
        "x: array of numbers.",
        ">>> jnp.round(jnp.log2(jnp.array([1, 2, 8])), 3)",
        "Array([0., 1., 3.], dtype=float32)",
    )
)
log10 = composite(
    _float_unary(
        "log10",
        _log_to_base(10.0),
        "Elementwise logarithm to base 10; nan for negative floats.",
        "x: array of numbers.",
        ">>> jnp.round(jnp.log10(jnp.array([1, 10, 1000])), 3)",
        "Array([0., 1., 3.], dtype=float32)",
    )
)
sin = _float_unary(
    "sin",
    lax.sin,
    "Elementwise sine.",
    "x: angles in radians.",
    ">>> jnp.round(jnp.sin(jnp.array([0.0, jnp.pi / 6])), 3)",
    "Array([0. , 0.5], dtype=float32)",
)
cos = _float_unary(
    "cos",
    lax.cos,
    "Elementwise cosine.",
    "x: angles in radians.",
    ">>> jnp.round(jnp.cos(jnp.array([0.0, jnp.pi / 3])), 3)",
    "Array([1. , 0.5], dtype=float32)",
)
tan = _float_unary(
    "tan",
    lax.tan,
    "Elementwise tangent.",
    "x: angles in radians.",
    ">>> jnp.round(jnp.tan(jnp.array([0.0, jnp.pi / 4])), 3)",
    "Array([0., 1.], dtype=float32)",
)
arcsin = asin = _float_unary(
    "arcsin",
    lax.asin,
    "Elementwise inverse sine, an angle in radians; nan for floats outside of [-1, 1].",
    "x: array of numbers.",
    ">>> jnp.round(jnp.arcsin(jnp.array([0.0, 1.0, 2.0])), 3)",
    "Array([0.   , 1.571,   nan], dtype=float32)",
)
arccos = acos = _float_unary(
    "arccos",
    lax.acos,
    "Elementwise inverse cosine, an angle in radians; nan for floats outside of [-1, 1].",
    "x: array of numbers.",
    ">>> jnp.round(jnp.arccos(jnp.array([1.0, 0.0, 2.0])), 3)",
    "Array([0.   , 1.571,   nan], dtype=float32)",
)
arctan = atan = _float_unary(
    "arctan",
    lax.atan,
    "Elementwise inverse tangent, an angle in radians.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.arctan(jnp.array([0.0, 1.0, jnp.inf])), 3)",
    "Array([0.   , 0.785, 1.571], dtype=float32)",
)
sinh = _float_unary(
    "sinh",
    lax.sinh,
    "Elementwise hyperbolic sine.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.sinh(jnp.array([0.0, 1.0])), 3)",
    "Array([0.   , 1.175], dtype=float32)",
)
cosh = _float_unary(
    "cosh",
    lax.cosh,
    "Elementwise hyperbolic cosine.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.cosh(jnp.array([0.0, 1.0])), 3)",
    "Array([1.   , 1.543], dtype=float32)",
)
tanh = _float_unary(
    "tanh",
    lax.tanh,
    "Elementwise hyperbolic tangent.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.tanh(jnp.array([0.0, 1.0, 100.0])), 3)",
    "Array([0.   , 0.762, 1.   ], dtype=float32)",
)
arcsinh = asinh = _float_unary(
    "arcsinh",
    lax.asinh,
    "Elementwise inverse hyperbolic sine.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.arcsinh(jnp.array([0.0, 1.0])), 3)",
    "Array([0.   , 0.881], dtype=float32)",
)
arccosh = acosh = _float_unary(
    "arccosh",
    lax.acosh,
    "Elementwise inverse hyperbolic cosine; nan for floats below 1.",
    "x: array of numbers.",
    ">>> jnp.round(jnp.arccosh(jnp.array([1.0, 2.0, 0.0])), 3)",
    "Array([0.   , 1.317,   nan], dtype=float32)",
)
arctanh = atanh = _float_unary(
    "arctanh",
    lax.atanh,
    "Elementwise inverse hyperbolic tangent; nan for floats outside of [-1, 1].",
    "x: array of numbers.",
    ">>> jnp.round(jnp.arctanh(jnp.array([0.0, 0.5, 2.0])), 3)",
    "Array([0.   , 0.549,   nan], dtype=float32)",
)
arctan2 = atan2 = make_binary(
    "arctan2", lax.atan2,
    described(
        "Elementwise angle of the point (y, x), in radians. Integers are converted to floats.",
        "x, y: arrays that broadcast; ``x`` is the vertical and ``y`` the horizontal coordinate "
        "of the point.",
        "Floats of the common shape, in [-pi, pi].",
        ">>> jnp.round(jnp.arctan2(jnp.array([1.0, -1.0]), -1.0), 3)",
        "Array([ 2.356, -2.356], dtype=float32)",
    ),
    promote_args_inexact,
)  # fmt: skip
deg2rad = _float_unary(
    "deg2rad",
    lambda x: lax.mul(x, like(np.pi / 180, x)),
    "Elementwise degrees to radians.",
    "x: angles in degrees.",
    ">>> jnp.round(jnp.deg2rad(jnp.array([0.0, 180.0])), 3)",
    "Array([0.   , 3.142], dtype=float32)",
)
rad2deg = _float_unary(
    "rad2deg",
    lambda x: lax.mul(x, like(180 / np.pi, x)),
    "Elementwise radians to degrees.",
    "x: angles in radians.",
    ">>> jnp.round(jnp.rad2deg(jnp.array([0.0, jnp.pi])), 3)",
    "Array([  0., 180.], dtype=float32)",
)
radians, degrees = deg2rad, rad2deg


def _log_of_sum(name: str, exp: Ufunc, log_base: float, doc: str) -> Binary:
    """``log(b**x + b**y)`` to a base b; ``exp`` is b to a power, ``log_base`` its logarithm."""

    @custom_jvp
    def log_of_sum(x: Any, y: Any) -> Any:
        larger, distance = lax.max(x, y), lax.sub(x, y)
        undefined, total = lax.ne(distance, distance), lax.add(x, y)
        is_complex = dtypes.is_complex(aval_of(x).dtype)
        # Smaller minus larger; |x - y| of complex numbers would lose their angles.
        gap = lax.sub(total, lax.add(larger, larger)) if is_complex else lax.neg(lax.abs(distance))
        share = lax.log1p(exp(gap))
        if log_base != 1:
            share = lax.div(share, constant(log_base, share))
        stable = lax.add(larger, share)
        if is_complex:
            angle = _within(lax.imag(stable), np.pi / log_base)
            stable = lax.complex(lax.real(stable), angle)
        return select_where(undefined, total, stable)

    @log_of_sum.defjvp
    def log_of_sum_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        x, y = primals
        out = log_of_sum(x, y)

        def weight(term: Any, other: Any) -> Any:
            if dtypes.is_complex(aval_of(term).dtype):
                return exp(lax.sub(_finite_above(term), _finite_above(out)))
            # Equal infinities have equal weights, as equal finite numbers do.
            equal = lax.bitwise_and(lax.eq(term, other), lax.eq(lax.abs(term), like(np.inf, term)))
            zero = like(0, term)
            gap = lax.sub(select_where(equal, zero, term), select_where(equal, zero, other))
            return lax.logistic(gap if log_base == 1 else lax.mul(gap, constant(log_base, gap)))

        x_term = lax.mul(tangents[0], weight(x, y))
        return out, lax.add(x_term, lax.mul(tangents[1], weight(y, x)))

    def of_any_shapes(x: Any, y: Any) -> Any:
        return log_of_sum(*broadcastlike(x, y))

    return composite(make_binary(name, of_any_shapes, doc, promote_args_inexact))


def _within(angle: Any, bound: float) -> Any:
    """Reduce an angle to [-bound, bound); the period is 2 ``bound``."""
    half, period = like(bound, angle), like(2 * bound, angle)
    r = lax.rem(lax.add(angle, half), period)
    return lax.sub(select_where(lax.lt(r, like(0, r)), lax.add(r, period), r), half)


def _finite_above(x: Any) -> Any:
    """``x`` with infinity replaced by 0, as in JAX: the weight of an infinite operand is then 1."""
    is_infinite = lax.eq(x, like(np.inf, x))
    return select_where(is_infinite, like(0, x), x)


logaddexp = _log_of_sum(
    "logaddexp", lax.exp, 1.0,
    described(
        "Elementwise ``log(exp(x) + exp(y))``, no overflow. Integers are converted to floats.",
        "x, y: arrays of numbers that broadcast.",
        "Floats or complex numbers of the common shape and dtype.",
        ">>> jnp.round(jnp.logaddexp(jnp.array([0.0, 100.0]), 0.0), 3)",
        "Array([  0.693, 100.   ], dtype=float32)",
    ),
)  # fmt: skip
logaddexp2 = _log_of_sum(
    "logaddexp2", lax.exp2, np.log(2.0).item(),
    described(
        "Elementwise ``log2(2**x + 2**y)``, no overflow. Integers are converted to floats.",
        "x, y: arrays of numbers that broadcast.",
        "Floats or complex numbers of the common shape and dtype.",
        ">>> jnp.round(jnp.logaddexp2(jnp.array([1.0, 1000.0]), 1.0), 3)",
        "Array([   2., 1000.], dtype=float32)",
    ),
)  # fmt: skip


@composite
def hypot(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Compute ``sqrt(x**2 + y**2)`` without overflow.

    Args:
        x, y: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.hypot(jnp.array([3., 3e30]), 4.)
        Array([5.e+00, 3.e+30], dtype=float32)
    """
    x, y = promote_args_inexact("hypot", x, y)
    check(
        not dtypes.is_complex(aval_of(x).dtype),
        lambda: f"[hypot] operands must be real; got {aval_of(x)}. Fix: jnp.abs(x).",
        ValueError,
    )
    return _hypot(*broadcastlike(x, y))


@custom_jvp
def _hypot(x: Any, y: Any) -> Any:
    x, y = lax.abs(x), lax.abs(y)
    large, small = lax.max(x, y), lax.min(x, y)
    flat = lax.eq(large, constant(0, large))
    ratio = lax.div(small, select_where(flat, constant(1, large), large))
    length = lax.mul(large, lax.sqrt(lax.add(constant(1, large), lax.square(ratio))))
    infinity = constant(np.inf, large)
    infinite = lax.bitwise_or(lax.eq(x, infinity), lax.eq(y, infinity))  # even if one is nan
    return select_where(infinite, infinity, select_where(flat, constant(0, large), length))


@_hypot.defjvp
def _hypot_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Derivative: the direction of ``(x, y)``; 0 at the origin, the diagonal for two infinities."""
    x, y = primals
    size = lax.max(lax.abs(x), lax.abs(y))
    infinite, zero = lax.eq(size, constant(np.inf, x)), lax.eq(size, constant(0, x))
    scale = select_where(lax.bitwise_or(infinite, zero), constant(1, x), size)

    def scaled(v: Any) -> Any:
        is_end = lax.eq(lax.abs(v), constant(np.inf, v))
        end = select_where(is_end, lax.sign(v), constant(0, v))
        return select_where(infinite, end, lax.div(select_where(infinite, end, v), scale))

    x, y = scaled(x), scaled(y)
    squares = lax.add(lax.square(x), lax.square(y))
    inverse = lax.rsqrt(select_where(zero, constant(1, x), squares))
    along = lax.add(lax.mul(tangents[0], x), lax.mul(tangents[1], y))
    return _hypot(*primals), lax.mul(along, inverse)


# --- rounding ------------------------------------------------------------------------------


def _rounding(name: str, op: Ufunc, first: str, *example: str) -> Unary:
    def apply(x: Any) -> Any:
        return op(x) if dtypes.is_inexact(aval_of(x).dtype) else lax.asarray(x)

    doc = described(
        first + " Integers and bools are unchanged.", "x: array of real numbers.",
        "An array of the shape and dtype of ``x``.", *example,
        raises="TypeError: if ``x`` is complex.",
    )  # fmt: skip
    return make_unary(name, apply, doc)


floor = _rounding(
    "floor", lax.floor, "Elementwise floor, the largest integer that is not larger.",
    ">>> jnp.floor(jnp.array([-1.5, 1.5]))",
    "Array([-2.,  1.], dtype=float32)",
)  # fmt: skip
ceil = _rounding(
    "ceil", lax.ceil, "Elementwise ceiling, the smallest integer that is not smaller.",
    ">>> jnp.ceil(jnp.array([-1.5, 1.5]))",
    "Array([-1.,  2.], dtype=float32)",
)  # fmt: skip
_trunc = _rounding(
    "trunc",
    lambda x: select_where(lax.lt(x, like(0, x)), lax.ceil(x), lax.floor(x)),
    "Round towards zero.",
)


@composite
def trunc(x: ArrayLike) -> Array:
    """Round towards zero; integers are unchanged.

    Args:
        x: array.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.trunc(jnp.array([-1.7, -0.2, 1.7]))
        Array([-1., -0.,  1.], dtype=float32)
    """
    return _trunc(x)


_half_even = lax.RoundingMethod.TO_NEAREST_EVEN


def _to_even(x: Any) -> Any:
    if dtypes.is_complex(aval_of(x).dtype):
        return lax.complex(_to_even(lax.real(x)), _to_even(lax.imag(x)))
    return lax.round(x, _half_even)


def _default_float(name: str, x: Any) -> list[Any]:
    (x,) = promote_args(name, x)
    if dtypes.is_inexact(aval_of(x).dtype):
        return [x]
    return [lax.convert_element_type(x, dtypes.default_float())]


rint = make_unary(
    "rint", _to_even,
    described(
        "Elementwise rounding; halves go to the even neighbor. Integers become default floats.",
        "x: array of numbers; real and imaginary parts are rounded separately.",
        "Floats of the shape of ``x``; complex for complex numbers.",
        ">>> jnp.rint(jnp.array([0.5, 1.5, 2.7]))",
        "Array([0., 2., 3.], dtype=float32)",
    ),
    _default_float,
)  # fmt: skip


@composite
def round(a: ArrayLike, decimals: int = 0, out: None = None) -> Array:
    """Round to a number of decimals; halves are rounded to the even neighbor.

    Args:
        a: array; real and imaginary parts are rounded separately.
        decimals: number of decimals; negative numbers round to tens, hundreds, and so on.
        out: must be None.

    Returns:
        An array of the shape and dtype of ``a``.

    Raises:
        NotImplementedError: if ``out`` is given, or ``decimals`` is negative for integers.
        TypeError: if ``a`` is boolean, or ``decimals`` is not an integer.

    Example:
        >>> jnp.round(jnp.array([0.5, 1.5, 2.25]))
        Array([0., 2., 2.], dtype=float32)
        >>> jnp.round(jnp.array([0.125, 2.25]), 1)
        Array([0.1, 2.2], dtype=float32)
        >>> jnp.round(jnp.array([1234.]), -2)
        Array([1200.], dtype=float32)
    """
    no_out("round", out)
    decimals = as_index(decimals)
    (x,) = promote_args("round", a)
    check_numbers("round", x)
    dtype = aval_of(x).dtype
    if not dtypes.is_inexact(dtype):
        if decimals < 0:
            raise NotImplementedError(
                f"[round] integers round to decimals >= 0; got {decimals}. Fix: convert to float."
            )
        return x
    if dtypes.is_complex(dtype):
        return lax.complex(round(lax.real(x), decimals), round(lax.imag(x), decimals))
    if decimals == 0:
        return lax.round(x, _half_even)
    wide = convert(x, np.dtype(np.float32)) if dtype.itemsize < 4 else x
    most = int(np.log10(np.finfo(aval_of(wide).dtype).max))
    if decimals > most:
        return x
    if decimals < -most:
        return select_where(lax.is_finite(x), convert(0, dtype), x)
    factor = like(10.0**decimals, wide)
    return convert(lax.div(lax.round(lax.mul(wide, factor), _half_even), factor), dtype)


around = round


# --- complex parts -------------------------------------------------------------------------


def real(val: ArrayLike, /) -> Array:
    """Return the real part.

    Args:
        val: array; real arrays are returned unchanged.

    Returns:
        Floats of the shape and precision of ``val``; for a real array, of its dtype.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.real(jnp.array([1 + 2j, 3]))
        Array([1., 3.], dtype=float32)
    """
    (x,) = promote_args("real", val)
    return lax.real(x) if dtypes.is_complex(aval_of(x).dtype) else lax.asarray(x)


def imag(val: ArrayLike, /) -> Array:
    """Return the imaginary part; 0 for real arrays.

    Args:
        val: array.

    Returns:
        Floats of the shape and precision of ``val``; for a real array, of its dtype.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.imag(jnp.array([1 + 2j, 3]))
        Array([2., 0.], dtype=float32)
    """
    (x,) = promote_args("imag", val)
    return lax.imag(x) if dtypes.is_complex(aval_of(x).dtype) else lax.full_like(x, 0)


def conjugate(x: ArrayLike, /) -> Array:
    """Return the complex conjugate; real arrays are unchanged.

    Args:
        x: array.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.conjugate(jnp.array([1 + 2j, 3 - 1j]))
        Array([1.-2.j, 3.+1.j], dtype=complex64)
    """
    (x,) = promote_args("conjugate", x)
    return lax.conj(x) if dtypes.is_complex(aval_of(x).dtype) else lax.asarray(x)


conj = conjugate
