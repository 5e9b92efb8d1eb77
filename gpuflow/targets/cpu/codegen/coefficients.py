"""Constants of ``polynomials``: float formats, range reduction constants and minimax coefficients.

The coefficients minimize the largest relative error. They are a weighted least-squares fit at 120
Chebyshev nodes in 45 digits, repeated 25 times with the weights multiplied by the errors. Then each
is rounded to the dtype, from the lowest power on, and the others are fitted again. The highest
power comes first, as ``ir_values.polynomial`` expects.

A change of a coefficient changes last digits of results. Those without a dtype are for float32, and
are evaluated in float32 unless the comment says float64.

Sources: Lawson (1961), Contributions to the theory of linear least maximum approximation;
Brisebarre and Chevillard (2007), Efficient polynomial L-infinity approximations.

Tests: tests/targets/cpu/test_cpu_polynomials.py.
"""

from __future__ import annotations

from gpuflow.base.records import record


@record
class FloatFormat:
    """A float dtype.

    Attributes:
        bits_dtype: unsigned integer dtype of the same width.
        mantissa_bits: stored bits of the mantissa.
        exponent_bias: bias of the exponent.
        ln2_terms: log(2) as a sum of two terms; the first has so few bits that its product with any
            exponent is exact.
        exp_zero_below: logarithm of half the smallest subnormal number, rounded down: exp of
            smaller arguments is 0.
        exp_subnormal_below: logarithm of the smallest normal number.
        exp_inf_above: largest number whose exponential is finite.
        sqrt_half_bits: bit pattern of sqrt(1/2).
    """

    bits_dtype: str
    mantissa_bits: int
    exponent_bias: int
    ln2_terms: tuple[float, float]
    exp_zero_below: float
    exp_subnormal_below: float
    exp_inf_above: float
    sqrt_half_bits: int

    @property
    def rounding_constant(self) -> float:
        """A number whose addition rounds to an integer, in the lowest bits of the sum.

        The other number must be below 2 ** (mantissa_bits - 1) in magnitude.
        """
        return 1.5 * 2.0**self.mantissa_bits


FLOAT_FORMATS = {
    "float32": FloatFormat(
        bits_dtype="uint32",
        mantissa_bits=23,
        exponent_bias=127,
        ln2_terms=(0.693145751953125, 1.428606765330187e-06),
        exp_zero_below=-104.0,
        exp_subnormal_below=-87.33654022216797,
        exp_inf_above=88.72283172607422,
        sqrt_half_bits=0x3F3504F3,
    ),
    "float64": FloatFormat(
        bits_dtype="uint64",
        mantissa_bits=52,
        exponent_bias=1023,
        ln2_terms=(0.6931471805592082, 7.371002565167799e-13),
        exp_zero_below=-746.0,
        exp_subnormal_below=-708.3964185322641,
        exp_inf_above=709.782712893384,
        sqrt_half_bits=0x3FE6A09E667F3BCD,
    ),
}

# (exp(r) - 1 - r) / r^2 on |r| <= log(2) / 2, then the coefficients 1 and 1 of r and 1: exp(r).
EXP = {
    "float32": (0.0013820138, 0.008368686, 0.041668274, 0.16666521, 0.49999994, 1.0, 1.0),
    "float64": (
        2.497816669799771e-08,
        2.7625201167972175e-07,
        2.755764155727928e-06,
        2.48015086443617e-05,
        0.00019841269465409528,
        0.0013888888926829102,
        0.008333333333500444,
        0.04166666666660387,
        0.16666666666666433,
        0.5,
        1.0,
        1.0,
    ),
}
# 2^r on |r| <= 1/2.
EXP2 = (0.00015329279, 0.001339097, 0.009618499, 0.055503596, 0.24022648, 0.6931472, 1.0)
# (expm1(r) - r) / r^2 on |r| <= log(2) / 2.
EXPM1 = (0.00019763404, 0.0013932341, 0.008333544, 0.041666493, 0.16666666, 0.5)
# (log(1 + f) - f) / f^2 on sqrt(1/2) <= 1 + f <= sqrt(2).
LOG = (
    0.08700279,
    -0.14266889,
    0.14914517,
    -0.16577655,
    0.199631,
    -0.25001335,
    0.3333391,
    -0.5,
)
# (log2(1 + f) - f) / f on the same interval.
LOG2 = (
    0.123508096,
    -0.20693934,
    0.21644203,
    -0.23902088,
    0.2878446,
    -0.36069933,
    0.480913,
    -0.7213474,
    0.442695,
)
# log2(1 + f) / f on the same interval, with an error of 2^-33; evaluated in float64, for pow.
LOG2_OVER_F = (
    -0.08633733475179428,
    0.15485152067753136,
    -0.1569832633915871,
    0.15900279727300565,
    -0.17904697558251292,
    0.20609615604611464,
    -0.24050416810190356,
    0.28854064674832747,
    -0.3606728007380663,
    0.48089832069363286,
    -0.7213475252118215,
    1.4426950409394128,
)
# log(1 + f) / f on the same interval, with an error of 2^-41; evaluated in float64, for lgamma.
LOG_OVER_F = (
    0.043792921045742866,
    -0.08561678422894403,
    0.08742225179673155,
    -0.08291846358113132,
    0.08951590736650529,
    -0.09990062601583627,
    0.11119829325752115,
    -0.12500937526723296,
    0.14285435319651515,
    -0.16666635735736243,
    0.20000004331736285,
    -0.2500000039356209,
    0.3333333330717259,
    -0.499999999986475,
    1.000000000000271,
)
# For float64: (log((1 + s) / (1 - s)) - 2 s) / s^3 as a polynomial in s^2, for s = f / (2 + f).
LOG_FLOAT64 = (
    0.14795214199014253,
    0.15314124832522005,
    0.1818356139659572,
    0.22222198629950965,
    0.28571428741831556,
    0.39999999999417196,
    0.6666666666666734,
)
# (tanh(a) / a - 1) / a^2 as a polynomial in a^2, for a <= 0.55.
TANH = (0.016437104, -0.052671693, 0.13320726, -0.33332947)
# (sin(r) / r - 1) / r^2 as a polynomial in r^2, for |r| <= pi / 2.
SIN = (2.605784e-06, -0.00019809666, 0.008333068, -0.1666666)
# erf(a) / a - 1 as a polynomial in a^2, for a <= 1.03. erfc(a)^(1/4) for 1.03 <= a <= 4: its error
# is weighted by its effect on erf, and more near 4, so that erf(4) is 1.
ERF = (-0.0005493325, 0.004885179, -0.02668501, 0.11279319, -0.3761223, 0.1283791)
ERFC_ROOT = (
    -0.00016879848,
    0.0030789669,
    -0.021277241,
    0.063074544,
    -0.0446878,
    -0.06986197,
    -0.30490822,
    1.0045202,
)

# pi as a sum. Without fused multiply-add: terms whose products with an integer below 2^15, or that
# plus 1/2, are exact. With it: three full terms. All are positive, so that -0.0 stays -0.0.
PI_EXACT = (
    3.140625,
    0.000965118408203125,
    2.5331974029541016e-06,
    1.979060471057892e-09,
    5.126688136514179e-12,
)
PI_FUSED = (3.141592502593994, 1.5099578831723193e-07, 1.078060505991553e-14)
# For arguments of larger magnitude, sin and cos are libm's.
MAX_REDUCED = 1e5
