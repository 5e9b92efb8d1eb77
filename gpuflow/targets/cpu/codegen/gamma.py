"""lgamma and digamma as LLVM instructions without calls and branches, so that LLVM vectorizes them.

Both compute in float64 for all dtypes, with errors of a few ulps; near their zeros the error is
absolute instead, about 1e-16 in float64 and 1e-7 in float32. libm's lgamma is scalar, and 50 times
slower. Arguments are float32 or float64, with any values.

Source: DLMF is the NIST Digital Library of Mathematical Functions, https://dlmf.nist.gov.

Tests: tests/targets/cpu/test_cpu_gamma.py.
"""

from __future__ import annotations

import math

from gpuflow.targets.cpu.codegen import polynomials
from gpuflow.targets.llvm.ir_values import IRValue, cast, polynomial, select

# By dtype of the argument: Stirling's series is used from this argument on. Below, a recurrence
# leads to the interval 1.5 to 2.5.
_SERIES_START = {"float32": 4, "float64": 8}


def _zeta_above_one(k: int) -> float:
    """``zeta(k) - 1``, the sum of ``n**-k`` over n >= 2, for k >= 2. Source: DLMF 25.2.9."""
    n = 40
    tail = n ** (1.0 - k) / (k - 1) + n**-k / 2 + k * n ** (-k - 1.0) / 12
    tail -= k * (k + 1) * (k + 2) * n ** (-k - 3.0) / 720
    tail += math.prod(range(k, k + 5)) * n ** (-k - 5.0) / 30240
    tail -= math.prod(range(k, k + 7)) * n ** (-k - 7.0) / 1209600
    return math.fsum([*[float(m) ** -k for m in range(2, n)], tail])


def _lgamma_series_around_two(terms: int) -> list[float]:
    """``lgamma(2 + t) / t`` as a polynomial in t, highest power first. Source: DLMF 5.7.3.

    It has ``terms + 1`` coefficients.
    """
    one_minus_euler = 0.42278433509846713939
    powers = [(-1.0) ** k * _zeta_above_one(k) / k for k in range(2, terms + 2)]
    return [*reversed(powers), one_minus_euler]


