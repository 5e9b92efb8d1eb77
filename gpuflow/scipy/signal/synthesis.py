"""Signals from the Fourier transforms of their segments.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.promotion import to_rank
from gpuflow.ops.linalg.algebra import complex_dtype, real_dtype
from gpuflow.scipy.signal.segments import array_window, named_window, positive_int, steps_of


@explained
def istft(
    Zxx: ArrayLike,
    fs: ArrayLike = 1.0,
    window: str = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:
    """Compute the inverse of ``stft``.

    Args:
        Zxx: short-time Fourier transforms.
        fs: sampling frequency.
        window: window of ``stft``: the name of a SciPy window, or the values of a window.
        nperseg, noverlap, nfft: arguments of ``stft``; by default inferred from the sizes.
        input_onesided: whether negative frequencies are omitted.
        boundary: whether the signal was extended at both ends.
        time_axis: axis of the segments.
        freq_axis: axis of the frequencies.

    Returns:
        (times, signals): along the last axis, or ``time_axis``.

    Raises:
        ValueError: if there are fewer than two axes, an axis is repeated, or sizes do not match.

    Example:
        >>> x = jnp.arange(8.0)
        >>> transforms = gf.scipy.signal.stft(x, nperseg=4)[2]
        >>> times, signal = gf.scipy.signal.istft(transforms)
        >>> bool(jnp.allclose(signal, x, atol=1e-4))
        True
    """
    Zxx = as_array("istft", Zxx)
    aval = aval_of(Zxx)
    rank = aval.ndim
    check(
        rank >= 2,
        lambda: f"[istft] the operand must have two axes; got {aval}. Fix: Zxx[:, None].",
        ValueError,
    )
    frequency = canonicalize_axis(as_index(freq_axis), rank, "istft")
    time = canonicalize_axis(as_index(time_axis), rank, "istft")
    check(
        frequency != time,
        lambda: (
            f"[istft] time_axis and freq_axis must differ; got {time_axis} and {freq_axis}. "
            "Fix: time_axis=-1, freq_axis=-2."
        ),
        ValueError,
    )
    Zxx = jnp.moveaxis(Zxx.astype(complex_dtype(aval.dtype)), (time, frequency), (-2, -1))
    bins = aval.shape[frequency]
    natural = 2 * (bins - 1) if input_onesided else bins
    size = natural if nperseg is None else positive_int("istft", "nperseg", nperseg)
    if input_onesided and nfft is None and size == natural + 1:
        natural += 1
    step, length = steps_of("istft", size, noverlap, nfft, natural)
    segments = (jnp.fft.irfft if input_onesided else jnp.fft.ifft)(Zxx, length)[..., :size]
    weights = _synthesis_window(window, size, real_dtype(aval_of(segments).dtype))
    scaled = to_rank(weights * jnp.sum(weights), aval_of(segments).ndim)
    weighted = segments * scaled.astype(aval_of(segments).dtype)
    signal = _overlapped(weighted, step)
    count = aval_of(segments).shape[-2]
    norm = _overlapped(jnp.broadcast_to(weights * weights, (count, size)), step)
    if boundary:
        inner = slice(size // 2, aval_of(norm).shape[-1] - size // 2)
        signal, norm = signal[..., inner], norm[inner]
    divisor = jnp.where(norm > 1e-10, norm, 1).astype(aval_of(signal).dtype)
    signal = signal / to_rank(divisor, aval_of(signal).ndim)
    times = jnp.arange(aval_of(signal).shape[-1], dtype=aval_of(norm).dtype) / fs
    if rank > 2 and time != rank - 1:
        signal = jnp.moveaxis(signal, -1, time - (frequency < time))
    return times, signal


def _synthesis_window(window: Any, size: int, dtype: Any) -> Any:
    if isinstance(window, (str, tuple)):
        return jnp.asarray(named_window(window, size), dtype)
    values = array_window("istft", window, dtype)
    check(
        aval_of(values).size == size,
        lambda: (
            f"[istft] window must have nperseg elements; got {aval_of(values)} and {size}. "
            f"Fix: nperseg={aval_of(values).size}."
        ),
        ValueError,
    )
    return values


def _overlapped(segments: Any, step: int) -> Any:
    """The sum of segments (..., count, size), each ``step`` after the one before."""
    *outer, count, size = aval_of(segments).shape
    indices = np.arange(count)[:, None] * step + np.arange(size)
    out = jnp.zeros((*outer, (count - 1) * step + size), aval_of(segments).dtype)
    return out.at[..., indices.astype(np.int32)].add(segments)
