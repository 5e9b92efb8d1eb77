"""The types of PTX as NumPy dtypes.

A register is an array of bits: its array may have any dtype of the register's width, and an
instruction views it as its own type. Packed pairs (``f16x2``) are 32-bit integers, and instructions
on them view them as two values.

Tests: tests/ptxsim/test_ptx_data.py, tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray

BOOL = np.dtype(np.bool_)
U8, U16, U32, U64 = (np.dtype(f"u{size}") for size in (1, 2, 4, 8))
I8, I16, I32, I64 = (np.dtype(f"i{size}") for size in (1, 2, 4, 8))
F16, F32, F64 = (np.dtype(f"f{size}") for size in (2, 4, 8))
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)

TYPES: dict[str, np.dtype] = {
    "pred": BOOL, "f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "tf32": U32,
    "b8": U8, "b16": U16, "b32": U32, "b64": U64,
    "u8": U8, "u16": U16, "u32": U32, "u64": U64,
    "s8": I8, "s16": I16, "s32": I32, "s64": I64,
    "f16x2": U32, "bf16x2": U32, "u16x2": U32, "s16x2": U32, "f32x2": U64,
    "e4m3x2": U16, "e5m2x2": U16,
}  # fmt: skip

PACKED: dict[str, np.dtype] = {
    "f16x2": F16,
    "bf16x2": BF16,
    "u16x2": U16,
    "s16x2": I16,
    "f32x2": F32,
    "e4m3x2": E4M3,
    "e5m2x2": E5M2,
}

_UNSIGNED = {1: U8, 2: U16, 4: U32, 8: U64}
_SIGNED = {1: I8, 2: I16, 4: I32, 8: I64}
FLOATS = frozenset({F16, BF16, F32, F64, E4M3, E5M2})


def is_float(dtype: np.dtype) -> bool:
    """Whether values of the type are rounded; ml_dtypes types are of kind V."""
    return dtype in FLOATS


def unsigned(size: int) -> np.dtype:
    """The unsigned integer of so many bytes."""
    return _UNSIGNED[size]


def signed(size: int) -> np.dtype:
    """The signed integer of so many bytes."""
    return _SIGNED[size]


def bits(dtype: np.dtype) -> np.dtype:
    """The unsigned integer of a type's width; predicates stay."""
    return dtype if dtype == BOOL else _UNSIGNED[dtype.itemsize]


def resized(values: Array, dtype: np.dtype) -> Array:
    """Bits of one width as another: cut off, or extended by the sign of signed values."""
    if values.dtype.kind not in "iu":
        values = values.view(bits(values.dtype))
    wide = signed(dtype.itemsize) if values.dtype.kind == "i" else unsigned(dtype.itemsize)
    return values.astype(wide).view(dtype)
