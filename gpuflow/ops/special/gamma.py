"""The gamma function and its relatives: lgamma, digamma, polygamma, zeta, igamma.

lgamma and digamma are computed in kernels, and so are the others for at most 32 bits; else they are
calls of SciPy (CuPy) on full arrays.

Tests: tests/ops/test_special_functions.py, tests/ops/test_special_points.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, mul, neg, sub
from gpuflow.ops.elementwise.comparison import bitwise_or, eq
from gpuflow.ops.elementwise.nary import elementwise, match_scalars, widened
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.elementwise.transcendental import exp, log
from gpuflow.ops.special.error_functions import from_library, load_special
from gpuflow.ops.special.expressions import fits_single
from gpuflow.ops.special.hurwitz_zeta import digamma_body, polygamma_body, zeta_body
from gpuflow.ops.special.incomplete_gamma import (
    igamma_body,
    igamma_grad_a_body,
    igammac_body,
    random_gamma_grad_body,
)
from gpuflow.ops.special.large_gamma import gammainc, gammaincc

_FLOAT = {"accepts": dtypes.is_floating, "what": "a real float"}


def _reference(name: str) -> Any:
    return lambda *xs: getattr(load_special(np), name)(*xs)


def no_derivative(name: str, operand: str) -> Any:
    """A derivative rule that raises: the derivative exists, but is not implemented."""

    def refuse(*args: Any) -> Any:
        del args
        raise ValueError(
            f"[{name}] derivatives by {operand} are not available; got a tangent for it. "
            f"Fix: lax.stop_gradient({operand}), or custom_jvp."
        )

    return refuse


# --- one operand ---------------------------------------------------------------------------


def _lgamma_impl(xp: Any, x: Any) -> Any:
    return xp.where(xp.isinf(x), np.inf, load_special(xp).gammaln(x))


lgamma_p = elementwise(
    "lgamma",
    impl=widened(_lgamma_impl),
    **_FLOAT,
    body="lgamma",
    derivatives=(lambda t, out, x: mul(t, digamma(x)),),
    domain=((0.2, 8.0),),
    reference=lambda x: _lgamma_impl(np, x),
    # The result passes through 0 at 1 and 2: an error of one unit in the last place of the terms.
    tolerance=40,
)

digamma_p = elementwise(
    "digamma",
    impl=from_library("digamma"),
    **_FLOAT,
    body=digamma_body,
    derivatives=(lambda t, out, x: mul(t, polygamma(_like(1, x), x)),),
    domain=((0.2, 8.0),),
    reference=_reference("digamma"),
    tolerance=40,
)


def _like(value: float, x: Any) -> Any:
    return np.asarray(value, aval_of(x).dtype)[()]


# --- several operands ----------------------------------------------------------------------


def _in_float64(impl: Any) -> Any:
    """``impl`` in float64, which rounds once if operands are narrower."""
    return lambda xp, *xs: impl(xp, *[x.astype(np.float64) for x in xp.broadcast_arrays(*xs)])


def _zeta_impl(xp: Any, s: Any, q: Any) -> Any:
    """The library's for q > 0, without its nan from infinity times 0 for large s.

    For q < 0 and integer s, the terms after 0 are those of q's fraction, and those before it are,
    except for signs, the difference of two such sums.
    """
    library, fraction = load_special(xp), q - xp.floor(q)

    def positive(q: Any) -> Any:
        out = library.zeta(s, q)
        return xp.where(xp.isnan(out) & (s > 1) & (q > 1), 0.0, out)

    negative = (q < 0) & xp.isfinite(q) & (fraction != 0)
    out, before = positive(xp.where(negative, fraction, q)), positive(1 - fraction)
    before = before - xp.where(xp.isinf(before), 0.0, positive(xp.where(negative, 1 - q, 1.0)))
    both = xp.where(s % 2 == 1, out - before, out + before)
    both = xp.where(s == xp.floor(s), both, np.nan)
    return xp.where(s == 1, np.inf, xp.where(negative, both, out))


def _polygamma_impl(xp: Any, m: Any, x: Any) -> Any:
    """``(-1)**(m + 1) m! zeta(m + 1, x)``; Abramowitz and Stegun, 6.4.10."""
    library = load_special(xp)
    sign = xp.where(m % 2 == 1, 1.0, -1.0)
    log_scale, size = library.gammaln(m + 1), _zeta_impl(xp, m + 1, x)
    scale = xp.exp(log_scale)
    # The factorial overflows before the product does, and the other factor underflows.
    log_size = xp.where(size > 0, xp.log(xp.abs(size)), -(m + 1) * xp.log(xp.abs(x)))
    by_log = xp.isinf(scale) & (size >= 0) & xp.isfinite(size)
    higher = sign * xp.where(by_log, xp.exp(log_scale + log_size), scale * size)
    out = xp.where(m == 0, library.digamma(x), higher)
    return xp.where((m < 0) | xp.isinf(m) | (m != xp.floor(m)), np.nan, out)


polygamma_p = elementwise(
    "polygamma",
    impl=_in_float64(_polygamma_impl),
    **_FLOAT,
    body=polygamma_body,
    holds=fits_single,
    arity=2,
    derivatives=(
        no_derivative("polygamma", "m"),
        lambda t, out, m, x: mul(t, polygamma(add(m, 1), x)),
    ),
    domain=((1.0, 1.0), (0.4, 6.0)),
    tolerance=100,
)

zeta_p = elementwise(
    "zeta",
    impl=_in_float64(_zeta_impl),
    **_FLOAT,
    body=zeta_body,
    holds=fits_single,
    arity=2,
    derivatives=(
        no_derivative("zeta", "x"),
        lambda t, out, x, q: mul(mul(t, neg(x)), zeta(add(x, 1), q)),
    ),
    domain=((1.3, 5.0), (0.4, 6.0)),
    reference=lambda s, q: _zeta_impl(np, s, q),
    tolerance=40,
)


def _gamma_density(a: Any, x: Any) -> Any:
    """``x**(a - 1) exp(-x) / Gamma(a)``; 0 if one is infinite."""
    infinite = bitwise_or(eq(a, np.inf), eq(x, np.inf))
    a, x = where(infinite, 1, a), where(infinite, 1, x)
    return where(infinite, 0, exp(sub(sub(power_term(a, log(x)), x), lgamma(a))))


def power_term(a: Any, log_x: Any) -> Any:
    """``(a - 1) log(x)``; 0 if ``a`` is 1 even if ``x`` is 0."""
    is_one = eq(a, 1)
    return where(is_one, 0, mul(sub(a, 1), where(is_one, 0, log_x)))


igamma_p = elementwise(
    "igamma",
    impl=widened(gammainc),
    **_FLOAT,
    body=igamma_body,
    holds=fits_single,
    arity=2,
    derivatives=(
        lambda t, out, a, x: mul(t, igamma_grad_a(a, x)),
        lambda t, out, a, x: mul(t, _gamma_density(a, x)),
    ),
    domain=((0.5, 5.0), (0.3, 6.0)),
    reference=_reference("gammainc"),
    tolerance=40,
)

igammac_p = elementwise(
    "igammac",
    impl=widened(gammaincc),
    **_FLOAT,
    body=igammac_body,
    holds=fits_single,
    arity=2,
    derivatives=(
        lambda t, out, a, x: neg(mul(t, igamma_grad_a(a, x))),
        lambda t, out, a, x: neg(mul(t, _gamma_density(a, x))),
    ),
    domain=((0.5, 5.0), (0.3, 6.0)),
    reference=_reference("gammaincc"),
    tolerance=40,
)

# Weights of the fourth-order difference quotient.
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


def _log_slope(xp: Any, function: Any, a: Any, x: Any) -> Any:
    """Derivative by ``a`` of the logarithm of an incomplete gamma function."""
    step = 1e-3 * xp.where(a > 1, xp.sqrt(a), a)
    total = sum(weight * xp.log(function(xp, a + k * step, x)) for k, weight in _STENCIL)
    return total / step


def _slope_by_a(xp: Any, a: Any, x: Any) -> tuple[Any, Any]:
    """Derivative of igamma by ``a`` as a product: a value, and the slope of its logarithm.

    Differences of the logarithm of the smaller of igamma and igammac retain their relative
    precision in both tails; in float64 the product has an error of about 1e-9.
    """
    low, high = gammainc(xp, a, x), gammaincc(xp, a, x)
    lower = low <= high
    value = xp.where(lower, low, -high)
    slope = xp.where(lower, _log_slope(xp, gammainc, a, x), _log_slope(xp, gammaincc, a, x))
    return value, slope


# For larger orders, a sample is the order plus a normal number times its root; differences lose
# digits.
_NORMAL = 1e7


def _igamma_grad_impl(xp: Any, a: Any, x: Any) -> Any:
    a, x = (v.astype(np.float64) for v in xp.broadcast_arrays(a, x))
    value, slope = _slope_by_a(xp, a, x)
    # It is negative, also if it underflows to 0.
    out = xp.where(value == 0, -0.0, value * slope)
    out = xp.where((x == 0) | xp.isinf(x) | xp.isinf(a), 0.0, out)
    mu = (x - a) / a
    log_density = -a * (mu - xp.log1p(mu)) - xp.log(x) + 0.5 * xp.log(a / (2 * np.pi))
    normal = -xp.exp(log_density) * _sample_slope_far(xp, a, x)
    out = xp.where((a > _NORMAL) & (value != 0), normal, out)
    return xp.where((a <= 0) | (x < 0) | xp.isnan(a + x), np.nan, out)


igamma_grad_a_p = elementwise(
    "igamma_grad_a",
    impl=_igamma_grad_impl,
    **_FLOAT,
    body=igamma_grad_a_body,
    holds=fits_single,
    arity=2,
    derivatives=(
        no_derivative("igamma_grad_a", "a"),
        lambda t, out, a, x: mul(t, mul(_gamma_density(a, x), sub(log(x), digamma(a)))),
    ),
    domain=((0.5, 5.0), (0.3, 6.0)),
)


def _sample_slope_far(xp: Any, a: Any, x: Any) -> Any:
    """Derivative of a sample by ``a``, far from the median and for very large ``a``.

    The lower function is about ``x**a / Gamma(a + 1)`` times a geometric series, the upper one the
    density over ``1 + (1 - a) / x``.
    """
    digamma = load_special(xp).digamma
    ratio = x / (a + 1)
    series = 1 / (1 - ratio)
    lower = -(x / a) * series * (xp.log(x) - digamma(a + 1) - ratio * series / (a + 1))
    denominator = x + 1 - a
    upper = x / denominator * (xp.log(x) - digamma(a) + 1 / denominator)
    normal = 1 + (x - a) / (2 * a)
    central = (a > _NORMAL) & (xp.abs(x - a) < 0.01 * a)
    return xp.where(central, normal, xp.where(x < a, lower, upper))


def _random_gamma_grad_impl(xp: Any, a: Any, x: Any) -> Any:
    """``- d igamma / da`` over the density: derivative of a sample at a fixed quantile."""
    a, x = (v.astype(np.float64) for v in xp.broadcast_arrays(a, x))
    library = load_special(xp)
    value, slope = _slope_by_a(xp, a, x)
    log_density = (a - 1) * xp.log(x) - x - library.gammaln(a)
    out = -value * xp.exp(-log_density) * slope
    is_near = xp.isfinite(out) & (value != 0) & (a <= _NORMAL)
    out = xp.where(is_near, out, _sample_slope_far(xp, a, x))
    out = xp.where(x == 0, 0.0, xp.where(xp.isinf(x), np.inf, out))
    invalid = (a <= 0) | (xp.isinf(a) & (x > 0)) | (x < 0) | xp.isnan(a + x)
    return xp.where(invalid, np.nan, out)


random_gamma_grad_p = elementwise(
    "random_gamma_grad",
    impl=_random_gamma_grad_impl,
    **_FLOAT,
    body=random_gamma_grad_body,
    holds=fits_single,
    arity=2,
    derivatives=tuple(no_derivative("random_gamma_grad", operand) for operand in "ax"),
    domain=((0.5, 5.0), (0.3, 6.0)),
)


# --- public functions ----------------------------------------------------------------------


def lgamma(x: ArrayLike) -> Array:
    """Elementwise logarithm of the absolute value of the gamma function.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.lgamma(jnp.array([1.0, 5.0])).round(3)
        Array([0.   , 3.178], dtype=float32)
    """
    return lgamma_p.bind(x)


def digamma(x: ArrayLike) -> Array:
    """Elementwise derivative of ``lgamma``.

    Args:
        x: array of real floats.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> lax.digamma(jnp.array([1.0, 2.0])).round(3)
        Array([-0.577,  0.423], dtype=float32)
    """
    return digamma_p.bind(x)


def polygamma(m: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise m-th derivative of ``digamma``.

    Args:
        m: array of integers >= 0, real floats.
        x: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.polygamma(1.0, 1.0).round(3), round(np.pi**2 / 6, 3)
        (Array(1.645, dtype=float32, weak_type=True), 1.645)
    """
    return polygamma_p.bind(*match_scalars(m, x))


