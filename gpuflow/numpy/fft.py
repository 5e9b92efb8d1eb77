"""jnp.fft: discrete Fourier transforms over any axes, with padding and norms.

Tests: tests/numpy/test_numpy_fft.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as as_index
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import are_several, canonicalize_axis, known_index
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DeviceLike, DTypeLike
from gpuflow.lax import FftType
from gpuflow.numpy.creation import asarray, placed
from gpuflow.numpy.elementary import conj
from gpuflow.numpy.fft_transform import transform
from gpuflow.numpy.logic import where
from gpuflow.numpy.promotion import (
    check_arraylike,
    convert,
    inexact_dtype,
    user_dtype,
)
from gpuflow.numpy.ranges import arange
from gpuflow.numpy.tiling import roll

# --- one axis ------------------------------------------------------------------------------


def _one_axis(
    name: str, fft_type: FftType, a: Any, n: int | None, axis: int, norm: str | None
) -> Any:
    check(
        not isinstance(axis, (list, tuple)),
        lambda: f"[{name}] axis must be an int; got {axis!r}. Fix: use {name}n for several axes.",
        ValueError,
    )
    return transform(name, fft_type, a, None if n is None else [n], [axis], norm)


@composite
def fft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the discrete Fourier transform ``sum_k a[k] exp(-2 pi i j k / n)`` along an axis.

    Args:
        a: array; it is converted to complex.
        n: length to which the axis is truncated or zero-padded; None keeps its size.
        axis: the axis.
        norm: None or ``"backward"`` scales the inverse by 1/n; ``"ortho"`` scales both by
            1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with ``n`` elements along the axis.

    Raises:
        ValueError: if the axis does not exist, the norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.fft(jnp.array([1., 0., 0., 0.]))
        Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _one_axis("fft", FftType.FFT, a, n, axis, norm)


@composite
def ifft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse of ``fft``: ``sum_k a[k] exp(2 pi i j k / n) / n`` along an axis.

    Args:
        a: array; it is converted to complex.
        n: length to which the axis is truncated or zero-padded; None keeps its size.
        axis: the axis.
        norm: None or ``"backward"`` scales the inverse by 1/n; ``"ortho"`` scales both by
            1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with ``n`` elements along the axis.

    Raises:
        ValueError: if the axis does not exist, the norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.ifft(jnp.array([4., 0., 0., 0.]))
        Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _one_axis("ifft", FftType.IFFT, a, n, axis, norm)


@composite
def rfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the first ``n // 2 + 1`` elements of the transform of a real array.

    Args:
        a: array of real numbers.
        n: length to which the axis is truncated or zero-padded; None keeps its size.
        axis: the axis.
        norm: None or ``"backward"`` scales the inverse by 1/n; ``"ortho"`` scales both by
            1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with ``n // 2 + 1`` elements along the axis.

    Raises:
        ValueError: if an argument is complex, the axis does not exist, the norm is unknown, or a
            length is below 1.

    Example:
        >>> jnp.fft.rfft(jnp.array([1., 0., 0., 0.]))
        Array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _one_axis("rfft", FftType.RFFT, a, n, axis, norm)


@composite
def irfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse of ``rfft``: real, of length ``n``, by default ``2 * (m - 1)``.

    Args:
        a: array with m elements along the axis, the nonnegative frequencies of a real transform.
        n: length of the result; ``a`` is truncated or zero-padded to ``n // 2 + 1`` elements.
        axis: the axis.
        norm: None or ``"backward"`` scales the inverse by 1/n; ``"ortho"`` scales both by
            1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        Floats of the shape of ``a``, with ``n`` elements along the axis.

    Raises:
        ValueError: if the axis does not exist, the norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.irfft(jnp.array([1., 1., 1.]))
        Array([1., 0., 0., 0.], dtype=float32)
    """
    return _one_axis("irfft", FftType.IRFFT, a, n, axis, norm)


_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


