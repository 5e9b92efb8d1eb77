"""Discrete cosine transforms.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import are_several, as_integer, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.promotion import promote_dtypes_inexact, to_rank
from gpuflow.ops.linalg.algebra import complex_dtype


@composite
def dct(
    x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """Compute the discrete cosine transform along an axis.

    Args:
        x: array; real and imaginary parts are transformed separately. 16-bit floats give float32.
        type: must be 2.
        n: size to which the axis is truncated or zero-padded; None keeps it.
        axis: the axis.
        norm: None or "backward" for no factor; "ortho" for an orthonormal transform.

    Raises:
        NotImplementedError: if the type is not supported. ValueError: if the norm is unknown.

    Source: Makhoul, A fast cosine transform in one and two dimensions, IEEE Trans. Acoust. Speech
    Signal Process. 28 (1980), 27.
    """
    return _along("dct", x, type, [n], (axis,), norm, _forward)


@composite
def idct(
    x: ArrayLike, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None
) -> Array:
    """Compute the inverse of ``dct``, with the same arguments."""
    return _along("idct", x, type, [n], (axis,), norm, _backward)


@composite
def dctn(
    x: ArrayLike,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute ``dct`` along several axes.

    Args:
        s: sizes to which the axes are truncated or zero-padded; None keeps them.
        axes: the axes; None uses the last ``len(s)`` axes, or all.
        x, type, norm: as for ``dct``.

    Raises:
        NotImplementedError: if the type is not supported. ValueError: if the norm is unknown, or
            sizes do not match.
    """
    sizes, along = _sizes_and_axes("dctn", x, s, axes)
    return _along("dctn", x, type, sizes, along, norm, _forward)


@composite
def idctn(
    x: ArrayLike,
    type: int = 2,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """Compute the inverse of ``dctn``, with the same arguments."""
    sizes, along = _sizes_and_axes("idctn", x, s, axes)
    return _along("idctn", x, type, sizes, along, norm, _backward)


def _sizes_and_axes(name: str, x: Any, s: Any, axes: Any) -> tuple[list[Any], tuple[int, ...]]:
    rank = aval_of(as_array(name, x)).ndim
    sizes = None if s is None else list(s) if are_several(s) else [as_integer(name, "s", s)]
    if axes is None:
        count = rank if sizes is None else len(sizes)
        check(
            count <= rank,
            lambda: f"[{name}] s must have at most {rank} elements; got {s}. Fix: s=None.",
            ValueError,
        )
        along = tuple(range(rank - count, rank))
    else:
        listed_axes = axes if are_several(axes) else [axes]
        along = tuple(canonicalize_axis(d, rank, name) for d in listed_axes)
        check(
            len(set(along)) == len(along),
            lambda: f"[{name}] axes must differ; got {axes}. Fix: drop the repeats.",
            ValueError,
        )
    sizes = [None] * len(along) if sizes is None else sizes
    check(
        len(sizes) == len(along),
        lambda: (
            f"[{name}] s must have a size for each axis; got {s} for axes {along}. Fix: s=None."
        ),
        ValueError,
    )
    return sizes, along


def _along(
    name: str,
    x: Any,
    type: int,
    sizes: Sequence[Any],
    axes: Sequence[int],
    norm: Any,
    transform: Any,
) -> Any:
    x = as_array(name, x)
    check(
        type == 2,
        lambda: f"[{name}] type must be 2; got {type!r}. Fix: leave it out.",
        NotImplementedError,
    )
    check(
        norm in (None, "backward", "ortho"),
        lambda: (
            f"[{name}] norm must be None, 'backward' or 'ortho'; got {norm!r}. Fix: norm='ortho'."
        ),
        ValueError,
    )
    (x,) = promote_dtypes_inexact(x)
    if dtypes.bits_of(aval_of(x).dtype) < 32:  # Fourier transforms have 32 bits at least
        x = x.astype(np.float32)
    rank = aval_of(x).ndim
    if dtypes.is_complex(aval_of(x).dtype):
        components = (lax.real(x), lax.imag(x))
        done = [_along(name, x, type, sizes, axes, norm, transform) for x in components]
        return lax.complex(*done)
    for axis, size in zip(axes, sizes, strict=True):
        position = canonicalize_axis(axis, rank, name)
        operand = _resized(name, jnp.moveaxis(x, position, -1), size)
        x = jnp.moveaxis(transform(operand, norm == "ortho"), -1, position)
    return x


def _resized(name: str, x: Any, size: int | None) -> Any:
    length = aval_of(x).shape[-1]
    requested = length if size is None else as_index(size)
    check(
        requested >= 1,
        lambda: (
            f"[{name}] there must be elements to transform; got {aval_of(x)} and n={size}. "
            "Fix: n=1."
        ),
        ValueError,
    )
    if requested == length:
        return x
    edges = [(0, 0, 0)] * (aval_of(x).ndim - 1)
    return lax.pad(x, np.zeros((), aval_of(x).dtype), [*edges, (0, requested - length, 0)])


def _phases(x: Any) -> Any:
    """Phase factors that make a Fourier transform of reordered elements a cosine transform."""
    dtype, size = complex_dtype(aval_of(x).dtype), aval_of(x).shape[-1]
    phases = np.exp(-0.5j * np.pi * np.arange(size) / size).astype(dtype)
    return to_rank(phases, aval_of(x).ndim)


def _lengths(x: Any) -> Any:
    """The lengths of the vectors that ``dct`` multiplies with."""
    dtype, size = aval_of(x).dtype, aval_of(x).shape[-1]
    lengths = np.sqrt(np.where(np.arange(size) == 0, 4.0, 2.0) * size).astype(dtype)
    return to_rank(lengths, aval_of(x).ndim)


def _forward(x: Any, ortho: bool) -> Any:
    dtype = aval_of(x).dtype
    # Elements at even indices, then those at odd ones reversed.
    ordered = jnp.concatenate([x[..., ::2], jnp.flip(x[..., 1::2], -1)], -1)
    out = (2 * jnp.real(jnp.fft.fft(ordered) * _phases(x))).astype(dtype)
    return out / _lengths(x) if ortho else out


def _backward(x: Any, ortho: bool) -> Any:
    dtype, size = aval_of(x).dtype, aval_of(x).shape[-1]
    lengths, phases = _lengths(x), _phases(x)
    x = x / lengths if ortho else x / (lengths * lengths)
    spectrum = x.astype(aval_of(phases).dtype) * (2 * size / phases)
    ordered = jnp.real(jnp.fft.ifft(spectrum)).astype(dtype)
    even = np.arange(size) % 2 == 0
    index = np.where(even, np.arange(size) // 2, size - 1 - np.arange(size) // 2)
    return jnp.take(ordered, index.astype(np.int32), axis=-1, mode="clip")


publish(globals(), "scipy.fft", public_names(globals(), __name__))
