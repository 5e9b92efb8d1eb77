"""The Schur form of real matrices by Francis's double shifts.

Complex pairs of eigenvalues remain 2x2 blocks with an equal diagonal.

Source: LAPACK's lahqr and lanv2; Golub and Van Loan 2013, "Matrix computations", algorithm 7.5.1.

Tests: tests/kernels/test_kernel_eig.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import cuda, int32
from gpuflow.kernels.small_complex import (
    Z,
    absolute,
    ballot,
    copysign,
    element,
    epsilon,
    hypot,
    last_lane,
    sqrt,
)
from gpuflow.kernels.small_matrices import PITCH, lane_of_warp, real
from gpuflow.kernels.small_schur import STALLED, VECTORS, block_start, cut_off, max_iterations


def real_schur(memory, base, size, low, high):
    """Make T a real Schur form; returns whether it converged."""
    last, stalled, remaining = int32(high), int32(0), max_iterations(size)
    while last >= low and remaining > 0:
        first = block_start(memory, base, low, high, last)
        cut_off(memory, base, low, first)
        remaining = int32(remaining - 1)
        stalled = int32(stalled + 1)
        if first < last - 1:
            double_shift(memory, base, first, last, stalled)
        else:
            if first < last:
                standardize(memory, base, first)
            last, stalled = int32(first - 1), int32(0)
    return last < low


def shifts_of(memory, base, first, last, stalled):
    """Both shifts: the eigenvalues of the last 2x2 block, or one of them twice if they are real."""
    corner = element(base, last, last)
    a, b = memory[element(base, last - 1, last - 1)], memory[element(base, last - 1, last)]
    c, d = memory[corner - 1], memory[corner]
    if stalled % STALLED == 0:
        from_end = stalled % (2 * STALLED) == 0
        index = corner if from_end else element(base, first, first)
        one = corner - 1 if from_end else element(base, first + 1, first)
        other = (
            element(base, last - 1, last - 2) if from_end else element(base, first + 2, first + 1)
        )
        c = absolute(memory[one]) + absolute(memory[other])
        a = real(0.75) * c + memory[index]
        b, d = real(-0.4375) * c, a
    scale = absolute(a) + absolute(b) + absolute(c) + absolute(d)
    if scale == real(0.0):
        return scale, scale, scale, scale
    a, b, c, d = a / scale, b / scale, c / scale, d / scale
    middle = real(0.5) * (a + d)
    product = (a - middle) * (d - middle) - b * c
    root = sqrt(absolute(product))
    if product >= real(0.0):
        return middle * scale, root * scale, middle * scale, -root * scale
    one, other = middle + root, middle - root
    shift = (one if absolute(one - d) <= absolute(other - d) else other) * scale
    return shift, real(0.0), shift, real(0.0)


def double_shift(memory, base, first, last, stalled):
    """One iteration on rows ``first`` to ``last``, at least three."""
    lane = lane_of_warp()
    one, one_imag, other, other_imag = shifts_of(memory, base, first, last, stalled)
    # Lane m tests whether the iteration may start at row m: two consecutive entries are small.
    v, v2, v3 = real(0.0), real(0.0), real(0.0)
    begins = False
    if lane >= first and lane <= last - 2:
        index, next_index = element(base, lane, lane), element(base, lane + 1, lane + 1)
        a, d, c = memory[index], memory[next_index], memory[next_index - 1]
        scale = absolute(a - other) + absolute(other_imag) + absolute(c)
        ratio = c / scale
        v = ratio * memory[index + 1] + (a - one) * ((a - other) / scale)
        v -= one_imag * (other_imag / scale)
        v2 = ratio * (a + d - one - other)
        v3 = ratio * memory[element(base, lane + 2, lane + 1)]
        total = absolute(v) + absolute(v2) + absolute(v3)
        v, v2, v3 = v / total, v2 / total, v3 / total
        begins = lane == first
        if lane > first:
            above = element(base, lane - 1, lane - 1)
            around = absolute(memory[above]) + absolute(a) + absolute(d)
            small = absolute(memory[index - 1]) * (absolute(v2) + absolute(v3))
            begins = small <= epsilon() * absolute(v) * around
    start = last_lane(ballot(begins))
    v = cuda.shfl_sync(0xFFFFFFFF, v, start)
    v2 = cuda.shfl_sync(0xFFFFFFFF, v2, start)
    v3 = cuda.shfl_sync(0xFFFFFFFF, v3, start)
    for k in range(start, last):
        has_third = k + 2 <= last
        if k > start:
            index = element(base, k, k - 1)
            v, v2 = memory[index], memory[element(base, k + 1, k - 1)]
            v3 = memory[element(base, k + 2, k - 1)] if has_third else real(0.0)
        new, factor = real(0.0), real(0.0)
        largest = max(absolute(v2), absolute(v3))
        if largest > real(0.0):
            # Subnormal values would lose digits.
            largest = max(largest, absolute(v))
            v, v2, v3 = v / largest, v2 / largest, v3 / largest
            new = -copysign(sqrt(v * v + v2 * v2 + v3 * v3), v)
            factor = (new - v) / new
            v2, v3 = v2 / (v - new), v3 / (v - new)
            new *= largest
        else:
            new = v
        cuda.syncwarp()
        if lane == k - 1:
            if k > start:
                memory[element(base, k, lane)] = new
                memory[element(base, k + 1, lane)] = real(0.0)
                if has_third:
                    memory[element(base, k + 2, lane)] = real(0.0)
            elif k > first:
                memory[element(base, k, lane)] *= real(1.0) - factor
        if lane >= k:
            reflect_three(memory, element(base, k, lane), PITCH, has_third, v2, v3, factor)
        cuda.syncwarp()
        if lane <= min(k + 3, last):
            reflect_three(memory, element(base, lane, k), 1, has_third, v2, v3, factor)
        if VECTORS:
            reflect_three(memory, int32(element(base, lane, k) + Z), 1, has_third, v2, v3, factor)
        cuda.syncwarp()


def reflect_three(memory, index, step, has_third, v2, v3, factor):
    """Reflect two or three elements at distance ``step`` by (1, v2, v3)."""
    total = memory[index] + v2 * memory[index + step]
    if has_third:
        total += v3 * memory[index + 2 * step]
    total *= factor
    memory[index] -= total
    memory[index + step] -= total * v2
    if has_third:
        memory[index + 2 * step] -= total * v3


def standardize(memory, base, first):
    """Make the 2x2 block at ``first`` triangular, or its diagonal equal."""
    lane = lane_of_warp()
    index, below = element(base, first, first), element(base, first + 1, first)
    a, b, c, d = memory[index], memory[index + 1], memory[below], memory[below + 1]
    a, b, c, d, cosine, sine = standard_block(a, b, c, d)
    cuda.syncwarp()
    if lane > first + 1:
        rotate(memory, element(base, first, lane), PITCH, cosine, sine)
    if lane < first:
        rotate(memory, element(base, lane, first), 1, cosine, sine)
    if lane == first:
        memory[index], memory[index + 1] = a, b
        memory[below], memory[below + 1] = c, d
    if VECTORS:
        rotate(memory, int32(element(base, lane, first) + Z), 1, cosine, sine)
    cuda.syncwarp()


def rotate(memory, index, step, cosine, sine):
    """Rotate two elements at distance ``step``."""
    x, y = memory[index], memory[index + step]
    memory[index] = cosine * x + sine * y
    memory[index + step] = cosine * y - sine * x


def standard_block(a, b, c, d):
    """[[a, b], [c, d]] after a rotation, with its cosine and sine: c is 0, or a = d and b c < 0."""
    one, zero, half = real(1.0), real(0.0), real(0.5)
    if c == zero:
        return a, b, c, d, one, zero
    if b == zero:
        return d, -c, zero, a, zero, one
    gap = a - d
    if gap == zero and (b < zero) != (c < zero):
        return a, b, c, d, one, zero
    p = half * gap
    larger, smaller = max(absolute(b), absolute(c)), min(absolute(b), absolute(c))
    smaller = smaller if (b < zero) == (c < zero) else -smaller
    scale = max(absolute(p), larger)
    z = p / scale * p + larger / scale * smaller
    if z >= real(4.0) * epsilon():
        z = p + copysign(sqrt(scale) * sqrt(z), p)
        length = hypot(c, z)
        return d + z, b - c, zero, d - larger / z * smaller, z / length, c / length
    # Complex, or real and almost equal: first make the diagonal equal.
    total = b + c
    length = hypot(total, gap)
    cosine = sqrt(half * (one + absolute(total) / length))
    sine = -(p / (length * cosine)) * copysign(one, total)
    a, b, c, d = (
        a * cosine + b * sine, b * cosine - a * sine, c * cosine + d * sine, d * cosine - c * sine,
    )  # fmt: skip
    a, b, c, d = (
        a * cosine + c * sine, b * cosine + d * sine, c * cosine - a * sine, d * cosine - b * sine,
    )  # fmt: skip
    middle = half * (a + d)
    if c == zero or (b != zero and (b < zero) != (c < zero)):
        return middle, b, c, middle, cosine, sine
    if b == zero:
        return middle, -c, zero, middle, -sine, cosine
    left, right = sqrt(absolute(b)), sqrt(absolute(c))
    p = copysign(left * right, c)
    shrink = one / sqrt(absolute(b + c))
    left, right = left * shrink, right * shrink
    new_cosine = cosine * left - sine * right
    return middle + p, b - c, zero, middle - p, new_cosine, cosine * right + sine * left
