"""Spectra of signals: Fourier transforms of overlapping segments.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis, check_choice
from gpuflow.base.errors import check
from gpuflow.base.util import warn
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_arrays
from gpuflow.numpy.promotion import broadcast_shapes, promote_dtypes_inexact, to_rank
from gpuflow.ops.linalg.algebra import complex_dtype, real_dtype
from gpuflow.scipy.signal.segments import detrender, extended, segments_of, transforms_of

_BOUNDARIES = ("even", "odd", "constant", "zeros")


def _aligned(name: str, x: Any, y: Any, axis: Any) -> tuple[Any, Any, int, tuple[int, ...]]:
    """Both signals along the last axis in one length; the axis, and the shape of the others."""
    arrays = as_arrays(name, x) if y is None else as_arrays(name, x, y)
    signals = promote_dtypes_inexact(*arrays)
    check(
        dtypes.bits_of(aval_of(signals[0]).dtype) >= 32,
        lambda: (
            f"[{name}] signals must be floats of 32 or 64 bits; got {aval_of(signals[0])}. "
            "Fix: x.astype(jnp.float32)."
        ),
        ValueError,
    )
    ranks = {aval_of(s).ndim for s in signals}
    check(
        len(ranks) == 1,
        lambda: (
            f"[{name}] signals must have one rank; got "
            f"{' and '.join(str(aval_of(s)) for s in signals)}. Fix: y[None]."
        ),
        ValueError,
    )
    position = canonicalize_axis(as_index(axis), ranks.pop(), name)
    aligned = [jnp.moveaxis(s, position, -1) for s in signals]
    outer = broadcast_shapes(*[aval_of(s).shape[:-1] for s in aligned], name=name)
    length = max(aval_of(s).shape[-1] for s in aligned)
    if all(aval_of(s).size for s in aligned):
        aligned = [_lengthened(s, length - aval_of(s).shape[-1]) for s in aligned]
    return aligned[0], None if y is None else aligned[1], position, outer


def _lengthened(x: Any, count: int) -> Any:
    return jnp.pad(x, [(0, 0)] * (aval_of(x).ndim - 1) + [(0, count)]) if count else x


def _scale(scaling: str, fs: Any, window: Any) -> Any:
    check_choice("signal", "scaling", scaling, ("density", "spectrum"))
    if scaling == "density":
        return 1.0 / (fs * jnp.sum(window * window))
    return 1.0 / jnp.square(jnp.sum(window))


def spectra(
    name: str,
    x: Any,
    y: Any,
    fs: Any,
    cut_args: tuple[Any, ...],
    detrend: Any,
    return_onesided: bool,
    scaling: str,
    axis: Any,
    boundary: str | None,
    padded: bool,
    powers: bool,
) -> tuple[Any, Any, Any]:
    """Frequencies, times, and the (cross) spectrum of each segment along the last axis.

    Args:
        cut_args: window, nperseg, noverlap, nfft.
        powers: whether to give products of transforms, or transforms.
    """
    if boundary is not None:
        check_choice(name, "boundary", boundary, _BOUNDARIES)
    x, y, axis, outer = _aligned(name, x, y, axis)
    signals = [x] if y is None else [x, y]
    dtype = complex_dtype(aval_of(x).dtype)
    real = real_dtype(dtype)
    if not all(aval_of(s).size for s in signals):
        shape = list(outer)
        shape.insert(axis, min(aval_of(s).shape[-1] for s in signals))
        return jnp.zeros(shape, real), jnp.zeros(shape, real), jnp.zeros(shape, dtype)
    window, nperseg, noverlap, nfft = cut_args
    length = aval_of(x).shape[-1]
    cut = segments_of(name, window, nperseg, noverlap, nfft, length, real)
    if boundary is not None:
        signals = [extended(s, cut.size // 2, boundary) for s in signals]
    if padded:
        missing = (-(aval_of(signals[0]).shape[-1] - cut.size) % cut.step) % cut.size
        signals = [_lengthened(s, missing) for s in signals]
    onesided = return_onesided and not dtypes.is_complex(aval_of(x).dtype)
    if return_onesided and not onesided:
        warn(
            f"[{name}] return_onesided must be False for complex signals; got True, and False is "
            "used. Fix: return_onesided=False.",
        )
    transforms = [transforms_of(s, cut, detrender(detrend), onesided) for s in signals]
    scale = _scale(scaling, fs, cut.window)
    if powers:
        out = jnp.conj(transforms[0]) * transforms[-1] * scale.astype(dtype)
        if onesided:
            end = aval_of(out).shape[-1] - (cut.transform % 2 == 0)
            frequency = np.arange(aval_of(out).shape[-1])
            sides = np.where((frequency > 0) & (frequency < end), 2, 1).astype(real)
            out = out * to_rank(sides, aval_of(out).ndim).astype(aval_of(out).dtype)
    else:
        out = transforms[0] * jnp.sqrt(scale).astype(dtype)
    length = aval_of(signals[0]).shape[-1]
    middle = np.arange(cut.size / 2, length - cut.size / 2 + 1, cut.step)
    if boundary is not None:
        middle = middle - cut.size / 2
    frequencies = jnp.fft.rfftfreq if onesided else jnp.fft.fftfreq
    times = jnp.asarray(middle, real) / fs
    out = jnp.moveaxis(out.astype(dtype), -1, axis if axis < len(outer) else -2)
    return frequencies(cut.transform, 1 / fs).astype(real), times.astype(real), out


@explained
def stft(
    x: ArrayLike,
    fs: ArrayLike = 1.0,
    window: str = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Array, Array, Array]:
    """Compute the short-time Fourier transform of a signal.

    Args:
        x: signals along ``axis``.
        fs: sampling frequency.
        window: the name of a SciPy window, or the values of a window.
        nperseg: size of a segment.
        noverlap: overlap of segments; None uses half a segment.
        nfft: size of the transforms; None uses ``nperseg``.
        detrend: "constant", "linear", False or a function: the trend to subtract from each segment.
        return_onesided: whether to omit negative frequencies of real signals.
        boundary: how to extend the signal by half a segment at both ends: "zeros", "even", "odd",
            "constant", or None.
        padded: whether to extend the end so that segments cover it.
        axis: the time axis.

    Returns:
        (frequencies, times, transforms): frequencies replace ``axis``, times come last.

    Raises:
        ValueError: if sizes do not match, or an option has another value.

    Example:
        >>> x = jnp.ones(16)
        >>> frequencies, times, transforms = gf.scipy.signal.stft(x, nperseg=8, boundary=None)
        >>> frequencies
        Array([0.   , 0.125, 0.25 , 0.375, 0.5  ], dtype=float32)
        >>> times, transforms.shape
        (Array([ 4.,  8., 12.], dtype=float32), (5, 3))
    """
    cut = (window, nperseg, noverlap, nfft)
    return spectra(
        "stft",
        x,
        None,
        fs,
        cut,
        detrend,
        return_onesided,
        "spectrum",
        axis,
        boundary,
        padded,
        False,
    )


@explained
def csd(
    x: ArrayLike,
    y: ArrayLike | None,
    fs: ArrayLike = 1.0,
    window: str = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: str = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Return the cross power spectral density of two signals, by Welch's method.

    Args:
        x, y: signals along ``axis``; the shorter one is zero-padded. If ``y`` is None, ``x`` is
            used.
        fs: sampling frequency.
        window: the name of a SciPy window, or the values of a window.
        nperseg: size of a segment; None uses 256, or the size of shorter signals.
        noverlap: overlap of segments; None uses half a segment.
        nfft: size of the transforms; None uses ``nperseg``.
        detrend: "constant", "linear", False or a function: the trend to subtract from each segment.
        return_onesided: whether to omit negative frequencies of real signals.
        scaling: "density" for the power spectral density; "spectrum" for the power spectrum.
        axis: the time axis.
        average: how segments are averaged, "mean" or "median".

    Returns:
        (frequencies, densities): frequencies replace ``axis``; densities are complex.

    Raises:
        ValueError: if sizes do not match, or an option has another value.

    Example:
        >>> x = jnp.array([1.0, -1.0] * 8)
        >>> frequencies, density = gf.scipy.signal.csd(x, 2 * x, nperseg=4, window="boxcar")
        >>> frequencies, density.real.round(3)
        (Array([0.  , 0.25, 0.5 ], dtype=float32), Array([0., 0., 8.], dtype=float32))
    """
    return _density(
        "csd",
        x,
        y,
        fs,
        (window, nperseg, noverlap, nfft),
        detrend,
        return_onesided,
        scaling,
        axis,
        average,
    )