@composite
def hfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Return the real transform of a Hermitian signal, given its first half.

    Args:
        a: array with m elements along the axis, the first half of a Hermitian signal.
        n: length of the signal and of the result; ``2 * (m - 1)`` by default.
        axis: the axis.
        norm: None or ``"backward"`` scales the inverse by 1/n; ``"ortho"`` scales both by
            1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        Floats of the shape of ``a``, with ``n`` elements along the axis.

    Raises:
        ValueError: if the axis does not exist, the norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.hfft(jnp.array([1., 0., 0.]))
        Array([1., 1., 1., 1.], dtype=float32)
    """
    return _one_axis("hfft", FftType.IRFFT, conj(a), n, axis, _SWAPPED.get(norm, norm))


@composite
def ihfft(a: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Compute the inverse of ``hfft``: the first half of a signal with a real transform.

    Args:
        a: array of real numbers, or a list of them.
        n: length to which the axis is truncated or zero-padded; None keeps its size.
        axis: the axis.
        norm: None or ``"backward"`` scales the inverse by 1/n; ``"ortho"`` scales both by
            1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with ``n // 2 + 1`` elements along the axis.

    Raises:
        ValueError: if an argument is complex, the axis does not exist, the norm is unknown, or a
            length is below 1.

    Example:
        >>> jnp.fft.ihfft(jnp.array([4., 0., 0., 0.])).real
        Array([1., 1., 1.], dtype=float32)
    """
    # Lists are accepted here only, as in JAX.
    return conj(_one_axis("ihfft", FftType.RFFT, asarray(a), n, axis, _SWAPPED.get(norm, norm)))


# --- several axes --------------------------------------------------------------------------


