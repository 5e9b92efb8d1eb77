"""Small real or complex matrices of a warp in shared memory: their layout, and arithmetic.

A warp has TILES tiles of 32 rows at a pitch of PITCH scalars. Complex matrices have a tile for each
component. ``base`` is the offset of the warp's first tile; T is at ``base``, and the imaginary
component of T, Z and its own, and X and its own follow at the offsets below, if a build has them.

Tests: tests/kernels/test_kernel_eig.py.
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
from gpuflow.kernels.small_matrices import DOUBLE, PITCH, real

# Given for each build, with DOUBLE of small_matrices.
COMPLEX = 0  # matrices are complex
T_IMAG, Z, Z_IMAG, X, X_IMAG = 0, 0, 0, 0, 0  # offsets of tiles


def shared_scalars():
    """The block's shared memory."""
    if DOUBLE:
        return dynamic_shared(float64)
    else:
        return dynamic_shared(float32)


def epsilon():
    """The machine epsilon: the distance from 1 to the next float."""
    return real(2.220446049250313e-16) if DOUBLE else real(1.1920929e-07)


def vanishing():
    """The threshold of negligible values: the smallest normal number, over epsilon, for 32 rows."""
    return real(3.3e-291) if DOUBLE else real(3.2e-30)


def absolute(value):
    """The magnitude of a number."""
    return real(math.fabs(value))


def sqrt(value):
    """The square root."""
    return real(math.sqrt(value))


def copysign(value, sign):
    """The magnitude of one number with the sign of another."""
    return real(math.copysign(value, sign))


def hypot(re, im):
    """The absolute value of a complex number, without intermediate overflow or underflow."""
    largest = max(absolute(re), absolute(im))
    if largest == real(0.0):
        return largest
    re, im = re / largest, im / largest
    return largest * sqrt(re * re + im * im)


def times(a, a_imag, b, b_imag):
    """A product of complex numbers."""
    return a * b - a_imag * b_imag, a * b_imag + a_imag * b


def divided(a, a_imag, b, b_imag):
    """A quotient of complex numbers; exactly real for real ones. Source: Smith 1962."""
    if absolute(b) >= absolute(b_imag):
        ratio = b_imag / b
        total = b + b_imag * ratio
        return (a + a_imag * ratio) / total, (a_imag - a * ratio) / total
    ratio = b / b_imag
    total = b * ratio + b_imag
    return (a * ratio + a_imag) / total, (a_imag * ratio - a) / total


def complex_root(re, im):
    """The square root of a complex number, with a real part that is not negative."""
    length = hypot(re, im)
    larger = sqrt(real(0.5) * (length + absolute(re)))
    if larger == real(0.0):
        return larger, larger
    smaller = real(0.5) * im / larger
    if re >= real(0.0):
        return larger, smaller
    return absolute(smaller), copysign(larger, im)


def element_size(memory, index):
    """The magnitude of an element of T: of complex ones, the sum of its components'."""
    if COMPLEX:
        return absolute(memory[index]) + absolute(memory[index + T_IMAG])
    else:
        return absolute(memory[index])


def distance(memory, index, other):
    """The magnitude of the difference of two elements of T."""
    gap = absolute(memory[index] - memory[other])
    if COMPLEX:
        gap += absolute(memory[index + T_IMAG] - memory[other + T_IMAG])
    return gap


def last_lane(bits):
    """The last lane of a vote; -1 if there is none."""
    return int32(31 - int32(count_leading_zeros(uint32(bits))))


def ballot(condition):
    """The lanes for which the condition holds, as bits; all lanes take part."""
    return uint32(cuda.ballot_sync(0xFFFFFFFF, condition))


def element(base, row, column):
    """The index of an element of the first tile."""
    return int32(base + PITCH * row + column)