@explained
def welch(
    x: ArrayLike,
    fs: ArrayLike = 1.0,
    window: str = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: str = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Return the power spectral density of a signal, by Welch's method.

    Args:
        x: signals along ``axis``.
        fs: sampling frequency.
        window: the name of a SciPy window, or the values of a window.
        nperseg: size of a segment; None uses 256, or the size of shorter signals.
        noverlap: overlap of segments; None uses half a segment.
        nfft: size of the transforms; None uses ``nperseg``.
        detrend: "constant", "linear", False or a function: the trend to subtract from each segment.
        return_onesided: whether to omit negative frequencies of real signals.
        scaling: "density" for the power spectral density; "spectrum" for the power spectrum.
        axis: the time axis.
        average: how segments are averaged, "mean" or "median".

    Returns:
        (frequencies, densities): frequencies replace ``axis``; densities are real.

    Raises:
        ValueError: if sizes do not match, or an option has another value.

    Example:
        >>> x = jnp.array([1.0, -1.0] * 8)
        >>> frequencies, density = gf.scipy.signal.welch(x, nperseg=4, window="boxcar")
        >>> frequencies, density.round(3)
        (Array([0.  , 0.25, 0.5 ], dtype=float32), Array([0., 0., 4.], dtype=float32))
    """
    return _density(
        "welch",
        x,
        None,
        fs,
        (window, nperseg, noverlap, nfft),
        detrend,
        return_onesided,
        scaling,
        axis,
        average,
    )


def _density(
    name: str,
    x: Any,
    y: Any,
    fs: Any,
    cut: tuple[Any, ...],
    detrend: Any,
    return_onesided: bool,
    scaling: str,
    axis: int,
    average: str,
) -> tuple[Any, Any]:
    check_choice(name, "average", average, ("mean", "median"))
    frequencies, _, each = spectra(
        name, x, y, fs, cut, detrend, return_onesided, scaling, axis, None, False, True
    )
    if y is None:
        each = jnp.real(each)
    aval = aval_of(each)
    if aval.ndim < 2 or not aval.size:
        return frequencies, each
    if average == "mean" or aval.shape[-1] == 1:
        return frequencies, jnp.mean(each, -1)
    middle = jnp.median(jnp.real(each), -1)
    if dtypes.is_complex(aval.dtype):
        middle = lax.complex(middle, jnp.median(jnp.imag(each), -1))
    return frequencies, middle / np.asarray(_median_bias(aval.shape[-1]), aval.dtype)


def _median_bias(count: int) -> float:
    """The median of ``count`` exponentially distributed numbers of mean 1, at the mean.

    Source: Allen et al., FINDCHIRP, Phys. Rev. D 85 (2012), 122006, appendix B.
    """
    even = np.arange(2.0, count, 2)
    return 1 + float(np.sum(1 / (even + 1) - 1 / even))
