"""Schur forms of small matrices: A = Z T Z^H with T triangular, but for 2x2 blocks if it is real.

    to_hessenberg     here: Householder's reflections, until one diagonal below the main one remains
    real_schur        small_schur_real.py
    complex_schur     small_schur_complex.py

Lane k holds column k while rows are mixed, and row k while columns are. Both mix whole rows and
columns, which costs no more than those of one block, so T is the whole form even without Z.

Source: LAPACK's gehrd; Golub and Van Loan 2013, "Matrix computations", algorithm 7.4.2; for the
test of small off-diagonal elements, Ahues and Tisseur 1997, "A new deflation criterion for
the QR algorithm".

Tests: tests/kernels/test_kernel_eig.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import cuda, int32
from gpuflow.kernels.small_complex import (
    COMPLEX,
    T_IMAG,
    Z_IMAG,
    Z,
    absolute,
    ballot,
    copysign,
    distance,
    divided,
    element,
    element_size,
    epsilon,
    last_lane,
    sqrt,
    times,
    vanishing,
)
from gpuflow.kernels.small_matrices import lane_of_warp, real, warp_largest, warp_sum

# Given for each build.
VECTORS = 0  # Z is requested
MAX_ITERATIONS = 30  # for each row, after which the iteration has failed

STALLED = 10  # iterations without a result, after which an exceptional shift is used


# --- Hessenberg form -----------------------------------------------------------------------


def mix_columns(memory, base, imag, low, high, v, v_imag, factor, factor_imag):
    """M (I - factor v v^H) for the lane's row of a matrix at ``base``; lanes ``low + 1`` and on
    hold v."""
    lane = lane_of_warp()
    total, total_imag = real(0.0), real(0.0)
    for j in range(low + 1, high + 1):
        index = element(base, lane, j)
        v_value, v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v, j), real(0.0)
        if COMPLEX:
            v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v_imag, j)
            re, im = times(memory[index], memory[index + imag], v_value, v_value_imag)
            total += re
            total_imag += im
        else:
            total += memory[index] * v_value
    total, total_imag = times(total, total_imag, factor, factor_imag)
    for j in range(low + 1, high + 1):
        index = element(base, lane, j)
        v_value, v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v, j), real(0.0)
        if COMPLEX:
            v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v_imag, j)
            re, im = times(total, total_imag, v_value, -v_value_imag)
            memory[index] -= re
            memory[index + imag] -= im
        else:
            memory[index] -= total * v_value


def mix_rows(memory, base, low, high, v, v_imag, factor, factor_imag):
    """(I - factor v v^H)^H T for the lane's column."""
    lane = lane_of_warp()
    total, total_imag = real(0.0), real(0.0)
    for i in range(low + 1, high + 1):
        index = element(base, i, lane)
        v_value, v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v, i), real(0.0)
        if COMPLEX:
            v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v_imag, i)
            re, im = times(memory[index], memory[index + T_IMAG], v_value, -v_value_imag)
            total += re
            total_imag += im
        else:
            total += memory[index] * v_value
    total, total_imag = times(total, total_imag, factor, -factor_imag)
    for i in range(low + 1, high + 1):
        index = element(base, i, lane)
        v_value, v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v, i), real(0.0)
        if COMPLEX:
            v_value_imag = cuda.shfl_sync(0xFFFFFFFF, v_imag, i)
            re, im = times(total, total_imag, v_value, v_value_imag)
            memory[index] -= re
            memory[index + T_IMAG] -= im
        else:
            memory[index] -= total * v_value


def to_hessenberg(memory, base, low, high):
    """Clear columns of T below the diagonal under the main one, within rows ``low`` to ``high``."""
    lane = lane_of_warp()
    for k in range(low, high - 1):
        re, im = real(0.0), real(0.0)
        if lane > k and lane <= high:
            re = memory[element(base, lane, k)]
            if COMPLEX:
                im = memory[element(base, lane, k) + T_IMAG]
        below = max(absolute(re), absolute(im)) if lane > k + 1 else real(0.0)
        largest = warp_largest(below)
        cuda.syncwarp()
        if largest > real(0.0):
            head = cuda.shfl_sync(0xFFFFFFFF, re, k + 1)
            head_imag = cuda.shfl_sync(0xFFFFFFFF, im, k + 1)
            largest = max(largest, max(absolute(head), absolute(head_imag)))
            re, im = re / largest, im / largest
            head, head_imag = head / largest, head_imag / largest
            new = -copysign(sqrt(warp_sum(re * re + im * im)), head)
            factor, factor_imag = (new - head) / new, -head_imag / new
            v, v_imag = divided(re, im, head - new, head_imag)
            new *= largest
            if lane == k + 1:
                v, v_imag = real(1.0), real(0.0)
            mix_rows(memory, base, k, high, v, v_imag, factor, factor_imag)
            cuda.syncwarp()
            if lane > k and lane <= high:
                memory[element(base, lane, k)] = new if lane == k + 1 else real(0.0)
                if COMPLEX:
                    memory[element(base, lane, k) + T_IMAG] = real(0.0)
            cuda.syncwarp()
            mix_columns(memory, base, T_IMAG, k, high, v, v_imag, factor, factor_imag)
            if VECTORS:
                imag = Z_IMAG - Z
                mix_columns(memory, int32(base + Z), imag, k, high, v, v_imag, factor, factor_imag)
            cuda.syncwarp()


# --- common to both ------------------------------------------------------------------------


def block_start(memory, base, low, high, last):
    """The first row of the block that ends at ``last``: elements before it are negligible."""
    lane = lane_of_warp()
    is_small = False
    if lane > low and lane <= last:
        index = element(base, lane, lane)
        above = element(base, lane - 1, lane - 1)
        below = element_size(memory, index - 1)
        size, before = element_size(memory, index), element_size(memory, above)
        total = size + before
        if total == real(0.0):
            if lane - 2 >= low:
                total += element_size(memory, above - 1)
            if lane < high:
                total += element_size(memory, element(base, lane + 1, lane))
        if below <= vanishing():
            is_small = True
        elif below <= epsilon() * total:
            opposite, gap = element_size(memory, above + 1), distance(memory, index, above)
            larger, smaller = max(below, opposite), min(below, opposite)
            wide, narrow = max(size, gap), min(size, gap)
            scale = wide + larger
            limit = max(vanishing(), epsilon() * (narrow * (wide / scale)))
            is_small = smaller * (larger / scale) <= limit
    start = last_lane(ballot(is_small))
    return start if start >= 0 else low


def cut_off(memory, base, low, first):
    """Set the subdiagonal element before a block to 0."""
    lane = lane_of_warp()
    cuda.syncwarp()
    if first > low and lane == first:
        memory[element(base, lane, lane - 1)] = real(0.0)
        if COMPLEX:
            memory[element(base, lane, lane - 1) + T_IMAG] = real(0.0)
    cuda.syncwarp()


def max_iterations(size):
    """Iterations after which the algorithm has failed."""
    return int32(MAX_ITERATIONS * max(10, size))