def zeta(x: ArrayLike, q: ArrayLike) -> Array:
    """Elementwise Hurwitz zeta function: the sum of ``(q + k)**-x`` over k >= 0.

    Args:
        x: array of real floats above 1.
        q: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.zeta(2.0, 1.0).round(3)
        Array(1.645, dtype=float32, weak_type=True)
    """
    return zeta_p.bind(*match_scalars(x, q))


def igamma(a: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise regularized lower incomplete gamma function; differentiable in both arguments.

    Args:
        a: array of positive real floats.
        x: array of the same dtype, nonnegative; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.igamma(1.0, jnp.array([0.0, 1.0])).round(3)
        Array([0.   , 0.632], dtype=float32)
    """
    return igamma_p.bind(*match_scalars(a, x))


def igammac(a: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise ``1 - igamma(a, x)``, precise in the upper tail.

    Args:
        a: array of positive real floats.
        x: array of the same dtype, nonnegative; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.igammac(1.0, jnp.array([0.0, 1.0])).round(3)
        Array([1.   , 0.368], dtype=float32)
    """
    return igammac_p.bind(*match_scalars(a, x))


def igamma_grad_a(a: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise derivative of ``igamma`` with respect to ``a``, accurate to about 1e-9.

    Args:
        a: array of positive real floats.
        x: array of the same dtype, nonnegative; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.igamma_grad_a(1.0, 1.0).round(3)
        Array(-0.432, dtype=float32, weak_type=True)
    """
    return igamma_grad_a_p.bind(*match_scalars(a, x))


def random_gamma_grad(a: ArrayLike, x: ArrayLike) -> Array:
    """Elementwise derivative of a sample ``x`` of the gamma distribution with respect to ``a``.

    Args:
        a: array of positive real floats, the shape parameters.
        x: the samples, of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        An array of that dtype and the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Source: M. Figurnov, S. Mohamed, A. Mnih, Implicit reparameterization gradients, 2018.

    Example:
        >>> lax.random_gamma_grad(1.0, 1.0).round(3)
        Array(1.174, dtype=float32, weak_type=True)
    """
    return random_gamma_grad_p.bind(*match_scalars(a, x))
