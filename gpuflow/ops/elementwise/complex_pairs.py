"""Arithmetic of complex numbers in kernels: the ``pair`` bodies of elementwise ops.

A complex value is a ``ComplexPair`` of real ones. Products use the plain formula, as in NumPy: an
infinity times a number with a zero component may be nan. Quotients scale by the larger component of
the divisor (Smith's method), and moduli are ``hypot``, so that neither overflows before its result.

Source: C99, annex G, for special values; R. L. Smith, "Algorithm 116: Complex division", 1962;
W. Kahan, "Branch cuts for complex elementary functions", 1987, for sqrt and tanh.

Tests: tests/ops/test_complex_functions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp as real_exp
from math import log as real_log
from typing import Any

from gpuflow.kir.builder import Builder, ComplexPair
from gpuflow.kir.nodes import Value

# Above this an exponential may overflow before its product with a cosine does: it is split into two
# factors, exp(x - SHIFT) and exp(SHIFT). Not integers: those could be sizes.
_MAX_EXPONENT = {"float32": 88.5, "float64": 709.5}
_SHIFT = 64.5

# An even power of 2 that makes subnormal numbers normal, and is far from the largest.
_SCALE = 2.0**60

# Above this tanh is 1 up to rounding.
_FLAT = {"float32": 11.5, "float64": 22.5}

# Moduli between these have logarithms so small that log(modulus) would lose digits.
_NEAR_ONE = (0.7, 1.7)


def pair_body(emit: Callable[..., Any]) -> Callable[..., Any]:
    """A body for ``Elementwise.pair`` from ``emit(builder, *values)``."""

    def body(builder: Builder, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
        del in_avals, out_aval, params
        return emit(builder, *values)

    return body


def componentwise(emit: Callable[..., Value]) -> Callable[..., Any]:
    """A body that applies ``emit(builder, *values)`` to the real and to the imaginary parts."""

    def body(builder: Builder, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
        del in_avals, out_aval, params
        return ComplexPair(
            emit(builder, *[value.real for value in values]),
            emit(builder, *[value.imag for value in values]),
        )

    return body


def by_name(fn: str) -> Callable[..., Any]:
    """A body that applies a scalar function to both components."""
    return componentwise(lambda builder, *values: builder.apply(fn, *values))


def _constant(builder: Builder, like: Value, value: float) -> Value:
    return builder.const(like.dtype, value)


def mul(builder: Builder, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """``x * y``."""
    apply = builder.apply
    return ComplexPair(
        apply("sub", apply("mul", x.real, y.real), apply("mul", x.imag, y.imag)),
        apply("add", apply("mul", x.real, y.imag), apply("mul", x.imag, y.real)),
    )


def div(builder: Builder, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """``x / y``; a divisor of zero divides each component by +0."""
    apply, select = builder.apply, builder.select
    swapped = apply("gt", apply("abs", y.imag), apply("abs", y.real))
    large = select(swapped, y.imag, y.real)
    small = select(swapped, y.real, y.imag)
    zero = _constant(builder, large, 0)
    is_zero = apply("eq", large, zero)
    large = select(is_zero, zero, large)
    ratio = select(is_zero, zero, apply("div", small, large))
    divisor = apply("add", large, apply("mul", small, ratio))
    # If swapped, x and y are multiplied by -i.
    a, b = select(swapped, x.imag, x.real), select(swapped, apply("neg", x.real), x.imag)
    ratio = select(swapped, apply("neg", ratio), ratio)
    real = select(is_zero, a, apply("add", a, apply("mul", b, ratio)))
    imag = select(is_zero, b, apply("sub", b, apply("mul", a, ratio)))
    return ComplexPair(apply("div", real, divisor), apply("div", imag, divisor))


def reciprocal(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``1 / x``."""
    one, zero = (_constant(builder, x.real, value) for value in (1, 0))
    return div(builder, ComplexPair(one, zero), x)


def modulus(builder: Builder, x: ComplexPair) -> Value:
    """``|x|``."""
    return builder.apply("hypot", x.real, x.imag)


