"""The incomplete beta function and its derivatives by all operands: calls on full arrays.

Below the mean it is a power times the reciprocal of a continued fraction (DLMF 8.17.22),

    x^a (1 - x)^b / (a B(a, b)) / (1 + d_1 / (1 + d_2 / ...)),

and above it 1 minus that of (b, a, 1 - x). Derivatives by ``a`` and ``b`` are those of the power
and those of the convergents, which follow separate recurrences.

Source: R. J. Boik and J. F. Robison-Cox, Derivatives of the incomplete beta function, Journal of
Statistical Software 3 (1998), 1.

Tests: tests/ops/test_special_functions.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, mul, neg, sub
from gpuflow.ops.elementwise.comparison import bitwise_or, eq
from gpuflow.ops.elementwise.nary import elementwise
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.elementwise.transcendental import exp, log, log1p
from gpuflow.ops.special.error_functions import load_special
from gpuflow.ops.special.gamma import digamma, lgamma, no_derivative, power_term

_FLOAT = {"accepts": dtypes.is_floating, "what": "a real float"}
# Steps of the fraction; near the mean it needs about the root of the larger parameter.
_MAX_STEPS = 4000
_CHECK_EVERY = 16
_NEGLIGIBLE = 1e-14
# Above, derivatives are differences of logarithms: the fraction would need too many steps.
_LARGE = 1e6
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


def _convergent(xp: Any, a: Any, b: Any, x: Any) -> tuple[Any, Any, Any]:
    """The reciprocal of the fraction, and its derivatives by ``a`` and ``b``.

    Numerators and denominators are rows (value, by a, by b), the last two of each; all are divided
    by the last numerator, so that they do not overflow.
    """
    one, zero = xp.ones_like(x), xp.zeros_like(x)
    before, last = (xp.stack([one, zero, zero]) for _ in range(2))
    low_before, low_last = xp.stack([zero, zero, zero]), xp.stack([one, zero, zero])
    result = low_last

    def step(old: Any, new: Any, d: Any, d_a: Any, d_b: Any) -> Any:
        value = new[0] + d * old[0]
        return xp.stack(
            [value, new[1] + d * old[1] + d_a * old[0], new[2] + d * old[2] + d_b * old[0]]
        )

    for m in range(_MAX_STEPS):
        for d, d_a, d_b in (_odd(a, b, x, m), _even(a, b, x, m + 1)):
            before, last = last, step(before, last, d, d_a, d_b)
            low_before, low_last = low_last, step(low_before, low_last, d, d_a, d_b)
        scale = 1 / last[0]
        before, last = before * scale, last * scale
        low_before, low_last = low_before * scale, low_last * scale
        if m % _CHECK_EVERY == _CHECK_EVERY - 1:
            previous, result = (
                result,
                xp.stack([low_last[0], *(low_last[k] - low_last[0] * last[k] for k in (1, 2))]),
            )
            size = xp.abs(result).sum(0)
            if not bool((xp.abs(result - previous).max(0) > _NEGLIGIBLE * size).any()):
                break
    return result[0], result[1], result[2]


def _odd(a: Any, b: Any, x: Any, m: int) -> tuple[Any, Any, Any]:
    """``d_(2m + 1)`` and its derivatives."""
    d = -(a + m) / (a + 2 * m) * ((a + b + m) / (a + 2 * m + 1)) * x
    by_a = 1 / (a + m) + 1 / (a + b + m) - 1 / (a + 2 * m) - 1 / (a + 2 * m + 1)
    return d, d * by_a, d / (a + b + m)


def _even(a: Any, b: Any, x: Any, m: int) -> tuple[Any, Any, Any]:
    """``d_(2m)`` and its derivatives."""
    factor = m / (a + 2 * m - 1) / (a + 2 * m) * x
    d = factor * (b - m)
    return d, -d * (1 / (a + 2 * m - 1) + 1 / (a + 2 * m)), factor


def _slopes_by_fraction(
    xp: Any, a: Any, b: Any, x: Any, log_x: Any, log_complement: Any
) -> tuple[Any, Any]:
    """The derivatives by ``a`` and ``b``, for x below the mean."""
    library = load_special(xp)
    inverse, by_a, by_b = _convergent(xp, a, b, x)
    total = library.digamma(a + b)
    power = xp.exp(a * log_x + b * log_complement - library.betaln(a, b)) / a
    slope_a = log_x - 1 / a - (library.digamma(a) - total)
    slope_b = log_complement - (library.digamma(b) - total)
    return power * (slope_a * inverse + by_a), power * (slope_b * inverse + by_b)


def _slope_by_differences(xp: Any, a: Any, b: Any, x: Any, is_lower: Any, by_a: bool) -> Any:
    """Derivative by a large parameter, from the logarithm of the smaller tail."""
    library = load_special(xp)

    def tail(a: Any, b: Any) -> Any:
        first, second = xp.where(is_lower, a, b), xp.where(is_lower, b, a)
        return library.betainc(first, second, xp.where(is_lower, x, 1 - x))

    value = tail(a, b)
    parameter = a if by_a else b
    step = 1e-3 * xp.where(parameter > 1, xp.sqrt(parameter), parameter)
    total = xp.zeros_like(x)
    for count, weight in _STENCIL:
        shift = count * step
        total = total + weight * xp.log(tail(a + shift, b) if by_a else tail(a, b + shift))
    slope = xp.where(value == 0, 0.0, value * total / step)
    return xp.where(is_lower, slope, -slope)


def _grad_impl(by_a: bool) -> Any:
    def impl(xp: Any, *operands: Any) -> Any:
        a, b, x = (v.astype(np.float64) for v in xp.broadcast_arrays(*operands))
        interior = (a > 0) & (b > 0) & (x > 0) & (x < 1) & xp.isfinite(a) & xp.isfinite(b)
        a_in, b_in, x_in = (xp.where(interior, v, 0.5) for v in (a, b, x))
        is_lower = x_in * (a_in + b_in + 2) <= a_in + 1
        large = xp.maximum(a_in, b_in) > _LARGE
        a_near, b_near = (xp.where(large, 1.0, v) for v in (a_in, b_in))
        log_x, log_complement = xp.log(x_in), xp.log1p(-x_in)
        by_first, by_second = _slopes_by_fraction(
            xp,
            xp.where(is_lower, a_near, b_near),
            xp.where(is_lower, b_near, a_near),
            xp.where(is_lower, x_in, 1 - x_in),
            xp.where(is_lower, log_x, log_complement),
            xp.where(is_lower, log_complement, log_x),
        )
        out = xp.where(
            is_lower, by_first if by_a else by_second, -(by_second if by_a else by_first)
        )
        if bool(large.any()):
            far = _slope_by_differences(xp, a_in, b_in, x_in, is_lower, by_a)
            out = xp.where(large, far, out)
        valid = (a > 0) & (b > 0) & (x >= 0) & (x <= 1)
        return xp.where(interior, out, xp.where(valid, 0.0, np.nan))

    return impl


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """``x**(a - 1) (1 - x)**(b - 1) / B(a, b)``."""
    log_beta = sub(add(lgamma(a), lgamma(b)), lgamma(add(a, b)))
    log_complement = where(eq(x, 1), -np.inf, log1p(where(eq(x, 1), 0, sub(0, x))))
    return exp(sub(add(power_term(a, log(x)), power_term(b, log_complement)), log_beta))


def _mixed_slope(a: Any, b: Any, x: Any, parameter: Any, logarithm: Any) -> Any:
    """Derivative of the density by a parameter, 0 at both ends."""
    end = bitwise_or(eq(x, 0), eq(x, 1))
    inner = where(end, 0.5, x)
    slope = add(sub(logarithm(inner), digamma(parameter)), digamma(add(a, b)))
    return where(end, 0, mul(_beta_density(a, b, inner), slope))


betainc_grad_a_p = elementwise(
    "betainc_grad_a",
    impl=_grad_impl(by_a=True),
    **_FLOAT,
    body=None,
    arity=3,
    derivatives=(
        no_derivative("betainc_grad_a", "a"),
        no_derivative("betainc_grad_a", "b"),
        lambda t, out, a, b, x: mul(t, _mixed_slope(a, b, x, a, log)),
    ),
    domain=((0.5, 4.0), (0.5, 4.0), (0.1, 0.9)),
    tolerance=40,
)
betainc_grad_b_p = elementwise(
    "betainc_grad_b",
    impl=_grad_impl(by_a=False),
    **_FLOAT,
    body=None,
    arity=3,
    derivatives=(
        no_derivative("betainc_grad_b", "a"),
        no_derivative("betainc_grad_b", "b"),
        lambda t, out, a, b, x: mul(t, _mixed_slope(a, b, x, b, lambda x: log1p(sub(0, x)))),
    ),
    domain=((0.5, 4.0), (0.5, 4.0), (0.1, 0.9)),
    tolerance=40,
)


def _betainc_impl(xp: Any, *operands: Any) -> Any:
    """In float64: the library's float32 loop is accurate to only five digits."""
    return load_special(xp).betainc(*[x.astype(np.float64) for x in operands])


