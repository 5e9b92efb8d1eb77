"""Eigenvectors of small matrices from their Schur form A = Z T Z^H: a lane for each.

Right vectors v = Z x solve (T - w) x = 0 from the diagonal upwards. Left ones, u = Z conj(y), solve
(T^T - w) y = 0 downwards: the same with rows for columns. Vectors are complex in either case; real
and complex eigenvalues of a real T take one path, in which real numbers stay real and those of a
pair are conjugates to the last bit.

Source: LAPACK's trevc and laln2, for equal eigenvalues and growing elements.

Tests: tests/kernels/test_kernel_eig.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import int32, int64
from gpuflow.kernels.small_complex import (
    COMPLEX,
    T_IMAG,
    X_IMAG,
    Z_IMAG,
    X,
    Z,
    absolute,
    copysign,
    divided,
    element,
    epsilon,
    hypot,
    times,
    vanishing,
)
from gpuflow.kernels.small_matrices import PITCH, lane_of_warp, real

# Given for each build.
LIMIT = 40  # of exponents of T


def store_vectors(memory, base, out, matrix, size, w, w_imag, is_left):
    """Write the vectors of a matrix: of length 1, a complex one with a real largest element.

    Args:
        memory, base: T and Z, whose rows end with the balancing weights of left vectors.
        out: complex (count, size, size), as pairs of scalars.
        matrix: its index. size: rows. w, w_imag: the lane's eigenvalue.
        is_left: which vectors.
    """
    lane = lane_of_warp()
    if lane >= size:
        return
    low, high = lane, int32(lane + 1)  # the rows of the eigenvalue's own block
    if not COMPLEX:
        if w_imag > real(0.0):
            high = int32(lane + 2)
        if w_imag < real(0.0):
            low = int32(lane - 1)
    begin_vector(memory, base, low, high, w_imag, is_left)
    if is_left:
        high = solve_down(memory, base, size, low, high, w, w_imag)
    else:
        low = solve_up(memory, base, low, high, w, w_imag)
    # The length and the largest element, by one pass: ``total`` is a multiple of ``scale ** 2``.
    scale, total = real(0.0), real(0.0)
    best, best_imag, best_row = real(0.0), real(0.0), int32(0)
    start = (matrix * size * size + lane) * 2
    for i in range(size):
        re, im = element_of_vector(memory, base, i, low, high, is_left)
        index = start + int64(i * size) * 2
        out[index], out[index + 1] = re, im
        length = hypot(re, im)
        if length > scale:
            ratio = scale / length
            total = total * ratio * ratio + real(1.0)
            scale, best, best_imag, best_row = length, re, im, int32(i)
        elif length > real(0.0):
            ratio = length / scale
            total += ratio * ratio
    whole = scale * real(math.sqrt(total))
    phase, phase_imag = best / scale, -best_imag / scale
    # As in LAPACK it keeps its sign; of complex matrices it is positive.
    if not COMPLEX and best < real(0.0):
        phase, phase_imag = -phase, -phase_imag
    is_complex = COMPLEX or w_imag != real(0.0)
    for i in range(size):
        index = start + int64(i * size) * 2
        re, im = out[index] / whole, out[index + 1] / whole
        if is_complex:
            re, im = times(re, im, phase, phase_imag)
            if i == best_row:
                im = real(0.0)
        out[index], out[index + 1] = re, im


def element_of_vector(memory, base, row, low, high, is_left):
    """An element of Z x, or of Z conj(y), without balancing."""
    lane = lane_of_warp()
    re, im = real(0.0), real(0.0)
    for j in range(low, high):
        index, of_vector = element(base, row, j), element(base, j, lane)
        x, x_imag = memory[of_vector + X], memory[of_vector + X_IMAG]
        if is_left:
            x_imag = -x_imag
        if COMPLEX:
            more, more_imag = times(memory[index + Z], memory[index + Z_IMAG], x, x_imag)
            re += more
            im += more_imag
        else:
            re += memory[index + Z] * x
            im += memory[index + Z] * x_imag
    if is_left:
        weight = memory[element(base, row, PITCH - 1) + Z]
        re, im = re * weight, im * weight
    return re, im


def put(memory, base, row, re, im):
    """Set an element of the lane's vector."""
    index = element(base, row, lane_of_warp())
    memory[index + X], memory[index + X_IMAG] = re, im


def begin_vector(memory, base, low, high, w_imag, is_left):
    """Set the elements of the eigenvalue's own block, one or two."""
    one, zero = real(1.0), real(0.0)
    if high - low == 1:
        put(memory, base, low, one, zero)
    else:
        b, c = memory[element(base, low, low + 1)], memory[element(base, low + 1, low)]
        # The second vector of a pair is the first one's conjugate.
        sign = copysign(one, w_imag)
        if is_left:
            if absolute(b) >= absolute(c):
                put(memory, base, low, absolute(w_imag) / b, zero)
                put(memory, base, int32(low + 1), zero, -sign)
            else:
                put(memory, base, low, one, zero)
                put(memory, base, int32(low + 1), zero, w_imag / c)
        elif absolute(b) >= absolute(c):
            put(memory, base, low, one, zero)
            put(memory, base, int32(low + 1), zero, w_imag / b)
        else:
            put(memory, base, low, -absolute(w_imag) / c, zero)
            put(memory, base, int32(low + 1), zero, sign)


def has_pair(memory, base, row):
    """Whether rows ``row`` and ``row + 1`` are a block of a complex pair."""
    if COMPLEX:
        return False
    else:
        return memory[element(base, row + 1, row)] != real(0.0)


