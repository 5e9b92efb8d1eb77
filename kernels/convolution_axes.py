"""Index arithmetic along the axes of convolution.py and convolution_direct.py.

A slide is one dimension along which the right operand moves:

    size, taps, positions, lhs, rhs, out, step, pad, hole, gap, every, skip

The ``size`` elements of the left operand have dilation ``hole``, taps have dilation ``gap``, and
positions have stride ``step``; lhs, rhs and out are strides. Position p reads element
``(p * step + t * gap - pad) / hole`` with tap t, if that is an integer: for one in ``skip`` taps,
if any, and for the same ones at every ``every``-th position. So holes are neither read nor
multiplied.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import int32, int64, split_index, uint32, uint64

LONG = False  # set for builds whose arrays span 2^31 elements or more


def as_index(value):
    """An index, a position or a size."""
    if LONG:
        return int64(value)
    else:
        return int32(value)


def without_holes(taps, positions, step, pad, hole, gap, every, skip, phase):
    """Reduce a slide to the positions ``phase``, ``phase + every``, ..., without lhs dilation.

    Returns:
        The first tap that reads elements, the count of such taps, that of positions; the stride of
        positions and the gap of taps in elements, and the element of the first position and tap.
    """
    at = as_index(phase * step - pad)
    first, count = as_index(0), as_index(taps)
    if hole > 1:
        count = as_index(0)
        while first < skip and (at + first * gap) % hole != 0:
            first = as_index(first + 1)
        if first < skip:
            count = as_index((taps - first + skip - 1) // skip)
        at = as_index((at + first * gap) // hole)
        positions = as_index((positions - phase + every - 1) // every)
        step, gap = as_index(every * step // hole), as_index(skip * gap // hole)
    return first, count, positions, step, gap, at


def is_inside(position, size):
    """Whether ``0 <= position < size``."""
    if LONG:
        return uint64(position) < uint64(size)
    else:
        return uint32(position) < uint32(size)


def split(index, extent):
    """Quotient and remainder of nonnegative integers; by 0 as by 1."""
    if LONG:
        size = int64(max(extent, 1))
        quotient = int64(index) // size
        return quotient, int64(index) - quotient * size
    else:
        return split_index(int32(index), int32(max(extent, 1)))
