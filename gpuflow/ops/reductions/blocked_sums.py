"""Blocked sums of host arrays, with an error that does not grow with the length.

Tests: tests/ops/test_blocked_sums.py.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 32  # elements that are added sequentially
_WIDE = 512  # elements; rows of as many are worth a separate inner loop


def blocked_sum(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Sum over ``axes`` in the dtype of the array.

    NumPy adds pairwise along the axis that is contiguous in memory, and sequentially along the
    others: the error of a mean of millions of rows would be in the third digit. These axes are
    summed in blocks, recursively.

    Args:
        x: array of floats or complex numbers.
        axes: nonnegative axes of the array.

    Returns:
        The array without those axes. The error grows with the logarithm of the length.
    """
    if x.ndim == 1 or x.size < 2 * _BLOCK:
        return x.sum(axis=axes, dtype=x.dtype)  # no axis is long and strided
    steps = [abs(step) for step, size in zip(x.strides, x.shape, strict=True) if size > 1]
    for axis in axes:
        if x.shape[axis] >= 2 * _BLOCK and abs(x.strides[axis]) > min(steps):
            return blocked_sum(_sums_of_blocks(x, axis), axes)
    return x.sum(axis=axes, dtype=x.dtype)


def _sums_of_blocks(x: np.ndarray, axis: int) -> np.ndarray:
    """Sum blocks of adjacent rows if rows are long, so that the sum stays in the cache.

    If rows are short, a block has one row of each chunk of the axis: these chunks are added as
    long rows.
    """
    count = x.shape[axis] // _BLOCK
    along = (slice(None),) * axis
    body, tail = x[(*along, slice(None, count * _BLOCK))], x[(*along, slice(count * _BLOCK, None))]
    is_wide = abs(x.strides[axis]) >= _WIDE * x.itemsize
    sizes = (count, _BLOCK) if is_wide else (_BLOCK, count)
    blocks = body.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])
    sums = blocks.sum(axis=axis + is_wide, dtype=x.dtype)
    return np.concatenate([sums, tail], axis) if tail.shape[axis] else sums