def solve_up(memory, base, low, high, w, w_imag):
    """Solve with T for the elements above the own block; returns the first row."""
    row = int32(low - 1)
    while row >= 0:
        known, above = int32(row + 1), int32(row - 1)
        re, im = known_sum(memory, base, row, known, high, PITCH, 1)
        if row > 0 and has_pair(memory, base, above):
            re0, im0 = known_sum(memory, base, above, known, high, PITCH, 1)
            corner = element(base, above, above)
            b, c = memory[corner + 1], memory[corner + PITCH]
            up, down = (re0, im0), (re, im)
            solve_pair(memory, base, above, (w, w_imag), up, down, b, c, known, high)
            row = int32(row - 2)
        else:
            solve_one(memory, base, row, w, w_imag, re, im, known, high)
            row = above
    return int32(0)


def solve_down(memory, base, size, low, high, w, w_imag):
    """Solve with T^T for the elements below the own block; returns the row after the last."""
    row = int32(high)
    while row < size:
        below = int32(row + 1)
        re, im = known_sum(memory, base, row, low, row, 1, PITCH)
        if below < size and has_pair(memory, base, row):
            re1, im1 = known_sum(memory, base, below, low, row, 1, PITCH)
            corner = element(base, row, row)
            b, c = memory[corner + 1], memory[corner + PITCH]
            up, down = (re, im), (re1, im1)
            solve_pair(memory, base, row, (w, w_imag), up, down, c, b, low, row)
            row = int32(row + 2)
        else:
            solve_one(memory, base, row, w, w_imag, re, im, low, row)
            row = below
    return int32(size)


def known_sum(memory, base, row, first, stop, row_step, column_step):
    """Minus the sum that known elements of the vector add to a row."""
    lane = lane_of_warp()
    re, im = real(0.0), real(0.0)
    for j in range(first, stop):
        index, of_vector = base + row_step * row + column_step * j, element(base, j, lane)
        x, x_imag = memory[of_vector + X], memory[of_vector + X_IMAG]
        if COMPLEX:
            more, more_imag = times(memory[index], memory[index + T_IMAG], x, x_imag)
            re -= more
            im -= more_imag
        else:
            re -= memory[index] * x
            im -= memory[index] * x_imag
    return re, im


def least_gap(w, w_imag):
    """The divisor that replaces the difference of equal eigenvalues."""
    return max(epsilon() * (absolute(w) + absolute(w_imag)), vanishing())


def rescale(memory, base, first, stop, factor):
    """Multiply known elements, and so the whole vector."""
    lane = lane_of_warp()
    for j in range(first, stop):
        index = element(base, j, lane)
        memory[index + X] *= factor
        memory[index + X_IMAG] *= factor


def shrink(memory, base, first, stop, size, divisor):
    """The factor that keeps a quotient from overflowing; known elements get it too."""
    factor = real(1.0)
    if size > real(1.0) and size * vanishing() > divisor:
        factor = real(1.0) / size
        rescale(memory, base, first, stop, factor)
    return factor


def keep_small(memory, base, first, stop, largest):
    """Make elements smaller before products of them with T overflow."""
    if largest > real(2.0**LIMIT):
        rescale(memory, base, first, stop, real(1.0) / largest)


def solve_one(memory, base, row, w, w_imag, re, im, first, stop):
    """An element from one row; elements ``first`` to ``stop`` are known."""
    index = element(base, row, row)
    gap, gap_imag = memory[index] - w, -w_imag
    if COMPLEX:
        gap_imag = memory[index + T_IMAG] - w_imag
    least = least_gap(w, w_imag)
    if absolute(gap) + absolute(gap_imag) < least:
        gap, gap_imag = least, real(0.0)
    sizes = absolute(re) + absolute(im)
    factor = shrink(memory, base, first, stop, sizes, absolute(gap) + absolute(gap_imag))
    re, im = divided(re * factor, im * factor, gap, gap_imag)
    put(memory, base, row, re, im)
    first, stop = int32(min(first, row)), int32(max(stop, row + 1))
    keep_small(memory, base, first, stop, absolute(re) + absolute(im))


def solve_pair(memory, base, row, w, up, down, b, c, first, stop):
    """Two elements from [[a - w, b], [c, d - w]] x = (up, down), by Cramer's rule."""
    index = element(base, row, row)
    a, d, imag = memory[index] - w[0], memory[index + PITCH + 1] - w[0], -w[1]
    scale = max(max(absolute(a), absolute(d)) + absolute(imag), max(absolute(b), absolute(c)))
    a, b, c, d, imag = a / scale, b / scale, c / scale, d / scale, imag / scale
    det, det_imag = times(a, imag, d, imag)
    det -= b * c
    least = least_gap(w[0], w[1]) / scale
    if absolute(det) + absolute(det_imag) < least:
        det, det_imag = least, real(0.0)
    sizes = max(absolute(up[0]) + absolute(up[1]), absolute(down[0]) + absolute(down[1]))
    divisor = (absolute(det) + absolute(det_imag)) * scale
    factor = shrink(memory, base, first, stop, sizes, divisor) / scale
    x, x_imag, y, y_imag = up[0] * factor, up[1] * factor, down[0] * factor, down[1] * factor
    re, im = times(d, imag, x, x_imag)
    re, im = divided(re - b * y, im - b * y_imag, det, det_imag)
    put(memory, base, row, re, im)
    largest = absolute(re) + absolute(im)
    re, im = times(a, imag, y, y_imag)
    re, im = divided(re - c * x, im - c * x_imag, det, det_imag)
    put(memory, base, int32(row + 1), re, im)
    largest = max(largest, absolute(re) + absolute(im))
    first, stop = int32(min(first, row)), int32(max(stop, row + 2))
    keep_small(memory, base, first, stop, largest)
