"""Packing and unpacking of bits in bytes.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis, check_choice
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, static_int
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.promotion import convert
from gpuflow.numpy.shaping import moveaxis, ravel

_BYTE = np.dtype(np.uint8)


def _bit_shifts(bitorder: str, rank: int) -> np.ndarray:
    """Shift counts of the eight bits of a byte, along the last of ``rank`` axes."""
    shifts = np.arange(8, dtype=np.uint8)
    shifts = shifts[::-1] if bitorder == "big" else shifts
    return shifts.reshape((1,) * (rank - 1) + (8,))


@composite
def packbits(a: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Array:
    """Pack eight bools into each byte.

    Args:
        a: array of integers or bools; nonzero elements become 1.
        axis: the axis to pack along; None flattens the array first.
        bitorder: ``"big"`` stores the first value in the highest bit; ``"little"`` in the lowest.

    Returns:
        uint8, with an eighth of the elements along ``axis``, rounded up; the last byte is
        zero-padded.

    Raises:
        TypeError: if an argument is a float or complex array.
        ValueError: if the order is unknown, or the axis does not exist.

    Example:
        >>> jnp.packbits(jnp.array([1, 0, 1, 0, 0, 0, 0, 1, 1]))
        Array([161, 128], dtype=uint8)
        >>> jnp.packbits(jnp.array([True, False, True]), bitorder="little")
        Array([5], dtype=uint8)
    """
    x = as_array("packbits", a)
    dtype = aval_of(x).dtype
    check(
        dtypes.is_integer(dtype) or dtypes.is_bool(dtype),
        lambda: f"[packbits] the array must hold integers or bools; got {aval_of(x)}. Fix: x != 0.",
    )
    check_choice("packbits", "bitorder", bitorder, ("big", "little"))
    x, dim = (ravel(x), 0) if axis is None else (x, axis)
    x = moveaxis(as_bool(x).astype(_BYTE), dim, -1)
    *lead, size = aval_of(x).shape
    x = lax.pad(x, convert(0, _BYTE), [(0, 0, 0)] * len(lead) + [(0, -size % 8, 0)])
    x = lax.reshape(x, (*lead, -(-size // 8), 8))
    shifted = x << _bit_shifts(bitorder, len(lead) + 2)
    return moveaxis(lax.reduce_sum(shifted, (len(lead) + 1,)), -1, dim)


@composite
def unpackbits(
    a: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Array:
    """Unpack the bits of bytes to bytes of 0 or 1.

    Args:
        a: array of uint8.
        axis: the axis to unpack along; None flattens the array first.
        count: number of bits to return, truncated or zero-padded; a negative number removes bits at
            the end. None returns all.
        bitorder: ``"big"`` returns the highest bit first; ``"little"`` the lowest.

    Returns:
        uint8, with eight times as many elements along ``axis``, or ``count``.

    Raises:
        TypeError: if the dtype is not supported.
        ValueError: if the order is unknown, or the axis does not exist.

    Example:
        >>> jnp.unpackbits(jnp.array([161], jnp.uint8))
        Array([1, 0, 1, 0, 0, 0, 0, 1], dtype=uint8)
        >>> jnp.unpackbits(jnp.array([161], jnp.uint8), count=3)
        Array([1, 0, 1], dtype=uint8)
    """
    x = as_array("unpackbits", a)
    check(
        aval_of(x).dtype == _BYTE,
        lambda: f"[unpackbits] the array must hold uint8; got {aval_of(x)}. Fix: x.view('uint8').",
    )
    check_choice("unpackbits", "bitorder", bitorder, ("big", "little"))
    x, dim = (ravel(x), 0) if axis is None else (x, axis)
    dim = canonicalize_axis(dim, aval_of(x).ndim, "unpackbits")
    x = moveaxis(x, dim, -1)
    rank = aval_of(x).ndim + 1
    bits = (lax.expand_dims(x, (rank - 1,)) >> _bit_shifts(bitorder, rank)) & _BYTE.type(1)
    *lead, size, _ = aval_of(bits).shape
    bits = lax.reshape(bits, (*lead, size * 8))
    if count is not None:
        bit_count = static_int("unpackbits", "count", count)
        bit_count = size * 8 + bit_count if bit_count < 0 else bit_count
        edges = [(0, 0, 0)] * len(lead) + [(0, bit_count - size * 8, 0)]
        bits = lax.pad(bits, convert(0, _BYTE), edges)
    return moveaxis(bits, -1, dim)
