"""Confluent and Gaussian hypergeometric functions of real numbers.

The series run in loops that end for each element by itself. Derivatives by the parameters are those
of the series; they are as good as the series converges.

Tests: tests/scipy_surface/test_special_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import jvp
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import precision, real_operands, strong_operands, with_derivatives
from gpuflow.scipy.special.gammas import gammasgn, real_gamma

_MAX_TERMS = 20000.0


def _sum_series(ratio: Callable[[Any], Any], first: Any, tolerance: float) -> Any:
    """``first (1 + r(0) + r(0) r(1) + ...)``, until a term no longer counts."""

    def goes_on(state: tuple[Any, ...]) -> Any:
        total, term, k = state
        return (jnp.abs(term) > tolerance * jnp.abs(total)) & (k < _MAX_TERMS)

    def add_term(state: tuple[Any, ...]) -> tuple[Any, ...]:
        total, term, k = state
        term = term * ratio(k)
        return total + term, term, k + 1.0

    return lax.while_loop(goes_on, add_term, (first, first, jnp.zeros_like(first)))[0]


def _sum_decreasing(ratio: Callable[[Any], Any], one: Any, tolerance: float) -> Any:
    """The same for an asymptotic series: until the terms grow again."""

    def goes_on(state: tuple[Any, ...]) -> Any:
        total, term, k = state
        return (
            (jnp.abs(term) > tolerance * jnp.abs(total))
            & (jnp.abs(ratio(k)) < 1.0)
            & (k < _MAX_TERMS)
        )

    def add_term(state: tuple[Any, ...]) -> tuple[Any, ...]:
        total, term, k = state
        term = term * ratio(k)
        return total + term, term, k + 1.0

    return lax.while_loop(goes_on, add_term, (one, one, jnp.zeros_like(one)))[0]


def _is_whole(x: Any) -> Any:
    return x == jnp.floor(x)


def _ends(a: Any) -> Any:
    """Whether a series with this parameter in the numerator is a polynomial."""
    return _is_whole(a) & (a <= 0.0)


def _slope(function: Callable[..., Any], position: int, *operands: Any) -> Any:
    """The derivative of an elementwise function by one operand."""

    def of_one(x: Any) -> Any:
        return function(*operands[:position], x, *operands[position + 1 :])

    x = operands[position]
    return jvp(of_one, (x,), (jnp.ones_like(x),))[1]


# --- 1F1 ------------------------------------------------------------------------------------


@jnp.vectorize
def _confluent_series(a: Any, b: Any, x: Any) -> Any:
    """The power series; of exp(-x) times it, by Kummer's transformation, where that has one sign.

    Source: DLMF 13.2.2 and 13.2.39.
    """
    mirrored = (x < 0.0) & ((a > 0.0) | (b > a)) & ~_ends(a)
    a, z = jnp.where(mirrored, b - a, a), jnp.where(mirrored, -x, x)
    total = _sum_series(
        lambda k: (a + k) / ((b + k) * (k + 1.0)) * z, jnp.ones_like(z), precision(z) / 16
    )
    return jnp.where(mirrored, jnp.exp(jnp.minimum(x, 0.0)), 1.0) * total


def _confluent_far(a: Any, b: Any, x: Any) -> Any:
    """Source: DLMF 13.7.2, for large positive or negative x."""
    mirrored = x < 0.0
    a, z = jnp.where(mirrored, b - a, a), jnp.abs(x)
    total = _sum_decreasing(
        lambda k: (b - a + k) * (1.0 - a + k) / ((k + 1.0) * z), jnp.ones_like(z), precision(z) / 16
    )
    scale = (
        gammasgn(b)
        * gammasgn(a)
        * jnp.exp(
            lax.lgamma(b) - lax.lgamma(a) + (a - b) * jnp.log(z) + jnp.where(mirrored, 0.0, z)
        )
    )
    return scale * total


@with_derivatives(
    lambda t, out, a, b, x: t * _slope(_confluent_series, 0, a, b, x),
    lambda t, out, a, b, x: t * _slope(_confluent_series, 1, a, b, x),
    lambda t, out, a, b, x: t * a / b * hyp1f1(a + 1.0, b + 1.0, x),
)
@jnp.vectorize
def _hyp1f1(a: Any, b: Any, x: Any) -> Any:
    size = jnp.abs(x)
    far = (size > jnp.minimum(40.0 + jnp.abs(a) * jnp.abs(b - a), 85.0)) & ~_ends(a)
    near = _confluent_series(a, b, jnp.where(far, 0.0, x))
    by_asymptotics = _confluent_far(a, b, jnp.where(far, x, 100.0))
    result = jnp.where(far, by_asymptotics, near)
    result = jnp.where(b == 0.0, jnp.inf, jnp.where(a == b, jnp.exp(x), result))
    return jnp.where((a == 0.0) | (x == 0.0), 1.0, result)


def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return the confluent hypergeometric function 1F1, Kummer's M.

    Args:
        a, b: parameters, real arrays.
        x: array of real numbers; all broadcast.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.hyp1f1(1., 1., jnp.array([0., 1.])), 3)
        Array([1.   , 2.718], dtype=float32)
    """
    return _hyp1f1(*jnp.broadcast_arrays(*strong_operands("hyp1f1", a, b, x)))


