"""The Schur form of complex matrices by single shifts: a rotation for each row.

Source: LAPACK's zlahqr, for shifts and the test of the first row of an iteration; Golub and Van
Loan 2013, "Matrix computations", section 7.5.

Tests: tests/kernels/test_kernel_eig.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import cuda, int32
from gpuflow.kernels.small_complex import (
    T_IMAG,
    Z_IMAG,
    Z,
    absolute,
    ballot,
    complex_root,
    divided,
    element,
    element_size,
    epsilon,
    hypot,
    last_lane,
    times,
    vanishing,
)
from gpuflow.kernels.small_matrices import PITCH, lane_of_warp, real
from gpuflow.kernels.small_schur import STALLED, VECTORS, block_start, cut_off, max_iterations


def complex_schur(memory, base, size, low, high):
    """Make T a complex Schur form; returns whether it converged."""
    last, stalled, remaining = int32(high), int32(0), max_iterations(size)
    while last >= low and remaining > 0:
        first = block_start(memory, base, low, high, last)
        cut_off(memory, base, low, first)
        remaining = int32(remaining - 1)
        stalled = int32(stalled + 1)
        if first < last:
            single_shift(memory, base, first, last, stalled)
        else:
            last, stalled = int32(last - 1), int32(0)
    return last < low


def shift_of(memory, base, first, last, stalled):
    """The eigenvalue of the last 2x2 block that is nearer to its last element."""
    corner, above = element(base, last, last), element(base, last - 1, last - 1)
    if stalled % STALLED == 0:
        from_end = stalled % (2 * STALLED) == 0
        index = corner if from_end else element(base, first, first)
        below = corner - 1 if from_end else element(base, first + 1, first)
        return memory[index] + real(0.75) * element_size(memory, below), memory[index + T_IMAG]
    re, im = memory[corner], memory[corner + T_IMAG]
    gap = real(0.5) * (memory[above] - re)
    gap_imag = real(0.5) * (memory[above + T_IMAG] - im)
    scale = max(element_size(memory, above + 1), element_size(memory, corner - 1))
    scale = max(scale, absolute(gap) + absolute(gap_imag))
    if scale == real(0.0):
        return re, im
    gap, gap_imag = gap / scale, gap_imag / scale
    product, product_imag = times(
        memory[above + 1] / scale, memory[above + 1 + T_IMAG] / scale,
        memory[corner - 1] / scale, memory[corner - 1 + T_IMAG] / scale,
    )  # fmt: skip
    square, square_imag = times(gap, gap_imag, gap, gap_imag)
    root, root_imag = complex_root(square + product, square_imag + product_imag)
    if gap * root + gap_imag * root_imag < real(0.0):
        root, root_imag = -root, -root_imag
    total, total_imag = gap + root, gap_imag + root_imag
    if total == real(0.0) and total_imag == real(0.0):
        return re, im
    step, step_imag = divided(product, product_imag, total, total_imag)
    return re - scale * step, im - scale * step_imag


def single_shift(memory, base, first, last, stalled):
    """One iteration on rows ``first`` to ``last``, at least two."""
    lane = lane_of_warp()
    shift, shift_imag = shift_of(memory, base, first, last, stalled)
    # Lane m tests whether the iteration may start at row m: two consecutive entries are small.
    begins = lane == first
    if lane > first and lane < last:
        index, next_index = element(base, lane, lane), element(base, lane + 1, lane + 1)
        gap = absolute(memory[index] - shift) + absolute(memory[index + T_IMAG] - shift_imag)
        below = element_size(memory, next_index - 1)
        scale = gap + below
        if scale > real(0.0):
            around = element_size(memory, index) + element_size(memory, next_index)
            small = element_size(memory, index - 1) * (below / scale)
            begins = small <= epsilon() * ((gap / scale) * around)
    start = last_lane(ballot(begins))
    index = element(base, start, start)
    v, v_imag = memory[index] - shift, memory[index + T_IMAG] - shift_imag
    below = element(base, start + 1, start)
    w, w_imag = memory[below], memory[below + T_IMAG]
    for k in range(start, last):
        if k > start:
            index, below = element(base, k, k - 1), element(base, k + 1, k - 1)
            v, v_imag = memory[index], memory[index + T_IMAG]
            w, w_imag = memory[below], memory[below + T_IMAG]
        cosine, sine, sine_imag, new, new_imag = rotation_of(v, v_imag, w, w_imag)
        cuda.syncwarp()
        if lane == k - 1:
            index, below = element(base, k, lane), element(base, k + 1, lane)
            if k > start:
                memory[index], memory[index + T_IMAG] = new, new_imag
                memory[below], memory[below + T_IMAG] = real(0.0), real(0.0)
            elif k > first:
                memory[index] *= cosine
                memory[index + T_IMAG] *= cosine
        if lane >= k:
            rotate_complex(memory, element(base, k, lane), T_IMAG, PITCH, cosine, sine, sine_imag)
        cuda.syncwarp()
        if lane <= min(k + 2, last):
            rotate_complex(memory, element(base, lane, k), T_IMAG, 1, cosine, sine, -sine_imag)
        if VECTORS:
            index = int32(element(base, lane, k) + Z)
            rotate_complex(memory, index, Z_IMAG - Z, 1, cosine, sine, -sine_imag)
        cuda.syncwarp()


def rotation_of(v, v_imag, w, w_imag):
    """Cosine and complex sine of the rotation that takes (v, w) to (new, 0); then new."""
    zero = real(0.0)
    scale = max(max(absolute(v), absolute(v_imag)), max(absolute(w), absolute(w_imag)))
    if w == zero and w_imag == zero:
        return real(1.0), zero, zero, v, v_imag
    # The direction of a number is lost where it is subnormal.
    v, v_imag, w, w_imag = v / scale, v_imag / scale, w / scale, w_imag / scale
    length, length_v = hypot(w, w_imag), hypot(v, v_imag)
    if length_v < vanishing():
        return zero, w / length, -w_imag / length, length * scale, zero
    whole = hypot(length_v, length)
    re, im = v / length_v, v_imag / length_v
    sine, sine_imag = times(re, im, w / whole, -w_imag / whole)
    return length_v / whole, sine, sine_imag, re * (whole * scale), im * (whole * scale)


def rotate_complex(memory, index, imag, step, cosine, sine, sine_imag):
    """Rotate two complex elements at distance ``step``: (c x + s y, c y - conj(s) x)."""
    x, x_imag = memory[index], memory[index + imag]
    y, y_imag = memory[index + step], memory[index + step + imag]
    re, im = times(sine, sine_imag, y, y_imag)
    memory[index], memory[index + imag] = cosine * x + re, cosine * x_imag + im
    re, im = times(sine, -sine_imag, x, x_imag)
    memory[index + step] = cosine * y - re
    memory[index + step + imag] = cosine * y_imag - im
