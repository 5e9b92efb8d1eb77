"""Elementwise arithmetic and powers, and the builders of elementwise functions.

The builders make one function from one op; functions that need more than promotion are below.

Tests: tests/numpy/test_numpy_array_api.py, tests/ops/test_special_points.py.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index as as_index
from typing import Any, NoReturn, TypeVar

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import ArrayLike, Binary, Unary
from gpuflow.numpy.promotion import (
    check_arraylike,
    constant,
    like,
    promote_args,
    promote_args_inexact,
    promote_args_numeric,
    promote_dtypes,
    promote_shapes,
)
from gpuflow.ops.define import check_kind
from gpuflow.ops.elementwise.select import where as select_where
from gpuflow.runtime.array import Array

Ufunc = Callable[..., Any]
F = TypeVar("F", bound=Ufunc)


def described(first: str, takes: str, gives: str, *example: str, raises: str = "") -> str:
    """The docstring of a function that a builder makes.

    Args:
        first: its first sentences.
        takes: the arguments and their requirements.
        gives: the return value.
        example: source lines.
        raises: additional errors.
    """
    indented = [section.replace("\n", "\n    ") for section in (takes, gives, "\n".join(example))]
    raised = f"\n    {raises}" if raises else ""
    return f"""{first}

Args:
    {indented[0]}
    out, where: must be None; arrays are immutable.

Returns:
    {indented[1]}

Raises:
    NotImplementedError: if ``out`` or ``where`` is given.{raised}

Example:
    {indented[2]}
"""


def make_unary(name: str, op: Ufunc, doc: str, promote: Ufunc = promote_args) -> Unary:
    """A function of one array from an op."""

    def ufunc(x: ArrayLike, /, *, out: None = None, where: None = None) -> Array:
        if out is not None or where is not None:
            refuse_writing(name, out, where)
        return op(*promote(name, x))

    return _named(ufunc, name, doc)


def make_binary(name: str, op: Ufunc, doc: str, promote: Ufunc = promote_args) -> Binary:
    """A function of two arrays from an op."""

    def ufunc(x: ArrayLike, y: ArrayLike, /, *, out: None = None, where: None = None) -> Array:
        if out is not None or where is not None:
            refuse_writing(name, out, where)
        return op(*promote(name, x, y))

    return _named(ufunc, name, doc)


def refuse_writing(name: str, out: Any, where: Any) -> NoReturn:
    """Raise NotImplementedError for the arguments of NumPy's ufuncs that write into arrays."""
    raise NotImplementedError(
        f"[{name}] out and where must be None, arrays are immutable; got {type(out).__name__} and "
        f"{type(where).__name__}. Fix: jnp.where(mask, jnp.{name}(...), x)."
    )


def _named(ufunc: F, name: str, doc: str) -> F:
    ufunc.__name__ = ufunc.__qualname__ = name
    ufunc.__doc__ = doc
    return ufunc


def _is_bool(x: Any) -> bool:
    return aval_of(x).dtype is dtypes.bool_  # np.dtype objects of built-in types are singletons


def _or_on_bools(op: Ufunc, on_bools: Ufunc) -> Ufunc:
    """``op``, except that bools go to a logical op, as in NumPy."""

    def apply(*operands: Any) -> Any:
        return on_bools(*operands) if _is_bool(operands[0]) else op(*operands)

    return apply


# --- arithmetic ----------------------------------------------------------------------------

