"""Discrete Fourier transforms over the last one to three dimensions.

As in NumPy, the inverse transforms divide by the number of elements. RFFT takes real numbers and
returns the first half of the last dimension; IRFFT is its inverse. It assumes that the other half
is conjugate, and ignores the imaginary parts of self-conjugate elements.

Tests: tests/ops/test_fft.py, tests/numpy/test_numpy_fft.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import prod
from operator import index as as_index
from types import ModuleType
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Fourier
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_kind, define, linear_jvp, unary_transpose
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.ops.elementwise.comparison import bitwise_or, eq
from gpuflow.ops.elementwise.complex_numbers import component_dtype, conj
from gpuflow.ops.elementwise.convert import convert
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.transpose import move_axis

Lengths = tuple[int, ...]


class FftType(enum.IntEnum):
    """Types of Fourier transforms: complex, inverse, real, and inverse real."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3

    def __str__(self) -> str:
        return self.name


_COMPLEX = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}


def _is_complex(dtype: Any) -> bool:
    return dtype in _COMPLEX.values()


def _fft_shape(x: ShapedArray, *, fft_type: FftType, fft_lengths: Lengths) -> ShapedArray:
    if fft_type is FftType.RFFT:
        check_kind("fft", x, _COMPLEX.__contains__, "float32 or float64 for RFFT", ValueError)
    else:
        check_kind("fft", x, _is_complex, f"complex64 or complex128 for {fft_type.name}")
    count = len(fft_lengths)
    check(
        1 <= count <= min(3, x.ndim),
        lambda: (
            "[fft] fft_lengths must name one to three of the last dimensions; got "
            f"{fft_lengths} for {x}. Fix: use jnp.fft.fftn for more."
        ),
        ValueError,
    )
    batch, transformed = x.shape[: x.ndim - count], x.shape[x.ndim - count :]
    half = (*fft_lengths[:-1], fft_lengths[-1] // 2 + 1)
    inverse = fft_type is FftType.IRFFT
    expected = half if inverse else fft_lengths
    check(
        transformed == expected and all(n >= 0 for n in fft_lengths),
        lambda: (
            f"[fft] the last dimensions of the operand must be {expected} for {fft_type.name} with "
            f"fft_lengths {fft_lengths}; got {x}. Fix: pad or slice the operand."
        ),
        ValueError,
    )
    if inverse:
        return ShapedArray((*batch, *fft_lengths), component_dtype(x.dtype), x.weak_type)
    if fft_type is FftType.RFFT:
        return ShapedArray((*batch, *half), _COMPLEX[x.dtype], x.weak_type)
    return x


def _load_fft(xp: Any) -> ModuleType:
    """The transforms for arrays of ``xp``, which preserve single precision."""
    if xp is np:
        import scipy.fft

        return scipy.fft
    import cupyx.scipy.fft  # pyright: ignore[reportMissingImports] (optional)

    return cupyx.scipy.fft


_FUNCTIONS = {
    FftType.FFT: "fftn",
    FftType.IFFT: "ifftn",
    FftType.RFFT: "rfftn",
    FftType.IRFFT: "irfftn",
}


def _fft_impl(xp: Any, x: Any, *, fft_type: FftType, fft_lengths: Lengths) -> Any:
    out = _fft_shape(ShapedArray(x.shape, x.dtype), fft_type=fft_type, fft_lengths=fft_lengths)
    if not x.size or not out.size:
        return xp.zeros(out.shape, out.dtype)
    axes = tuple(range(-len(fft_lengths), 0))
    function = getattr(_load_fft(xp), _FUNCTIONS[fft_type])
    return function(x, s=fft_lengths, axes=axes).astype(out.dtype, copy=False)


def _by_occurrence(x: Any, length: int, once: float, twice: float) -> Any:
    """Scale half of a spectrum of ``length``: self-conjugate elements by ``once``, others, which
    occur twice in the full spectrum, by ``twice``."""
    aval = aval_of(x)
    position = iota(np.int32, (*(1,) * (aval.ndim - 1), aval.shape[-1]), aval.ndim - 1)
    is_single = eq(position, 0)
    if length % 2 == 0:
        is_single = bitwise_or(is_single, eq(position, length // 2))
    factors = where(is_single, *[aval.dtype.type(factor) for factor in (once, twice)])
    return mul(x, factors)


def _fft_transpose(
    cotangent: Any, x: ShapedArray, *, fft_type: FftType, fft_lengths: Lengths
) -> Any:
    """The complex transforms are symmetric matrices. The real ones are each other's transposes if
    elements are scaled by their number of occurrences in the full spectrum."""
    del x
    count = prod(fft_lengths)
    if fft_type is FftType.RFFT:
        scaled = _by_occurrence(conj(cotangent), fft_lengths[-1], count, count / 2)
        return fft(scaled, FftType.IRFFT, fft_lengths)
    if fft_type is FftType.IRFFT:
        spectrum = fft(cotangent, FftType.RFFT, fft_lengths)
        share = 1 / max(count, 1)
        return conj(_by_occurrence(spectrum, fft_lengths[-1], share, 2 * share))
    return fft(cotangent, fft_type, fft_lengths)


def _fft_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[Any, int]:
    del axis
    return fft_p.bind(move_axis(operands[0], dims[0], 0), **params), 0


def _fft_block(ins: Any, outs: Any, params: dict[str, Any]) -> Fourier:
    del ins, outs
    return Fourier(params["fft_type"].name, params["fft_lengths"])


def _fft_partitionable(ins: Any, out: ShapedArray, params: dict[str, Any]) -> Any:
    """Dimensions before the transformed ones."""
    del ins
    return [[(d, d) for d in range(out.ndim - len(params["fft_lengths"]))]]


def _fft_flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    """The usual flop count for a transform of powers of two."""
    size = max(in_avals[0].size, out_avals[0].size)
    return int(5 * size * np.log2(max(prod(params["fft_lengths"]), 2)))


fft_p = define(
    "fft",
    shape=_fft_shape,
    impl=_fft_impl,
    jvp=linear_jvp(lambda x, **params: fft_p.bind(x, **params)),
    transpose=unary_transpose(_fft_transpose),
    batch=_fft_batch,
    lower=Library(flops=_fft_flops, what=_fft_block, partitionable=_fft_partitionable),
)


@explained
def fft(x: ArrayLike, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """Compute a discrete Fourier transform over the last dimensions.

    Args:
        x: array; it is converted to complex, or to real floats for RFFT.
        fft_type: an FftType, or its name in any case.
        fft_lengths: the lengths of the whole transform along the last one to three dimensions.

    Returns:
        An array like ``x``; RFFT gives ``n // 2 + 1`` elements along the last dimension of length
        n, IRFFT gives n real elements.

    Raises:
        ValueError: if lengths do not match, the type is unknown, or RFFT gets a complex array.
        TypeError: if the type is neither FftType nor str.

    Example:
        >>> lax.fft(jnp.array([1.0, 0.0, 0.0, 0.0]), "fft", (4,))
        Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    kind = _fft_type(fft_type)
    dtype = aval_of(x).dtype
    if kind is FftType.RFFT:
        check(
            not dtypes.is_complex(dtype),
            lambda: f"[fft] RFFT takes real numbers; got {aval_of(x)}. Fix: use FFT.",
            ValueError,
        )
        x = convert(x, dtypes.inexact_dtype(dtype))
    elif not dtypes.is_complex(dtype):
        wide = dtypes.inexact_dtype(dtype) == dtypes.float64
        x = convert(x, dtypes.complex128 if wide else dtypes.complex64)
    if len(fft_lengths) == 0:
        return x  # type: ignore[return-value]
    lengths = tuple(as_index(length) for length in fft_lengths)
    return fft_p.bind(x, fft_type=kind, fft_lengths=lengths)


def _fft_type(kind: Any) -> FftType:
    if isinstance(kind, FftType):
        return kind
    check(
        isinstance(kind, str),
        lambda: f"[fft] fft_type must be an FftType or str; got {kind!r}. Fix: FftType.FFT.",
    )
    check(
        kind.upper() in FftType.__members__,
        lambda: (
            f"[fft] fft_type must be one of {', '.join(FftType.__members__)}; got {kind!r}. "
            "Fix: FftType.FFT."
        ),
        ValueError,
    )
    return FftType[kind.upper()]
