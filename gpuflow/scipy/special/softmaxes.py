"""Softmax under SciPy's signature: over all axes by default.

Tests: tests/test_docstrings.py, tests/numpy/test_narrow_sums.py.
"""

from __future__ import annotations

from gpuflow import nn
from gpuflow.core.types import Array, ArrayLike, Axes


def softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """Compute ``exp(x) / sum(exp(x))`` over axes, without overflow.

    Args:
        x: array of numbers; integers are converted to floats.
        axis: an axis, a tuple of axes, or None to reduce over all axes.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> gf.scipy.special.softmax(jnp.array([1., 1.]))
        Array([0.5, 0.5], dtype=float32)
    """
    return nn.softmax(x, axis=axis)


def log_softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """Compute ``log(softmax(x))`` over axes, without overflow.

    Args:
        x: array of numbers; integers are converted to floats.
        axis: an axis, a tuple of axes, or None to reduce over all axes.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.round(gf.scipy.special.log_softmax(jnp.array([1., 1.])), 3)
        Array([-0.693, -0.693], dtype=float32)
    """
    return nn.log_softmax(x, axis=axis)
