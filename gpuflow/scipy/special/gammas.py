"""The gamma and beta functions of real numbers, and functions based on them.

Tests: tests/scipy_surface/test_special_accuracy.py, tests/scipy_surface/test_special_rules.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import promote_args_inexact
from gpuflow.scipy.special import tables
from gpuflow.scipy.special.common import (
    chebyshev,
    kernel,
    precision,
    real_operands,
    scalar_like,
    strong_operands,
    with_derivatives,
)
from gpuflow.scipy.special.stirling import (
    betaln_large,
    log_beta,
    log_choose,
    log_rising_far,
    stirling_remainder,
)

# Up to this ``k`` the binomial coefficient is multiplied out.
_FEW = 24
# The gamma function is multiplied out, from y down to y - step where y >= least, by (least, step):
# from below 37, which float32 does not reach, to 1 <= y < 2.
_STEPS = ((33, 4), (17, 16), (9, 8), (5, 4), (3, 2), (2, 1))
_REACH = 37.0
_ROOT_2_PI = math.sqrt(2.0 * math.pi)


def gammaln(x: ArrayLike) -> Array:
    """Return the logarithm of the absolute value of the gamma function.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.gammaln(jnp.array([1., 5.])), 3) + 0.0
        Array([0.   , 3.178], dtype=float32)
    """
    (x,) = promote_args_inexact("gammaln", x)
    return lax.lgamma(x)


def digamma(x: ArrayLike) -> Array:
    """Return the derivative of ``gammaln``.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.digamma(jnp.array([1., 2.])), 3)
        Array([-0.577,  0.423], dtype=float32)
    """
    (x,) = promote_args_inexact("digamma", x)
    return lax.digamma(x)


def _is_whole(x: Any) -> Any:
    return x == jnp.floor(x)


@kernel
def _sign(x: Any) -> Any:
    odd = jnp.floor(x) - 2.0 * jnp.floor(0.5 * jnp.floor(x))
    one = scalar_like(1.0, x)
    sign = jnp.where((x < 0.0) & (odd != 0.0), -one, one)
    sign = jnp.where((x == 0.0) & jnp.signbit(x), -1.0, sign)
    return jnp.where(((x < 0.0) & _is_whole(x)) | jnp.isnan(x), jnp.nan, sign)


def gammasgn(x: ArrayLike) -> Array:
    """Return the sign of the gamma function; nan at poles, and the sign of the zero at 0.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        1, -1 or nan, floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> gf.scipy.special.gammasgn(jnp.array([2., -0.5, -1.]))
        Array([ 1., -1., nan], dtype=float32)
    """
    return lax.stop_gradient(_sign(*strong_operands("gammasgn", x)))


def _gamma_right(x: Any) -> Any:
    """The gamma function of x >= 0: by multiplication from 1 <= y < 2, far up by Stirling.

    Integers give products of integers. Below 1, ``gamma(x) = gamma(x + 1) / x``.
    """
    below = x < 1.0
    y = jnp.where(below, x + 1.0, x)
    product = jnp.ones_like(x)
    for least, step in _STEPS:
        high = y >= least
        longer = math.prod((y - k for k in range(1, step + 1)), start=product)
        product = jnp.where(high, longer, product)
        y = jnp.where(high, y - step, y)
    inverse = jnp.where(y == 1.0, 1.0, chebyshev(tables.INVERSE_GAMMA, 2.0 * y - 3.0))
    near = product / jnp.where(below, inverse * x, inverse)
    reaches = math.gamma(_REACH) < float(jnp.finfo(aval_of(x).dtype).max)
    far = _stirling(jnp.maximum(x, _REACH)) if reaches else jnp.inf
    return jnp.where(x >= _REACH, far, near)


def _stirling(x: Any) -> Any:
    # The power overflows before the whole does, so half of it comes twice.
    half = jnp.power(x, 0.5 * (x - 0.5))
    result = half * jnp.exp(stirling_remainder(x) - x) * half * _ROOT_2_PI
    return jnp.where(jnp.isinf(x) | jnp.isinf(half), jnp.inf, result)


def sin_pi(x: Any) -> Any:
    """``sin(pi x)``, exactly 0 at integers."""
    nearest = jnp.round(x)
    odd = nearest - 2.0 * jnp.floor(0.5 * nearest)
    return jnp.where(odd == 0.0, 1.0, -1.0) * jnp.sin(math.pi * (x - nearest))


@with_derivatives(lambda t, out, x: t * out * lax.digamma(x))
def real_gamma(x: Any) -> Any:
    """The gamma function of real numbers."""
    size = jnp.abs(x)
    right = _gamma_right(size)
    # Gamma(-y) = -pi / (y sin(pi y) Gamma(y)); division in this order neither overflows.
    # Near 0 it is -1 / y, where the quotients overflow or underflow.
    near = size < precision(x)
    middle = jnp.where(near, 0.5, size)
    left = -math.pi / (middle * sin_pi(middle)) / right
    left = jnp.where(near, -1.0 / size, left)
    left = jnp.where(_is_whole(x), jnp.nan, left)
    zero = jnp.where(jnp.signbit(x), -jnp.inf, jnp.inf)
    return jnp.where(x == 0.0, zero, jnp.where(x < 0.0, left, right))


def betaln(a: ArrayLike, b: ArrayLike) -> Array:
    """Compute ``log(abs(beta(a, b)))``, accurate if one argument is much larger.

    Args:
        a, b: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.betaln(jnp.array([2., 1e6]), 3.), 3)
        Array([ -2.485, -40.753], dtype=float32)
    """
    return log_beta(*promote_args_inexact("betaln", a, b))


@with_derivatives(
    lambda t, out, a, b: t * out * (lax.digamma(a) - lax.digamma(a + b)),
    lambda t, out, a, b: t * out * (lax.digamma(b) - lax.digamma(a + b)),
)
def _beta(a: Any, b: Any) -> Any:
    # The product has more digits than an exponential.
    moderate = (jnp.abs(a) < 16.0) & (jnp.abs(b) < 16.0)
    product = real_gamma(a) * (real_gamma(b) / real_gamma(a + b))
    return jnp.where(moderate & jnp.isfinite(product), product, _beta_far(a, b))


def _beta_far(a: Any, b: Any) -> Any:
    """The beta function by Stirling's formula; one of the operands is not small."""
    least, most, total = jnp.minimum(a, b), jnp.maximum(a, b), a + b
    # By gamma(x) gamma(1 - x) = pi / sin(pi x), it is one of positive operands, or its reciprocal.
    ascends = (most < 0.0) | (total > 0.0)
    first = jnp.where(least >= 0.0, least, jnp.where(ascends, 1.0 - least, most))
    second = jnp.where(total > 0.0, total, 1.0 - total)
    second = jnp.where(most < 0.0, 1.0 - most, second)
    positive = _beta_right(first, jnp.where(least >= 0.0, most, second))
    sine, sine_of_total = sin_pi(least), sin_pi(total)
    both = math.pi / sin_pi(most) * (sine_of_total / sine) / (1.0 - total)
    factor = jnp.where(most < 0.0, both, math.pi / (sine * most))
    mirrored = jnp.where(ascends, factor / positive, sine_of_total / sine * positive)
    pole = ((least < 0.0) & _is_whole(least)) | ((most < 0.0) & _is_whole(most))
    result = jnp.where(pole, jnp.nan, jnp.where(least < 0.0, mirrored, positive))
    result = jnp.where(jnp.isinf(most) & (least > 0.0), 0.0, result)
    return jnp.where(least == 0.0, 1.0 / least, result)


