"""Trends of signals.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base.arguments import canonicalize_axis, check_choice
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import known
from gpuflow.numpy.promotion import promote_dtypes_inexact, to_rank


@explained
def detrend(
    data: ArrayLike, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: None = None
) -> Array:
    """Subtract the mean, or a linear fit, from signals.

    Args:
        data: signals along ``axis``; integers are converted to floats.
        axis: the time axis.
        type: "constant" or "linear".
        bp: breakpoints; a separate line is fitted to each segment between them.
        overwrite_data: must be None.

    Returns:
        An array of the shape of ``data``.

    Raises:
        ValueError: if the type is unknown, or a breakpoint is out of range.
        NotImplementedError: if ``overwrite_data`` is set.

    Example:
        >>> gf.scipy.signal.detrend(jnp.array([1.0, 2.0, 6.0]), type="constant")
        Array([-2., -1.,  3.], dtype=float32)
        >>> gf.scipy.signal.detrend(jnp.array([1.0, 3.0, 8.0])).round(3)
        Array([ 0.5, -1. ,  0.5], dtype=float32)
    """
    check(
        overwrite_data is None,
        lambda: (
            f"[detrend] overwrite_data must be None, arrays are immutable; got "
            f"{overwrite_data!r}. Fix: leave it out."
        ),
        NotImplementedError,
    )
    check_choice("detrend", "type", type, ("constant", "linear"))
    (data,) = promote_dtypes_inexact(jnp.asarray(data))
    if type == "constant":
        return data - jnp.mean(data, axis, keepdims=True)
    axis = canonicalize_axis(axis, aval_of(data).ndim, "detrend")
    x = jnp.moveaxis(data, axis, -1)
    length = aval_of(x).shape[-1]
    positions = known("detrend", "bp", bp, "bp=0.")
    check(
        positions.ndim <= 1 and positions.dtype.kind in "iu",
        lambda: f"[detrend] bp must hold positions; got {brief(bp)}. Fix: bp=0.",
    )
    bounds = np.unique(np.r_[0, positions, length])
    check(
        bounds[0] >= 0 and bounds[-1] <= length,
        lambda: (
            f"[detrend] bp must be indices of the signal of {length} elements; got {bp}. Fix: bp=0."
        ),
        ValueError,
    )
    segments = [
        _without_trend(x[..., start:stop])
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    return jnp.moveaxis(jnp.concatenate(segments, -1), -1, axis) if segments else data


def _without_trend(x: Any) -> Any:
    """Subtract the projections on two orthonormal vectors: a constant and a linear ramp."""
    length = aval_of(x).shape[-1]
    ramp = np.arange(length) - (length - 1) / 2
    norm = np.sqrt(np.sum(ramp * ramp))
    if norm == 0:
        return jnp.zeros_like(x)
    x = x - jnp.mean(x, -1, keepdims=True)
    basis = to_rank((ramp / norm).astype(aval_of(x).dtype), aval_of(x).ndim)
    return x - jnp.sum(x * basis, -1, keepdims=True) * basis
