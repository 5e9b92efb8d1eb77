"""Random draws of a given variance, which ``variance_scaling`` selects by name.

Tests: tests/nn/test_nn_initializers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import random
from gpuflow.base import dtypes

# Standard deviations of a normal distribution cut off at 2, and of a complex one at modulus 2.
_TRUNCATED_STDDEV = 0.87962566103423978
_TRUNCATED_COMPLEX_STDDEV = 0.95311164380491208


def _draw_normal(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any) -> Any:
    return random.normal(key, shape, dtype) * jnp.sqrt(variance)


def _draw_truncated(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any) -> Any:
    if dtypes.is_complex(dtype):
        stddev = jnp.sqrt(variance) / jnp.array(_TRUNCATED_COMPLEX_STDDEV, dtype)
        return _complex_truncated(key, shape, dtype) * stddev
    stddev = jnp.sqrt(variance) / jnp.array(_TRUNCATED_STDDEV, dtype)
    return random.truncated_normal(key, -2, 2, shape, dtype) * stddev


def _draw_uniform(key: Any, shape: tuple[int, ...], dtype: Any, variance: Any) -> Any:
    if dtypes.is_complex(dtype):
        return _complex_uniform(key, shape, dtype) * jnp.sqrt(variance)
    return random.uniform(key, shape, dtype, -1) * jnp.sqrt(3 * variance)


DRAWS = {"truncated_normal": _draw_truncated, "normal": _draw_normal, "uniform": _draw_uniform}


def _complex_uniform(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Uniform numbers of the disk with radius sqrt(2): mean 0, variance 1."""
    of_modulus, of_angle = random.split(key)
    real = np.zeros((), dtype).real.dtype
    modulus = jnp.sqrt(2 * random.uniform(of_modulus, shape, real)).astype(dtype)
    return modulus * _on_circle(of_angle, shape, dtype)


def _complex_truncated(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal complex numbers of variance 1 whose modulus is at most 2."""
    of_modulus, of_angle = random.split(key)
    real = np.zeros((), dtype).real.dtype
    reach = 1 - jnp.exp(jnp.array(-(2**2), dtype))
    fraction = reach * random.uniform(of_modulus, shape, real).astype(dtype)
    return jnp.sqrt(-jnp.log(1 - fraction)) * _on_circle(of_angle, shape, dtype)


def _on_circle(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    real = np.zeros((), dtype).real.dtype
    angle = 2 * np.pi * random.uniform(key, shape, real).astype(dtype)
    return jnp.exp(1j * angle)
