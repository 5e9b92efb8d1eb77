"""Eigenvalues and eigenvectors of batches of small symmetric matrices: a warp for each.

Jacobi's rotations: each step mixes the rows, and then the columns, of disjoint pairs so that the
off-diagonal element of each pair becomes 0. Steps are those of a round-robin tournament, so that a
sweep has every pair; it squares the off-diagonal norm, once that is small.

Contract: float32 or float64; row-major batches of matrices of at most 32 rows; one triangle is
read. Values ascend; those of a matrix with nan or inf are nan.
Launch: WARPS warps in a block, which takes as many matrices.
Shared memory: 2 * WARPS * 1056 scalars. Reads and writes each matrix once.
Source: Golub and Van Loan 2013, "Matrix computations", section 8.5.

Tests: tests/kernels/test_kernel_matrices.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import cuda, float64, int32
from gpuflow.kernels.small_matrices import (
    DOUBLE,
    PITCH,
    lane_of_warp,
    matrix_of_warp,
    real,
    shared_tiles,
    warp_largest,
    warp_sum,
)

# Given for each build, with DOUBLE, WARPS and AREA of small_matrices.
LOWER = 1  # the triangle that is read
VECTORS = 1  # eigenvectors are requested too
LIMIT = 120  # of the exponent by which matrices are scaled

_MAX_SWEEPS = 16


def load_symmetric(source, tile, basis, base, start, size):
    """Copy a matrix from one triangle, and set ``basis`` to the identity.

    Returns:
        The largest magnitude; inf if there is nan.
    """
    lane = lane_of_warp()
    largest = real(0.0)
    for i in range(size):
        if lane < size:
            is_read = lane <= i if LOWER else lane >= i
            value = source[start + (i * size + lane if is_read else lane * size + i)]
            tile[base + PITCH * i + lane] = value
            largest = max(largest, real(math.fabs(value)))
            if value - value != real(0.0):
                largest = real(math.inf)
        basis[base + PITCH * i + lane] = real(1.0) if lane == i else real(0.0)
    largest = warp_largest(largest)
    cuda.syncwarp()
    return largest


def find_eigenvalues(source, vectors, values, count, size, first, selected):
    """A V = V diag(values) of symmetric A.

    Args:
        source: (count, size, size), of which one triangle is read (LOWER).
        vectors: (count, size, selected), with VECTORS. values: (count, selected), ascending.
        count, size: sizes. first, selected: the range of requested values.
    """
    tile, basis = shared_tiles()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    scale = load_symmetric(source, tile, basis, base, matrix * size * size, size)
    is_finite = scale < real(math.inf)
    # A power of two, so that squares neither overflow nor underflow and nothing is rounded.
    shift = real(1.0)
    if is_finite and scale > real(0.0):
        exponent = math.floor(math.log2(float64(scale)))
        shift = real(math.exp2(float64(-max(min(exponent, LIMIT), -LIMIT))))
    for i in range(size):
        if lane < size:
            tile[base + PITCH * i + lane] *= shift
    cuda.syncwarp()
    players = int32(size + (size & 1))  # with one that pauses, if the size is odd
    epsilon = real(1.2e-7) if not DOUBLE else real(2.3e-16)
    sweep = int32(0)
    while is_finite and sweep < _MAX_SWEEPS:
        off_diagonal, total = real(0.0), real(0.0)
        for i in range(size):
            if lane < size:
                value = tile[base + PITCH * i + lane]
                total += value * value
                if lane != i:
                    off_diagonal += value * value
        off_diagonal, total = warp_sum(off_diagonal), warp_sum(total)
        if off_diagonal <= epsilon * epsilon * total:
            break
        for step in range(players - 1):
            rotate_pairs(tile, basis, base, size, players, step)
        sweep += 1
    eigenvalue = real(lane)
    if is_finite and lane < size:
        eigenvalue = tile[base + PITCH * lane + lane]
    rank = int32(0)
    for i in range(size):
        other = cuda.shfl_sync(0xFFFFFFFF, eigenvalue, i)
        if other < eigenvalue or (other == eigenvalue and i < lane):
            rank += 1
    index = rank - first
    if lane < size and index >= 0 and index < selected:
        result = eigenvalue / shift
        values[matrix * selected + index] = result if is_finite else real(math.nan)
        if VECTORS:
            for i in range(size):
                value = basis[base + PITCH * i + lane]
                value = value if is_finite else real(math.nan)
                vectors[(matrix * size + i) * selected + index] = value


def player_at(seat, players, step):
    """The player at a seat: player 0 stays, the others advance by one seat in each step."""
    if seat == 0:
        return int32(0)
    index = int32(seat - 1 + step)
    return int32((index - (players - 1) if index >= players - 1 else index) + 1)


def pair_at(pair, players, step):
    """The players of a pair in this step, the lower one first."""
    one = player_at(int32(pair), players, step)
    other = player_at(int32(players - 1 - pair), players, step)
    return min(one, other), max(one, other)


def angle_of(tile, base, p, q):
    """Cosine and sine of the rotation that zeroes the element (p, q)."""
    cosine, sine = real(1.0), real(0.0)
    between = tile[base + PITCH * p + q]
    if between != real(0.0):
        gap = tile[base + PITCH * q + q] - tile[base + PITCH * p + p]
        ratio = gap / (real(2.0) * between)
        root = real(math.sqrt(real(1.0) + ratio * ratio))
        tangent = real(1.0) / (real(math.fabs(ratio)) + root)
        if ratio < real(0.0):
            tangent = -tangent
        cosine = real(1.0) / real(math.sqrt(real(1.0) + tangent * tangent))
        sine = tangent * cosine
    return cosine, sine


def rotate_pairs(tile, basis, base, size, players, step):
    """One rotation for each pair of this step: lane k has the angle of pair k."""
    lane = lane_of_warp()
    cosine, sine = real(1.0), real(0.0)
    if lane < players >> 1:
        p, q = pair_at(lane, players, step)
        if q < size:
            cosine, sine = angle_of(tile, base, p, q)
    cuda.syncwarp()
    for pair in range(players >> 1):
        c = cuda.shfl_sync(0xFFFFFFFF, cosine, pair)
        s = cuda.shfl_sync(0xFFFFFFFF, sine, pair)
        p, q = pair_at(pair, players, step)
        if q < size and lane < size:
            x, y = tile[base + PITCH * p + lane], tile[base + PITCH * q + lane]
            tile[base + PITCH * p + lane] = c * x - s * y
            tile[base + PITCH * q + lane] = s * x + c * y
    cuda.syncwarp()
    for pair in range(players >> 1):
        c = cuda.shfl_sync(0xFFFFFFFF, cosine, pair)
        s = cuda.shfl_sync(0xFFFFFFFF, sine, pair)
        p, q = pair_at(pair, players, step)
        if q < size and lane < size:
            x, y = tile[base + PITCH * lane + p], tile[base + PITCH * lane + q]
            # The element that a rotation zeroes up to rounding is set to zero.
            tile[base + PITCH * lane + p] = real(0.0) if lane == q else c * x - s * y
            tile[base + PITCH * lane + q] = real(0.0) if lane == p else s * x + c * y
            if VECTORS:
                x, y = basis[base + PITCH * lane + p], basis[base + PITCH * lane + q]
                basis[base + PITCH * lane + p] = c * x - s * y
                basis[base + PITCH * lane + q] = s * x + c * y
    cuda.syncwarp()
