"""The Hurwitz zeta function and polygamma in kernels, for at most 32 bits; digamma for all.

    zeta(s, q) = sum of (q + k)**-s for k < N, and after it with a = q + N
        a**-s (a / (s - 1) + 1/2 + sum of B_2k / (2k)! s (s + 1) ... (s + 2k - 2) / a**(2k - 1))

In float64, with N = 4 and four terms of the second sum, that is accurate to 3e-9 for all s > 1 and
q > 0. If s is beyond 6 a, those terms grow, and the sum after the first N is negligible. Sources:
DLMF 25.11.28 (Euler and Maclaurin), and 5.15.1 for polygamma.

Tests: tests/ops/test_special_functions.py, tests/ops/test_special_points.py.
"""

from __future__ import annotations

import math
from typing import Any

from gpuflow.ops.special.expressions import Expression, at_most, where, widened_operands

_TERMS = 4
_CORRECTIONS = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)
_STEEP = 6.0
# Larger exponents give the same results: 0, 1 or infinity.
_MAX_ARGUMENT = 1e40


def zeta_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """``zeta(s, q)`` like SciPy's: infinite at s = 1 and at the poles, nan below."""
    del in_avals, out_aval, params
    s, q = widened_operands(builder, values)
    is_integer = s.equals(s.apply("floor"))
    total = where(is_integer | (q > 0.0), _scaled_zeta(s, q, s.number(0.0)), math.nan)
    pole = (q <= 0.0) & q.equals(q.apply("floor"))
    result = where(s < 1.0, math.nan, where(pole | s.equals(1.0), math.inf, total))
    return builder.cast(result.value, values[0].dtype)


def polygamma_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """``(-1)**(m + 1) m! zeta(m + 1, x)``, and digamma for m = 0."""
    del in_avals, out_aval, params
    m, x = widened_operands(builder, values)
    size = _scaled_zeta(m + 1.0, x, (m + 1.0).apply("lgamma"))
    pole = (x <= 0.0) & x.equals(x.apply("floor"))
    higher = where(_is_odd(m), 1.0, -1.0) * where(pole, math.inf, size)
    is_integer = (m >= 0.0) & (m < math.inf) & m.equals(m.apply("floor"))
    result = builder.cast(where(is_integer, higher, math.nan).value, values[0].dtype)
    return builder.select(m.equals(0.0).value, _digamma(builder, values[1]), result)


def digamma_body(builder: Any, values: Any, in_avals: Any, out_aval: Any, params: Any) -> Any:
    """digamma; for signed zeros the one-sided limits, for which KernelIR's function is nan."""
    del in_avals, out_aval, params
    return _digamma(builder, values[0])


def _digamma(builder: Any, x: Any) -> Any:
    zero, minus_one = builder.const(x.dtype, 0), builder.const(x.dtype, -1)
    limit = builder.apply("div", minus_one, x)
    return builder.select(builder.apply("eq", x, zero), limit, builder.apply("digamma", x))


def _is_odd(x: Expression) -> Expression:
    half = 0.5 * x
    return where(half.equals(half.apply("floor")), 0.0, 1.0) > 0.0


def _scaled_zeta(s: Expression, q: Expression, log_scale: Expression) -> Expression:
    """``exp(log_scale) zeta(s, q)``; for q < 0 of integer s.

    For q < 0, the terms after 0 are those of q's fraction; those before it are powers of negative
    numbers, a difference of two further zeta functions.
    """
    s = at_most(s, _MAX_ARGUMENT)
    negative = q < 0.0
    fraction = q - q.apply("floor")
    upper = _positive(s, where(negative, fraction, q), log_scale)

    def body(remaining: Any, total: Any) -> tuple[Any, Any]:
        remaining, total = Expression(s.builder, remaining), Expression(s.builder, total)
        is_first = remaining > 1.0
        sum_of_tail = _positive(s, where(is_first, 1.0 - fraction, 1.0 - q), log_scale)
        difference = where(total < math.inf, total - sum_of_tail, total)
        return (remaining - 1.0).value, where(is_first, sum_of_tail, difference).value

    # Two iterations, which are skipped if no lane of a block needs them.
    _, before = s.builder.while_loop(
        (where(negative, 2.0, 0.0).value, s.number(0.0).value),
        lambda remaining, total: (Expression(s.builder, remaining) > 0.0).value,
        body,
    )
    signed = Expression(s.builder, before)
    return upper + where(_is_odd(s), -signed, signed)


def _positive(s: Expression, q: Expression, log_scale: Expression) -> Expression:
    builder = s.builder

    def term(k: Any, total: Any, power: Any) -> tuple[Any, Any]:
        del power
        base = q + Expression(builder, builder.cast(k, "float64"))
        power = (log_scale - s * base.apply("log")).apply("exp")
        return (Expression(builder, total) + power).value, power.value

    # A loop instead of five copies of two long functions, which took a second to compile.
    zero = s.number(0.0).value
    count = builder.const("int64", _TERMS + 1)
    total, power = (
        Expression(builder, value) for value in builder.for_count(count, (zero, zero), term)
    )
    end = q + float(_TERMS)
    inverse = 1.0 / end
    factor, remainder = s * inverse, end / (s - 1.0) - 0.5
    for k, coefficient in enumerate(_CORRECTIONS):
        remainder = remainder + coefficient * factor
        factor = factor * ((s + (2.0 * k + 1.0)) * inverse) * ((s + (2.0 * k + 2.0)) * inverse)
    in_reach = (s < _STEEP * end) & (q < math.inf)
    return total + where(in_reach, power * remainder, 0.0)
