"""Window functions: weights that fall off towards both ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, known_part
from gpuflow.numpy.elementary import cos, sqrt
from gpuflow.numpy.float_parts import i0
from gpuflow.numpy.ufuncs import abs as absolute


def _window(name: str, M: Any, formula: Callable[[Any, int], Any]) -> Any:
    """``formula(0..M-1, M)`` in floats; a single weight is 1."""
    count = known_part(name, "M", M)
    dtype = dtypes.default_float()
    if count <= 1:
        return lax.full((max(count, 0),), 1, dtype)
    return formula(lax.iota(dtype, (count,)), count)


@composite
def bartlett(M: int) -> Array:
    """``M`` weights in the shape of a triangle."""
    return _window("bartlett", M, lambda n, m: 1 - absolute(2 * n + 1 - m) / (m - 1))


@composite
def blackman(M: int) -> Array:
    """``M`` weights of the Blackman window."""

    def formula(n: Any, m: int) -> Any:
        turn = 2 * np.pi * n / (m - 1)
        return 0.42 - 0.5 * cos(turn) + 0.08 * cos(2 * turn)

    return _window("blackman", M, formula)


@composite
def hamming(M: int) -> Array:
    """``M`` weights of the Hamming window."""
    return _window("hamming", M, lambda n, m: 0.54 - 0.46 * cos(2 * np.pi * n / (m - 1)))


@composite
def hanning(M: int) -> Array:
    """``M`` weights of the Hann window."""
    return _window("hanning", M, lambda n, m: 0.5 * (1 - cos(2 * np.pi * n / (m - 1))))


@composite
def kaiser(M: int, beta: ArrayLike) -> Array:
    """``M`` weights of the Kaiser window with shape parameter ``beta``."""
    beta = as_array("kaiser", beta)

    def formula(n: Any, m: int) -> Any:
        half = 0.5 * (m - 1)
        return i0(beta * sqrt(1 - ((n - half) / half) ** 2)) / i0(beta)

    return _window("kaiser", M, formula)
