"""The scalar functions of KernelIR on the CPU, as LLVM instructions.

``emit_function`` is the entry point. The most used functions are polynomials (``polynomials``),
which LLVM vectorizes. Other functions of the C library are calls that list their vector variants
(``libm``). All others are formulas on IRValues in this module.

Arguments are scalars or vectors of compute dtypes. Those of one call must have equal dtypes and
widths, unless a function says otherwise; results have them too.

Tests: tests/targets/cpu/test_cpu_functions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpuflow.base.lazy import LazyModule
from gpuflow.kir.scalar import EXPENSIVE
from gpuflow.targets.cpu.codegen import gamma, libm, narrow_floats, polynomials
from gpuflow.targets.cpu.codegen.polynomials import has_fused_multiply_add
from gpuflow.targets.llvm.ir_values import (
    IRValue,
    bits,
    cast,
    constant,
    intrinsic,
    is_float,
    is_signed,
    is_splat,
    llvm_type,
    polynomial,
    select,
)

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# Names of the functions that are long dependence chains of instructions.
LONG_CHAIN_FUNCTIONS = EXPENSIVE - {"div", "sqrt", "rsqrt"}
_MAX_QUOTIENT = 2.0**28  # up to which the formula of ``_float_rem`` is exact

# LLVM intrinsics that have vector forms on every target.
_INTRINSICS = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "rint",
    "round_away": "round",
    "copysign": "copysign",
    "fma": "fma",
    "population_count": "ctpop",
}


def _abs(x: IRValue) -> IRValue:
    if is_float(x.dtype):
        return x.intrinsic("fabs")
    return select(x < 0, -x, x) if is_signed(x.dtype) else x


def _neg(x: IRValue) -> IRValue:
    return -x


def _sign(x: IRValue) -> IRValue:
    if is_float(x.dtype):
        return select(_abs(x) > 0, x.constant(1).intrinsic("copysign", x), x)
    positive = select(x > 0, x.constant(1), 0)
    return select(x < 0, x.constant(-1), positive) if is_signed(x.dtype) else positive


def _max(x: IRValue, y: IRValue) -> IRValue:
    if not is_float(x.dtype):
        return x.intrinsic("smax" if is_signed(x.dtype) else "umax", y)
    if x.is_constant or y.is_constant:
        return x.intrinsic("maximum", y)
    # If x equals y, one select gives x and the other y: the and of -0.0 and 0.0 is 0.0.
    unsigned = f"uint{bits(x.dtype)}"
    selected = select(x > y, x, y).bitcast(unsigned) & select(y > x, y, x).bitcast(unsigned)
    return _or_nan(x, y, selected)


def _min(x: IRValue, y: IRValue) -> IRValue:
    if not is_float(x.dtype):
        return x.intrinsic("smin" if is_signed(x.dtype) else "umin", y)
    if x.is_constant or y.is_constant:
        return x.intrinsic("minimum", y)
    unsigned = f"uint{bits(x.dtype)}"
    selected = select(x < y, x, y).bitcast(unsigned) | select(y < x, y, x).bitcast(unsigned)
    return _or_nan(x, y, selected)


def _or_nan(x: IRValue, y: IRValue, selected: IRValue) -> IRValue:
    """A maximum or minimum from its bits, or nan if x or y is nan.

    For scalars, LLVM's own maximum branches on the sign, which is mispredicted half of the time.
    """
    return select(x.is_nan() | y.is_nan(), x + y, selected.bitcast(x.dtype))


def _div(x: IRValue, y: IRValue) -> IRValue:
    """Divide. x / 0 is all ones, and INT_MIN / -1 wraps; both would trap on x86."""
    if is_float(x.dtype):
        return x / y
    is_zero = y.equals(0)
    if not is_signed(x.dtype):
        quotient = _quotient(x, select(is_zero, x.constant(1), y), _is_invariant(y))
        return select(is_zero, x.constant((1 << bits(x.dtype)) - 1), quotient)
    is_minus_one = y.equals(-1)
    quotient = _quotient(x, select(is_zero | is_minus_one, x.constant(1), y), _is_invariant(y))
    return select(is_zero, x.constant(-1), select(is_minus_one, -x, quotient))


def _float_rem(x: IRValue, y: IRValue) -> IRValue:
    """The remainder of a division of floats, with the sign of x, as C's fmod.

    It is exact for quotients up to 2**28; larger ones call fmod. float32 is computed in float64:
    the quotient of 24-bit numbers is at least 2**-24 away from the next integer, so rounding does
    not reach it, and the product of its integer part with y has at most 52 bits. In float64, if the
    quotient was rounded up, the fused multiply-add gives a negative, but exact, remainder.
    """
    is_double = x.dtype == "float64"
    if is_double and not has_fused_multiply_add():
        return libm.call("fmod", x, y)
    dividend, divisor = cast(_abs(x), "float64"), cast(_abs(y), "float64")
    quotient = dividend / divisor
    integer = quotient.intrinsic("trunc")
    if is_double:
        remainder = (-integer).intrinsic("fma", divisor, dividend)
        remainder = select(remainder < 0, remainder + divisor, remainder)
    else:
        remainder = dividend - integer * divisor
    # 0 times infinity is nan.
    remainder = cast(select(integer.equals(0), dividend, remainder), x.dtype)
    remainder = remainder.intrinsic("copysign", x)
    return libm.call_beyond(_MAX_QUOTIENT, "fmod", cast(quotient, x.dtype), [x, y], remainder)


def _rem(x: IRValue, y: IRValue) -> IRValue:
    if is_float(x.dtype):
        return _float_rem(x, y)
    is_zero = y.equals(0)
    if not is_signed(x.dtype):
        safe = select(is_zero, x.constant(1), y)
        return select(is_zero, x, x - _quotient(x, safe, _is_invariant(y)) * safe)
    is_minus_one = y.equals(-1)
    safe = select(is_zero | is_minus_one, x.constant(1), y)
    remainder = x - _quotient(x, safe, _is_invariant(y)) * safe
    return select(is_zero, x, select(is_minus_one, x.constant(0), remainder))


def saturating_cast(x: IRValue, dtype: str) -> IRValue:
    """Convert a float to an integer: truncates and saturates; nan becomes 0.

    It is equivalent to ``llvm.fptosi.sat``, which LLVM vectorizes slowly, or not at all.
    """
    bounds, float_type = np.iinfo(dtype), np.dtype(x.dtype).type
    largest = float_type(bounds.max)
    if int(largest) > bounds.max:
        largest = np.nextafter(largest, float_type(0))
    # These selects map nan to the largest number, as x86's min does. So fptosi is always defined.
    clamped = select(x < float(largest), x, float(largest))
    least = float(bounds.min)
    clamped = select(clamped > least, clamped, least)
    # Processors convert to int32 or wider, so shorter integers go through int32.
    conversion_dtype = "int32" if bits(dtype) < 32 else dtype
    convert = x.builder.fptosi if is_signed(conversion_dtype) else x.builder.fptoui
    converted = convert(clamped.value, x.type_of(conversion_dtype))
    integer = cast(IRValue(x.builder, converted, conversion_dtype), dtype)
    if int(largest) != bounds.max:
        integer = select(x > float(largest), integer.constant(int(bounds.max)), integer)
    return select(x.is_nan(), integer.constant(0), integer)


def _is_invariant(x: IRValue) -> bool:
    """Whether a value is loop-invariant: a constant, a splat, or defined in an entry block.

    The entry blocks are the first two blocks of the function (``loop_compiler``), unless code is
    being emitted in them.
    """
    if is_splat(x):
        return True
    current_block, blocks = x.builder.block, x.builder.function.blocks
    entry_blocks = [block for block in blocks[:2] if block is not current_block]
    return isinstance(x.value, ir.Constant) or getattr(x.value, "parent", None) in entry_blocks


def _quotient(x: IRValue, y: IRValue, is_invariant: bool) -> IRValue:
    """The quotient of integers, rounded to zero.

    y must not be 0, nor -1 if x may be the least integer: such a division traps or overflows.

    Processors have no vector division of integers, so shorter ones divide as floats. Rounding does
    not carry the float quotient to the next integer: its relative distance from it is at least
    1 / (x + 1), which is 2**-32 and so above the 2**-53 of float64.

    If the divisor is loop-invariant (``is_invariant``), its reciprocal is hoisted. Then half of the
    reciprocal is added to the quotient, which is at least ``0.5 / y`` away from all integers then.
    """
    builder, is_short = x.builder, bits(x.dtype) <= 16
    if bits(x.dtype) > 32:
        divide = builder.sdiv if is_signed(x.dtype) else builder.udiv
        return x.like(divide(x.value, y.value))
    wide = "float32" if is_short else "float64"
    if is_invariant and not is_short:
        reciprocal = 1 / cast(y, wide)
        product = cast(x, wide) * reciprocal
        quotient = product + (_abs(reciprocal) * 0.5).intrinsic("copysign", product)
    else:
        quotient = cast(x, wide) / cast(y, wide)
    # Processors convert to int32 or wider, so shorter integers go through int32.
    if is_signed(x.dtype) or is_short:
        integer = IRValue(builder, builder.fptosi(quotient.value, x.type_of("int32")), "int32")
        return cast(integer, x.dtype)
    # uint32: the low bits of 2**52 plus an integer are the integer.
    integer = (quotient.intrinsic("floor") + 2.0**52).bitcast("uint64")
    return cast(integer, x.dtype)


def _is_in_bounds(x: IRValue, count: IRValue) -> IRValue:
    """Whether a shift count, taken as unsigned, is less than the width."""
    width = x.constant(bits(x.dtype))
    below = x.builder.icmp_unsigned("<", count.value, width.value)
    return IRValue(x.builder, below, "bool")


def _shift_left(x: IRValue, count: IRValue) -> IRValue:
    """Shift left; 0 if the count is out of bounds, for which LLVM's shifts are undefined."""
    in_bounds = _is_in_bounds(x, count)
    return select(in_bounds, x << select(in_bounds, count, 0), 0)


