"""Overlapping segments of signals, and windows.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.core.aval import aval_of
from gpuflow.numpy.arguments import truncated_int
from gpuflow.numpy.promotion import to_rank
from gpuflow.scipy.signal.trends import detrend as detrended


def load_windows() -> ModuleType:
    """SciPy's windows; the import is slow, so it is only for windows other than Hann's."""
    import scipy.signal

    return scipy.signal


@record
class Segments:
    """Segmentation of a signal: window, size and step of segments, size of transforms."""

    name: str
    window: Any
    size: int
    step: int
    transform: int


# --- windows and segments ------------------------------------------------------------------


def named_window(window: Any, size: int) -> np.ndarray:
    """The periodic window of a name, as SciPy has it."""
    if window == "hann":
        return np.ones(1) if size == 1 else np.sin(np.linspace(0, np.pi, size, endpoint=False)) ** 2
    return load_windows().get_window(window, size)


def array_window(name: str, window: Any, dtype: Any) -> Any:
    """A window that is given by its elements."""
    window = jnp.asarray(window, dtype)
    check(
        aval_of(window).ndim == 1,
        lambda: (
            f"[{name}] window must be a name or a vector; got {aval_of(window)}. "
            "Fix: window='hann'."
        ),
        ValueError,
    )
    return window


def positive_int(name: str, what: str, value: Any) -> int:
    size = truncated_int(name, what, value)
    check(
        size >= 1,
        lambda: f"[{name}] {what} must be positive; got {size}. Fix: {what}=256.",
        ValueError,
    )
    return size


def steps_of(name: str, size: int, overlap: Any, transform: Any, default: int) -> tuple[int, int]:
    """The step between segments and the size of transforms."""
    shared = size // 2 if overlap is None else truncated_int(name, "noverlap", overlap)
    length = default if transform is None else truncated_int(name, "nfft", transform)
    check(
        length >= size,
        lambda: (
            f"[{name}] nfft must be at least nperseg; got {length} and {size}. Fix: nfft={size}."
        ),
        ValueError,
    )
    check(
        shared < size,
        lambda: (
            f"[{name}] noverlap must be less than nperseg; got {shared} and {size}. "
            f"Fix: noverlap={size // 2}."
        ),
        ValueError,
    )
    return size - shared, length


def segments_of(
    name: str, window: Any, nperseg: Any, noverlap: Any, nfft: Any, length: int, dtype: Any
) -> Segments:
    size = None if nperseg is None else positive_int(name, "nperseg", nperseg)
    if isinstance(window, (str, tuple)):
        size = length if size is None else size
        if size > length:
            warn(
                f"[{name}] nperseg must not be longer than the signal; got {size}, and {length} is "
                f"used. Fix: nperseg={length}.",
            )
            size = length
        values = jnp.asarray(named_window(window, size), dtype)
    else:
        values = array_window(name, window, dtype)
        window_size = aval_of(values).size
        check(
            window_size <= length and size in (None, window_size),
            lambda: (
                f"[{name}] window must have nperseg elements, and no more than the signal; got "
                f"{window_size}, nperseg={size} and a signal of {length}. Fix: leave out nperseg."
            ),
            ValueError,
        )
        size = window_size
    step, transform = steps_of(name, size, noverlap, nfft, size)
    return Segments(name, values, size, step, transform)


def extended(x: Any, count: int, boundary: str) -> Any:
    """The signal with ``count`` more elements at both ends."""
    edges = [(0, 0)] * (aval_of(x).ndim - 1) + [(count, count)]
    if boundary != "odd":
        mode = {"even": "reflect", "constant": "edge", "zeros": "constant"}[boundary]
        return jnp.pad(x, edges, mode)
    length = aval_of(x).shape[-1]
    check(
        count < length,
        lambda: (
            f"[signal] boundary='odd' needs a signal longer than half a segment; got {length} "
            f"and {count}. Fix: boundary='zeros'."
        ),
        ValueError,
    )
    if count < 1:
        return x
    left = 2 * x[..., :1] - jnp.flip(x[..., 1 : count + 1], -1)
    right = 2 * x[..., -1:] - jnp.flip(x[..., -count - 1 : -1], -1)
    return jnp.concatenate([left, x, right], -1)


def detrender(kind: Any) -> Callable[[Any], Any]:
    if callable(kind):
        return kind
    if isinstance(kind, str):
        return lambda x: detrended(x, -1, kind)
    check(
        not kind,
        lambda: (
            f"[signal] detrend must be 'constant', 'linear', False or a function; got {kind!r}."
            " Fix: detrend=False."
        ),
        ValueError,
    )
    return lambda x: x


def transforms_of(x: Any, cut: Segments, detrend: Callable[[Any], Any], onesided: bool) -> Any:
    """The transform of each segment: (..., segments, frequencies)."""
    length = aval_of(x).shape[-1]
    starts = np.arange(0, length - cut.size + 1, cut.step, dtype=np.int32)
    indices = starts[:, None] + np.arange(cut.size, dtype=np.int32)
    segments = detrend(jnp.take(x, indices, axis=-1, mode="clip"))
    segments = segments * to_rank(cut.window, aval_of(segments).ndim)
    if onesided:
        return jnp.fft.rfft(jnp.real(segments), cut.transform)
    return jnp.fft.fft(segments, cut.transform)
