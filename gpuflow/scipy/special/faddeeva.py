"""The Faddeeva function of complex numbers.

Tests: tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.promotion import convert, promote_args_inexact, strong
from gpuflow.scipy.special.common import with_derivatives

_ROOT_PI = math.sqrt(math.pi)


def _weideman(count: int) -> tuple[float, list[float]]:
    """The scale and the coefficients, highest power first, of Weideman's expansion.

    Source: J. A. C. Weideman, Computation of the complex error function, 1994, equation 38.
    """
    samples = 2 * count
    scale = math.sqrt(count / math.sqrt(2.0))
    angles = np.arange(1 - samples, samples) * np.pi / samples
    t = scale * np.tan(angles / 2)
    values = np.concatenate([[0.0], np.exp(-t * t) * (scale * scale + t * t)])
    coefficients = np.real(np.fft.fft(np.fft.fftshift(values))) / (2 * samples)
    return scale, coefficients[1 : count + 1][::-1].tolist()


# As many terms as each precision needs.
_EXPANSIONS = {8: _weideman(20), 16: _weideman(48)}


def _upper_half(z: Any) -> Any:
    """The function in the upper half plane, by Weideman's expansion."""
    scale, coefficients = _EXPANSIONS[aval_of(z).dtype.itemsize]
    iz = lax.complex(-jnp.imag(z), jnp.real(z))
    inverse = 1.0 / (scale - iz)
    mapped = (scale + iz) * inverse
    total: Any = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * mapped + coefficient
    return 2.0 * total * inverse * inverse + inverse / _ROOT_PI


@with_derivatives(lambda t, out, z: t * (-2.0 * z * out + 2j / _ROOT_PI))
def wofz_of(z: Any) -> Any:
    """``wofz`` of an array of complex numbers."""
    upper = jnp.imag(z) >= 0.0
    value = _upper_half(jnp.where(upper, z, -z))
    return jnp.where(upper, value, 2.0 * jnp.exp(-z * z) - value)


def wofz(z: ArrayLike) -> Array:
    """Compute the Faddeeva function ``exp(-z**2) erfc(-i z)``.

    Args:
        z: array of real or complex numbers.

    Returns:
        Complex numbers of the shape of ``z``.

    Raises:
        TypeError: if an argument is not array-like.

    Source:
        J. A. C. Weideman, Computation of the complex error function, 1994.

    Example:
        >>> jnp.round(gf.scipy.special.wofz(jnp.array([0., 1.])).real, 3)
        Array([1.   , 0.368], dtype=float32)
    """
    z = strong(*promote_args_inexact("wofz", z))
    dtype = aval_of(z).dtype
    if not dtypes.is_complex(dtype):
        wide = np.promote_types(dtype, np.complex64) if dtype.itemsize > 2 else np.complex64
        z = convert(z, np.dtype(wide))
    return wofz_of(z)