# --- 2F1 ------------------------------------------------------------------------------------


@jnp.vectorize
def _gauss_sum(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Source: DLMF 15.2.1."""
    return _sum_series(
        lambda k: (a + k) * (b + k) / ((c + k) * (k + 1.0)) * x,
        jnp.ones_like(x),
        precision(x) / 16,
    )


@jnp.vectorize
def _gauss_series(a: Any, b: Any, c: Any, x: Any) -> Any:
    """The series for ``x < 1``; of x < 0 by Pfaff's transformation. Source: DLMF 15.8.1."""
    mirrored = (x < 0.0) & ~_ends(a) & ~_ends(b)
    y = jnp.where(mirrored, x / (x - 1.0), x)
    total = _gauss_sum(a, jnp.where(mirrored, c - b, b), c, y)
    return jnp.where(mirrored, jnp.power(jnp.where(mirrored, 1.0 - x, 1.0), -a), 1.0) * total


def _gammas(*operands: Any) -> Any:
    """Gamma functions, computed as one array: each by itself would be as much text again."""
    return real_gamma(jnp.stack(jnp.broadcast_arrays(*operands)))


def _at_one(a: Any, b: Any, c: Any) -> Any:
    """Gauss's formula. Source: DLMF 15.4.20."""
    top, d, first, second = _gammas(c, c - a - b, c - a, c - b)
    return jnp.where(_ends(c - a) | _ends(c - b), 0.0, top * d / (first * second))


def _around_one(a: Any, b: Any, c: Any, s: Any) -> Any:
    """In powers of ``s = 1 - x``, where ``c - a - b`` is not an integer. Source: DLMF 15.8.4."""
    d = c - a - b
    top, down, up, first, second, third, fourth = _gammas(c, d, -d, c - a, c - b, a, b)
    one_side = top * down / (first * second) * _gauss_sum(a, b, 1.0 - d, s)
    other = top * up / (third * fourth) * _gauss_sum(c - a, c - b, 1.0 + d, s)
    return one_side + jnp.power(s, d) * other


@jnp.vectorize
def _finite_sum(a: Any, b: Any, m: Any, s: Any, first: Any) -> Any:
    """The m terms of DLMF 15.8.10 without logarithms; ``first`` is ``gamma(m)``."""
    zero = jnp.zeros_like(s)

    def add_term(state: tuple[Any, ...]) -> tuple[Any, ...]:
        total, term, k = state
        ratio = (a + k) * (b + k) / ((k + 1.0) * jnp.maximum(m - k - 1.0, 1.0))
        return total + term, -term * ratio * s, k + 1.0

    return lax.while_loop(lambda state: state[2] < m, add_term, (zero, first, zero))[0]


@jnp.vectorize
def _logarithmic_sum(a: Any, b: Any, m: Any, s: Any, first: Any, logs: Any) -> Any:
    """The infinite sum of DLMF 15.8.10; ``logs`` is the first bracket, the next ones follow."""

    def goes_on(state: tuple[Any, ...]) -> Any:
        total, term, logs, k = state
        return (jnp.abs(term * logs) > precision(s) / 16 * jnp.abs(total)) & (k < _MAX_TERMS)

    def add_term(state: tuple[Any, ...]) -> tuple[Any, ...]:
        total, term, logs, k = state
        term = term * (a + k) * (b + k) / ((k + 1.0) * (k + m + 1.0)) * s
        logs = logs - 1.0 / (k + 1.0) - 1.0 / (k + m + 1.0) + 1.0 / (a + k) + 1.0 / (b + k)
        return total + term * logs, term, logs, k + 1.0

    start = (first * logs, first, logs, jnp.zeros_like(s))
    return lax.while_loop(goes_on, add_term, start)[0]


def _logarithmic(a: Any, b: Any, m: Any, s: Any) -> Any:
    """The function of ``1 - s`` with ``c = a + b + m``, m an integer >= 0. DLMF 15.8.10."""
    up, down = a + m, b + m
    top, of_m, after_m, of_up, of_down, of_a, of_b = _gammas(
        a + b + m, jnp.maximum(m, 1.0), m + 1.0, up, down, a, b
    )
    psi_one, psi_m, psi_up, psi_down = lax.digamma(
        jnp.stack(jnp.broadcast_arrays(1.0, m + 1.0, up, down))
    )
    logs = jnp.log(s) - psi_one - psi_m + psi_up + psi_down
    finite = _finite_sum(a, b, m, s, of_m) / (of_up * of_down)
    series = _logarithmic_sum(up, down, m, s, 1.0 / after_m, logs) / (of_a * of_b)
    odd = m - 2.0 * jnp.floor(0.5 * m)
    return top * (finite - jnp.where(odd == 0.0, 1.0, -1.0) * jnp.power(s, m) * series)


def _near_one(a: Any, b: Any, c: Any, s: Any) -> Any:
    """For small ``s = 1 - x``; Euler's transformation makes ``c - a - b`` positive. DLMF 15.8.1."""
    d = c - a - b
    whole = jnp.abs(d - jnp.round(d)) < 64.0 * precision(s)
    flipped = d < 0.0
    m = jnp.where(whole, jnp.abs(jnp.round(d)), 0.0)
    low, high = jnp.where(flipped, c - a, a), jnp.where(flipped, c - b, b)
    scale = jnp.where(flipped, jnp.power(s, d), 1.0)
    by_logs = scale * _logarithmic(low, high, m, s)
    # A gap away from whole numbers keeps the other formula finite where it is not used.
    return jnp.where(whole, by_logs, _around_one(a, b, jnp.where(whole, a + b + 0.5, c), s))


@with_derivatives(
    lambda t, out, a, b, c, x: t * _slope(_gauss_series, 0, a, b, c, x),
    lambda t, out, a, b, c, x: t * _slope(_gauss_series, 1, a, b, c, x),
    lambda t, out, a, b, c, x: t * _slope(_gauss_series, 2, a, b, c, x),
    lambda t, out, a, b, c, x: t * a * b / c * hyp2f1(a + 1.0, b + 1.0, c + 1.0, x),
)
def _hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    polynomial = _ends(a) | _ends(b)
    converges = x < 1.0
    # Far below 0 Pfaff's transformation leads near 1.
    mirrored = (x < -9.0) & ~polynomial
    base = jnp.where(mirrored, 1.0 - x, 1.0)
    second = jnp.where(mirrored, c - b, b)
    # This way the complement 1 - x has all its digits.
    s = jnp.where(mirrored, 1.0 / base, 1.0 - x)
    close = (s < 0.1) & converges & ~polynomial & ~(_ends(c - a) | _ends(c - second))
    series = _gauss_series(a, b, c, jnp.where(close | ~(converges | polynomial), 0.0, x))
    near = jnp.power(base, -a) * _near_one(
        *(jnp.where(close, v, w) for v, w in ((a, 0.5), (second, 0.5), (c, 1.75), (s, 0.05)))
    )
    result = jnp.where(close, near, series)
    at_one = jnp.where(c - a - b > 0.0, _at_one(a, b, c), jnp.inf)
    result = jnp.where((x == 1.0) & ~polynomial, at_one, result)
    result = jnp.where((x > 1.0) & ~polynomial, jnp.inf, result)
    # A whole c <= 0 is a pole unless the series ends before.
    stops = (_ends(a) & (a >= c)) | (_ends(b) & (b >= c))
    result = jnp.where(_ends(c) & ~stops, jnp.inf, result)
    result = jnp.where((x == 0.0) | (a == 0.0) | (b == 0.0), 1.0, result)
    return jnp.where(jnp.isnan(a + b + c + x), jnp.nan, result)


def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Array:
    """Return the Gaussian hypergeometric function 2F1.

    Args:
        a, b, c: parameters, real arrays.
        x: real numbers <= 1; above 1 the result is inf unless the series terminates. All broadcast.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.hyp2f1(1., 1., 2., jnp.array([0., 0.5])), 3)
        Array([1.   , 1.386], dtype=float32)
    """
    return _hyp2f1(*jnp.broadcast_arrays(*real_operands("hyp2f1", a, b, c, x)))
