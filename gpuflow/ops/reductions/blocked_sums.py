"""Sums of host arrays whose error does not grow with the length."""

from __future__ import annotations

import numpy as np

_BLOCK = 32  # numbers that are added one after the other
_WIDE = 512  # elements; rows of as many are worth an inner loop of their own


def blocked_sum(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The sum over ``axes`` in the array's own dtype.

    NumPy adds pairwise along the axis that is contiguous in memory, and along the others one row
    after the other: the error of a mean of millions of rows would be in the third digit. Those
    axes are summed in blocks here, and then the sums of the blocks likewise.

    Args:
        x: array of floats or complex numbers.
        axes: of the array, counted from the front.

    Returns:
        The array without those axes. The error grows with the logarithm of the length.
    """
    if x.ndim == 1 or x.size < 2 * _BLOCK:
        return x.sum(axis=axes, dtype=x.dtype)  # no axis is long and apart
    steps = [abs(step) for step, size in zip(x.strides, x.shape, strict=True) if size > 1]
    for axis in axes:
        if x.shape[axis] >= 2 * _BLOCK and abs(x.strides[axis]) > min(steps):
            return blocked_sum(_sums_of_blocks(x, axis), axes)
    return x.sum(axis=axes, dtype=x.dtype)


def _sums_of_blocks(x: np.ndarray, axis: int) -> np.ndarray:
    """A block is of neighbors where rows are long, so that their sum stays in the cache.

    Where they are short, it takes one row of each part of the axis: those parts are added as
    long rows.
    """
    count = x.shape[axis] // _BLOCK
    along = (slice(None),) * axis
    body, rest = x[(*along, slice(None, count * _BLOCK))], x[(*along, slice(count * _BLOCK, None))]
    is_wide = abs(x.strides[axis]) >= _WIDE * x.itemsize
    sizes = (count, _BLOCK) if is_wide else (_BLOCK, count)
    blocks = body.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])
    sums = blocks.sum(axis=axis + is_wide, dtype=x.dtype)
    return np.concatenate([sums, rest], axis) if rest.shape[axis] else sums
