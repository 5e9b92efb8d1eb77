"""Convolution and correlation of arrays with any number of axes.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axes, check_choice
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, PrecisionLike
from gpuflow.numpy.arguments import as_arrays
from gpuflow.numpy.promotion import promote_dtypes_inexact

_MODES = ("full", "same", "valid")


def _operands(name: str, in1: Any, in2: Any, mode: str) -> list[Any]:
    check_choice(name, "mode", mode, _MODES)
    operands = promote_dtypes_inexact(*as_arrays(name, in1, in2))
    avals = [aval_of(x) for x in operands]
    check(
        avals[0].ndim == avals[1].ndim,
        lambda: (
            f"[{name}] operands must have one rank; got {avals[0]} and {avals[1]}. "
            "Fix: insert axes with x[None]."
        ),
        ValueError,
    )
    return operands


def _is_within(small: Sequence[int], large: Sequence[int]) -> bool:
    return all(m <= n for m, n in zip(small, large, strict=True))


def _check_nested(name: str, left: Sequence[int], right: Sequence[int]) -> None:
    check(
        _is_within(left, right) or _is_within(right, left),
        lambda: (
            f"[{name}] one operand must be at least as large as the other along every axis; "
            f"got shapes {tuple(left)} and {tuple(right)}. Fix: mode='full' of fftconvolve."
        ),
        ValueError,
    )


def _direct(name: str, in1: Any, in2: Any, mode: str, precision: Any) -> Any:
    in1, in2 = _operands(name, in1, in2, mode)
    first, other = aval_of(in1).shape, aval_of(in2).shape
    check(
        aval_of(in1).size > 0 and aval_of(in2).size > 0,
        lambda: (
            f"[{name}] operands must have elements; got shapes {first} and {other}. Fix: pad them."
        ),
        ValueError,
    )
    _check_nested(name, first, other)
    swapped = _is_within(first, other)
    if swapped:
        in1, in2 = in2, in1
    kernel = aval_of(in2).shape
    # "same" is the middle of "full", in the size of the first operand.
    less = [(n - 1) // 2 for n in other]
    edges = {
        "full": [(n - 1, n - 1) for n in kernel],
        "same": [(k - 1 - m, k - n + m) for k, n, m in zip(kernel, other, less, strict=True)],
        "valid": [(0, 0)] * len(kernel),
    }[mode]
    out = lax.conv_general_dilated(
        in1[None, None], jnp.flip(in2)[None, None], (1,) * len(kernel), edges, precision=precision
    )
    return out[0, 0]


@explained
def convolve(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    method: str = "auto",
    precision: PrecisionLike = None,
) -> Array:
    """Return the convolution of two arrays of one rank.

    Args:
        in1, in2: arrays, one at least as large as the other along every axis.
        mode: "full": the whole overlap; "same": the size of ``in1``; "valid": only full overlaps.
        method: "direct" (also for "auto"), or "fft".
        precision: precision of the products, as for ``lax.dot``.

    Returns:
        An array of floats or complex numbers, of the rank of the operands.

    Raises:
        ValueError: if shapes do not match, an array is empty, or the mode or method is unknown.

    Example:
        >>> gf.scipy.signal.convolve(jnp.array([1, 2, 3]), jnp.array([1, 10]))
        Array([ 1., 12., 23., 30.], dtype=float32)
    """
    check_choice("convolve", "method", method, ("auto", "direct", "fft"))
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    return _direct("convolve", in1, in2, mode, precision)


@explained
def correlate(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    method: str = "auto",
    precision: PrecisionLike = None,
) -> Array:
    """Return the correlation of two arrays of one rank, the second one conjugated.

    Args:
        in1, in2: arrays, one at least as large as the other along every axis.
        mode: "full": the whole overlap; "same": the size of ``in1``; "valid": only full overlaps.
        method: "direct" (also for "auto"), or "fft".
        precision: precision of the products, as for ``lax.dot``.

    Returns:
        An array of floats or complex numbers, of the rank of the operands.

    Raises:
        ValueError: if shapes do not match, an array is empty, or the mode or method is unknown.

    Example:
        >>> gf.scipy.signal.correlate(jnp.array([1, 2, 3]), jnp.array([1, 10]), mode="valid")
        Array([21., 32.], dtype=float32)
    """
    in1, in2 = as_arrays("correlate", in1, in2)
    return convolve(in1, jnp.flip(jnp.conj(in2)), mode, method, precision)


def _check_plane(name: str, in1: Any, in2: Any, boundary: str, fillvalue: float) -> list[Any]:
    check(
        boundary == "fill" and fillvalue == 0,
        lambda: (
            f"[{name}] boundary must be 'fill' and fillvalue 0; got {boundary!r} and "
            f"{fillvalue!r}. Fix: jnp.pad the first operand."
        ),
        NotImplementedError,
    )
    operands = as_arrays(name, in1, in2)
    check(
        all(aval_of(x).ndim == 2 for x in operands),
        lambda: (
            f"[{name}] operands must have two axes; got {aval_of(operands[0])} and "
            f"{aval_of(operands[1])}. Fix: convolve."
        ),
        ValueError,
    )
    return operands


@explained
def convolve2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Array:
    """Return the convolution of two arrays with two axes.

    Args:
        in1, in2: matrices, one at least as large as the other along both axes.
        mode: "full": the whole overlap; "same": the size of ``in1``; "valid": only full overlaps.
        boundary: must be "fill".
        fillvalue: must be 0.
        precision: precision of the products, as for ``lax.dot``.

    Returns:
        A matrix of floats or complex numbers.

    Raises:
        NotImplementedError: if the boundary is not supported.
        ValueError: if shapes do not match, an array is empty, or the mode is unknown.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> gf.scipy.signal.convolve2d(x, jnp.array([[1, 10]]))
        Array([[ 1., 12., 20.],
               [ 3., 34., 40.]], dtype=float32)
    """
    in1, in2 = _check_plane("convolve2d", in1, in2, boundary, fillvalue)
    return _direct("convolve2d", in1, in2, mode, precision)


@explained
def correlate2d(
    in1: ArrayLike,
    in2: ArrayLike,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Array:
    """Return the correlation of two arrays with two axes, the second one conjugated.

    Args:
        in1, in2: matrices, one at least as large as the other along both axes.
        mode: "full": the whole overlap; "same": the size of ``in1``; "valid": only full overlaps.
        boundary: must be "fill".
        fillvalue: must be 0.
        precision: precision of the products, as for ``lax.dot``.

    Returns:
        A matrix of floats or complex numbers.

    Raises:
        NotImplementedError: if the boundary is not supported.
        ValueError: if shapes do not match, an array is empty, or the mode is unknown.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> gf.scipy.signal.correlate2d(x, jnp.array([[1, 10]]), mode="valid")
        Array([[21.],
               [43.]], dtype=float32)
    """
    in1, in2 = _check_plane("correlate2d", in1, in2, boundary, fillvalue)
    if mode == "same":
        # The middle of an even number of elements is nearer to the other end than in a convolution.
        flipped = _direct("correlate2d", jnp.flip(in1), jnp.conj(in2), mode, precision)
        return jnp.flip(flipped)
    out = _direct("correlate2d", in1, jnp.flip(jnp.conj(in2)), mode, precision)
    first, second = aval_of(in1).shape, aval_of(in2).shape
    # Here SciPy and JAX conjugate the first operand.
    swapped = mode == "valid" and first != second and _is_within(first, second)
    return jnp.conj(out) if swapped else out


@explained
def fftconvolve(
    in1: ArrayLike, in2: ArrayLike, mode: str = "full", axes: Sequence[int] | int | None = None
) -> Array:
    """Return the convolution of two arrays by Fourier transforms.

    Args:
        in1, in2: arrays of one rank.
        mode: "full": the whole overlap; "same": the size of ``in1``; "valid": only full overlaps.
        axes: the axes to convolve; None uses all. Other sizes must be equal.

    Returns:
        An array of floats or complex numbers, of the rank of the operands.

    Raises:
        ValueError: if shapes do not match, or the mode is unknown.

    Example:
        >>> out = gf.scipy.signal.fftconvolve(jnp.array([1, 2, 3]), jnp.array([1, 10]))
        >>> out.round(3)
        Array([ 1., 12., 23., 30.], dtype=float32)
    """
    in1, in2 = _operands("fftconvolve", in1, in2, mode)
    rank = aval_of(in1).ndim
    along = canonicalize_axes(axes, rank, "fftconvolve")
    left, right = aval_of(in1).shape, aval_of(in2).shape
    check(
        all(left[d] == right[d] for d in range(rank) if d not in along),
        lambda: (
            f"[fftconvolve] axes that are not convolved must have equal sizes; got shapes "
            f"{left} and {right} with axes={axes}. Fix: axes=None."
        ),
        ValueError,
    )
    first, second = ([shape[d] for d in along] for shape in (left, right))
    if mode == "valid":
        _check_nested("fftconvolve", first, second)
        if _is_within(first, second):
            in1, in2, first, second = in2, in1, second, first
    full = [m + n - 1 for m, n in zip(first, second, strict=True)]
    if all(1 in pair for pair in zip(first, second, strict=True)):
        out = in1 * in2
    elif dtypes.is_complex(aval_of(in1).dtype):
        product = jnp.fft.fftn(in1, full, along) * jnp.fft.fftn(in2, full, along)
        out = jnp.fft.ifftn(product, full, along)
    else:
        product = jnp.fft.rfftn(in1, full, along) * jnp.fft.rfftn(in2, full, along)
        out = jnp.fft.irfftn(product, full, along)
    within = [m - n + 1 for m, n in zip(first, second, strict=True)]
    out_sizes = {"full": full, "same": first, "valid": within}[mode]
    for axis, whole, size in zip(along, full, out_sizes, strict=True):
        start = (whole - size) // 2
        out = lax.slice_in_dim(out, start, start + size, axis=axis)
    return out
