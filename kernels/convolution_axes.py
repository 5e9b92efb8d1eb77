"""What the kernels of convolution.py and convolution_direct.py know of axes.

A slide is one dimension along which the right operand moves:

    size, taps, places, lhs, rhs, out, step, pad, hole, gap, every, skip

``size`` elements of the left operand lie ``hole`` apart, taps lie ``gap`` apart, and places
``step``; lhs, rhs and out are strides. Place p meets element ``(p * step + t * gap - pad) / hole``
with tap t, where that is a whole number: for one in ``skip`` taps, if any, and for the same ones at
every ``every``-th place. So holes are neither read nor multiplied.
"""

from __future__ import annotations

from gpuflow.kernels.language import int32, int64, split_index, uint32, uint64

LONG = False  # set for builds whose arrays span 2^31 elements or more


def number(value):
    """An index, a position or a size."""
    if LONG:
        return int64(value)
    else:
        return int32(value)


def without_holes(taps, places, step, pad, hole, gap, every, skip, phase):
    """What is left of a slide for the places ``phase``, ``phase + every``, ...

    Returns:
        The first tap that meets elements, how many do, the number of places; then the step of
        places and the gap of taps in elements, and where the first place meets the first tap.
    """
    at = number(phase * step - pad)
    first, count = number(0), number(taps)
    if hole > 1:
        count = number(0)
        while first < skip and (at + first * gap) % hole != 0:
            first = number(first + 1)
        if first < skip:
            count = number((taps - first + skip - 1) // skip)
        at = number((at + first * gap) // hole)
        places = number((places - phase + every - 1) // every)
        step, gap = number(every * step // hole), number(skip * gap // hole)
    return first, count, places, step, gap, at


def is_inside(position, size):
    """Whether ``0 <= position < size``."""
    if LONG:
        return uint64(position) < uint64(size)
    else:
        return uint32(position) < uint32(size)


def split(index, extent):
    """Quotient and remainder of numbers that are not negative; by 0 as by 1."""
    if LONG:
        size = int64(max(extent, 1))
        quotient = int64(index) // size
        return quotient, int64(index) - quotient * size
    else:
        return split_index(int32(index), int32(max(extent, 1)))
