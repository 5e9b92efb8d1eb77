"""Powers and roots: square, integer_pow, sqrt, rsqrt, cbrt. (pow is in general_powers.py.)

Tests: tests/ops/test_elementwise_rules.py, tests/ops/test_special_points.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Elementwise
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import Zero
from gpuflow.core.types import AccuracyLike, Array, ArrayLike
from gpuflow.ops.define import check_kind, define, is_number
from gpuflow.ops.elementwise import complex_pairs
from gpuflow.ops.elementwise.accuracy import check_accuracy
from gpuflow.ops.elementwise.arithmetic import constant, div, mul
from gpuflow.ops.elementwise.identities import (
    constant_of,
    filled,
    first_of,
    same,
    sink_broadcasts,
)
from gpuflow.ops.elementwise.nary import batch_elementwise, elementwise, widened

# --- square, integer_pow, roots ------------------------------------------------------------


def _square_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval, params
    return builder.apply("mul", values[0], values[0])


def _square_impl(xp: Any, x: Any) -> Any:
    if not dtypes.is_complex(x.dtype):
        return xp.multiply(x, x)
    # As in kernels: differences of squares that overflow would have the wrong sign, or be nan.
    out = xp.empty_like(x)
    a, b = xp.abs(x.real), xp.abs(x.imag)
    out.real, out.imag = (a - b) * (0.5 * a + 0.5 * b) * 2, x.real * x.imag * 2
    return out


square_p = elementwise(
    "square",
    impl=_square_impl,
    accepts=is_number,
    what="a number",
    body=_square_body,
    cheap=True,
    continuous=True,
    pair=complex_pairs.pair_body(complex_pairs.square),
    derivatives=(lambda t, out, x: mul(t, mul(x, 2)),),
)

sqrt_p = elementwise(
    "sqrt",
    impl=lambda xp, x: xp.sqrt(x),
    accepts=dtypes.is_inexact,
    what="a float or complex number",
    body="sqrt",
    pair=complex_pairs.pair_body(complex_pairs.sqrt),
    derivatives=(lambda t, out, x: mul(t, div(0.5, out)),),
    domain=((0.1, 10.0),),
)

rsqrt_p = elementwise(
    "rsqrt",
    impl=widened(lambda xp, x: 1 / xp.sqrt(x)),
    accepts=dtypes.is_inexact,
    what="a float or complex number",
    body="rsqrt",
    pair=complex_pairs.pair_body(complex_pairs.rsqrt),
    derivatives=(lambda t, out, x: mul(t, mul(div(out, x), -0.5)),),
    domain=((0.1, 10.0),),
)

cbrt_p = elementwise(
    "cbrt",
    impl=lambda xp, x: xp.cbrt(x),
    accepts=dtypes.is_floating,
    what="a real float",
    body="cbrt",
    derivatives=(lambda t, out, x: mul(t, div(1 / 3, square(out))),),
    domain=((0.1, 10.0),),
)


def square(x: ArrayLike) -> Array:
    """Elementwise square; integers wrap.

    Args:
        x: array of numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.square(jnp.array([1, -3]))
        Array([1, 9], dtype=int32)
    """
    return square_p.bind(x)


def sqrt(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise square root; nan for negative real numbers.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.sqrt(jnp.array([4.0, 9.0]))
        Array([2., 3.], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("sqrt", accuracy)
    return sqrt_p.bind(x)


def rsqrt(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise reciprocal square root.

    Args:
        x: array of floats or complex numbers.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.rsqrt(jnp.array([4.0, 0.25]))
        Array([0.5, 2. ], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("rsqrt", accuracy)
    return rsqrt_p.bind(x)


def cbrt(x: ArrayLike, *, accuracy: AccuracyLike = None) -> Array:
    """Elementwise cube root.

    Args:
        x: array of real floats.
        accuracy: None, a ``lax.AccuracyMode`` or a ``lax.Tolerance``; it has no effect.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError, NotImplementedError: if the dtype or ``accuracy`` is not supported.

    Example:
        >>> lax.cbrt(jnp.array([8.0, -1.0])).round(3)
        Array([ 2., -1.], dtype=float32)
    """
    if accuracy is not None:
        check_accuracy("cbrt", accuracy)
    return cbrt_p.bind(x)


def _by_squaring(multiply: Callable[[Any, Any], Any], x: Any, exponent: int) -> Any:
    """``x`` to a positive power, in about 2 log2(exponent) multiplications."""
    power = None
    while True:
        if exponent & 1:
            power = x if power is None else multiply(power, x)
        exponent >>= 1
        if not exponent:
            return power
        x = multiply(x, x)


def _integer_pow_shape(x: ShapedArray, *, y: int) -> ShapedArray:
    check_kind("integer_pow", x, is_number, "a number")
    check(
        y >= 0 or not dtypes.is_integer(x.dtype),
        lambda: (
            f"[integer_pow] integers have no negative powers; got {x} and exponent {y}. "
            "Fix: convert to a float first."
        ),
    )
    return x


def _integer_pow_impl(xp: Any, x: Any, *, y: int) -> Any:
    if y == 0:
        return xp.ones_like(x)
    power = _by_squaring(xp.multiply, x, y if y > 0 else -y)
    return 1 / power if y < 0 else power


def _integer_pow_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval
    (x,), y = values, params["y"]
    one = builder.const(x.dtype, 1)
    if y == 0:
        return one
    power = _by_squaring(lambda a, b: builder.apply("mul", a, b), x, y if y > 0 else -y)
    return builder.apply("div", one, power) if y < 0 else power


def _integer_pow_pair(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    del in_avals, out_aval
    return complex_pairs.power(builder, values[0], params["y"], _by_squaring)


def _integer_pow_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, y: int) -> tuple[Any, Any]:
    x, t = primals[0], tangents[0]
    out = integer_pow(x, y)
    if y == 0:
        return out, Zero(aval_of(out).tangent())
    return out, mul(t, mul(constant(x, y), integer_pow(x, y - 1))) if y != 1 else t


def _integer_pow_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> Any:
    """x^1 is x, x^0 is 1 of every x."""
    del definition
    if eqn.params["y"] == 1:
        return same(eqn, eqn.inputs[0])
    return filled(eqn, 1, build) if eqn.params["y"] == 0 else None


integer_pow_p = define(
    "integer_pow",
    shape=_integer_pow_shape,
    impl=widened(_integer_pow_impl),
    jvp=_integer_pow_jvp,
    batch=batch_elementwise(lambda x, *, y: integer_pow(x, y)),
    lower=Elementwise(_integer_pow_body, cheap=True, pair=_integer_pow_pair, continuous=True),
    simplify=first_of(_integer_pow_simplify, sink_broadcasts),
    domain=((0.5, 2.0),),
)


def integer_pow(x: ArrayLike, y: int) -> Array:
    """Raise ``x`` to a static integer power by repeated squaring.

    Args:
        x: array of numbers.
        y: the exponent; negative ones take the reciprocal, and require float or complex ``x``.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if an integer base has a negative exponent, or the exponent is not an integer.

    Example:
        >>> lax.integer_pow(jnp.array([2, -3]), 3)
        Array([  8, -27], dtype=int32)
    """
    if type(y) is not int:
        y = _as_exponent(y)
    return integer_pow_p.bind(x, y=y)


def _as_exponent(y: Any) -> int:
    try:
        exponent = int(y)
    except (TypeError, ValueError, OverflowError):
        exponent = None
    check(
        exponent is not None and exponent == y,
        lambda: f"[integer_pow] y must be an integer; got {brief(y)}. Fix: lax.pow(x, y).",
    )
    return exponent


# --- powers of halves ----------------------------------------------------------------------


def _half_pow_impl(xp: Any, x: Any, *, halves: int) -> Any:
    return xp.power(x, x.dtype.type(halves / 2))


def _half_pow_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """Like ``pow``: -0 counts as 0, and -inf as inf."""
    del in_avals, out_aval
    (x,), halves, apply = values, params["halves"], builder.apply
    zero, one = builder.const(x.dtype, 0.0), builder.const(x.dtype, 1.0)
    endless = builder.const(x.dtype, float("inf"))
    is_minus = apply("eq", x, apply("neg", endless))
    root = builder.select(is_minus, endless, apply("add", apply("sqrt", x), zero))
    if abs(halves) == 1:
        return root if halves == 1 else apply("div", one, root)
    size = apply("abs", x)
    if halves == 3:
        return apply("mul", size, root)
    return apply("mul", apply("div", one, size), apply("div", one, root))


# Compiled form of pow(x, 0.5), and of pow with -0.5, 1.5 and -1.5.
half_pow_p = define(
    "half_pow",
    shape=lambda x, *, halves: ShapedArray(x.shape, x.dtype),
    impl=widened(_half_pow_impl),
    lower=Elementwise(_half_pow_body, continuous=True),
)


def half_powers(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Rewrite a ``pow`` with exponent +-0.5 or +-1.5 with a square root."""
    x, y = eqn.inputs
    value = constant_of(y, definition)
    if value is None or not dtypes.is_floating(x.aval.dtype) or x.aval.dtype.itemsize > 8:
        return None
    halves = 2 * float(value)
    if halves not in (-3, -1, 1, 3) or x.aval.shape != eqn.outputs[0].aval.shape:
        return None
    return [build.apply(half_pow_p, x, halves=int(halves))]