add = make_binary(
    "add",
    _or_on_bools(lax.add, lax.bitwise_or),
    described(
        "Elementwise ``x + y``; logical or for bools.",
        "x, y: arrays of numbers or bools that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.add(jnp.array([[1], [2]]), jnp.array([10, 20]))",
        "Array([[11, 21],",
        "       [12, 22]], dtype=int32)",
    ),
)
subtract = make_binary(
    "subtract",
    lax.sub,
    described(
        "Elementwise ``x - y``; not for bools.",
        "x, y: arrays of numbers that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.subtract(jnp.array([5, 6]), 2)",
        "Array([3, 4], dtype=int32)",
        raises="TypeError: if both operands are boolean.",
    ),
)
multiply = make_binary(
    "multiply",
    _or_on_bools(lax.mul, lax.bitwise_and),
    described(
        "Elementwise ``x * y``; logical and for bools.",
        "x, y: arrays of numbers or bools that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.multiply(jnp.array([5, 6]), 2)",
        "Array([10, 12], dtype=int32)",
    ),
)
divide = make_binary(
    "divide",
    lax.div,
    described(
        "Elementwise ``x / y``; integers are converted to floats.",
        "x, y: arrays of numbers that broadcast.",
        "An array of floats or complex numbers of the common shape; division by 0 gives inf or "
        "nan.",
        ">>> jnp.divide(jnp.array([1, -3, 0]), jnp.array([2, 0, 0]))",
        "Array([ 0.5, -inf,  nan], dtype=float32)",
    ),
    promote_args_inexact,
)
true_divide = divide
negative = make_unary(
    "negative",
    lax.neg,
    described(
        "Elementwise ``-x``; not for bools.",
        "x: array of numbers.",
        "An array of the shape and dtype of ``x``.",
        ">>> jnp.negative(jnp.array([1, -2]))",
        "Array([-1,  2], dtype=int32)",
        raises="TypeError: if ``x`` is boolean.",
    ),
)
positive = make_unary(
    "positive",
    lax.asarray,
    described(
        "Elementwise ``+x``; -0.0 is unchanged.",
        "x: array of numbers or bools.",
        "An array equal to ``x``.",
        ">>> jnp.positive(jnp.array([1, -2]))",
        "Array([ 1, -2], dtype=int32)",
    ),
)
maximum = make_binary(
    "maximum",
    lax.max,
    described(
        "Elementwise maximum; nan propagates. Complex numbers are compared by real part first.",
        "x, y: arrays that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.maximum(jnp.array([1.0, 5.0, jnp.nan]), 3.0)",
        "Array([ 3.,  5., nan], dtype=float32)",
    ),
)
minimum = make_binary(
    "minimum",
    lax.min,
    described(
        "Elementwise minimum; nan propagates. Complex numbers are compared by real part first.",
        "x, y: arrays that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.minimum(jnp.array([1.0, 5.0, jnp.nan]), 3.0)",
        "Array([ 1.,  3., nan], dtype=float32)",
    ),
)


def _keeps_sign(dtype: Any) -> bool:
    return dtypes.is_bool(dtype) or dtypes.is_unsigned(dtype)


def abs(x: ArrayLike, /) -> Array:
    """Elementwise absolute value; the modulus for complex numbers.

    Args:
        x: array of numbers or bools.

    Returns:
        An array of the shape and dtype of ``x``; real for complex numbers.

    Example:
        >>> jnp.abs(jnp.array([1, -2]))
        Array([1, 2], dtype=int32)
        >>> jnp.abs(jnp.array([3 + 4j]))
        Array([5.], dtype=float32)
    """
    (x,) = promote_args("abs", x)
    return lax.asarray(x) if _keeps_sign(aval_of(x).dtype) else lax.abs(x)


absolute = abs


def _abs_of_real(x: Any) -> Any:
    check_kind("fabs", aval_of(x), dtypes.is_floating, "real")
    return lax.abs(x)