def _shift_right_logical(x: IRValue, count: IRValue) -> IRValue:
    in_bounds = _is_in_bounds(x, count)
    shifted = x.builder.lshr(x.value, select(in_bounds, count, 0).value)
    return select(in_bounds, x.like(shifted), 0)


def _shift_right_arithmetic(x: IRValue, count: IRValue) -> IRValue:
    clamped = select(_is_in_bounds(x, count), count, bits(x.dtype) - 1)
    return x.like(x.builder.ashr(x.value, clamped.value))


def _clz(x: IRValue) -> IRValue:
    integer_type, bool_type = x.value.type, llvm_type("bool")
    count = intrinsic(x.builder.module, "ctlz", integer_type, [integer_type, bool_type])
    is_zero_undefined = constant(x.builder, "bool", False)
    return x.like(x.builder.call(count, [x.value, is_zero_undefined.value]))


def _is_finite(x: IRValue) -> IRValue:
    return _abs(x) < math.inf


def _rsqrt(x: IRValue) -> IRValue:
    return 1 / x.intrinsic("sqrt")


# Source: Giles (2010), Approximating the erfinv function, GPU Computing Gems; single precision.
_ERF_INV_CENTER_32 = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_ERF_INV_TAIL_32 = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
# The same source, double precision: w < 6.25, w < 16, and larger w.
_ERF_INV_CENTER_64 = (
    -3.6444120640178196996e-21, -1.685059138182016589e-19, 1.2858480715256400167e-18,
    1.115787767802518096e-17, -1.333171662854620906e-16, 2.0972767875968561637e-17,
    6.6376381343583238325e-15, -4.0545662729752068639e-14, -8.1519341976054721522e-14,
    2.6335093153082322977e-12, -1.2975133253453532498e-11, -5.4154120542946279317e-11,
    1.051212273321532285e-09, -4.1126339803469836976e-09, -2.9070369957882005086e-08,
    4.2347877827932403518e-07, -1.3654692000834678645e-06, -1.3882523362786468719e-05,
    0.0001867342080340571352, -0.00074070253416626697512, -0.0060336708714301490533,
    0.24015818242558961693, 1.6536545626831027356,
)  # fmt: skip
_ERF_INV_MIDDLE_64 = (
    2.2137376921775787049e-09,
    9.0756561938885390979e-08,
    -2.7517406297064545428e-07,
    1.8239629214389227755e-08,
    1.5027403968909827627e-06,
    -4.013867526981545969e-06,
    2.9234449089955446044e-06,
    1.2475304481671778723e-05,
    -4.7318229009055733981e-05,
    6.8284851459573175448e-05,
    2.4031110387097893999e-05,
    -0.0003550375203628474796,
    0.00095328937973738049703,
    -0.0016882755560235047313,
    0.0024914420961078508066,
    -0.0037512085075692412107,
    0.005370914553590063617,
    1.0052589676941592334,
    3.0838856104922207635,
)
_ERF_INV_TAIL_64 = (
    -2.7109920616438573243e-11,
    -2.5556418169965252055e-10,
    1.5076572693500548083e-09,
    -3.7894654401267369937e-09,
    7.6157012080783393804e-09,
    -1.4960026627149240478e-08,
    2.9147953450901080826e-08,
    -6.7711997758452339498e-08,
    2.2900482228026654717e-07,
    -9.9298272942317002539e-07,
    4.5260625972231537039e-06,
    -1.9681778105531670567e-05,
    7.5995277030017761139e-05,
    -0.00021503011930044477347,
    -0.00013871931833623122026,
    1.0103004648645343977,
    4.8499064014085844221,
)


