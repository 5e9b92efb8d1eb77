"""The gamma function and its logarithm, of complex numbers too.

Tests: tests/scipy_surface/test_special_accuracy.py, tests/scipy_surface/test_special_rules.py.
"""

from __future__ import annotations

import math
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import promote_args_inexact, strong
from gpuflow.scipy.special.common import is_complex, kernel
from gpuflow.scipy.special.gammas import real_gamma
from gpuflow.scipy.special.stirling import HALF_LOG_2_PI

# B_2k / (2k (2k - 1)), from the last one on. Source: DLMF 5.11.1.
_SERIES = (
    -3617 / 122400,
    1 / 156,
    -691 / 360360,
    1 / 1188,
    -1 / 1680,
    1 / 1260,
    -1 / 360,
    1 / 12,
)
# Steps up, after which the series is precise in float64.
_STEPS = 10
# From this size on it is precise without steps, whose products would overflow.
_FAR = 1e3


def _right_half(z: Any) -> Any:
    """The logarithm for a real part >= 1/2: ten steps up, then Stirling's series."""
    far = jnp.maximum(jnp.abs(jnp.real(z)), jnp.abs(jnp.imag(z))) >= _FAR
    near = jnp.where(far, 1.0, z)
    below: Any = 0.0
    for k in range(0, _STEPS, 2):
        # Arguments within pi / 2: the product of two does not cross the cut.
        below = below + jnp.log((near + k) * (near + (k + 1)))
    below = jnp.where(far, 0.0, below)
    w = jnp.where(far, z, near + _STEPS)
    inverse = 1.0 / w
    square = inverse * inverse
    series: Any = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * square + coefficient
    return (w - 0.5) * jnp.log(w) - w + HALF_LOG_2_PI + series * inverse - below


def _log_sine(z: Any) -> Any:
    """``log(sin(pi z))`` for an imaginary part >= 0, continuous there."""
    real, imaginary = jnp.real(z), jnp.imag(z)
    # exp(2 pi i z) has period 1 in the real part.
    angle = 2.0 * math.pi * (real - jnp.round(real))
    size = jnp.exp(-2.0 * math.pi * imaginary)
    # 1 - exp(2 pi i z), without cancellation near whole z.
    half_sine = jnp.sin(0.5 * angle)
    remainder = lax.complex(
        -jnp.expm1(-2.0 * math.pi * imaginary) + 2.0 * size * half_sine * half_sine,
        -size * jnp.sin(angle),
    )
    linear = lax.complex(math.pi * imaginary - math.log(2.0), math.pi * (0.5 - real))
    return linear + jnp.log(remainder)


def _is_pole(z: Any) -> Any:
    real = jnp.real(z)
    return (jnp.imag(z) == 0.0) & (real <= 0.0) & (real == jnp.floor(real))


@kernel
def _complex_loggamma(z: Any) -> Any:
    """Source: D. E. G. Hare, Computing the principal branch of log-Gamma, 1997."""
    bad = _is_pole(z) | jnp.isnan(z)
    z = jnp.where(bad, 1.0, z)
    left = jnp.real(z) < 0.5
    # The function of the conjugate is the conjugate; -0.0 is below the cut.
    lower = jnp.signbit(jnp.imag(z))
    mirrored = jnp.where(lower, jnp.conj(z), z)
    right = _right_half(jnp.where(left, 1.0 - mirrored, mirrored))
    reflected = math.log(math.pi) - _log_sine(jnp.where(left, mirrored, 0.5)) - right
    result = jnp.where(left, reflected, right)
    result = jnp.where(lower, jnp.conj(result), result)
    return jnp.where(bad, complex(math.nan, math.nan), result)


def loggamma(x: ArrayLike) -> Array:
    """Return the principal branch of the logarithm of the gamma function.

    Args:
        x: array of real or complex numbers; for real numbers below 0 the result is nan.

    Returns:
        Floats of the shape of ``x``; complex for complex numbers.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.loggamma(jnp.array([1., 5.])), 3)
        Array([0.   , 3.178], dtype=float32)
    """
    (x,) = promote_args_inexact("loggamma", x)
    if is_complex(x):
        return _complex_loggamma(strong(x))
    return jnp.where(x >= 0.0, lax.lgamma(x), jnp.nan)


def gamma(x: ArrayLike) -> Array:
    """Return the gamma function of real or complex numbers; nan at its poles.

    Args:
        x: array of real or complex numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``; complex for complex numbers.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.round(gf.scipy.special.gamma(jnp.array([0.5, 5., -1.])), 3)
        Array([ 1.772, 24.   ,    nan], dtype=float32)
    """
    x = strong(*promote_args_inexact("gamma", x))
    if not is_complex(x):
        return real_gamma(x)
    return jnp.exp(_complex_loggamma(x))
