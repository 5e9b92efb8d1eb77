"""The Hurwitz zeta function and Bernoulli numbers.

Tests: tests/scipy_surface/test_special_accuracy.py, tests/scipy_surface/test_special_rules.py.
"""

from __future__ import annotations

import math
from fractions import Fraction
from operator import index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import jvp
from gpuflow.base import dtypes
from gpuflow.core.argument_kinds import explained
from gpuflow.core.types import Array, ArrayLike
from gpuflow.scipy.special.common import real_operands, with_derivatives

# Bernoulli numbers up to this one are exact fractions.
_EXACT_NUMBERS = 40
# Beyond this one they are infinite.
_MAX_FINITE = 300
# Terms of the sum before the integral takes over, and of the corrections.
_TERMS = 12
# B_2k / (2k)!. Source: DLMF 25.11.5.
_CORRECTIONS = [
    b / math.factorial(2 * k)
    for k, b in enumerate(
        (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510), start=1
    )
]


def _euler_maclaurin(x: Any, q: Any) -> Any:
    """The zeta function by formulas that can be differentiated by ``x``."""
    total: Any = 0.0
    for k in range(_TERMS):
        total = total + jnp.exp(-x * jnp.log(q + k))
    end = q + _TERMS
    power = jnp.exp(-x * jnp.log(end))
    total = total + power * (end / (x - 1.0) + 0.5)
    rising, step = x, 1.0
    for coefficient in _CORRECTIONS:
        total = total + power * coefficient * rising / end
        rising = rising * ((x + step) / end) * ((x + step + 1.0) / end)
        step += 2.0
    return total


def _slope_by_x(x: Any, q: Any) -> Any:
    return jvp(lambda x: _euler_maclaurin(x, q), (x,), (jnp.ones_like(x),))[1]


@with_derivatives(
    lambda t, out, x, q: t * _slope_by_x(x, q), lambda t, out, x, q: -t * x * zeta(x + 1.0, q)
)
def _zeta(x: Any, q: Any) -> Any:
    return lax.zeta(x, q)


@explained
def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Array:
    """Return the Hurwitz zeta function: the sum of ``(q + k)**-x`` over k >= 0.

    Args:
        x: real numbers above 1.
        q: real numbers, which broadcast with ``x``; required.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        NotImplementedError: if ``q`` is not given.
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.zeta(jnp.array([2., 4.]), 1.), 3)
        Array([1.645, 1.082], dtype=float32)
    """
    if q is None:
        raise NotImplementedError(
            "[zeta] q must be given, the Riemann zeta function is not implemented; got None. "
            "Fix: zeta(x, 1) for x > 1."
        )
    x, q = jnp.broadcast_arrays(*real_operands("zeta", x, q))
    return _zeta(x, q)


def _bernoulli_numbers(n: int) -> list[float]:
    """Exact fractions at first; then quotients of neighbors. Source: DLMF 24.2.2 and 25.6.2."""
    exact: list[Fraction] = []
    for m in range(min(n, _EXACT_NUMBERS) + 1):
        partial_sum = sum((math.comb(m + 1, k) * b for k, b in enumerate(exact)), Fraction(0))
        exact.append(Fraction(1) if m == 0 else -partial_sum / (m + 1))
    values = [float(b) for b in exact]
    for m in range(len(values), min(n, _MAX_FINITE) + 1):
        zetas = (1.0 + 2.0**-m + 3.0**-m) / (1.0 + 4.0 * 2.0**-m + 9.0 * 3.0**-m)
        ratio = -m * (m - 1) / (2.0 * math.pi) ** 2 * zetas
        values.append(values[m - 2] * ratio if m % 2 == 0 else 0.0)
    return values


@explained
def bernoulli(n: int) -> Array:
    """Return the Bernoulli numbers B_0 to B_n, with B_1 = -1/2.

    Args:
        n: a static nonnegative int.

    Returns:
        Floats of the default dtype, n + 1 of them.

    Raises:
        ValueError: if ``n`` is negative.
        TypeError: if ``n`` is not an int.

    Example:
        >>> jnp.round(gf.scipy.special.bernoulli(4), 3)
        Array([ 1.   , -0.5  ,  0.167,  0.   , -0.033], dtype=float32)
    """
    n = index(n)
    if n < 0:
        raise ValueError(f"[bernoulli] n must be a non-negative integer; got {n}. Fix: n=0.")
    with np.errstate(over="ignore"):
        first = jnp.asarray(np.array(_bernoulli_numbers(n)).astype(dtypes.default_float()))
    if n <= _MAX_FINITE:
        return first
    phase = (jnp.arange(n - _MAX_FINITE) + (_MAX_FINITE + 1)) % 4
    tail = jnp.select([phase == 0, phase == 2], [-jnp.inf, jnp.inf], 0.0)
    return jnp.concatenate([first, tail.astype(first.dtype)])
