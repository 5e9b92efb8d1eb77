"""Softmax under SciPy's signature: over all axes unless told."""

from __future__ import annotations

from gpuflow import nn
from gpuflow.core.types import Array, ArrayLike, Axes


def softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """``exp(x) / sum(exp(x))`` over ``axis``, an axis, a tuple of axes, or None for all."""
    return nn.softmax(x, axis=axis)


def log_softmax(x: ArrayLike, /, *, axis: Axes = None) -> Array:
    """``log(softmax(x))`` over ``axis``, an axis, a tuple of axes, or None for all."""
    return nn.log_softmax(x, axis=axis)