def _beta_right(a: Any, b: Any) -> Any:
    """The beta function of positive numbers, one of which is at least 2."""
    small, large = jnp.minimum(a, b), jnp.maximum(a, b)
    gamma = _gamma_right(jnp.where(small < 2.0, small, 1.0))
    return gamma * jnp.exp(betaln_large(small, large, 0.0))


def beta(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the beta function ``gamma(a) gamma(b) / gamma(a + b)``.

    Args:
        a, b: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.beta(jnp.array([1., 2.]), 2.), 3)
        Array([0.5  , 0.167], dtype=float32)
    """
    a, b = strong_operands("beta", a, b)
    return _beta(a, b)


@explained
def factorial(n: ArrayLike, exact: bool = False) -> Array:
    """Compute ``gamma(n + 1)``, and 0 for negative ``n``.

    Args:
        n: array of real numbers; integers are converted to floats.
        exact: must be False.

    Returns:
        Floats of the shape of ``n``, integers for integral ``n`` if the dtype can represent them.

    Raises:
        NotImplementedError: if ``exact`` is True, which needs unbounded integers.
        ValueError: if an argument is complex.

    Example:
        >>> gf.scipy.special.factorial(jnp.array([0, 5, -1]))
        Array([  1., 120.,   0.], dtype=float32)
    """
    if exact:
        raise NotImplementedError(
            "[factorial] exact must be False, arrays hold no unbounded integers; got True. "
            "Fix: math.factorial."
        )
    (n,) = real_operands("factorial", n)
    # No maximum, whose derivative at 0 is half of this one.
    return jnp.where(n < 0.0, 0.0, real_gamma(jnp.where(n < 0.0, 0.0, n) + 1.0))


def _choose_few(n: Any, k: Any) -> Any:
    """The binomial coefficient for a whole ``k <= _FEW``: each product is one too, and so exact."""

    def step(i: Any, value: Any) -> Any:
        j = scalar_like(i + 1, value)
        return jnp.where(j <= k, value * (n - k + j) / j, value)

    return lax.fori_loop(0, _FEW, step, jnp.ones_like(n), unroll=True)


def _choose_slope(n: Any, k: Any) -> Any:
    return lax.digamma(n + 1.0) - lax.digamma(n - k + 1.0)


@with_derivatives(
    lambda t, out, n, k: t * jnp.where(out == 0.0, 0.0, out * _choose_slope(n, k)),
    lambda t, out, n, k: (
        t * jnp.where(out == 0.0, 0.0, out * (lax.digamma(n - k + 1.0) - lax.digamma(k + 1.0)))
    ),
)
def _choose(n: Any, k: Any) -> Any:
    n, k = jnp.broadcast_arrays(n, k)
    possible = (k <= n) & (n >= 0.0) & (k >= 0.0)
    n, k = jnp.where(possible, n, 0.0), jnp.where(possible, k, 0.0)
    fewer = jnp.where(_is_whole(n), jnp.minimum(k, n - k), k)
    few = _is_whole(fewer) & (fewer <= _FEW)
    by_log = jnp.exp(log_choose(n, k))
    result = jnp.where(few, _choose_few(n, jnp.where(few, fewer, 0.0)), by_log)
    return jnp.where(possible, result, 0.0)


@explained
def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False) -> Array:
    """Return the number of ways to choose ``k`` of ``N`` things.

    Args:
        N: number of things, real numbers.
        k: number of chosen things; it broadcasts with ``N``.
        repetition: whether things may be chosen repeatedly.

    Returns:
        Floats of the common shape; 0 if ``k > N``, or one of them is negative.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> gf.scipy.special.comb(5, jnp.array([2, 6]))
        Array([10.,  0.], dtype=float32)
        >>> gf.scipy.special.comb(5, 2, repetition=True)
        Array(15., dtype=float32, weak_type=True)
    """
    n, k = real_operands("comb", N, k)
    if not repetition:
        return _choose(n, k)
    return jnp.where((k == 0.0) & (n >= 0.0), 1.0, _choose(n + k - 1.0, k))


@with_derivatives(
    lambda t, out, z, m: t * out * (lax.digamma(z + m) - lax.digamma(z)),
    lambda t, out, z, m: t * out * lax.digamma(z + m),
)
def _poch(z: Any, m: Any) -> Any:
    total = z + m
    # Where both are poles, the quotient of their residues is one of factorials.
    descending = _is_whole(z) & (z <= 0.0) & _is_whole(m)
    ends = total <= 0.0
    flipped = descending & ends
    high = jnp.where(flipped, 1.0 - z, total)
    low = jnp.where(flipped, 1.0 - total, z)
    numerator, denominator = real_gamma(high), real_gamma(low)
    representable = jnp.isfinite(numerator) & jnp.isfinite(denominator) & (denominator != 0.0)
    far = (high > 0.0) & (low > 0.0) & ~representable
    by_log = jnp.exp(log_rising_far(jnp.where(far, low, 1.0), jnp.where(far, m, 1.0)))
    by_log = jnp.where(jnp.isinf(m) & jnp.isfinite(z), jnp.inf, by_log)
    result = jnp.where(far, by_log, numerator / denominator)
    # A pole above makes it infinite; one below makes it 0.
    result = jnp.where(_is_whole(total) & ends & ~flipped, jnp.inf, result)
    result = jnp.where(descending & ~ends, 0.0, result)
    sign = 1.0 - 2.0 * (m - 2.0 * jnp.floor(0.5 * m))
    result = jnp.where(flipped, sign * result, result)
    return jnp.where(m == 0.0, 1.0, result)


@explained
def poch(z: ArrayLike, m: ArrayLike) -> Array:
    """Return the rising factorial ``gamma(z + m) / gamma(z)``.

    Args:
        z, m: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.poch(jnp.array([1., 2.]), 3.), 3)
        Array([ 6., 24.], dtype=float32)
    """
    return _poch(*strong_operands("poch", z, m))


@explained
def multigammaln(a: ArrayLike, d: ArrayLike) -> Array:
    """Return the logarithm of the gamma function of dimension ``d``.

    Args:
        a: array of real numbers, each above ``(d - 1) / 2``.
        d: the dimension, a static int.

    Returns:
        Floats of the shape of ``a``.

    Raises:
        ValueError: if an argument is complex.
        TypeError: if ``d`` is not an int.

    Example:
        >>> jnp.round(gf.scipy.special.multigammaln(jnp.array([2., 3.]), 2), 3)
        Array([0.452, 1.55 ], dtype=float32)
    """
    d = as_integer("multigammaln", "d", d)
    (a,) = strong_operands("multigammaln", a)
    total = lax.full_like(a, 0.25 * d * (d - 1) * math.log(math.pi))
    for k in range(d):
        total = total + lax.lgamma(a - 0.5 * k)
    return total


def gammainc(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized lower incomplete gamma function.

    Args:
        a: array of positive numbers, the order.
        x: nonnegative numbers, the upper limit of the integral of ``t**(a - 1) exp(-t)`` from 0; it
            broadcasts with ``a``.

    Returns:
        Floats of the common shape and dtype, in [0, 1].

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.gammainc(1., jnp.array([0., 1.])), 3)
        Array([0.   , 0.632], dtype=float32)
    """
    return lax.igamma(*promote_args_inexact("gammainc", a, x))


