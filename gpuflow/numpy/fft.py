"""jnp.fft: discrete Fourier transforms over any axes, with padding and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod, sqrt
from operator import index as as_index
from typing import Any

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.base.util import canonicalize_axis, known_index
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DeviceLike, DTypeLike
from gpuflow.lax import FftType
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.elementary import conj
from gpuflow.numpy.promotion import (
    check_arraylike,
    convert,
    inexact_dtype,
    like,
    strong,
    user_dtype,
)
from gpuflow.numpy.ranges import arange
from gpuflow.numpy.shaping import moveaxis
from gpuflow.numpy.tiling import roll
from gpuflow.ops.effects.device_put import device_put

_INVERSE = (FftType.IFFT, FftType.IRFFT)
_MAX_DIMENSIONS = 3  # of one transform; more are done in turns


def _transform(
    name: str, fft_type: FftType, a: Any, s: Any, axes: Sequence[int] | None, norm: str | None
) -> Any:
    """Pad or cut the axes to the lengths ``s``, move them to the end and transform them."""
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
    places = [canonicalize_axis(axis, rank, name) for axis in axes]
    check(
        len(set(places)) == len(places),
        lambda: f"[{name}] axes must differ; got {tuple(axes)}. Fix: name each axis once.",
        ValueError,
    )
    if not places:
        a = strong(a)  # what is transformed is not weak, also along no axis
    last = list(range(rank - len(places), rank))
    x = moveaxis(a, places, last)
    sizes = aval_of(x).shape[rank - len(places) :]
    if lengths is None:
        lengths = _natural_lengths(sizes, fft_type)
    else:
        x = _fit(x, _needed(lengths, fft_type))
    out = _in_turns(x, fft_type, lengths)
    scale = _scale(name, norm, prod(lengths), fft_type)
    if scale != 1:
        out = lax.mul(out, like(scale, out))
    return moveaxis(out, last, places)


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
    """How many elements of the operand a transform of these lengths takes."""
    if fft_type is FftType.IRFFT and lengths:
        return (*lengths[:-1], lengths[-1] // 2 + 1)
    return tuple(lengths)


def _fit(x: Any, lengths: Sequence[int]) -> Any:
    """Cut the last axes, or pad them with zeros."""
    shape = aval_of(x).shape
    wanted = (*shape[: len(shape) - len(lengths)], *lengths)
    if wanted == shape:
        return x
    zero = convert(0, aval_of(x).dtype)
    return lax.pad(x, zero, [(0, new - old, 0) for new, old in zip(wanted, shape)])


def _in_turns(x: Any, fft_type: FftType, lengths: Sequence[int]) -> Any:
    """Transform the last axes, a few at a time; halves of spectra belong to the last axis."""
    if len(lengths) <= _MAX_DIMENSIONS:
        return lax.fft(x, fft_type, tuple(lengths))
    rank, count = aval_of(x).ndim, len(lengths) - _MAX_DIMENSIONS
    front = list(range(rank - len(lengths), rank - _MAX_DIMENSIONS))
    end = list(range(rank - count, rank))
    others = FftType.IFFT if fft_type in _INVERSE else FftType.FFT
    inner = partial(lax.fft, fft_type=fft_type, fft_lengths=tuple(lengths[count:]))

    def outer(value: Any) -> Any:
        moved = _in_turns(moveaxis(value, front, end), others, lengths[:count])
        return moveaxis(moved, end, front)

    return inner(outer(x)) if fft_type in _INVERSE else outer(inner(x))


def _scale(name: str, norm: str | None, count: int, fft_type: FftType) -> float:
    """What norm asks for, relative to the transforms' own factors."""
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


# --- one axis ------------------------------------------------------------------------------


def _one_axis(
    name: str, fft_type: FftType, a: Any, n: int | None, axis: int, norm: str | None
) -> Any:
    check(
        not isinstance(axis, (list, tuple)),
        lambda: f"[{name}] axis must be an int; got {axis!r}. Fix: use {name}n for several axes.",
        ValueError,
    )
    return _transform(name, fft_type, a, None if n is None else [n], [axis], norm)


@composite
def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The discrete Fourier transform ``sum_k a[k] exp(-2 pi i j k / n)`` along an axis.

    Args:
        a: array; it becomes complex.
        n: length to which the axis is cut or padded with zeros.
        axis: the axis.
        norm: ``"backward"`` or None scales the inverse by 1/n, ``"ortho"`` both by its root,
            ``"forward"`` the transform.

    Raises:
        ValueError: an unknown norm, or a length below 1.
    """
    return _one_axis("fft", FftType.FFT, a, n, axis, norm)


@composite
def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of ``fft``."""
    return _one_axis("ifft", FftType.IFFT, a, n, axis, norm)


@composite
def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The first ``n // 2 + 1`` elements of the transform of real numbers."""
    return _one_axis("rfft", FftType.RFFT, a, n, axis, norm)


