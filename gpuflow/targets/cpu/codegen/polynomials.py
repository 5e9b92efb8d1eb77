"""Exponentials, logarithms, tanh, logistic, sin, cos, erf and pow as a few LLVM instructions.

A call of a vector function costs the registers, and libmvec leaves its vector path for a scalar one
wherever a lane is special: exp of -inf or of -1e9 (a masked softmax), log of 0. These have no
branches and no calls, so that they cost the same for all arguments, and LLVM vectorises them to any
width. Only sin and cos call libm, if an argument is beyond ``FAR``.

Method: reduce the argument to a small interval, exactly; evaluate a polynomial there
(``coefficients``); put the exponent back by integer arithmetic, so that no instruction works on
subnormal numbers, which processors do in microcode.

Source of the reductions: Cody and Waite (1980), Software manual for the elementary functions.

The greatest error in ulp over a third of all float32 arguments is stated at each function; without
fused multiply-add it is up to 0.4 more.
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
    FAR,
    FORMATS,
    LOG,
    LOG2,
    LOG2_LONG,
    LOG_64,
    LOG_LONG,
    PI_EXACT,
    PI_FUSED,
    SIN,
    TANH,
)
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.llvm.lanes import Lane, cast, polynomial, select

_LOG2_E = 1 / math.log(2)


def has_fused_multiply_add() -> bool:
    """Whether the processor rounds ``a * b + c`` once in one instruction."""
    return cpu_target().has_fused_multiply_add


def _abs(x: Lane) -> Lane:
    return x.intrinsic("fabs")


def _at_least(x: Lane, bound: float) -> Lane:
    """The greater one; nan stays nan."""
    return select(x < bound, x.constant(bound), x)


def _at_most(x: Lane, bound: float) -> Lane:
    """The smaller one; nan stays nan."""
    return select(x > bound, x.constant(bound), x)


def _nearest(x: Lane, factor: float, offset: int = 0) -> tuple[Lane, Lane]:
    """``k``, the integer nearest to ``x * factor``, and a word whose low bits are k + offset."""
    form = FORMATS[x.dtype]
    shifted = x * factor + (form.magic + offset)
    return shifted - (form.magic + offset), shifted.bitcast(form.word)


def _power(word: Lane, dtype: str) -> Lane:
    """2^k from a word whose low bits are k + bias."""
    return (word << FORMATS[dtype].mantissa).bitcast(dtype)


def _reduced(x: Lane, k: Lane) -> Lane:
    """``x - k * log(2)``, exact but for one rounding."""
    high, low = FORMATS[x.dtype].ln2
    return x - k * high - k * low


def _scaled(x: Lane, word: Lane, tiny: Lane) -> Lane:
    """``x * 2^k`` for x in [sqrt(1/2), sqrt(2)] and a word whose low bits are k; garbage for nan.

    k is added to the exponent. Where the result is subnormal, ``x * 2^(k + bias - 1) + 1`` has the
    result in its mantissa, rounded, and subtracting the exponent of 1 leaves just that.
    """
    form = FORMATS[x.dtype]
    one = x.constant(1)
    factor = select(tiny, _power(word + (2 * form.bias - 1), x.dtype), one)
    sum_ = x * factor + select(tiny, one, 0)
    exponent = select(tiny, word.constant(0) - form.bias, word)
    return (sum_.bitcast(form.word) + (exponent << form.mantissa)).bitcast(x.dtype)


def _exp_below(x: Lane, tiny: Lane) -> Lane:
    """exp without overflow; garbage for nan."""
    k, word = _nearest(x, _LOG2_E)
    return _scaled(polynomial(_reduced(x, k), EXP[x.dtype]), word, tiny)


def _overflowing(x: Lane, largest: float, result: Lane) -> Lane:
    """inf above ``largest``, and nan for nan."""
    return select(x <= largest, result, x * math.inf)


def exp(x: Lane) -> Lane:
    """e^x; 0.90 ulp."""
    form = FORMATS[x.dtype]
    result = _exp_below(_at_least(x, form.smallest), x < form.tiny)
    return _overflowing(x, form.largest, result)


def exp2(x: Lane) -> Lane:
    """2^x, in float32; 0.88 ulp."""
    bounded = _at_least(x, -151)
    k, word = _nearest(bounded, 1)
    result = _scaled(polynomial(bounded - k, EXP2), word, x < -126)
    return _overflowing(x, 127.99999237060547, result)


def expm1(x: Lane) -> Lane:
    """e^x - 1, in float32, as 2^k expm1(r) + (2^k - 1); 1.44 ulp."""
    bounded = _at_most(_at_least(x, -18), 89)
    # Half of 2^k is taken, as 2^128 is inf.
    k, word = _nearest(bounded, _LOG2_E, FORMATS[x.dtype].bias - 1)
    r = _reduced(bounded, k)
    small = r * r * polynomial(r, EXPM1) + r
    half_power = _power(word, x.dtype)
    half = half_power * small + (half_power - 0.5)
    # -0.0 keeps its sign.
    return select(k.equals(0), small, half + half).intrinsic("copysign", x)


def logistic(x: Lane) -> Lane:
    """1 / (1 + e^-x), as n - n e / (1 + e) for e = e^-|x| and n = e if x < 0 else 1; 1.63 ulp."""
    form = FORMATS[x.dtype]
    negative = _at_least(-_abs(x), form.smallest)
    e = _exp_below(negative, negative < form.tiny)
    numerator = select(x < 0, e, 1)
    # The product is 0, or nan for nan.
    return numerator - numerator * (e / (1 + e + negative * 0))


def tanh(x: Lane) -> Lane:
    """tanh, in float32: for |x| > 0.55 as 1 - 2 e / (1 + e) with e = e^(-2 |x|); 1.50 ulp."""
    a = _at_most(_abs(x), 10)
    k, word = _nearest(a, -2 * _LOG2_E, FORMATS[x.dtype].bias)
    # An error of e counts little here, so that log(2) needs no second part.
    r = k * (math.log(2) / 2) + a
    e = polynomial(r, _stretched(EXP[x.dtype], -2)) * _power(word, x.dtype)
    large = 1 - 2 * (e / (1 + e))
    square = a * a
    small = a * square * polynomial(square, TANH) + a
    return select(a < 0.55, small, large).intrinsic("copysign", x)


def _stretched(coefficients: Sequence[float], factor: float) -> list[float]:
    """The polynomial p(factor * x)."""
    degree = len(coefficients) - 1
    return [c * factor ** (degree - place) for place, c in enumerate(coefficients)]


def _split(x: Lane) -> tuple[Lane, Lane]:
    """``f`` and ``e`` with x = (1 + f) 2^e and sqrt(1/2) <= 1 + f < sqrt(2); garbage for x <= 0."""
    form = FORMATS[x.dtype]
    mantissa, root_half = form.mantissa, form.root_half
    subnormal = x < 2.0 ** (1 - form.bias)
    normal = select(subnormal, x * 2.0**mantissa, x)
    bits = normal.bitcast(form.word)
    lowest = bits.constant(root_half)
    bits = bits - select(subnormal, lowest + (mantissa << mantissa), lowest)
    f = ((bits & ((1 << mantissa) - 1)) + root_half).bitcast(x.dtype) - 1
    return f, _exponent(bits, x.dtype)


def _exponent(bits: Lane, dtype: str) -> Lane:
    """The signed upper bits as a float."""
    if dtype == "float32":
        return cast(bits.bitcast("int32") >> FORMATS[dtype].mantissa, dtype)
    # Not every processor converts 64-bit integers: 2^52 + 2^11 + e is put together.
    raised = (bits + (1 << 63)) >> 52
    return (raised | 0x4330000000000000).bitcast(dtype) - (2.0**52 + 2048)


def _logarithm(x: Lane, result: Lane) -> Lane:
    """``result``, or the special values of a logarithm for 0, negative numbers, inf and nan."""
    finite = select(x < math.inf, result, x)
    pole = select(x.equals(0), x.constant(-math.inf), math.nan)
    return select(x <= 0, pole, finite)


def log(x: Lane) -> Lane:
    """The natural logarithm; 1.16 ulp."""
    f, e = _split(x)
    if x.dtype == "float32":
        return _logarithm(x, e * math.log(2) + (f * f * polynomial(f, LOG) + f))
    high, low = FORMATS[x.dtype].ln2
    s = f / (2 + f)
    square, half = s * s, 0.5 * f * f
    rest = s * (half + square * polynomial(square, LOG_64)) + e * low
    return _logarithm(x, e * high + (f - (half - rest)))


def log_of_single(x: Lane) -> Lane:
    """The logarithm of a normal positive float64, to 2^-40: sufficient for float32."""
    form = FORMATS[x.dtype]
    bits = x.bitcast(form.word) - form.root_half
    f = ((bits & ((1 << form.mantissa) - 1)) + form.root_half).bitcast(x.dtype) - 1
    return _exponent(bits, x.dtype) * math.log(2) + f * polynomial(f, LOG_LONG)


def log2(x: Lane) -> Lane:
    """The logarithm to base 2, in float32; 1.23 ulp."""
    f, e = _split(x)
    return _logarithm(x, e + (f * polynomial(f, LOG2) + f))


def log1p(x: Lane) -> Lane:
    """log(1 + x), in float32; the rounding error of 1 + x is added to its mantissa. 1.76 ulp."""
    form = FORMATS[x.dtype]
    u = 1 + x
    lost = x - (u - 1)
    bits = u.bitcast("int32")
    exponent = (bits - form.root_half) & -(1 << form.mantissa)
    e = cast(exponent >> form.mantissa, x.dtype)
    # 4 / 2^e, as 1 / 2^128 would be subnormal.
    scale = (exponent.constant(0x40800000) - exponent).bitcast(x.dtype)
    f = lost * scale * 0.25 + ((bits - exponent).bitcast(x.dtype) - 1)
    result = e * math.log(2) + (f * f * polynomial(f, LOG) + f)
    finite = select(x < math.inf, result, x)
    pole = select(x.equals(-1), x.constant(-math.inf), math.nan)
    # -0.0 keeps its sign.
    return select(x <= -1, pole, finite.intrinsic("copysign", x))


def _without_turns(x: Lane, k: Lane) -> Lane:
    """``x - k * pi``."""
    if has_fused_multiply_add():
        for part in PI_FUSED:
            x = k.intrinsic("fma", k.constant(-part), x)
        return x
    first, second, third, *rest = (k * part for part in PI_EXACT)
    exact = x - first - second
    rounded = exact - third
    lost = (exact - rounded) - third
    return rounded - ((rest[0] + rest[1]) - lost)


def _sin_of_half_turn(r: Lane, turns: Lane) -> Lane:
    """sin(r), negated where ``turns`` is odd; never beyond 1, and -0.0 for -0.0."""
    a = _abs(r)
    square = a * a
    magnitude = _at_most(a * square * polynomial(square, SIN) + a, 1)
    sign = (r.bitcast("uint32") ^ (turns << 31)) & 0x80000000
    return (magnitude.bitcast("uint32") | sign).bitcast("float32")


def sin(x: Lane) -> Lane:
    """sin, in float32: x is a number of half periods and a remainder. 1.73 ulp."""
    k, turns = _nearest(x, 1 / math.pi)
    near = _sin_of_half_turn(_without_turns(x, k), turns)
    return libm.call_beyond(FAR, "sin", x, [x], near)


def cos(x: Lane) -> Lane:
    """cos, in float32, as the sine a quarter turn on: k is an integer and a half. 1.78 ulp."""
    shifted = x * (1 / math.pi) - 0.5
    k, turns = _nearest(shifted, 1)
    near = _sin_of_half_turn(_without_turns(x, k + 0.5), turns + 1)
    return libm.call_beyond(FAR, "cos", x, [x], near)


def erf(x: Lane) -> Lane:
    """erf, in float32: for |x| > 1.03 as 1 - q^4, q the fourth root of erfc; 1.71 ulp."""
    a = _at_most(_abs(x), 4)
    root = polynomial(a, ERFC_ROOT)
    tail = root * root
    large = 1 - tail * tail
    small = a * polynomial(a * a, ERF) + a
    return select(a < 1.03, small, large).intrinsic("copysign", x)


def power(x: Lane, y: Lane) -> Lane:
    """x^y, in float32, as 2^(y log2(|x|)) in float64, where nothing overflows; 0.70 ulp."""
    a = _abs(x)
    f, e = _split(a)
    e = select(a < math.inf, e, a)
    e = select(a.equals(0), e.constant(-math.inf), e)
    wide_f, wide_e, wide_y = (cast(value, "float64") for value in (f, e, y))
    exponent = wide_y * (wide_e + wide_f * polynomial(wide_f, LOG2_LONG))
    exponent = _at_most(_at_least(exponent, -160), 140)
    k, word = _nearest(exponent, 1, FORMATS["float64"].bias)
    wide = polynomial(exponent - k, EXP2) * _power(word, "float64")
    # 0 * inf above; as in C, these are 1 even where the other argument is nan.
    is_one = y.equals(0) | x.equals(1) | (a.equals(1) & _abs(y).equals(math.inf))
    magnitude = select(is_one, x.constant(1), cast(wide, "float32"))
    is_whole, is_odd = _parity(y)
    sign = select(is_odd, x.bitcast("uint32") & 0x80000000, 0)
    result = (magnitude.bitcast("uint32") | sign).bitcast("float32")
    is_real = is_whole | (x >= 0) | x.equals(-math.inf)
    return select(is_real, result, math.nan)


def _parity(y: Lane) -> tuple[Lane, Lane]:
    """Whether y is an integer, and whether it is an odd one. From 2^24 on, all floats are even."""
    even = 2.0**25
    # These make a number of nan.
    bounded = select(y > -even, y, -even)
    bounded = select(bounded < even, bounded, even)
    integer = Lane(y.builder, y.builder.fptosi(bounded.value, y.type_of("int32")), "int32")
    is_whole = cast(integer, "float32").equals(bounded)
    return is_whole, is_whole & (integer & 1).differs(0)


FUNCTIONS: dict[tuple[str, str], Callable[..., Lane]] = {
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