# For |t| <= 1/2 each term is a quarter of the one before. Those of float32 are fitted as described
# in ``coefficients``, with an error of 2^-41.
_LGAMMA_AROUND_TWO = {
    "float32": (
        -1.221242626164057e-05,
        2.4466578280764443e-05,
        -4.363785052531327e-05,
        9.818278595006396e-05,
        -0.00022343967401608402,
        0.0005098626127401467,
        -0.001192722127549453,
        0.0028904962485707965,
        -0.0073855527069301135,
        0.02058080886489203,
        -0.06735230101989614,
        0.32246703342026434,
        0.42278433509835817,
    ),
    "float64": _lgamma_series_around_two(27),
}
# B_2k / (2k (2k - 1)), k = 10 to 1. Source: DLMF 5.11.1. That of float32 has an error of 2^-39.
_STIRLING_SERIES = {
    "float32": (
        -0.0004847036158641228,
        0.0007877903916484856,
        -0.0027776467417611824,
        0.08333333235526097,
    ),
    "float64": (
        -174611 / 125400,
        43867 / 244188,
        -3617 / 122400,
        1 / 156,
        -691 / 360360,
        1 / 1188,
        -1 / 1680,
        1 / 1260,
        -1 / 360,
        1 / 12,
    ),
}
# B_2k / 2k, k = 7 to 1, and no constant. Source: DLMF 5.11.2.
_DIGAMMA_SERIES = (
    1 / 12,
    -691 / 32760,
    1 / 132,
    -1 / 240,
    1 / 252,
    -1 / 120,
    1 / 12,
    0.0,
)
# sin(pi f) / f and cos(pi f) as polynomials in f**2, for |f| <= 1/2; error 2^-44 in float32.
_TAYLOR_OF_PI = [(-1) ** (k // 2) * math.pi**k / math.factorial(k) for k in range(25)]
_SIN_PI = {
    "float32": (
        0.00044720017256320664,
        -0.007363784936163196,
        0.0821447320897315,
        -0.59926442573245,
        2.550164035419131,
        -5.167712779977307,
        3.1415926535895973,
    ),
    "float64": _TAYLOR_OF_PI[23::-2],
}
_COS_PI = _TAYLOR_OF_PI[24::-2]
# The sum of 1 / (x + k) for k = 0 to 9 is (2 x + 9) times a quotient of polynomials in x (x + 9):
# terms k and 9 - k have the denominator x (x + 9) + k (9 - k).
_RECURRENCE_STEPS = 10
_RECIPROCAL_SUM_NUMERATOR = (5.0, 240.0, 3924.0, 24352.0, 40320.0)
_RECIPROCAL_SUM_DENOMINATOR = (1.0, 60.0, 1308.0, 12176.0, 40320.0, 0.0)


def lgamma(x: IRValue) -> IRValue:
    """Logarithm of the absolute gamma function; inf at its poles and at infinities.

    For x <= -1/2, it is computed at -x, and reflected. Below 8 (float32: 4), a recurrence reduces
    it to lgamma(2 + t) and the logarithm of a product, ``gamma(x + n) / gamma(x)``.
    """
    wide = cast(x, "float64")
    logarithm = polynomials.log if x.dtype == "float64" else polynomials.log_of_normal
    is_reflected = wide <= -0.5
    argument = select(is_reflected, -wide, wide)
    t, product = _reduced_to_interval(argument, _SERIES_START[x.dtype])
    is_large, is_below_interval = argument >= _SERIES_START[x.dtype], argument < 1.5
    log = logarithm(select(is_large, argument, product))
    around_two = t * polynomial(t, _LGAMMA_AROUND_TWO[x.dtype])
    by_recurrence = around_two + select(is_below_interval, -log, log)
    inverse = 1 / argument
    series = inverse * polynomial(inverse * inverse, _STIRLING_SERIES[x.dtype])
    by_series = (argument - 0.5) * (log - 1) + (0.5 * math.log(2 * math.pi) - 0.5 + series)
    unreflected = select(is_large, by_series, by_recurrence)
    # gamma(x) gamma(-x) = -pi / (x sin(pi x)); x minus its nearest integer is exact.
    fraction = wide - wide.intrinsic("rint")
    sine = (fraction * polynomial(fraction * fraction, _SIN_PI[x.dtype])).intrinsic("fabs")
    reflected = -logarithm(argument * sine * (1 / math.pi)) - unreflected
    result = select(is_reflected, reflected, unreflected)
    is_infinite = ((wide <= 0) & fraction.equals(0)) | argument.equals(math.inf)
    return cast(select(is_infinite, wide.constant(math.inf), result), x.dtype)


def _reduced_to_interval(argument: IRValue, series_start: int) -> tuple[IRValue, IRValue]:
    """t with |t| <= 1/2, and the product that relates ``gamma(a)`` to ``gamma(2 + t)``.

    For a < 1.5 it is the absolute ``gamma(2 + t) / gamma(a)``, else its inverse.
    """
    one = argument.constant(1)
    high_argument, product = argument, one
    for _ in range(series_start - 2):
        is_above_interval = high_argument >= 2.5
        high_argument = select(is_above_interval, high_argument - 1, high_argument)
        product = select(is_above_interval, product * high_argument, product)
    is_below_half, is_below_interval = argument < 0.5, argument < 1.5
    product_below = select(is_below_half, argument * (argument + 1), argument).intrinsic("fabs")
    t = select(is_below_half, argument, select(is_below_interval, argument - 1, high_argument - 2))
    return t, select(is_below_interval, product_below, product)


def digamma(x: IRValue) -> IRValue:
    """Digamma: reflection to x >= 1/2, ten steps of the recurrence, then the series.

    It is nan at the poles. The sum of ``1 / (x + k)`` is one fraction, which takes one division.
    """
    wide = cast(x, "float64")
    is_pole = (wide <= 0) & wide.equals(wide.intrinsic("floor"))
    is_reflected = wide < 0.5
    argument = select(is_reflected, 1 - wide, wide)
    # From 1e30 on, the sum is negligible, and its polynomials would overflow.
    bounded = select(argument > 1e30, argument.constant(1e30), argument)
    pair_product = bounded * (bounded + (_RECURRENCE_STEPS - 1))
    pair_sum = 2 * bounded + (_RECURRENCE_STEPS - 1)
    numerator = pair_sum * polynomial(pair_product, _RECIPROCAL_SUM_NUMERATOR)
    reciprocal_sum = numerator / polynomial(pair_product, _RECIPROCAL_SUM_DENOMINATOR)
    shifted = argument + _RECURRENCE_STEPS
    inverse = 1 / shifted
    series = polynomial(inverse * inverse, _DIGAMMA_SERIES)
    unreflected = polynomials.log(shifted) - 0.5 * inverse - series - reciprocal_sum
    # tan has period 1 in x, and x minus its nearest integer is exact.
    fraction = wide - wide.intrinsic("rint")
    square = fraction * fraction
    cotangent = polynomial(square, _COS_PI) / (fraction * polynomial(square, _SIN_PI["float64"]))
    result = select(is_reflected, unreflected - math.pi * cotangent, unreflected)
    result = select(wide.equals(math.inf), wide, result)
    return cast(select(is_pole, wide.constant(math.nan), result), x.dtype)