def _erf_inv(x: IRValue) -> IRValue:
    """The inverse error function of float32 or float64; x must be in [-1, 1], else nan.

    The centers of the polynomials' variables (2.5, 3 and so on) are those of the source.
    """
    w = -polynomials.log((1 - x) * (1 + x))
    root = w.intrinsic("sqrt")
    if x.dtype == "float32":
        tail = polynomial(root - 3, _ERF_INV_TAIL_32)
        factor = select(w < 5, polynomial(w - 2.5, _ERF_INV_CENTER_32), tail)
    else:
        middle = polynomial(root - 3.25, _ERF_INV_MIDDLE_64)
        tail = polynomial(root - 5, _ERF_INV_TAIL_64)
        center = polynomial(w - 3.125, _ERF_INV_CENTER_64)
        factor = select(w < 6.25, center, select(w < 16, middle, tail))
    return select(_abs(x).equals(1), x * math.inf, factor * x)


_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


_THREEFRY_PARITY = 0x1BD11BDA


def _threefry2x32(k0: IRValue, k1: IRValue, x0: IRValue, x1: IRValue) -> tuple[IRValue, IRValue]:
    """The Threefry-2x32 block cipher with 20 rounds; keys and counters are uint32.

    Source: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers.
    """
    keys = (k0, k1, k0 ^ k1 ^ _THREEFRY_PARITY)
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + (group + 1)
    return x0, x1