fabs = make_unary(
    "fabs",
    _abs_of_real,
    described(
        "Elementwise absolute value as a float; not for complex numbers.",
        "x: array of real numbers or bools.",
        "An array of floats of the shape of ``x``.",
        ">>> jnp.fabs(jnp.array([1, -2]))",
        "Array([1., 2.], dtype=float32)",
        raises="TypeError: if ``x`` is complex.",
    ),
    promote_args_inexact,
)
sign = make_unary(
    "sign",
    lax.sign,
    described(
        "Elementwise sign: -1, 0 or 1; nan for nan. Complex numbers are divided by their modulus.",
        "x: array of numbers.",
        "An array of the shape and dtype of ``x``.",
        ">>> jnp.sign(jnp.array([-3.5, 0.0, 2.0]))",
        "Array([-1.,  0.,  1.], dtype=float32)",
        raises="TypeError: if ``x`` is boolean.",
    ),
)
square = make_unary(
    "square",
    lax.square,
    described(
        "Elementwise ``x * x``; bools give integers.",
        "x: array of numbers or bools.",
        "An array of the shape and dtype of ``x``; int32 for bools.",
        ">>> jnp.square(jnp.array([3, -4]))",
        "Array([ 9, 16], dtype=int32)",
    ),
    promote_args_numeric,
)
reciprocal = make_unary(
    "reciprocal",
    lambda x: lax.div(like(1, x), x),
    described(
        "Elementwise ``1 / x``; integers are converted to floats.",
        "x: array of numbers.",
        "An array of floats or complex numbers of the shape of ``x``.",
        ">>> jnp.reciprocal(jnp.array([4, 0]))",
        "Array([0.25,  inf], dtype=float32)",
    ),
    promote_args_inexact,
)


