"""Softmax under SciPy's signature: over all axes unless told."""

from __future__ import annotations

from typing import Any

from gpuflow import nn
from gpuflow.numpy.shaping import Axes


def softmax(x: Any, /, *, axis: Axes = None) -> Any:
    """``exp(x) / sum(exp(x))`` over ``axis``, an axis, a tuple of axes, or None for all."""
    return nn.softmax(x, axis=axis)


def log_softmax(x: Any, /, *, axis: Axes = None) -> Any:
    """``log(softmax(x))`` over ``axis``, an axis, a tuple of axes, or None for all."""
    return nn.log_softmax(x, axis=axis)
