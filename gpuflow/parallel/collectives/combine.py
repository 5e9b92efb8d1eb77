"""Combine NumPy arrays of several ranks: sums, maxima and minima, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.runtime.memory import allocate

OPERATIONS: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def working_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which arrays are combined: floats of less than 32 bits as float32."""
    is_short_float = dtypes.is_inexact(dtype) and dtype.itemsize < 4
    return np.dtype(np.float32) if is_short_float else dtype


def contiguous(data: Any) -> np.ndarray:
    """The array row-major, copied only if needed; unlike NumPy's, it keeps rank 0."""
    array = np.asarray(data)
    return np.ascontiguousarray(array).reshape(array.shape)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory for a result: large blocks are used again, since fresh ones cost more than sending."""
    return allocate(shape, dtype, prod(shape) * dtype.itemsize)


def output_for(like: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """The output buffer of a result: ``out`` if it has the dtype, else a new array."""
    if out is not None and out.dtype == like.dtype:
        return out
    return empty(like.shape, like.dtype)


def finished(result: np.ndarray, dtype: np.dtype, out: np.ndarray | None) -> np.ndarray:
    """A result in its dtype, and in ``out`` if there is one."""
    if out is None:
        return result.astype(dtype, copy=False)
    if result is not out:
        np.copyto(out, result, casting="unsafe")
    return out


def bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a row-major array. Views as bytes, as ml_dtypes have no buffer protocol."""
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
