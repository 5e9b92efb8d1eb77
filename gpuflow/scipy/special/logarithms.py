"""Products with logarithms, entropies, and the logistic functions.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import promote_args_inexact
from gpuflow.scipy.special.common import (
    horner,
    real_operands,
    typed_operands,
    with_derivatives,
)
from gpuflow.scipy.special.stirling import deviance, log_ratio


def expit(x: ArrayLike) -> Array:
    """Compute ``1 / (1 + exp(-x))`` without overflow.

    Args:
        x: array of real or complex numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``; complex for complex numbers.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.expit(jnp.array([0., 2., -1000.])), 3)
        Array([0.5  , 0.881, 0.   ], dtype=float32)
    """
    (x,) = promote_args_inexact("expit", x)
    return lax.logistic(x)


# Of 1 / (x (1 - x)) the second derivative would be a difference of infinities where it overflows.
@with_derivatives(lambda t, out, x: t * (1.0 / x + 1.0 / (1.0 - x)))
def _logit(x: Any) -> Any:
    # Near 1/2 the quotient is near 1, and its rounding error counts; 1 / complement is about 2
    # there, and elsewhere the error is below the last digit.
    complement = 1.0 - x
    quotient = x / complement
    lost = (2.0 * x - 1.0) - (quotient - 1.0) * complement
    return jnp.log(quotient) + jnp.where(jnp.abs(quotient) < 4.0, 2.0 * lost, 0.0)


def logit(x: ArrayLike) -> Array:
    """Compute ``log(x / (1 - x))``, the inverse of ``expit``; nan outside of [0, 1].

    Args:
        x: array of real or complex numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``; complex for complex numbers.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.logit(jnp.array([0.5, 0.75])), 3)
        Array([0.   , 1.099], dtype=float32)
    """
    (x,) = promote_args_inexact("logit", x)
    return _logit(x)


def _share(x: Any, y: Any) -> Any:
    """``x / y``, and 0 where ``x`` is 0."""
    return jnp.where(x == 0.0, 0.0, x / jnp.where(x == 0.0, 1.0, y))


@with_derivatives(lambda t, out, x, y: t * jnp.log(y), lambda t, out, x, y: t * _share(x, y))
def _xlogy(x: Any, y: Any) -> Any:
    # 0 times nan is nan, whatever else 0 makes vanish.
    return jnp.where((x == 0.0) & ~jnp.isnan(y), 0.0, x * jnp.log(y))


def xlogy(x: ArrayLike, y: ArrayLike) -> Array:
    """Compute ``x * log(y)``, and 0 if ``x`` is 0 and ``y`` is not nan.

    Args:
        x, y: arrays that broadcast; integers are converted to floats.

    Returns:
        Floats or complex numbers of the common shape and dtype.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.xlogy(jnp.array([0., 2.]), jnp.array([0., 3.])), 3)
        Array([0.   , 2.197], dtype=float32)
    """
    return _xlogy(*promote_args_inexact("xlogy", x, y))


@with_derivatives(
    lambda t, out, x, y: t * jnp.log1p(y), lambda t, out, x, y: t * _share(x, 1.0 + y)
)
def _xlog1py(x: Any, y: Any) -> Any:
    return jnp.where((x == 0.0) & ~jnp.isnan(y), 0.0, x * jnp.log1p(y))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Array:
    """Compute ``x * log1p(y)``, and 0 if ``x`` is 0 and ``y`` is not nan.

    Args:
        x, y: arrays that broadcast; integers are converted to floats.

    Returns:
        Floats or complex numbers of the common shape and dtype.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.xlog1py(jnp.array([0., 2.]), jnp.array([-1., 2.])), 3)
        Array([0.   , 2.197], dtype=float32)
    """
    return _xlog1py(*promote_args_inexact("xlog1py", x, y))


# -0.0 is the end of the domain as 0.0 is: 1 / x must be positive there.
@with_derivatives(lambda t, out, x: -t * (jnp.log(jnp.where(x == 0.0, jnp.abs(x), x)) + 1.0))
def _entr(x: Any) -> Any:
    return jnp.where(x < 0.0, -np.inf, jnp.where(x == 0.0, 0.0, -x * jnp.log(x)))


def entr(x: ArrayLike) -> Array:
    """Compute the entropy ``-x * log(x)``: 0 at 0 and -inf below.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.entr(jnp.array([0., 0.5, -1.])), 3)
        Array([0.   , 0.347,  -inf], dtype=float32)
    """
    return _entr(*real_operands("entr", x))


def _both_positive(p: Any, q: Any) -> Any:
    return (p > 0.0) & (q > 0.0)


@with_derivatives(
    lambda t, out, p, q: t * jnp.where(_both_positive(p, q), log_ratio(p, q) + 1.0, 0.0),
    lambda t, out, p, q: t * jnp.where(_both_positive(p, q), -p / q, 0.0),
)
def _rel_entr(p: Any, q: Any) -> Any:
    edge = jnp.where((p == 0.0) & (q >= 0.0), 0.0, np.inf)
    result = jnp.where(_both_positive(p, q), p * log_ratio(p, q), edge)
    return jnp.where(jnp.isnan(p) | jnp.isnan(q), jnp.nan, result)


def rel_entr(p: ArrayLike, q: ArrayLike) -> Array:
    """Compute the relative entropy ``p * log(p / q)``: 0 if p is 0, inf if an argument is negative.

    Args:
        p, q: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.rel_entr(jnp.array([0., 2.]), jnp.array([1., 1.])), 3)
        Array([0.   , 1.386], dtype=float32)
    """
    return _rel_entr(*typed_operands("rel_entr", p, q))


@with_derivatives(
    lambda t, out, p, q: t * jnp.where(_both_positive(p, q), log_ratio(p, q), 0.0),
    lambda t, out, p, q: t * jnp.where((p >= 0.0) & (q > 0.0), 1.0 - _share(p, q), 0.0),
)
def _kl_div(p: Any, q: Any) -> Any:
    edge = jnp.where((p == 0.0) & (q >= 0.0), q, np.inf)
    result = jnp.where(_both_positive(p, q), deviance(p, q), edge)
    return jnp.where(jnp.isnan(p) | jnp.isnan(q), jnp.nan, result)


def kl_div(p: ArrayLike, q: ArrayLike) -> Array:
    """Compute ``p * log(p / q) - p + q``, accurate for p near q.

    Args:
        p, q: real arrays that broadcast; integers are converted to floats.

    Returns:
        Floats of the common shape and dtype; inf if an argument is negative.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.kl_div(jnp.array([0., 2.]), jnp.array([1., 1.])), 3)
        Array([1.   , 0.386], dtype=float32)
    """
    return _kl_div(*typed_operands("kl_div", p, q))


def _power_of_log(log: Any, lmbda: Any) -> Any:
    """``(exp(lmbda log) - 1) / lmbda``, whose limit at 0 is ``log``."""
    linear = lmbda == 0.0
    safe = jnp.where(linear, 1.0, lmbda)
    curved = jnp.expm1(safe * jnp.where(linear, 0.0, log)) / safe
    return jnp.where(linear, log, curved)


def _slope_by_lmbda(log: Any, lmbda: Any) -> Any:
    """``log**2 (exp(z) (z - 1) + 1) / z**2`` for ``z = lmbda log``; by its series near 0."""
    product = jnp.where(lmbda == 0.0, 0.0, lmbda * jnp.where(lmbda == 0.0, 0.0, log))
    small = jnp.abs(product) < 0.5
    near = horner(
        [(k + 1) / math.factorial(k + 2) for k in range(16)], jnp.where(small, product, 0.0)
    )
    z = jnp.where(small, 1.0, product)
    vanishes = jnp.isinf(z) & (jnp.exp(z) == 0.0)
    power = jnp.where(vanishes, 0.0, jnp.exp(z) * (jnp.where(vanishes, 0.0, z) - 1.0))
    far = (power + 1.0) / jnp.square(jnp.where(small, 1.0, lmbda))
    return jnp.where(small, near * jnp.square(jnp.where(small, log, 0.0)), far)


@with_derivatives(
    lambda t, out, x, lmbda: t * jnp.power(x, lmbda - 1.0),
    lambda t, out, x, lmbda: t * _slope_by_lmbda(jnp.log(x), lmbda),
)
def _boxcox(x: Any, lmbda: Any) -> Any:
    return _power_of_log(jnp.log(x), lmbda)


@with_derivatives(
    lambda t, out, x, lmbda: t * jnp.power(1.0 + x, lmbda - 1.0),
    lambda t, out, x, lmbda: t * _slope_by_lmbda(jnp.log1p(x), lmbda),
)
def _boxcox1p(x: Any, lmbda: Any) -> Any:
    return _power_of_log(jnp.log1p(x), lmbda)


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Return the Box-Cox transformation ``(x**lmbda - 1) / lmbda``, or ``log(x)`` where lmbda is 0.

    Args:
        x, lmbda: arrays that broadcast; integers are converted to floats.

    Returns:
        Floats or complex numbers of the common shape and dtype.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.boxcox(jnp.array([1., 4.]), 0.5), 3)
        Array([0., 2.], dtype=float32)
    """
    x, lmbda = map(lax.asarray, promote_args_inexact("boxcox", x, lmbda))
    return _boxcox(x, lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Array:
    """Compute the Box-Cox transformation of ``1 + x``, accurate near 0.

    Args:
        x, lmbda: arrays that broadcast; integers are converted to floats.

    Returns:
        Floats or complex numbers of the common shape and dtype.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.boxcox1p(jnp.array([0., 3.]), 0.5), 3)
        Array([0., 2.], dtype=float32)
    """
    x, lmbda = map(lax.asarray, promote_args_inexact("boxcox1p", x, lmbda))
    return _boxcox1p(x, lmbda)