@composite
def floor_divide(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise quotient, rounded down; zeros and infinities have the sign of ``x / y``.

    Args:
        x, y: arrays of real numbers or bools that broadcast.

    Returns:
        An array of the common shape and dtype. Integer division by 0 is undefined.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.floor_divide(jnp.array([7, -7]), 2)
        Array([ 3, -4], dtype=int32)
        >>> jnp.floor_divide(-7.5, 2)
        Array(-4., dtype=float32, weak_type=True)
    """
    x, y = promote_args_numeric("floor_divide", x, y)
    dtype = aval_of(x).dtype
    if dtypes.is_unsigned(dtype):
        return lax.div(x, y)
    if dtypes.is_integer(dtype):
        quotient, zero = lax.div(x, y), like(0, x)
        r = lax.sub(x, lax.mul(quotient, y))
        rounded = lax.bitwise_and(lax.ne(lax.sign(x), lax.sign(y)), lax.ne(r, zero))
        return select_where(rounded, lax.sub(quotient, like(1, x)), quotient)
    return _float_divmod(x, y)[0]


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """Floor and remainder of floats; the remainder has the sign of ``y``."""
    remainder_, zero = lax.rem(x, y), like(0, x)
    whole = lax.sub(x, remainder_)
    # A zero keeps the sign of x. Without a remainder, x / y is unchanged: infinity or nan.
    whole = select_where(lax.eq(whole, zero), lax.mul(x, zero), whole)
    whole = select_where(lax.ne(remainder_, remainder_), x, whole)
    quotient = lax.div(whole, y)
    off = lax.bitwise_and(lax.ne(remainder_, like(0, x)), lax.ne(lax.sign(y), lax.sign(remainder_)))
    remainder_ = select_where(off, lax.add(remainder_, y), remainder_)
    quotient = select_where(off, lax.sub(quotient, like(1, x)), quotient)
    return lax.round(quotient), _zero_like(remainder_, y)


def _zero_like(r: Any, y: Any) -> Any:
    """The remainder; zeros get the sign of ``y``.

    -(0 - r) and r + 0 equal r, but give -0 and 0 for zeros; the derivative does not change.
    """
    zero = like(0, r)
    return select_where(lax.lt(y, zero), lax.neg(lax.sub(zero, r)), lax.add(r, zero))


@composite
def remainder(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise ``x % y`` with the sign of ``y``, also for zeros; 0 for integers divided by zero.

    Args:
        x, y: arrays of real numbers or bools that broadcast.

    Returns:
        An array of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.remainder(jnp.array([7, -7]), 3)
        Array([1, 2], dtype=int32)
    """
    x, y = promote_args_numeric("remainder", x, y)
    zero = like(0, x)
    if dtypes.is_integer(aval_of(x).dtype):
        y = select_where(lax.eq(y, zero), like(1, y), y)
    r = lax.rem(x, y)
    off = lax.bitwise_and(lax.ne(lax.lt(r, zero), lax.lt(y, zero)), lax.ne(r, zero))
    r = select_where(off, lax.add(r, y), r)
    return _zero_like(r, y) if dtypes.is_floating(aval_of(x).dtype) else r


mod = remainder


@composite
def fmod(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise remainder with the sign of ``x``; 0 for integers divided by zero.

    Args:
        x, y: arrays of real numbers or bools that broadcast.

    Returns:
        An array of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.fmod(jnp.array([7, -7]), 3)
        Array([ 1, -1], dtype=int32)
    """
    x, y = promote_args_numeric("fmod", x, y)
    if dtypes.is_integer(aval_of(x).dtype):
        y = select_where(lax.eq(y, like(0, y)), like(1, y), y)
    return lax.rem(x, y)


@composite
def divmod(x: ArrayLike, y: ArrayLike, /) -> tuple[Array, Array]:
    """Return ``(x // y, x % y)``: the floored quotient, and the remainder with the sign of ``y``.

    Args:
        x, y: arrays of real numbers or bools that broadcast.

    Returns:
        Two arrays of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.divmod(jnp.array([7, -7]), 3)
        (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    x, y = promote_args_numeric("divmod", x, y)
    if dtypes.is_integer(aval_of(x).dtype):
        return floor_divide(x, y), remainder(x, y)
    return _float_divmod(x, y)


# --- powers --------------------------------------------------------------------------------


def power(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise ``x ** y``.

    Args:
        x: base.
        y: exponent. A static integer (a Python, NumPy or rank-0 value) is expanded into products,
            and the result has the dtype of ``x``; it may be negative for floats only.

    Returns:
        An array of the common shape.

    Raises:
        TypeError: if an integer is raised to a negative integer power.

    Example:
        >>> jnp.power(jnp.array([2, 3]), jnp.array([3, 2]))
        Array([8, 9], dtype=int32)
        >>> jnp.power(jnp.array([2.0, 4.0]), -1)
        Array([0.5 , 0.25], dtype=float32)
    """
    x, y = check_arraylike("power", x, y)
    if _is_concrete_integer(y):
        (x,) = promote_args_numeric("power", x)
        return lax.integer_pow(x, as_index(y))
    x, y = promote_shapes("power", (x, y))
    base, exponent = promote_dtypes(x, y)
    if not dtypes.is_inexact(aval_of(base).dtype):
        return _integer_power(*promote_args_numeric("power", base, exponent))
    if dtypes.is_inexact(aval_of(x).dtype) and dtypes.is_integer(aval_of(y).dtype):
        # A separate case, so that the derivative with respect to the base exists at 0.
        return lax.pow(base, y)
    return lax.pow(base, exponent)


pow = power


def _is_concrete_integer(y: Any) -> bool:
    if type(y) is int or isinstance(y, bool | np.integer):
        return True
    # Arrays of rank 0 are read from their device, as in JAX.
    return type(y) is Array and not y.ndim and dtypes.is_integer(y.dtype)


def _integer_power(x: Any, y: Any) -> Any:
    """Powers of integers by squaring; six rounds reach any power that does not overflow."""
    zero, one = constant(0, y), constant(1, y)
    vanishes = lax.bitwise_and(lax.eq(x, zero), lax.ne(y, zero))
    result = select_where(vanishes, zero, one)
    for _ in range(6):
        odd = lax.ne(lax.bitwise_and(y, one), zero)
        result = select_where(odd, lax.mul(result, x), result)
        x = lax.mul(x, x)
        y = lax.shift_right_logical(y, one)
    return lax.convert_element_type(result, aval_of(result).dtype)  # not weak, as in JAX


float_power = make_binary(
    "float_power",
    power,
    described(
        "Elementwise ``x ** y`` in floats.",
        "x, y: arrays of numbers that broadcast; integers are converted to floats.",
        "An array of floats or complex numbers of the common shape.",
        ">>> jnp.float_power(jnp.array([2, 4]), -1)",
        "Array([0.5 , 0.25], dtype=float32)",
    ),
    promote_args_inexact,
)