betainc_p = elementwise(
    "regularized_incomplete_beta",
    impl=_betainc_impl,
    **_FLOAT,
    body=None,
    arity=3,
    derivatives=(
        lambda t, out, a, b, x: mul(t, betainc_grad_a_p.bind(a, b, x)),
        lambda t, out, a, b, x: mul(t, betainc_grad_b_p.bind(a, b, x)),
        lambda t, out, a, b, x: mul(t, _beta_density(a, b, x)),
    ),
    domain=((0.5, 4.0), (0.5, 4.0), (0.1, 0.9)),
    reference=lambda *xs: load_special(np).betainc(*xs),
    tolerance=40,
)


# Below, the complement of a small x is computed to first order in a.
_SMALL = 1e-4
_SERIES_TERMS = 24


def _complement_by_series(xp: Any, a: Any, b: Any, x: Any) -> Any:
    """``1 - x^a F(a, 1 - b; a + 1; x) / (a B(a, b))`` for small ``a`` and ``b x < 1``.

    All logarithms have the factor ``a``, so that nothing near 1 is subtracted from 1.
    """
    term, total = xp.ones_like(x), xp.zeros_like(x)
    for n in range(1, _SERIES_TERMS):
        term = term * (n - b) / n * x
        total = total + term / (a + n)
    # lgamma(1 + a), and lgamma(1 + a + b) - lgamma(1 + b).
    first = a * (math.pi**2 / 12 * a - np.euler_gamma)
    second = a * load_special(xp).digamma(1 + b + a / 2)
    log = a * xp.log(x) + second - first - xp.log1p(a / b) + xp.log1p(a * total)
    return -xp.expm1(log)


