"""Reductions of NumPy arrays of several ranks (sum, max, min), and buffers for results.

Tests: tests/parallel/test_communicators.py, tests/parallel/test_mismatches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.runtime.memory import allocate

OPERATIONS: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def working_dtype(dtype: np.dtype) -> np.dtype:
    """The accumulation dtype: float32 for floats below 32 bits, else the dtype itself."""
    is_short_float = dtypes.is_inexact(dtype) and dtype.itemsize < 4
    return np.dtype(np.float32) if is_short_float else dtype


def contiguous(data: Any) -> np.ndarray:
    """A row-major array, copied only if needed; unlike ``np.ascontiguousarray`` it keeps rank 0."""
    array = np.asarray(data)
    return np.ascontiguousarray(array).reshape(array.shape)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialized memory for a result, from the pool: page faults cost more than sending."""
    return allocate(shape, dtype, prod(shape) * dtype.itemsize)


def output_for(like: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """The output buffer of a result: ``out`` if it has the dtype, else a new array."""
    if out is not None and out.dtype == like.dtype:
        return out
    return empty(like.shape, like.dtype)


def finished(result: np.ndarray, dtype: np.dtype, out: np.ndarray | None) -> np.ndarray:
    """Convert a result to its dtype, or copy it to ``out`` if that is given."""
    if out is None:
        return result.astype(dtype, copy=False)
    if result is not out:
        np.copyto(out, result, casting="unsafe")
    return out


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a row-major array, viewed as bytes: ml_dtypes have no buffer protocol."""
    data: Any = array.reshape(-1).view(np.uint8)
    return memoryview(data)


def combine(
    operands: Sequence[np.ndarray] | np.ndarray,
    op: str,
    dtype: np.dtype,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Reduce the operands of all ranks, in order, into ``out`` or a new array of ``dtype``."""
    function, working = OPERATIONS[op], working_dtype(dtype)
    total = out if out is not None and working == dtype else empty(operands[0].shape, working)
    np.copyto(total, operands[0])
    for operand in operands[1:]:
        function(total, operand.astype(working, copy=False), out=total)
    return finished(total, dtype, out)