def square(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``x * x``, which overflows with the right sign."""
    apply, two = builder.apply, _constant(builder, x.real, 2)
    a, b = apply("abs", x.real), apply("abs", x.imag)
    # a**2 - b**2 = 2 (a - b) ((a + b) / 2), and neither factor overflows.
    half = _constant(builder, x.real, 0.5)
    mean = apply("add", apply("mul", a, half), apply("mul", b, half))
    real = apply("mul", apply("mul", apply("sub", a, b), mean), two)
    return ComplexPair(real, apply("mul", apply("mul", x.real, x.imag), two))


def sign(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``x / |x|``, and 0 for 0."""
    apply, select, zero = builder.apply, builder.select, _constant(builder, x.real, 0)
    # Divide by the larger component first: the modulus overflows, and has few digits near 0.
    largest = apply("max", apply("abs", x.real), apply("abs", x.imag))
    endless = apply("eq", largest, _constant(builder, x.real, float("inf")))

    def scaled(component: Value, other: Value) -> Value:
        """Divide by the larger component; 1 where only the component is infinite."""
        alone = apply("and", endless, apply("is_finite", other))
        unit = apply("copysign", _constant(builder, component, 1), component)
        return select(alone, unit, apply("div", component, largest))

    near = ComplexPair(scaled(x.real, x.imag), scaled(x.imag, x.real))
    size = modulus(builder, near)
    unit = ComplexPair(apply("div", near.real, size), apply("div", near.imag, size))
    return select(apply("eq", largest, zero), ComplexPair(zero, zero), unit)


def equal(builder: Builder, x: ComplexPair, y: ComplexPair) -> Value:
    """``x == y``."""
    equalities = builder.apply("eq", x.real, y.real), builder.apply("eq", x.imag, y.imag)
    return builder.apply("and", *equalities)


def not_equal(builder: Builder, x: ComplexPair, y: ComplexPair) -> Value:
    """``x != y``."""
    differences = builder.apply("ne", x.real, y.real), builder.apply("ne", x.imag, y.imag)
    return builder.apply("or", *differences)


def extremum(fn: str) -> Callable[..., ComplexPair]:
    """The larger ("gt") or smaller ("lt") of two, by the real and then the imaginary part.

    The first operand wins if it has a nan component, else the second if it has one.
    """

    def emit(builder: Builder, x: ComplexPair, y: ComplexPair) -> ComplexPair:
        apply = builder.apply
        beyond = apply(fn, x.real, y.real)
        equal_real = apply("eq", x.real, y.real)
        later = apply("and", equal_real, apply({"gt": "ge", "lt": "le"}[fn], x.imag, y.imag))
        ordered = apply("and", _is_not_nan(builder, y), apply("or", beyond, later))
        first = apply("or", apply("not", _is_not_nan(builder, x)), ordered)
        return builder.select(first, x, y)

    return emit


def _is_not_nan(builder: Builder, x: ComplexPair) -> Value:
    """Whether no component is nan."""
    return equal(builder, x, x)


def power(
    builder: Builder, x: ComplexPair, exponent: int, by_squaring: Callable[..., Any]
) -> ComplexPair:
    """``x`` to an integer power; ``by_squaring(multiply, x, n)`` computes positive ones."""
    if exponent == 0:
        return ComplexPair(_constant(builder, x.real, 1), _constant(builder, x.real, 0))

    def multiply(a: ComplexPair, b: ComplexPair) -> ComplexPair:
        return mul(builder, a, b)

    positive = by_squaring(multiply, x, exponent if exponent > 0 else -exponent)
    return reciprocal(builder, positive) if exponent < 0 else positive


def exp(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``e ** x``; real for a real number, with the sign of its zero imaginary part."""
    apply, select = builder.apply, builder.select
    zero, one = (_constant(builder, x.real, value) for value in (0, 1))
    is_large = apply("gt", x.real, _constant(builder, x.real, _MAX_EXPONENT[x.real.dtype]))
    shift = select(is_large, _constant(builder, x.real, _SHIFT), zero)
    factor = select(is_large, _constant(builder, x.real, real_exp(_SHIFT)), one)
    size = apply("exp", apply("sub", x.real, shift))
    # The angle of 0 and of a real number has no effect, and may be infinite or nan.
    endless = _constant(builder, x.real, float("inf"))
    vanishes = apply("eq", x.real, apply("neg", endless))
    is_real = apply("eq", x.imag, zero)

    def component(fn: str, of_zero: Value) -> Value:
        value = apply("mul", apply("mul", size, apply(fn, x.imag)), factor)
        return select(vanishes, of_zero, value)

    angle = select(apply("is_finite", x.imag), x.imag, zero)
    real = component("cos", apply("mul", zero, apply("cos", angle)))
    real = select(is_real, apply("mul", size, factor), real)
    # The real part of an infinite result is infinite, with any sign.
    is_undefined = apply("and", apply("eq", x.real, endless), apply("ne", real, real))
    real = select(is_undefined, endless, real)
    imag = component("sin", apply("mul", zero, apply("sin", angle)))
    return ComplexPair(real, select(is_real, x.imag, imag))


def log(builder: Builder, x: ComplexPair) -> ComplexPair:
    """Logarithm with imaginary part in [-pi, pi]."""
    apply, select = builder.apply, builder.select
    one, half = (_constant(builder, x.real, value) for value in (1, 0.5))
    a, b = apply("abs", x.real), apply("abs", x.imag)
    large, small = apply("max", a, b), apply("min", a, b)
    size = modulus(builder, x)
    low, high = (_constant(builder, x.real, bound) for bound in _NEAR_ONE)
    near = apply("and", apply("gt", size, low), apply("lt", size, high))
    # log(size) = log(size ** 2) / 2, and size ** 2 - 1 = (large - 1) (large + 1) + small ** 2.
    excess = apply("mul", apply("sub", large, one), apply("add", large, one))
    excess = apply("add", excess, apply("mul", small, small))
    close = apply("mul", half, apply("log1p", excess))
    # Elsewhere the modulus of the largest numbers overflows, and that of the least has few digits.
    is_huge = apply("and", apply("is_finite", large), apply("not", apply("is_finite", size)))
    is_scaled = apply("or", is_huge, apply("lt", large, _constant(builder, x.real, 1 / _SCALE)))
    scale = select(is_huge, half, _constant(builder, x.real, _SCALE))
    shift = (_constant(builder, x.real, real_log(value)) for value in (2, 1 / _SCALE))
    scaled = modulus(builder, ComplexPair(apply("mul", a, scale), apply("mul", b, scale)))
    far = apply("log", select(is_scaled, scaled, size))
    far = select(is_scaled, apply("add", far, select(is_huge, *shift)), far)
    return ComplexPair(select(near, close, far), apply("atan2", x.imag, x.real))


def sqrt(builder: Builder, x: ComplexPair) -> ComplexPair:
    """Square root with a nonnegative real part."""
    apply, select = builder.apply, builder.select
    zero, half, one = (_constant(builder, x.real, value) for value in (0, 0.5, 1))
    # The sum of modulus and real part uses quarters, so that it does not overflow; for small
    # numbers multiples, so that it does not lose digits.
    a, b = apply("abs", x.real), apply("abs", x.imag)
    is_small = apply("and", apply("lt", a, one), apply("lt", b, one))
    scale, root = (
        select(is_small, _constant(builder, x.real, small), _constant(builder, x.real, large))
        for small, large in ((_SCALE, 0.25), (_SCALE**-0.5, 2))
    )
    p, q = apply("mul", a, scale), apply("mul", b, scale)
    total = apply("add", modulus(builder, ComplexPair(p, q)), p)
    large = apply("mul", apply("sqrt", apply("mul", total, half)), root)
    other = apply("mul", apply("div", b, large), half)
    other = select(apply("eq", large, zero), zero, other)
    negative = apply("lt", x.real, zero)
    real = select(negative, other, large)
    imag = apply("copysign", select(negative, large, other), x.imag)
    # Infinite components: C99's values.
    endless = _constant(builder, x.real, float("inf"))
    real = select(apply("eq", b, endless), endless, real)
    imag = select(apply("eq", b, endless), x.imag, imag)
    is_minus = apply("and", apply("eq", a, endless), negative)
    is_plus = apply("and", apply("eq", a, endless), apply("not", negative))
    is_finite = apply("is_finite", x.imag)
    real = select(apply("and", is_minus, is_finite), zero, real)
    imag = select(apply("and", is_minus, is_finite), apply("copysign", endless, x.imag), imag)
    imag = select(apply("and", is_plus, is_finite), apply("copysign", zero, x.imag), imag)
    return ComplexPair(real, imag)


def rsqrt(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``1 / sqrt(x)``."""
    return reciprocal(builder, sqrt(builder, x))


def tanh(builder: Builder, x: ComplexPair) -> ComplexPair:
    """Compute the hyperbolic tangent."""
    apply, select = builder.apply, builder.select
    zero, one = (_constant(builder, x.real, value) for value in (0, 1))
    flat = apply("gt", apply("abs", x.real), _constant(builder, x.real, _FLAT[x.real.dtype]))
    a = select(flat, zero, x.real)
    tangent, sine = apply("tan", x.imag), apply("sinh", a)
    scale = apply("add", one, apply("mul", tangent, tangent))
    cosine = apply("sqrt", apply("add", one, apply("mul", sine, sine)))
    below = apply("add", one, apply("mul", scale, apply("mul", sine, sine)))
    real = apply("div", apply("mul", scale, apply("mul", cosine, sine)), below)
    imag = apply("div", tangent, below)
    # For large |a|: 1, and 4 sin(b) cos(b) exp(-2 |a|); if |a| is infinite, b may be nan.
    small = apply("exp", apply("neg", apply("abs", x.real)))
    sin_cos = apply("mul", apply("sin", x.imag), apply("cos", x.imag))
    is_endless = apply("eq", apply("abs", x.real), _constant(builder, x.real, float("inf")))
    is_open = apply("and", is_endless, apply("not", apply("is_finite", x.imag)))
    sin_cos = select(is_open, zero, sin_cos)
    four = apply("add", one, apply("add", one, _constant(builder, x.real, 2)))
    far = apply("mul", apply("mul", four, sin_cos), apply("mul", small, small))
    unit = apply("add", apply("copysign", one, x.real), apply("mul", zero, sin_cos))
    real, imag = select(flat, unit, real), select(flat, far, imag)
    # Real and imaginary numbers stay so.
    real = select(apply("eq", x.real, zero), x.real, real)
    is_real = apply("eq", x.imag, zero)
    real = select(is_real, apply("tanh", x.real), real)
    return ComplexPair(real, select(is_real, x.imag, imag))


def sinh(builder: Builder, x: ComplexPair) -> ComplexPair:
    """The hyperbolic sine."""
    apply, select = builder.apply, builder.select
    sine, cosine, factor, is_odd = _grown(builder, x)
    real = apply("mul", apply("mul", sine, apply("cos", x.imag)), factor)
    imag = apply("mul", apply("mul", cosine, apply("sin", x.imag)), factor)
    zero = _constant(builder, x.real, 0)
    # Infinite with an undefined angle is positive, as in NumPy; C99 leaves its sign open.
    odd = select(apply("eq", x.real, zero), x.real, apply("abs", x.real))
    is_real = apply("eq", x.imag, zero)
    return ComplexPair(select(is_odd, odd, real), select(is_real, x.imag, imag))


def cosh(builder: Builder, x: ComplexPair) -> ComplexPair:
    """The hyperbolic cosine."""
    apply, select = builder.apply, builder.select
    zero, one = (_constant(builder, x.real, value) for value in (0, 1))
    sine, cosine, factor, is_odd = _grown(builder, x)
    real = apply("mul", apply("mul", cosine, apply("cos", x.imag)), factor)
    imag = apply("mul", apply("mul", sine, apply("sin", x.imag)), factor)
    # With an undefined angle the real part is infinite or nan.
    is_zero = apply("eq", x.real, zero)
    real = select(apply("and", is_odd, apply("not", is_zero)), apply("abs", x.real), real)
    imag = select(apply("and", is_odd, is_zero), x.real, imag)
    is_real = apply("eq", x.imag, zero)
    return ComplexPair(
        real, select(is_real, apply("mul", x.imag, apply("copysign", one, x.real)), imag)
    )


def _grown(builder: Builder, x: ComplexPair) -> tuple[Value, Value, Value, Value]:
    """Hyperbolic sine and cosine of the real part, over a factor; and whether the angle is ignored.

    It is if the real part is 0 or infinite, and the angle infinite or nan.
    """
    apply, select = builder.apply, builder.select
    zero, one, half = (_constant(builder, x.real, value) for value in (0, 1, 0.5))
    size = apply("abs", x.real)
    is_large = apply("gt", size, _constant(builder, x.real, _MAX_EXPONENT[x.real.dtype]))
    shift = _constant(builder, x.real, _SHIFT)
    far = apply("mul", half, apply("exp", apply("sub", size, shift)))
    near = select(is_large, zero, x.real)
    sine = select(is_large, apply("copysign", far, x.real), apply("sinh", near))
    cosine = select(is_large, far, apply("cosh", near))
    factor = select(is_large, _constant(builder, x.real, real_exp(_SHIFT)), one)
    endless = _constant(builder, x.real, float("inf"))
    alone = apply("or", apply("eq", size, endless), apply("eq", size, zero))
    return sine, cosine, factor, apply("and", alone, apply("not", apply("is_finite", x.imag)))


def _times_i(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``i x``."""
    return ComplexPair(builder.apply("neg", x.imag), x.real)


def _times_minus_i(builder: Builder, x: ComplexPair) -> ComplexPair:
    """``-i x``."""
    return ComplexPair(x.imag, builder.apply("neg", x.real))


def sin(builder: Builder, x: ComplexPair) -> ComplexPair:
    """The sine: -i sinh(i x), and as in NumPy if the angle is undefined: positive if infinite."""
    apply = builder.apply
    out = _times_minus_i(builder, sinh(builder, _times_i(builder, x)))
    endless = _constant(builder, x.real, float("inf"))
    is_endless = apply("eq", apply("abs", out.imag), endless)
    is_open = apply("and", apply("ne", out.real, out.real), is_endless)
    return ComplexPair(out.real, builder.select(is_open, endless, out.imag))


def cos(builder: Builder, x: ComplexPair) -> ComplexPair:
    """The cosine: cosh(i x)."""
    return cosh(builder, _times_i(builder, x))


def tan(builder: Builder, x: ComplexPair) -> ComplexPair:
    """The tangent: -i tanh(i x)."""
    return _times_minus_i(builder, tanh(builder, _times_i(builder, x)))