def _complement_impl(xp: Any, *operands: Any) -> Any:
    """In float64. Near 0, both 1 - x and 1 minus the function lose all digits."""
    betainc = load_special(xp).betainc
    a, b, x = (v.astype(np.float64) for v in xp.broadcast_arrays(*operands))
    lower = betainc(a, b, x)
    early = (x < 0.1) & (b * x < 1)
    direct = (lower < 0.5) | (early & (a >= _SMALL))
    upper = xp.where(direct, 1 - lower, betainc(b, a, 1 - x))
    series = early & ~direct & (a > 0) & (b > 0) & (x > 0)
    if not bool(series.any()):
        return upper
    by_series = _complement_by_series(xp, *(xp.where(series, v, 1e-8) for v in (a, b, x)))
    return xp.where(series, by_series, upper)


betainc_complement_p = elementwise(
    "betainc_complement",
    impl=_complement_impl,
    **_FLOAT,
    body=None,
    arity=3,
    derivatives=(
        lambda t, out, a, b, x: neg(mul(t, betainc_grad_a_p.bind(a, b, x))),
        lambda t, out, a, b, x: neg(mul(t, betainc_grad_b_p.bind(a, b, x))),
        lambda t, out, a, b, x: neg(mul(t, _beta_density(a, b, x))),
    ),
    domain=((0.5, 4.0), (0.5, 4.0), (0.1, 0.9)),
    reference=lambda a, b, x: load_special(np).betainc(b, a, 1 - x),
    tolerance=40,
)


def betainc_complement(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """``1 - betainc(a, b, x)``, with all its digits."""
    return betainc_complement_p.bind(a, b, x)


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise regularized incomplete beta function; differentiable in all operands.

    Args:
        a: array of positive real floats.
        b: array of positive real floats of the same dtype; dimensions of size 1 and scalars
            broadcast.
        x: upper limits of the integral, in [0, 1], of the same dtype.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.betainc(1.0, 2.0, jnp.array([0.0, 0.5, 1.0])).round(3)
        Array([0.  , 0.75, 1.  ], dtype=float32)
    """
    return betainc_p.bind(a, b, x)
