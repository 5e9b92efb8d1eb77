"""Exponentials, logarithms, tanh, logistic, sin, cos, erf and pow as branchless LLVM instructions.

They have no branches and no calls. So they cost the same for all arguments, and LLVM vectorizes
them to any width. A call of libmvec would spill all registers, and take a scalar path if any lane
is special: exp of -inf or of -1e9 (a masked softmax), log of 0. Only sin and cos call libm, if an
argument is larger than ``MAX_REDUCED``.

Method: reduce the argument to a small interval, exactly; evaluate a polynomial there
(``coefficients``); apply the exponent by integer arithmetic, so that no instruction works on
subnormal numbers, for which processors use microcode.

Source of the reductions: Cody and Waite (1980), Software manual for the elementary functions.

Docstrings state the largest error in ulp over a third of all float32 arguments. Without fused
multiply-add it is up to 0.4 ulp more.

Arguments are float32, or float64 where ``INLINE_FUNCTIONS`` has the pair. They may have any value,
also nan, infinities and subnormal numbers. Callers must not let LLVM reassociate the operations.

Tests: tests/targets/cpu/test_cpu_polynomials.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpuflow.targets.cpu.codegen import libm
from gpuflow.targets.cpu.codegen.coefficients import (
    ERF,
    ERFC_ROOT,
    EXP,
    EXP2,
    EXPM1,
    FLOAT_FORMATS,
    LOG,
    LOG2,
    LOG2_OVER_F,
    LOG_FLOAT64,
    LOG_OVER_F,
    MAX_REDUCED,
    PI_EXACT,
    PI_FUSED,
    SIN,
    TANH,
)
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.ir_values import IRValue, cast, polynomial, select

_LOG2_E = 1 / math.log(2)


def has_fused_multiply_add() -> bool:
    """Whether the processor rounds ``a * b + c`` once in one instruction."""
    return cpu_target().has_fused_multiply_add


def _abs(x: IRValue) -> IRValue:
    return x.intrinsic("fabs")


def _at_least(x: IRValue, bound: float) -> IRValue:
    """The maximum of x and a constant; nan stays nan."""
    return select(x < bound, x.constant(bound), x)


def _at_most(x: IRValue, bound: float) -> IRValue:
    """The minimum of x and a constant; nan stays nan."""
    return select(x > bound, x.constant(bound), x)


def _nearest(x: IRValue, factor: float, offset: int = 0) -> tuple[IRValue, IRValue]:
    """``k``, the integer nearest to ``x * factor``, and an integer with low bits k + offset.

    k is a float. ``x * factor`` must be within the range of ``FloatFormat.rounding_constant``.
    """
    float_format = FLOAT_FORMATS[x.dtype]
    rounding_constant = float_format.rounding_constant + offset
    shifted = x * factor + rounding_constant
    return shifted - rounding_constant, shifted.bitcast(float_format.bits_dtype)


def _exponent_to_float(k_bits: IRValue, dtype: str) -> IRValue:
    """2^k from an integer whose low bits are k + bias, for normal results."""
    return (k_bits << FLOAT_FORMATS[dtype].mantissa_bits).bitcast(dtype)


def _reduced(x: IRValue, k: IRValue) -> IRValue:
    """``x - k * log(2)``, exact but for one rounding."""
    high, low = FLOAT_FORMATS[x.dtype].ln2_terms
    return x - k * high - k * low


def _scaled(x: IRValue, k_bits: IRValue, is_subnormal: IRValue) -> IRValue:
    """``x * 2^k`` for x in [sqrt(1/2), sqrt(2)] and k in the low bits; garbage for nan.

    k is added to the exponent. If the result is subnormal, ``x * 2^(k + bias - 1) + 1`` has the
    result in its mantissa, rounded, and subtracting the exponent of 1 leaves it.
    """
    float_format = FLOAT_FORMATS[x.dtype]
    one = x.constant(1)
    power = _exponent_to_float(k_bits + (2 * float_format.exponent_bias - 1), x.dtype)
    factor = select(is_subnormal, power, one)
    subnormal_sum = x * factor + select(is_subnormal, one, 0)
    exponent = select(is_subnormal, k_bits.constant(0) - float_format.exponent_bias, k_bits)
    bits = subnormal_sum.bitcast(float_format.bits_dtype)
    return (bits + (exponent << float_format.mantissa_bits)).bitcast(x.dtype)


def _exp_below(x: IRValue, is_subnormal: IRValue) -> IRValue:
    """exp for arguments from ``exp_zero_below`` to ``exp_inf_above``; garbage for nan.

    ``is_subnormal`` is whether the result is.
    """
    k, k_bits = _nearest(x, _LOG2_E)
    return _scaled(polynomial(_reduced(x, k), EXP[x.dtype]), k_bits, is_subnormal)


def _with_overflow(x: IRValue, largest: float, result: IRValue) -> IRValue:
    """inf above ``largest``, and nan for nan."""
    return select(x <= largest, result, x * math.inf)


def exp(x: IRValue) -> IRValue:
    """e^x; 0.90 ulp."""
    float_format = FLOAT_FORMATS[x.dtype]
    result = _exp_below(
        _at_least(x, float_format.exp_zero_below), x < float_format.exp_subnormal_below
    )
    return _with_overflow(x, float_format.exp_inf_above, result)


def exp2(x: IRValue) -> IRValue:
    """2^x, in float32; 0.88 ulp."""
    bounded = _at_least(x, -151)
    k, k_bits = _nearest(bounded, 1)
    result = _scaled(polynomial(bounded - k, EXP2), k_bits, x < -126)
    return _with_overflow(x, 127.99999237060547, result)


def expm1(x: IRValue) -> IRValue:
    """e^x - 1, in float32, as 2^k expm1(r) + (2^k - 1); 1.44 ulp."""
    bounded = _at_most(_at_least(x, -18), 89)
    # Half of 2^k is taken, as 2^128 is inf.
    k, k_bits = _nearest(bounded, _LOG2_E, FLOAT_FORMATS[x.dtype].exponent_bias - 1)
    r = _reduced(bounded, k)
    small = r * r * polynomial(r, EXPM1) + r
    half_power = _exponent_to_float(k_bits, x.dtype)
    half = half_power * small + (half_power - 0.5)
    # -0.0 keeps its sign.
    return select(k.equals(0), small, half + half).intrinsic("copysign", x)


def logistic(x: IRValue) -> IRValue:
    """1 / (1 + e^-x), as n - n e / (1 + e) for e = e^-|x| and n = e if x < 0 else 1; 1.63 ulp."""
    float_format = FLOAT_FORMATS[x.dtype]
    negative = _at_least(-_abs(x), float_format.exp_zero_below)
    e = _exp_below(negative, negative < float_format.exp_subnormal_below)
    numerator = select(x < 0, e, 1)
    # ``negative * 0`` is 0, or nan for nan.
    return numerator - numerator * (e / (1 + e + negative * 0))


def tanh(x: IRValue) -> IRValue:
    """tanh, in float32: for |x| > 0.55 as 1 - 2 e / (1 + e) with e = e^(-2 |x|); 1.50 ulp."""
    a = _at_most(_abs(x), 10)
    k, k_bits = _nearest(a, -2 * _LOG2_E, FLOAT_FORMATS[x.dtype].exponent_bias)
    # An error of e has little effect on the result, so one term of log(2) suffices.
    r = k * (math.log(2) / 2) + a
    e = polynomial(r, _scaled_argument(EXP[x.dtype], -2)) * _exponent_to_float(k_bits, x.dtype)
    large = 1 - 2 * (e / (1 + e))
    square = a * a
    small = a * square * polynomial(square, TANH) + a
    return select(a < 0.55, small, large).intrinsic("copysign", x)


def _scaled_argument(coefficients: Sequence[float], factor: float) -> list[float]:
    """The coefficients of the polynomial p(factor * x)."""
    degree = len(coefficients) - 1
    return [c * factor ** (degree - position) for position, c in enumerate(coefficients)]


def _mantissa_and_exponent(x: IRValue) -> tuple[IRValue, IRValue]:
    """``f`` and ``e`` with x = (1 + f) 2^e and sqrt(1/2) <= 1 + f < sqrt(2); garbage for x <= 0."""
    float_format = FLOAT_FORMATS[x.dtype]
    mantissa_bits, sqrt_half_bits = float_format.mantissa_bits, float_format.sqrt_half_bits
    is_subnormal = x < 2.0 ** (1 - float_format.exponent_bias)
    normal = select(is_subnormal, x * 2.0**mantissa_bits, x)
    bits = normal.bitcast(float_format.bits_dtype)
    sqrt_half = bits.constant(sqrt_half_bits)
    bits = bits - select(is_subnormal, sqrt_half + (mantissa_bits << mantissa_bits), sqrt_half)
    f = ((bits & ((1 << mantissa_bits) - 1)) + sqrt_half_bits).bitcast(x.dtype) - 1
    return f, _exponent(bits, x.dtype)


def _exponent(bits: IRValue, dtype: str) -> IRValue:
    """The exponent bits, as a signed integer, converted to a float."""
    if dtype == "float32":
        return cast(bits.bitcast("int32") >> FLOAT_FORMATS[dtype].mantissa_bits, dtype)
    # Not every processor converts int64: this assembles the bits of 2^52 + 2^11 + e.
    biased = (bits + (1 << 63)) >> 52
    return (biased | 0x4330000000000000).bitcast(dtype) - (2.0**52 + 2048)


def _with_log_special_values(x: IRValue, result: IRValue) -> IRValue:
    """``result``, or the special values of a logarithm for 0, negative numbers, inf and nan."""
    finite = select(x < math.inf, result, x)
    pole = select(x.equals(0), x.constant(-math.inf), math.nan)
    return select(x <= 0, pole, finite)


def log(x: IRValue) -> IRValue:
    """The natural logarithm; 1.16 ulp."""
    f, e = _mantissa_and_exponent(x)
    if x.dtype == "float32":
        return _with_log_special_values(x, e * math.log(2) + (f * f * polynomial(f, LOG) + f))
    high, low = FLOAT_FORMATS[x.dtype].ln2_terms
    s = f / (2 + f)
    square, half = s * s, 0.5 * f * f
    correction = s * (half + square * polynomial(square, LOG_FLOAT64)) + e * low
    return _with_log_special_values(x, e * high + (f - (half - correction)))


def log_of_normal(x: IRValue) -> IRValue:
    """The logarithm of a normal positive float64, with an error of 2^-40: enough for float32.

    Other arguments give garbage.
    """
    float_format = FLOAT_FORMATS[x.dtype]
    bits = x.bitcast(float_format.bits_dtype) - float_format.sqrt_half_bits
    mantissa = bits & ((1 << float_format.mantissa_bits) - 1)
    f = (mantissa + float_format.sqrt_half_bits).bitcast(x.dtype) - 1
    return _exponent(bits, x.dtype) * math.log(2) + f * polynomial(f, LOG_OVER_F)


def log2(x: IRValue) -> IRValue:
    """The logarithm to base 2, in float32; 1.23 ulp."""
    f, e = _mantissa_and_exponent(x)
    return _with_log_special_values(x, e + (f * polynomial(f, LOG2) + f))


def log1p(x: IRValue) -> IRValue:
    """log(1 + x), in float32; the rounding error of 1 + x is added to its mantissa. 1.76 ulp."""
    float_format = FLOAT_FORMATS[x.dtype]
    u = 1 + x
    lost = x - (u - 1)
    bits = u.bitcast("int32")
    exponent = (bits - float_format.sqrt_half_bits) & -(1 << float_format.mantissa_bits)
    e = cast(exponent >> float_format.mantissa_bits, x.dtype)
    # 4 / 2^e, as 1 / 2^128 would be subnormal.
    scale = (exponent.constant(0x40800000) - exponent).bitcast(x.dtype)
    f = lost * scale * 0.25 + ((bits - exponent).bitcast(x.dtype) - 1)
    result = e * math.log(2) + (f * f * polynomial(f, LOG) + f)
    finite = select(x < math.inf, result, x)
    pole = select(x.equals(-1), x.constant(-math.inf), math.nan)
    # -0.0 keeps its sign.
    return select(x <= -1, pole, finite.intrinsic("copysign", x))


def _without_half_periods(x: IRValue, k: IRValue) -> IRValue:
    """``x - k * pi``, with pi as a sum of several terms (Cody-Waite reduction)."""
    if has_fused_multiply_add():
        for term in PI_FUSED:
            x = k.intrinsic("fma", k.constant(-term), x)
        return x
    first, second, third, *others = (k * term for term in PI_EXACT)
    exact = x - first - second
    rounded = exact - third
    lost = (exact - rounded) - third
    return rounded - ((others[0] + others[1]) - lost)


def _sin_of_half_period(r: IRValue, half_periods: IRValue) -> IRValue:
    """sin(r), negated if ``half_periods`` is odd; at most 1 in magnitude, and -0.0 for -0.0."""
    a = _abs(r)
    square = a * a
    magnitude = _at_most(a * square * polynomial(square, SIN) + a, 1)
    sign = (r.bitcast("uint32") ^ (half_periods << 31)) & 0x80000000
    return (magnitude.bitcast("uint32") | sign).bitcast("float32")


def sin(x: IRValue) -> IRValue:
    """sin, in float32: x is a multiple of half periods and a remainder. 1.73 ulp."""
    k, half_periods = _nearest(x, 1 / math.pi)
    near = _sin_of_half_period(_without_half_periods(x, k), half_periods)
    return libm.call_beyond(MAX_REDUCED, "sin", x, [x], near)


def cos(x: IRValue) -> IRValue:
    """cos, in float32, as the sine a quarter period on: k is an integer and a half. 1.78 ulp."""
    shifted = x * (1 / math.pi) - 0.5
    k, half_periods = _nearest(shifted, 1)
    near = _sin_of_half_period(_without_half_periods(x, k + 0.5), half_periods + 1)
    return libm.call_beyond(MAX_REDUCED, "cos", x, [x], near)


def erf(x: IRValue) -> IRValue:
    """erf, in float32: for |x| > 1.03 as 1 - q^4, q the fourth root of erfc; 1.71 ulp."""
    a = _at_most(_abs(x), 4)
    root = polynomial(a, ERFC_ROOT)
    tail = root * root
    large = 1 - tail * tail
    small = a * polynomial(a * a, ERF) + a
    return select(a < 1.03, small, large).intrinsic("copysign", x)


def power(x: IRValue, y: IRValue) -> IRValue:
    """x^y, in float32, as 2^(y log2(|x|)) in float64, where nothing overflows; 0.70 ulp."""
    a = _abs(x)
    f, e = _mantissa_and_exponent(a)
    e = select(a < math.inf, e, a)
    e = select(a.equals(0), e.constant(-math.inf), e)
    wide_f, wide_e, wide_y = (cast(value, "float64") for value in (f, e, y))
    exponent = wide_y * (wide_e + wide_f * polynomial(wide_f, LOG2_OVER_F))
    exponent = _at_most(_at_least(exponent, -160), 140)
    k, k_bits = _nearest(exponent, 1, FLOAT_FORMATS["float64"].exponent_bias)
    wide = polynomial(exponent - k, EXP2) * _exponent_to_float(k_bits, "float64")
    # These would be nan above (0 * inf). As in C, they are 1 even if the other argument is nan.
    is_one = y.equals(0) | x.equals(1) | (a.equals(1) & _abs(y).equals(math.inf))
    magnitude = select(is_one, x.constant(1), cast(wide, "float32"))
    is_whole, is_odd = _parity(y)
    sign = select(is_odd, x.bitcast("uint32") & 0x80000000, 0)
    result = (magnitude.bitcast("uint32") | sign).bitcast("float32")
    is_real = is_whole | (x >= 0) | x.equals(-math.inf)
    return select(is_real, result, math.nan)


def _parity(y: IRValue) -> tuple[IRValue, IRValue]:
    """Whether y is an integer, and whether it is an odd one. From 2^24 on, all floats are even."""
    even = 2.0**25
    # These selects map nan to a number, for which fptosi is defined.
    bounded = select(y > -even, y, -even)
    bounded = select(bounded < even, bounded, even)
    integer = IRValue(y.builder, y.builder.fptosi(bounded.value, y.type_of("int32")), "int32")
    is_whole = cast(integer, "float32").equals(bounded)
    return is_whole, is_whole & (integer & 1).differs(0)


# By function of kir.scalar and dtype.
INLINE_FUNCTIONS: dict[tuple[str, str], Callable[..., IRValue]] = {
    ("exp", "float32"): exp,
    ("exp", "float64"): exp,
    ("exp2", "float32"): exp2,
    ("expm1", "float32"): expm1,
    ("logistic", "float32"): logistic,
    ("logistic", "float64"): logistic,
    ("tanh", "float32"): tanh,
    ("log", "float32"): log,
    ("log", "float64"): log,
    ("log2", "float32"): log2,
    ("log1p", "float32"): log1p,
    ("sin", "float32"): sin,
    ("cos", "float32"): cos,
    ("erf", "float32"): erf,
    ("pow", "float32"): power,
}
