"""Window functions: weights that decrease towards both ends.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, truncated_int
from gpuflow.numpy.elementary import cos, sqrt
from gpuflow.numpy.float_components import i0
from gpuflow.numpy.ufuncs import abs as absolute


def _window(name: str, M: Any, formula: Callable[[Any, int], Any]) -> Any:
    """``formula(0..M-1, M)`` in floats; a single weight is 1."""
    count = truncated_int(name, "M", M)
    dtype = dtypes.default_float()
    if count <= 1:
        return lax.full((max(count, 0),), 1, dtype)
    return formula(lax.iota(dtype, (count,)), count)


@composite
def bartlett(M: int) -> Array:
    """Return the ``M`` weights of the triangular Bartlett window, 0 at both ends.

    Args:
        M: number of points.

    Returns:
        A vector of default floats.

    Example:
        >>> jnp.bartlett(5)
        Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _window("bartlett", M, lambda n, m: 1 - absolute(2 * n + 1 - m) / (m - 1))


@composite
def blackman(M: int) -> Array:
    """Return the Blackman window, 0.42 - 0.5 cos(t) + 0.08 cos(2 t) at ``M`` t from 0 to 2 pi.

    Args:
        M: number of points.

    Returns:
        A vector of default floats.

    Example:
        >>> abs(jnp.blackman(5)).round(3)
        Array([0.  , 0.34, 1.  , 0.34, 0.  ], dtype=float32)
    """

    def formula(n: Any, m: int) -> Any:
        phase = 2 * np.pi * n / (m - 1)
        return 0.42 - 0.5 * cos(phase) + 0.08 * cos(2 * phase)

    return _window("blackman", M, formula)


@composite
def hamming(M: int) -> Array:
    """Return the Hamming window, 0.54 - 0.46 cos(t) at ``M`` points t from 0 to 2 pi.

    Args:
        M: number of points.

    Returns:
        A vector of default floats.

    Example:
        >>> jnp.hamming(5).round(3)
        Array([0.08, 0.54, 1.  , 0.54, 0.08], dtype=float32)
    """
    return _window("hamming", M, lambda n, m: 0.54 - 0.46 * cos(2 * np.pi * n / (m - 1)))


@composite
def hanning(M: int) -> Array:
    """Return the Hann window, 0.5 - 0.5 cos(t) at ``M`` points t from 0 to 2 pi.

    Args:
        M: number of points.

    Returns:
        A vector of default floats.

    Example:
        >>> jnp.hanning(5).round(3)
        Array([0. , 0.5, 1. , 0.5, 0. ], dtype=float32)
    """
    return _window("hanning", M, lambda n, m: 0.5 * (1 - cos(2 * np.pi * n / (m - 1))))


@composite
def kaiser(M: int, beta: ArrayLike) -> Array:
    """Return the Kaiser window, i0(beta sqrt(1 - t**2)) / i0(beta) at ``M`` points in [-1, 1].

    Args:
        M: number of points.
        beta: shape parameter, a number; larger values give a narrower window. 0 gives equal
            weights.

    Returns:
        A vector of default floats.

    Example:
        >>> jnp.kaiser(5, 6.0).round(3)
        Array([0.015, 0.483, 1.   , 0.483, 0.015], dtype=float32)
    """
    beta = as_array("kaiser", beta)

    def formula(n: Any, m: int) -> Any:
        half = 0.5 * (m - 1)
        return i0(beta * sqrt(1 - ((n - half) / half) ** 2)) / i0(beta)

    return _window("kaiser", M, formula)