def gammaincc(a: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized upper incomplete gamma function, ``1 - gammainc(a, x)``.

    Args:
        a: array of positive numbers, the order.
        x: nonnegative numbers, the lower limit of the integral of ``t**(a - 1) exp(-t)``; it
            broadcasts with ``a``.

    Returns:
        Floats of the common shape and dtype, in [0, 1].

    Raises:
        TypeError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.gammaincc(1., jnp.array([0., 1.])), 3)
        Array([1.   , 0.368], dtype=float32)
    """
    return lax.igammac(*promote_args_inexact("gammaincc", a, x))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Array:
    """Return the regularized incomplete beta function; differentiable in all operands.

    Args:
        a, b: positive numbers, the orders.
        x: numbers in [0, 1], the upper limit of the integral of ``t**(a - 1) (1 - t)**(b - 1)``
            from 0; all broadcast.

    Returns:
        Floats of the common shape and dtype, in [0, 1].

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.betainc(2., 2., jnp.array([0.25, 0.5])), 3)
        Array([0.156, 0.5  ], dtype=float32)
    """
    return lax.betainc(*jnp.broadcast_arrays(*real_operands("betainc", a, b, x)))


@explained
def polygamma(n: ArrayLike, x: ArrayLike) -> Array:
    """Return the ``n``-th derivative of ``digamma``.

    Args:
        n: integers >= 0.
        x: array of real numbers; it broadcasts with ``n``.

    Returns:
        Floats of the common shape.

    Raises:
        ValueError: if orders are not integers, or an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.polygamma(1, jnp.array([1., 2.])), 3)
        Array([1.645, 0.645], dtype=float32)
    """
    if not dtypes.is_integer(aval_of(n).dtype):
        raise ValueError(
            "[polygamma] Argument `n` must be of integer type; got "
            f"{aval_of(n)}. Fix: n.astype(jnp.int32)."
        )
    return lax.polygamma(*real_operands("polygamma", n, x))