@composite
def fftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the discrete Fourier transform along several axes.

    Args:
        a: array; it is converted to complex.
        s: lengths to which the axes are truncated or zero-padded; None keeps their sizes.
        axes: the axes to transform; None uses the last ``len(s)`` axes, or all.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with lengths ``s`` along the axes.

    Raises:
        ValueError: if ``axes`` are not distinct existing axes, ``s`` has another length, the norm
            is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.fftn(jnp.ones((2, 2)))
        Array([[4.+0.j, 0.+0.j],
               [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return transform("fftn", FftType.FFT, a, s, axes, norm)


@composite
def ifftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the inverse of ``fftn``.

    Args:
        a: array; it is converted to complex.
        s: lengths to which the axes are truncated or zero-padded; None keeps their sizes.
        axes: the axes to transform; None uses the last ``len(s)`` axes, or all.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with lengths ``s`` along the axes.

    Raises:
        ValueError: if ``axes`` are not distinct existing axes, ``s`` has another length, the norm
            is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.ifftn(jnp.array([[4., 0.], [0., 0.]]))
        Array([[1.+0.j, 1.+0.j],
               [1.+0.j, 1.+0.j]], dtype=complex64)
    """
    return transform("ifftn", FftType.IFFT, a, s, axes, norm)


@composite
def rfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the transform of a real array along several axes, half of the last one.

    Args:
        a: array of real numbers.
        s: lengths to which the axes are truncated or zero-padded; None keeps their sizes.
        axes: the axes to transform; None uses the last ``len(s)`` axes, or all.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with lengths ``s`` along the axes, and ``s[-1] // 2 +
        1`` along the last one.

    Raises:
        ValueError: if ``axes`` are not distinct existing axes, ``s`` has another length, the array
            is complex, the norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.rfftn(jnp.ones((2, 4)))
        Array([[8.+0.j, 0.+0.j, 0.+0.j],
               [0.+0.j, 0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return transform("rfftn", FftType.RFFT, a, s, axes, norm)


@composite
def irfftn(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the inverse of ``rfftn``.

    Args:
        a: array, the nonnegative frequencies of a real transform along the last axis.
        s: lengths of the result; None uses those of ``a``, and ``2 * (m - 1)`` along the last axis
            of size m.
        axes: the axes to transform; None uses the last ``len(s)`` axes, or all.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        Floats of the shape of ``a``, with lengths ``s`` along the axes.

    Raises:
        ValueError: if ``axes`` are not distinct existing axes, ``s`` has another length, the norm
            is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.irfftn(jnp.array([[8., 0., 0.], [0., 0., 0.]]))
        Array([[1., 1., 1., 1.],
               [1., 1., 1., 1.]], dtype=float32)
    """
    return transform("irfftn", FftType.IRFFT, a, s, axes, norm)


def _two_axes(name: str, function: Callable[..., Any], a: Any, s: Any, axes: Any, norm: Any) -> Any:
    check(
        axes is None or len(axes) == 2,
        lambda: f"[{name}] there must be two axes; got {axes}. Fix: use {name[:-1]}n.",
        ValueError,
    )
    return function(a, s, axes, norm)


@composite
def fft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Compute the discrete Fourier transform along two axes.

    Args:
        a: array; it is converted to complex.
        s: lengths to which the axes are truncated or zero-padded; None keeps their sizes.
        axes: the two axes to transform; None uses all, as for ``fftn``.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with lengths ``s`` along the axes.

    Raises:
        ValueError: if ``axes`` are not two distinct existing axes, ``s`` has another length, the
            norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.fft2(jnp.array([[1., 0.], [0., 0.]]))
        Array([[1.+0.j, 1.+0.j],
               [1.+0.j, 1.+0.j]], dtype=complex64)
    """
    return _two_axes("fft2", fftn, a, s, axes, norm)


@composite
def ifft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Compute the inverse of ``fft2``.

    Args:
        a: array; it is converted to complex.
        s: lengths to which the axes are truncated or zero-padded; None keeps their sizes.
        axes: the two axes to transform; None uses all, as for ``fftn``.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with lengths ``s`` along the axes.

    Raises:
        ValueError: if ``axes`` are not two distinct existing axes, ``s`` has another length, the
            norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.ifft2(4 * jnp.ones((2, 2)))
        Array([[4.+0.j, 0.+0.j],
               [0.+0.j, 0.+0.j]], dtype=complex64)
    """
    return _two_axes("ifft2", ifftn, a, s, axes, norm)


@composite
def rfft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Compute the transform of a real array along two axes, half of the last one.

    Args:
        a: array of real numbers.
        s: lengths to which the axes are truncated or zero-padded; None keeps their sizes.
        axes: the two axes to transform; None uses all, as for ``fftn``.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        A complex array of the shape of ``a``, with lengths ``s`` along the axes, and ``s[-1] // 2 +
        1`` along the last one.

    Raises:
        ValueError: if ``axes`` are not two distinct existing axes, ``s`` has another length, the
            array is complex, the norm is unknown, or a length is below 1.

    Example:
        >>> jnp.fft.rfft2(jnp.ones((5, 2, 4))).shape
        (5, 2, 3)
    """
    return _two_axes("rfft2", rfftn, a, s, axes, norm)


@composite
def irfft2(
    a: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Array:
    """Compute the inverse of ``rfft2``.

    Args:
        a: array, the nonnegative frequencies of a real transform along the last axis.
        s: lengths of the result; None uses those of ``a``, and ``2 * (m - 1)`` along the last axis
            of size m.
        axes: the two axes to transform; None uses all, as for ``fftn``.
        norm: None or ``"backward"`` scales the inverse by 1/n, with n the product of all lengths.
            ``"ortho"`` scales both by 1/sqrt(n); ``"forward"`` scales the forward transform by 1/n.

    Returns:
        Floats of the shape of ``a``, with lengths ``s`` along the axes.

    Raises:
        ValueError: if ``axes`` are not two distinct existing axes, ``s`` has another length, the
            norm is unknown, or a length is below 1.

    Example:
        >>> x = jnp.arange(8.).reshape(2, 4)
        >>> jnp.round(jnp.fft.irfft2(jnp.fft.rfft2(x)), 3) + 0.0
        Array([[0., 1., 2., 3.],
               [4., 5., 6., 7.]], dtype=float32)
    """
    return _two_axes("irfft2", irfftn, a, s, axes, norm)


# --- frequencies and shifts ----------------------------------------------------------------


def _frequencies(name: str, bins: Any, n: int, d: Any, dtype: Any) -> Any:
    out_dtype = user_dtype(float if dtype is None else dtype, name)
    spacing = asarray(d, inexact_dtype(out_dtype))
    length = lax.mul(spacing, convert(n, aval_of(spacing).dtype))
    frequencies = lax.div(convert(bins, aval_of(spacing).dtype), length)
    if out_dtype == aval_of(frequencies).dtype:
        return frequencies
    return lax.convert_element_type(frequencies, out_dtype)


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
    """Return the frequencies of ``fft``: 0, 1, ..., then negative ones.

    Args:
        n: the length.
        d: sample spacing.
        dtype: dtype of the result; the default float dtype by default.
        device: the device of the result; None uses the default device.

    Returns:
        A vector of ``n`` numbers, in periods per unit of ``d``.

    Raises:
        ValueError: if ``n`` is not an int, or ``d`` is a list.

    Example:
        >>> jnp.fft.fftfreq(4)
        Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
        >>> jnp.fft.fftfreq(4, d=0.25)
        Array([ 0.,  1., -2., -1.], dtype=float32)
    """
    count = _check_count("fftfreq", n, d)
    first = (count + 1) // 2
    bins = arange(count)
    bins = where(bins < first, bins, bins - count)
    return placed("fftfreq", _frequencies("fftfreq", bins, count, d, dtype), device)


@composite
def rfftfreq(
    n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike | None = None, device: DeviceLike = None
) -> Array:
    """Return the frequencies of ``rfft``: 0, 1, ..., nonnegative.

    Args:
        n: the length of the real signal.
        d: sample spacing.
        dtype: dtype of the result; the default float dtype by default.
        device: the device of the result; None uses the default device.

    Returns:
        A vector of ``n // 2 + 1`` numbers, in periods per unit of ``d``.

    Raises:
        ValueError: if ``n`` is not an int, or ``d`` is a list.

    Example:
        >>> jnp.fft.rfftfreq(4, d=0.25)
        Array([0., 1., 2.], dtype=float32)
    """
    count = _check_count("rfftfreq", n, d)
    if dtype is not None and not dtypes.is_inexact(dtypes.canonicalize(dtype)):
        dtype = None  # as in JAX: integers divided by the length are floats
    bins = arange(count // 2 + 1)
    return placed("rfftfreq", _frequencies("rfftfreq", bins, count, d, dtype), device)


def _shifted(name: str, x: Any, axes: Any, inverse: bool) -> Any:
    (x,) = check_arraylike(name, x)
    shape = aval_of(x).shape
    if axes is None:
        axes = tuple(range(len(shape)))
    shifted_axes = tuple(axes) if are_several(axes) else (axes,)
    halves = [shape[canonicalize_axis(axis, len(shape), name)] // 2 for axis in shifted_axes]
    return roll(x, tuple(-half if inverse else half for half in halves), shifted_axes)


@composite
def fftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Move frequency 0 to the middle of the axes.

    Args:
        x: array.
        axes: an axis or several; None uses all.

    Returns:
        An array of the shape and dtype of ``x``, with each axis rolled by half its size.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.fft.fftshift(jnp.fft.fftfreq(4, d=0.25))
        Array([-2., -1.,  0.,  1.], dtype=float32)
    """
    return _shifted("fftshift", x, axes, False)


@composite
def ifftshift(x: ArrayLike, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of ``fftshift``.

    Args:
        x: array.
        axes: an axis or several; None uses all.

    Returns:
        An array of the shape and dtype of ``x``, with each axis rolled back by half its size.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.fft.ifftshift(jnp.array([-2., -1., 0., 1.]))
        Array([ 0.,  1., -2., -1.], dtype=float32)
    """
    return _shifted("ifftshift", x, axes, True)


publish(globals(), "jnp.fft", public_names(globals(), __name__))