@composite
def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of ``rfft``: real, of length ``n``, by default ``2 * (m - 1)``."""
    return _one_axis("irfft", FftType.IRFFT, a, n, axis, norm)


_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


@composite
def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The real transform of a signal whose second half is the conjugate of its first one."""
    return _one_axis("hfft", FftType.IRFFT, conj(a), n, axis, _SWAPPED.get(norm, norm))


@composite
def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of ``hfft``: the first half of a signal with a real transform."""
    # Also of lists, unlike the others, as in JAX.
    return conj(_one_axis("ihfft", FftType.RFFT, asarray(a), n, axis, _SWAPPED.get(norm, norm)))


# --- several axes --------------------------------------------------------------------------


@composite
def fftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The transform along several axes.

    Args:
        a: array; it becomes complex.
        s: lengths to which the axes are cut or padded with zeros.
        axes: the axes; None: the last ones that ``s`` has lengths for, or all.
        norm: as for ``fft``.

    Raises:
        ValueError: axes that repeat or do not fit ``s``, an unknown norm.
    """
    return _transform("fftn", FftType.FFT, a, s, axes, norm)


@composite
def ifftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The inverse of ``fftn``."""
    return _transform("ifftn", FftType.IFFT, a, s, axes, norm)


@composite
def rfftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The transform of real numbers along several axes, the first half of the last one."""
    return _transform("rfftn", FftType.RFFT, a, s, axes, norm)


@composite
def irfftn(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The inverse of ``rfftn``."""
    return _transform("irfftn", FftType.IRFFT, a, s, axes, norm)


def _two_axes(name: str, function: Callable[..., Any], a: Any, s: Any, axes: Any, norm: Any) -> Any:
    check(
        len(axes) == 2,
        lambda: f"[{name}] there must be two axes; got {axes}. Fix: use {name[:-1]}n.",
        ValueError,
    )
    return function(a, s, axes, norm)


@composite
def fft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The transform along two axes."""
    return _two_axes("fft2", fftn, a, s, axes, norm)


@composite
def ifft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The inverse of ``fft2``."""
    return _two_axes("ifft2", ifftn, a, s, axes, norm)


@composite
def rfft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The transform of real numbers along two axes, the first half of the last one."""
    return _two_axes("rfft2", rfftn, a, s, axes, norm)


@composite
def irfft2(
    a: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:  # fmt: skip
    """The inverse of ``rfft2``."""
    return _two_axes("irfft2", irfftn, a, s, axes, norm)


# --- frequencies and shifts ----------------------------------------------------------------


def _frequencies(name: str, start: int, stop: int, n: Any, d: Any, dtype: Any) -> Any:
    wanted = user_dtype(float if dtype is None else dtype, name)
    place = arange(start, stop, dtype=inexact_dtype(wanted))
    spacing = asarray(d, inexact_dtype(wanted))
    length = lax.mul(spacing, convert(n, aval_of(spacing).dtype))
    frequencies = lax.div(place, length)
    if wanted == aval_of(frequencies).dtype:
        return frequencies
    return lax.convert_element_type(frequencies, wanted)


def _check_count(name: str, n: Any, d: Any) -> int:
    check(
        hasattr(n, "__index__") and not isinstance(d, (list, tuple)),
        lambda: f"[{name}] n must be an int and d a number; got {n!r} and {d!r}. Fix: {name}(8).",
        ValueError,
    )
    return as_index(known_index(n))


@composite
def fftfreq(
    n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> Array:
    """The frequencies of the elements that ``fft`` gives: 0, 1, ..., then negative ones.

    Args:
        n: the length.
        d: the distance of samples.
        dtype: of the result; by default the default float.
        device: where to put it.
    """
    count = _check_count("fftfreq", n, d)
    first = (count + 1) // 2
    frequencies = _frequencies("fftfreq", first - count, first, count, d, dtype)
    return _placed(roll(frequencies, first), device)


@composite
def rfftfreq(
    n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> Array:
    """The frequencies of the elements that ``rfft`` gives; arguments as for ``fftfreq``."""
    count = _check_count("rfftfreq", n, d)
    return _placed(_frequencies("rfftfreq", 0, count // 2 + 1, count, d, dtype), device)


def _placed(x: Any, device: Any) -> Any:
    return x if device is None else device_put(x, device)


def _shifted(name: str, x: Any, axes: Any, inverse: bool) -> Any:
    (x,) = check_arraylike(name, x)
    shape = aval_of(x).shape
    if axes is None:
        axes = tuple(range(len(shape)))
    chosen = (axes,) if hasattr(axes, "__index__") else tuple(axes)
    halves = [shape[canonicalize_axis(axis, len(shape), name)] // 2 for axis in chosen]
    return roll(x, tuple(-half if inverse else half for half in halves), chosen)


def fftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Move frequency 0 to the middle of the axes."""
    return _shifted("fftshift", x, axes, False)


def ifftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of ``fftshift``."""
    return _shifted("ifftshift", x, axes, True)


publish(globals(), "jnp.fft", public_names(globals(), __name__))