_FORMULAS: dict[str, Callable[..., IRValue | tuple[IRValue, ...]]] = {
    "abs": _abs,
    "neg": _neg,
    "sign": _sign,
    "max": _max,
    "min": _min,
    "div": _div,
    "rem": _rem,
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right_logical,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "clz": _clz,
    "is_finite": _is_finite,
    "rsqrt": _rsqrt,
    "erf_inv": _erf_inv,
    "digamma": gamma.digamma,
    "lgamma": gamma.lgamma,
    "threefry2x32": _threefry2x32,
}


def emit_function(fn: str, *arguments: IRValue) -> tuple[IRValue, ...]:
    """Emit a function of ``kir.scalar`` that loop programs do not write as an operator.

    Args:
        fn: The function's name.
        arguments: One value for each argument.

    Returns:
        One value for each result.

    Raises:
        KeyError: if the CPU target does not have the function.
    """
    if fn in _INTRINSICS:
        return (arguments[0].intrinsic(_INTRINSICS[fn], *arguments[1:]),)
    polynomial_function = polynomials.INLINE_FUNCTIONS.get((fn, arguments[0].dtype))
    if polynomial_function is not None:
        return (polynomial_function(*arguments),)
    if fn in _FORMULAS:
        results = _FORMULAS[fn](*arguments)
        return results if isinstance(results, tuple) else (results,)
    if fn.startswith("round_"):
        storage = fn.removeprefix("round_")
        return (narrow_floats.round_to(arguments[0], storage),)
    if fn.startswith("bitcast_"):
        return (arguments[0].bitcast(fn.removeprefix("bitcast_")),)
    if fn in libm.C_FUNCTION_ARITY:
        return (libm.call(fn, *arguments),)
    raise KeyError(
        f"[cpu] fn must be a function of the CPU target; got {fn!r}. "
        "Fix: add it to targets/cpu/codegen/scalar_functions.py."
    )
