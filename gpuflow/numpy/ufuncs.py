"""Elementwise arithmetic, powers, roots, exponentials, trigonometry and rounding.

The builders make one function from one op; what needs more than promotion is written out below.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.custom_rules import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    promote_args,
    promote_args_inexact,
    promote_dtypes,
    promote_shapes,
)
from gpuflow.ops.selection import where as select_where

Ufunc = Callable[..., Any]


def make_unary(name: str, op: Ufunc, doc: str, promote: Ufunc = promote_args) -> Ufunc:
    """A function of one array from an op."""

    def ufunc(x: Any, /) -> Any:
        return op(*promote(name, x))

    return _named(ufunc, name, doc)


def make_binary(name: str, op: Ufunc, doc: str, promote: Ufunc = promote_args) -> Ufunc:
    """A function of two arrays from an op."""

    def ufunc(x: Any, y: Any, /) -> Any:
        return op(*promote(name, x, y))

    return _named(ufunc, name, doc)


def _named(ufunc: Ufunc, name: str, doc: str) -> Ufunc:
    ufunc.__name__ = ufunc.__qualname__ = name
    ufunc.__doc__ = doc
    return ufunc


def _is_bool(x: Any) -> bool:
    return aval_of(x).dtype == dtypes.bool_


def _or_on_bools(op: Ufunc, on_bools: Ufunc) -> Ufunc:
    """``op``, except that bools go to a logical op, as in NumPy."""

    def apply(*operands: Any) -> Any:
        return on_bools(*operands) if _is_bool(operands[0]) else op(*operands)

    return apply


# --- arithmetic ----------------------------------------------------------------------------

add = make_binary("add", _or_on_bools(lax.add, lax.bitwise_or), "Elementwise ``x + y``.")
subtract = make_binary("subtract", lax.sub, "Elementwise ``x - y``; not for bools.")
multiply = make_binary(
    "multiply", _or_on_bools(lax.mul, lax.bitwise_and), "Elementwise ``x * y``."
)
divide = make_binary(
    "divide", lax.div, "Elementwise ``x / y``; integers become floats first.", promote_args_inexact
)
true_divide = divide
negative = make_unary("negative", lax.neg, "Elementwise ``-x``; not for bools.")
positive = make_unary("positive", lambda x: lax.add(x, _like(0, x)), "Elementwise ``+x``.")
maximum = make_binary("maximum", lax.max, "The larger of two elements; nan wins.")
minimum = make_binary("minimum", lax.min, "The smaller of two elements; nan wins.")


def _keeps_sign(dtype: Any) -> bool:
    return dtype.kind in "bu"


def abs(x: Any, /) -> Any:
    """Elementwise absolute value; of complex numbers, the modulus."""
    (x,) = promote_args("abs", x)
    return x if _keeps_sign(aval_of(x).dtype) else lax.abs(x)


absolute = abs
fabs = make_unary("fabs", lax.abs, "Absolute value as a float.", promote_args_inexact)
sign = make_unary("sign", lax.sign, "-1, 0 or 1 by sign; nan stays.")
square = make_unary("square", lax.square, "Elementwise ``x * x``.")
reciprocal = make_unary(
    "reciprocal", lambda x: lax.div(_like(1, x), x), "Elementwise ``1 / x``.", promote_args_inexact
)


def _like(value: Any, x: Any) -> Any:
    """A number in the dtype of ``x``; weak where ``x`` is."""
    aval = aval_of(x)
    return convert(value, aval.dtype, aval.weak_type)


def floor_divide(x: Any, y: Any, /) -> Any:
    """Elementwise quotient, rounded down."""
    x, y = promote_args("floor_divide", x, y)
    dtype = aval_of(x).dtype
    if dtypes.is_bool(dtype):
        raise TypeError(
            "[floor_divide] operands must be numbers; got bools. Fix: x.astype(jnp.int32)."
        )
    if dtype.kind == "u":
        return lax.div(x, y)
    if dtypes.is_integer(dtype):
        quotient = lax.div(x, y)
        rounded = lax.bitwise_and(
            lax.ne(lax.sign(x), lax.sign(y)), lax.ne(lax.rem(x, y), _like(0, x))
        )
        return select_where(rounded, lax.sub(quotient, _like(1, x)), quotient)
    return _float_divmod(x, y)[0]


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """Floor and remainder of floats; the remainder has the sign of ``y``."""
    remainder_ = lax.rem(x, y)
    whole = select_where(lax.eq(y, _like(0, y)), x, lax.sub(x, remainder_))
    quotient = lax.div(whole, y)
    off = lax.bitwise_and(
        lax.ne(remainder_, _like(0, x)), lax.ne(lax.sign(y), lax.sign(remainder_))
    )
    remainder_ = select_where(off, lax.add(remainder_, y), remainder_)
    quotient = select_where(off, lax.sub(quotient, _like(1, x)), quotient)
    return lax.round(quotient), remainder_


def remainder(x: Any, y: Any, /) -> Any:
    """Elementwise ``x % y`` with the sign of ``y``; integers by zero give 0."""
    x, y = promote_args("remainder", x, y)
    zero = _like(0, x)
    if dtypes.is_integer(aval_of(x).dtype):
        y = select_where(lax.eq(y, zero), _like(1, y), y)
    rest = lax.rem(x, y)
    off = lax.bitwise_and(
        lax.ne(lax.lt(rest, zero), lax.lt(y, zero)), lax.ne(rest, zero)
    )
    return select_where(off, lax.add(rest, y), rest)


mod = remainder


def fmod(x: Any, y: Any, /) -> Any:
    """Elementwise remainder with the sign of ``x``."""
    x, y = promote_args("fmod", x, y)
    if dtypes.is_integer(aval_of(x).dtype):
        y = select_where(lax.eq(y, _like(0, y)), _like(1, y), y)
    return lax.rem(x, y)


def divmod(x: Any, y: Any, /) -> tuple[Any, Any]:
    """``(x // y, x % y)``."""
    x, y = promote_args("divmod", x, y)
    if dtypes.is_integer(aval_of(x).dtype):
        return floor_divide(x, y), remainder(x, y)
    return _float_divmod(x, y)


# --- powers --------------------------------------------------------------------------------


def power(x: Any, y: Any, /) -> Any:
    """Elementwise ``x ** y``.

    Args:
        x: base.
        y: exponent. A Python or NumPy integer is multiplied out; it may be negative for
            floats only.

    Raises:
        TypeError: an integer to a negative integer.
    """
    check_arraylike("power", x, y)
    if type(y) is int or isinstance(y, np.integer):
        (x,) = promote_args("power", x)
        return lax.integer_pow(_as_int(x) if _is_bool(x) else x, as_index(y))
    x, y = promote_shapes("power", (x, y))
    base, exponent = promote_dtypes(x, y)
    if not dtypes.is_inexact(aval_of(base).dtype):
        return _integer_power(_as_int(base), _as_int(exponent))
    if dtypes.is_inexact(aval_of(x).dtype) and dtypes.is_integer(aval_of(y).dtype):
        # Kept apart, so that the derivative with respect to the base exists at 0.
        return lax.pow(x, y)
    return lax.pow(base, exponent)


pow = power


def _as_int(x: Any) -> Any:
    return convert(x, dtypes.default_int()) if _is_bool(x) else x


def _integer_power(x: Any, y: Any) -> Any:
    """Powers of integers by squaring; six rounds reach any power that does not overflow."""
    zero, one = _like(0, x), _like(1, x)
    vanishes = lax.bitwise_and(lax.eq(x, zero), lax.ne(y, zero))
    result = select_where(vanishes, zero, one)
    for _ in range(6):
        odd = lax.ne(lax.bitwise_and(y, one), zero)
        result = select_where(odd, lax.mul(result, x), result)
        x = lax.mul(x, x)
        y = lax.shift_right_logical(y, one)
    return result


float_power = make_binary("float_power", power, "``x ** y`` in floats.", promote_args_inexact)


# --- one op each ---------------------------------------------------------------------------


def _float_unary(name: str, op: Ufunc, doc: str) -> Ufunc:
    return make_unary(name, op, doc + " Integers become floats first.", promote_args_inexact)


sqrt = _float_unary("sqrt", lax.sqrt, "Elementwise square root.")
cbrt = _float_unary("cbrt", lax.cbrt, "Elementwise cube root.")
exp = _float_unary("exp", lax.exp, "Elementwise e to the power x.")
exp2 = _float_unary("exp2", lax.exp2, "Elementwise 2 to the power x.")
expm1 = _float_unary("expm1", lax.expm1, "Elementwise ``exp(x) - 1``, exact near 0.")
log = _float_unary("log", lax.log, "Elementwise natural logarithm.")
log1p = _float_unary("log1p", lax.log1p, "Elementwise ``log(1 + x)``, exact near 0.")
log2 = _float_unary(
    "log2", lambda x: lax.div(lax.log(x), _like(np.log(2.0).item(), x)), "Logarithm to base 2."
)
log10 = _float_unary(
    "log10", lambda x: lax.div(lax.log(x), _like(np.log(10.0).item(), x)), "Logarithm to base 10."
)
sin = _float_unary("sin", lax.sin, "Elementwise sine of an angle in radians.")
cos = _float_unary("cos", lax.cos, "Elementwise cosine of an angle in radians.")
tan = _float_unary("tan", lax.tan, "Elementwise tangent of an angle in radians.")
arcsin = asin = _float_unary("arcsin", lax.asin, "Elementwise inverse sine.")
arccos = acos = _float_unary("arccos", lax.acos, "Elementwise inverse cosine.")
arctan = atan = _float_unary("arctan", lax.atan, "Elementwise inverse tangent.")
sinh = _float_unary("sinh", lax.sinh, "Elementwise hyperbolic sine.")
cosh = _float_unary("cosh", lax.cosh, "Elementwise hyperbolic cosine.")
tanh = _float_unary("tanh", lax.tanh, "Elementwise hyperbolic tangent.")
arcsinh = asinh = _float_unary("arcsinh", lax.asinh, "Inverse hyperbolic sine.")
arccosh = acosh = _float_unary("arccosh", lax.acosh, "Inverse hyperbolic cosine.")
arctanh = atanh = _float_unary("arctanh", lax.atanh, "Inverse hyperbolic tangent.")
arctan2 = atan2 = make_binary(
    "arctan2", lax.atan2, "The angle of the point (y, x), in radians.", promote_args_inexact
)
deg2rad = _float_unary("deg2rad", lambda x: lax.mul(x, _like(np.pi / 180, x)), "To radians.")
rad2deg = _float_unary("rad2deg", lambda x: lax.mul(x, _like(180 / np.pi, x)), "To degrees.")
radians, degrees = deg2rad, rad2deg


@custom_jvp
def _logaddexp(x: Any, y: Any) -> Any:
    larger, distance = lax.max(x, y), lax.sub(x, y)
    # Equal infinities have no distance; there, and for nan, the sum is the answer.
    undefined, total = lax.ne(distance, distance), lax.add(x, y)
    stable = lax.add(larger, lax.log1p(lax.exp(lax.neg(lax.abs(distance)))))
    return select_where(undefined, total, stable)


@_logaddexp.defjvp
def _logaddexp_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, y = primals
    out = _logaddexp(x, y)

    def weight(part: Any) -> Any:
        share = lax.exp(lax.sub(part, out))
        return select_where(lax.ne(share, share), _like(0.5, out), share)

    x_part = lax.mul(tangents[0], weight(x))
    return out, lax.add(x_part, lax.mul(tangents[1], weight(y)))


def logaddexp(x: Any, y: Any, /) -> Any:
    """``log(exp(x) + exp(y))`` without overflow."""
    return _logaddexp(*broadcast_like(*promote_args_inexact("logaddexp", x, y)))


def hypot(x: Any, y: Any, /) -> Any:
    """``sqrt(x**2 + y**2)`` without overflow."""
    x, y = promote_args_inexact("hypot", x, y)
    x, y = lax.abs(x), lax.abs(y)
    large, small = lax.max(x, y), lax.min(x, y)
    flat = lax.eq(large, _like(0, large))
    ratio = lax.div(small, select_where(flat, _like(1, large), large))
    length = lax.mul(large, lax.sqrt(lax.add(_like(1, large), lax.square(ratio))))
    infinite = lax.eq(large, _like(np.inf, large))
    return select_where(infinite, large, select_where(flat, _like(0, large), length))


# --- rounding ------------------------------------------------------------------------------


def _rounding(name: str, op: Ufunc, doc: str) -> Ufunc:
    def apply(x: Any) -> Any:
        return op(x) if dtypes.is_inexact(aval_of(x).dtype) else x

    return make_unary(name, apply, doc + " Integers stay.")


floor = _rounding("floor", lax.floor, "Round down.")
ceil = _rounding("ceil", lax.ceil, "Round up.")
trunc = _rounding(
    "trunc",
    lambda x: select_where(lax.lt(x, _like(0, x)), lax.ceil(x), lax.floor(x)),
    "Round towards zero.",
)
_half_even = lax.RoundingMethod.TO_NEAREST_EVEN
rint = make_unary("rint", lambda x: lax.round(x, _half_even), "Round; halves go to the even "
                  "neighbor. Integers become floats first.", promote_args_inexact)  # fmt: skip


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """Round to a number of decimals; halves go to the even neighbor.

    Raises:
        NotImplementedError: ``out``, or integers with negative ``decimals``.
    """
    no_out("round", out)
    (x,) = promote_args("round", a)
    dtype = aval_of(x).dtype
    if not dtypes.is_inexact(dtype):
        if as_index(decimals) < 0:
            raise NotImplementedError(
                f"[round] integers round to decimals >= 0; got {decimals}. Fix: convert to float."
            )
        return x
    if dtypes.is_complex(dtype):
        return lax.complex(round(lax.real(x), decimals), round(lax.imag(x), decimals))
    if decimals == 0:
        return lax.round(x, _half_even)
    wide = convert(x, np.dtype(np.float32)) if dtype.itemsize < 4 else x
    factor = _like(10.0**decimals, wide)
    return convert(lax.div(lax.round(lax.mul(wide, factor), _half_even), factor), dtype)


around = round


def no_out(name: str, out: Any) -> None:
    """Raise NotImplementedError for an ``out`` argument: arrays are immutable."""
    if out is not None:
        raise NotImplementedError(
            f"[{name}] out must be None, arrays are immutable; got {type(out).__name__}. "
            f"Fix: y = jnp.{name}(...)."
        )


# --- complex parts -------------------------------------------------------------------------


def real(x: Any, /) -> Any:
    """The real part."""
    (x,) = promote_args("real", x)
    return lax.real(x) if dtypes.is_complex(aval_of(x).dtype) else x


def imag(x: Any, /) -> Any:
    """The imaginary part; 0 for real numbers."""
    (x,) = promote_args("imag", x)
    return lax.imag(x) if dtypes.is_complex(aval_of(x).dtype) else lax.mul(x, _like(0, x))


def conjugate(x: Any, /) -> Any:
    """The complex conjugate; real numbers stay."""
    (x,) = promote_args("conjugate", x)
    return lax.conj(x) if dtypes.is_complex(aval_of(x).dtype) else x


conj = conjugate


def broadcast_like(*operands: Any) -> list[Any]:
    """Operands of a function with a derivative of its own, in one shape."""
    shape = broadcast_shapes(*[aval_of(x).shape for x in operands])
    return [_broadcast(x, shape) for x in operands]


def _broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    own = aval_of(x).shape
    dims = () if not own else tuple(range(len(shape) - len(own), len(shape)))
    return x if own == shape else lax.broadcast_in_dim(x, shape, dims)
