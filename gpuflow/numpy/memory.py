"""Reinterpretation of the bytes of arrays: views of another dtype, and byte order.

Tests: tests/ops/test_dtypes_storage.py, tests/numpy/test_numpy_errors.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.types import Array, DTypeLike
from gpuflow.numpy import shaping
from gpuflow.numpy.elementary import imag, real
from gpuflow.numpy.joining import stack
from gpuflow.numpy.promotion import user_dtype

_BYTE = np.dtype(np.uint8)


def view(self: Any, dtype: DTypeLike | None = None, type: None = None) -> Array:
    """Reinterpret the bits as another dtype; the last axis grows or shrinks with the width.

    Complex numbers are two floats. A bool is a byte of 0 or 1; other bytes become True unless they
    are 0. int4 has 4 bits, and the first of two elements is the low half of a byte.

    Args:
        dtype: the new interpretation of the bits; None changes nothing.
        type: accepted as in NumPy; must be None.

    Raises:
        TypeError: if the dtype is not numeric.
        ValueError: if the last axis is not a multiple of the width.
        NotImplementedError: if ``type`` is given.
    """
    sizes = [size for size in (dtype, type) if isinstance(size, int | tuple | list)]
    check(
        not sizes,
        lambda: (
            f"[view] dtype must be a dtype, as in NumPy; got the shape {', '.join(map(str, sizes))}"
            f". Fix: x.reshape({', '.join(map(str, sizes))})."
        ),
    )
    check(
        type is None,
        lambda: f"[view] type must be None: arrays have one class; got {type!r}. Fix: dtype=.",
        NotImplementedError,
    )
    if dtype is None:
        return self
    target, aval = user_dtype(dtype, "view"), aval_of(self)
    check(
        not dtypes.is_extended(target) and not dtypes.is_extended(aval.dtype),
        lambda: f"[view] random keys have no bits; got {aval}. Fix: random.key_data(key).",
    )
    if target == aval.dtype:
        return self
    _check_widths(aval, target)
    x = _plain(self, aval)
    if dtypes.is_complex(target):
        floats = _bits_as(x, np.dtype(f"f{target.itemsize // 2}"))
        pairs = shaping.reshape(floats, (*_with_last(floats, 2), 2))
        out = lax.complex(pairs[..., 0], pairs[..., 1])
    elif dtypes.is_bool(target):
        out = lax.ne(_bits_as(x, _BYTE), _BYTE.type(0))
    else:
        out = _bits_as(x, target)
    return out if aval.ndim else shaping.reshape(out, ())


def _with_last(x: Any, factor: int) -> tuple[int, ...]:
    """The shape of ``x`` if ``factor`` elements of the last axis become one."""
    *lead, size = aval_of(x).shape
    return (*lead, size // factor)


def _check_widths(aval: ShapedArray, target: Any) -> None:
    old, new = dtypes.bits_of(aval.dtype), dtypes.bits_of(target)
    check(
        aval.ndim > 0 or old == new,
        lambda: (
            f"[view] an array without axes keeps its width; got {aval} and {target}. "
            "Fix: x[None].view(...)."
        ),
        ValueError,
    )
    check(
        aval.ndim == 0 or (aval.shape[-1] * old) % new == 0,
        lambda: (
            f"[view] the last axis must hold whole elements of {target}; got {aval}. Fix: pad it."
        ),
        ValueError,
    )


def _plain(x: Any, aval: ShapedArray) -> Any:
    """``x`` as integers or real floats with the same bytes, and with an axis."""
    shape = aval.shape or (1,)
    x = x if aval.ndim else shaping.reshape(x, shape)
    if dtypes.is_bool(aval.dtype):
        return lax.convert_element_type(x, _BYTE)
    if not dtypes.is_complex(aval.dtype):
        return x
    return shaping.reshape(stack([real(x), imag(x)], -1), (*shape[:-1], 2 * shape[-1]))


def _bits_as(x: Any, dtype: Any) -> Any:
    """The last axis as elements of ``dtype``; differentiable if the dtype does not change."""
    if aval_of(x).dtype == dtype:
        return x
    old, new = dtypes.bits_of(aval_of(x).dtype), dtypes.bits_of(dtype)
    if old < new:
        x = shaping.reshape(x, (*_with_last(x, new // old), new // old))
    out = lax.bitcast_convert_type(x, dtype)
    if old <= new:
        return out
    *lead, size, count = aval_of(out).shape
    return shaping.reshape(out, (*lead, size * count))


def byteswap(self: Any) -> Array:
    """Reverse the bytes of each number, or of each component of complex numbers."""
    aval = aval_of(self)
    check(
        not dtypes.is_extended(aval.dtype),
        lambda: f"[byteswap] random keys have no bytes; got {aval}. Fix: random.key_data(key).",
    )
    if dtypes.is_complex(aval.dtype):
        return lax.complex(byteswap(real(self)), byteswap(imag(self)))
    if aval.dtype.itemsize == 1:
        return self
    swapped = lax.rev(lax.bitcast_convert_type(self, _BYTE), (aval.ndim,))
    return lax.bitcast_convert_type(swapped, aval.dtype)
