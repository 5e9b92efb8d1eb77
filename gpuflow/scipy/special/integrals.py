"""Fresnel integrals and the dilogarithm.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import strong
from gpuflow.scipy.special import tables
from gpuflow.scipy.special.common import (
    chebyshev,
    kernel,
    on_interval,
    on_ray,
    strong_operands,
    with_derivatives,
)

# The square at the limit between the series and the auxiliary functions.
_FRESNEL_SQUARE = 2.5


def _square_modulo_4(x: Any) -> Any:
    """``x**2`` modulo 4, from the integer n and the fraction r of x: n**2 + 2 n r + r**2.

    ``n r`` is exact: a float with a fraction r has bits for both.
    """
    whole = jnp.round(x)
    fraction = x - whole
    odd = whole - 2.0 * jnp.floor(0.5 * whole)
    return odd + 2.0 * lax.rem(whole * fraction, jnp.full_like(x, 2.0)) + fraction * fraction


def _sine_and_cosine(x: Any) -> tuple[Any, Any]:
    """Of ``pi x**2 / 2``."""
    angle = 0.5 * math.pi * _square_modulo_4(x)
    return jnp.sin(angle), jnp.cos(angle)


def _fresnel_right(x: Any) -> tuple[Any, Any]:
    """Both integrals of x >= 0. Source of the auxiliary functions: DLMF 7.2.10, 7.5.3, 7.5.4."""
    square = jnp.square(jnp.minimum(x, 2.0))
    argument = on_interval(0.0, 6.25, jnp.square(square))
    near_sine = x * square * chebyshev(tables.FRESNEL_S, argument)
    near_cosine = x * chebyshev(tables.FRESNEL_C, argument)
    # Beyond 1e18 the integrals are 1/2 in both precisions, and the square may overflow.
    far = jnp.minimum(x, 1e18)
    inverse = 1.0 / (math.pi * jnp.maximum(far, 1.0))
    argument = on_ray(_FRESNEL_SQUARE, 6.0, jnp.square(far))
    f = chebyshev(tables.FRESNEL_F, argument) * inverse
    g = chebyshev(tables.FRESNEL_G, argument) * inverse * inverse / jnp.maximum(far, 1.0)
    sine, cosine = _sine_and_cosine(far)
    near = x * x < _FRESNEL_SQUARE
    return (
        jnp.where(near, near_sine, 0.5 - f * cosine - g * sine),
        jnp.where(near, near_cosine, 0.5 + f * sine - g * cosine),
    )


def _fresnel_rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    sine, cosine = _sine_and_cosine(x)
    return _fresnel(x), (t * sine, t * cosine)


@custom_jvp
@kernel
def _fresnel(x: Any) -> tuple[Any, Any]:
    sine, cosine = _fresnel_right(jnp.abs(x))
    negative = x < 0.0
    return jnp.where(negative, -sine, sine), jnp.where(negative, -cosine, cosine)


_fresnel.defjvp(_fresnel_rule)


def fresnel(x: ArrayLike) -> tuple[Array, Array]:
    """Compute the Fresnel integrals of the sine and cosine of ``pi t**2 / 2`` from 0 to x.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        (S, C), floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> s, c = gf.scipy.special.fresnel(jnp.array([1.]))
        >>> jnp.round(s, 3), jnp.round(c, 3)
        (Array([0.438], dtype=float32), Array([0.78], dtype=float32))
    """
    return _fresnel(*strong_operands("fresnel", x))


def _spence_slope(x: Any) -> Any:
    """``log(x) / (1 - x)``, which is -1 at 1."""
    offset = x - 1.0
    near = jnp.abs(offset) < 0.5
    safe = jnp.where(offset == 0.0, 1.0, offset)
    log = jnp.where(near, jnp.log1p(jnp.where(near, safe, 0.0)), jnp.log(x))
    return jnp.where(offset == 0.0, -1.0, -log / safe)


@with_derivatives(lambda t, out, x: t * _spence_slope(x))
def _spence(x: Any) -> Any:
    # Reflections bring x to (1/2, 3/2). Source: DLMF 25.12.4 and 25.12.6.
    large, small = x > 1.5, x < 0.5
    # x above 2 is its reciprocal; both large cases then are the reciprocal less 1.
    inverse = 1.0 / jnp.where(large, x, 1.0)
    flipped = large & (inverse < 0.5)
    w = jnp.where(flipped, -inverse, jnp.where(large, inverse - 1.0, jnp.where(small, -x, x - 1.0)))
    core = -w * chebyshev(tables.DILOGARITHM, on_interval(-0.5, 0.5, w))
    y = jnp.where(flipped, inverse, x)
    reflect = small | flipped
    # x log(x) vanishes at 0; so does the product of the logarithms.
    safe = jnp.where(reflect & (y > 0.0), y, 0.5)
    product = jnp.where(y == 0.0, 0.0, jnp.log(safe) * jnp.log1p(-safe))
    core = jnp.where(reflect, math.pi**2 / 6.0 - product - core, core)
    log = jnp.log(jnp.where(large, x, 1.0))
    result = jnp.where(large, -0.5 * log * log - core, core)
    result = jnp.where(jnp.isposinf(x), -jnp.inf, result)
    return jnp.where(x >= 0.0, result, jnp.nan)


def spence(x: ArrayLike) -> Array:
    """Compute the dilogarithm of ``1 - x``, integral of ``log(t) / (1 - t)`` from 1; nan below 0.

    Args:
        x: f32[...] or f64[...].

    Returns:
        Floats of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> jnp.round(gf.scipy.special.spence(jnp.array([0., 1.])), 3) + 0.0
        Array([1.645, 0.   ], dtype=float32)
    """
    x = jnp.asarray(x)
    if aval_of(x).dtype not in (np.float32, np.float64):
        raise TypeError(
            f"[spence] x must be float32 or float64, its dtype is not supported; got "
            f"{aval_of(x)}. Fix: x.astype(jnp.float32)."
        )
    return _spence(strong(x))
