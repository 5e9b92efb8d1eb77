"""Implementation of the functions of jnp.fft: axes, lengths and norms.

Tests: tests/numpy/test_numpy_fft.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod, sqrt
from operator import index as as_index
from typing import Any

from gpuflow import lax
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.lax import FftType
from gpuflow.numpy.promotion import check_arraylike, convert, like, strong
from gpuflow.numpy.shaping import moveaxis

_INVERSE = (FftType.IFFT, FftType.IRFFT)
_MAX_DIMENSIONS = 3  # per transform; more are transformed in stages


def transform(
    name: str, fft_type: FftType, a: Any, s: Any, axes: Sequence[int] | None, norm: str | None
) -> Any:
    """Pad or truncate the axes to the lengths ``s``, move them to the end and transform them."""
    (a,) = check_arraylike(name, a)
    rank = aval_of(a).ndim
    lengths = _lengths(name, s)
    if axes is None:
        axes = range(rank) if lengths is None else range(rank - len(lengths), rank)
    check(
        lengths is None or len(lengths) == len(axes),
        lambda: (
            f"[{name}] there must be a length for each axis; got s={s} and axes={axes}. "
            "Fix: give both the same number of entries."
        ),
        ValueError,
    )
    dims = [canonicalize_axis(axis, rank, name) for axis in axes]
    check(
        len(set(dims)) == len(dims),
        lambda: f"[{name}] axes must differ; got {tuple(axes)}. Fix: name each axis once.",
        ValueError,
    )
    if not dims:
        a = strong(a)  # the result is never weak, even without axes
    last = list(range(rank - len(dims), rank))
    x = moveaxis(a, dims, last)
    sizes = aval_of(x).shape[rank - len(dims) :]
    if lengths is None:
        lengths = _natural_lengths(sizes, fft_type)
    else:
        x = _fit(x, _needed(lengths, fft_type))
    out = _in_stages(x, fft_type, lengths)
    scale = _scale(name, norm, prod(lengths), fft_type)
    if scale != 1:
        out = lax.mul(out, like(scale, out))
    return moveaxis(out, last, dims)


def _lengths(name: str, s: Any) -> tuple[int, ...] | None:
    if s is None:
        return None
    lengths = tuple(as_index(n) for n in s)
    check(
        all(n > 0 for n in lengths),
        lambda: f"[{name}] lengths must be positive; got {lengths}. Fix: use sizes >= 1.",
        ValueError,
    )
    return lengths


def _natural_lengths(sizes: Sequence[int], fft_type: FftType) -> tuple[int, ...]:
    if fft_type is FftType.IRFFT and sizes:
        return (*sizes[:-1], max(0, 2 * (sizes[-1] - 1)))
    return tuple(sizes)


def _needed(lengths: Sequence[int], fft_type: FftType) -> tuple[int, ...]:
    """Operand sizes that a transform of these lengths takes."""
    if fft_type is FftType.IRFFT and lengths:
        return (*lengths[:-1], lengths[-1] // 2 + 1)
    return tuple(lengths)


def _fit(x: Any, lengths: Sequence[int]) -> Any:
    """Truncate the last axes, or pad them with zeros."""
    shape = aval_of(x).shape
    target_shape = (*shape[: len(shape) - len(lengths)], *lengths)
    if target_shape == shape:
        return x
    zero = convert(0, aval_of(x).dtype)
    return lax.pad(x, zero, [(0, new - old, 0) for new, old in zip(target_shape, shape)])


def _in_stages(x: Any, fft_type: FftType, lengths: Sequence[int]) -> Any:
    """Transform the last axes, a few at a time; halves of spectra belong to the last axis."""
    if len(lengths) <= _MAX_DIMENSIONS:
        return lax.fft(x, fft_type, tuple(lengths))
    rank, count = aval_of(x).ndim, len(lengths) - _MAX_DIMENSIONS
    front = list(range(rank - len(lengths), rank - _MAX_DIMENSIONS))
    end = list(range(rank - count, rank))
    others = FftType.IFFT if fft_type in _INVERSE else FftType.FFT
    inner = partial(lax.fft, fft_type=fft_type, fft_lengths=tuple(lengths[count:]))

    def outer(value: Any) -> Any:
        transformed = _in_stages(moveaxis(value, front, end), others, lengths[:count])
        return moveaxis(transformed, end, front)

    return inner(outer(x)) if fft_type in _INVERSE else outer(inner(x))


def _scale(name: str, norm: str | None, count: int, fft_type: FftType) -> float:
    """The factor of the norm, relative to the transforms' own factors."""
    check(
        norm in (None, "backward", "ortho", "forward"),
        lambda: (
            f"[{name}] norm must be None, 'backward', 'ortho' or 'forward'; got {norm!r}. "
            "Fix: norm='ortho'."
        ),
        ValueError,
    )
    if norm in (None, "backward") or count == 0:
        return 1.0
    whole = sqrt(count) if norm == "ortho" else float(count)
    return whole if fft_type in _INVERSE else 1 / whole
