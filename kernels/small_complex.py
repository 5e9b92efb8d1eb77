"""Small real or complex matrices of a warp in shared memory: where they lie, and arithmetic.

A warp has TILES tiles of 32 rows, LINE numbers from one to the next. Complex matrices have a tile
for each part. ``base`` is the place of the warp's first tile; T is at ``base``, and the imaginary
part of T, Z and its own, and X and its own follow at the offsets below, as far as a build has them.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import (
    count_leading_zeros,
    cuda,
    dynamic_shared,
    float32,
    float64,
    int32,
    uint32,
)
from gpuflow.kernels.small_matrices import DOUBLE, LINE, number

# Given for each build, with DOUBLE of small_matrices.
COMPLEX = 0  # matrices are complex
T_IMAG, Z, Z_IMAG, X, X_IMAG = 0, 0, 0, 0, 0  # offsets of tiles


def shared_numbers():
    """The block's shared memory."""
    if DOUBLE:
        return dynamic_shared(float64)
    else:
        return dynamic_shared(float32)


def epsilon():
    """The distance from 1 to the next number."""
    return number(2.220446049250313e-16) if DOUBLE else number(1.1920929e-07)


def vanishing():
    """Below it nothing counts: the smallest normal number, over epsilon, for 32 rows."""
    return number(3.3e-291) if DOUBLE else number(3.2e-30)


def size_of(value):
    """The magnitude of a number."""
    return number(math.fabs(value))


def root_of(value):
    """The square root."""
    return number(math.sqrt(value))


def with_sign(value, sign):
    """The magnitude of one number with the sign of another."""
    return number(math.copysign(value, sign))


def length_of(re, im):
    """The absolute value of a complex number, which neither overflows nor vanishes on the way."""
    largest = max(size_of(re), size_of(im))
    if largest == number(0.0):
        return largest
    re, im = re / largest, im / largest
    return largest * root_of(re * re + im * im)


def times(a, a_imag, b, b_imag):
    """A product of complex numbers."""
    return a * b - a_imag * b_imag, a * b_imag + a_imag * b


def divided(a, a_imag, b, b_imag):
    """A quotient of complex numbers; exactly real for real ones. Source: Smith 1962."""
    if size_of(b) >= size_of(b_imag):
        part = b_imag / b
        total = b + b_imag * part
        return (a + a_imag * part) / total, (a_imag - a * part) / total
    part = b / b_imag
    total = b * part + b_imag
    return (a * part + a_imag) / total, (a_imag * part - a) / total


def complex_root(re, im):
    """The square root of a complex number, with a real part that is not negative."""
    length = length_of(re, im)
    larger = root_of(number(0.5) * (length + size_of(re)))
    if larger == number(0.0):
        return larger, larger
    smaller = number(0.5) * im / larger
    if re >= number(0.0):
        return larger, smaller
    return size_of(smaller), with_sign(larger, im)


def element_size(memory, place):
    """The magnitude of an element of T: of complex ones, the sum of its parts'."""
    if COMPLEX:
        return size_of(memory[place]) + size_of(memory[place + T_IMAG])
    else:
        return size_of(memory[place])


def distance(memory, place, other):
    """The magnitude of the difference of two elements of T."""
    gap = size_of(memory[place] - memory[other])
    if COMPLEX:
        gap += size_of(memory[place + T_IMAG] - memory[other + T_IMAG])
    return gap


def highest(bits):
    """The last lane of a vote; -1 if there is none."""
    return int32(31 - int32(count_leading_zeros(uint32(bits))))


def vote(condition):
    """The lanes for which something holds, as bits; all lanes take part."""
    return uint32(cuda.ballot_sync(0xFFFFFFFF, condition))


def element(base, row, column):
    """Where an element lies in the first tile."""
    return int32(base + LINE * row + column)
