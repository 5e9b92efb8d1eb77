"""Eigenvalues and eigenvectors of batches of small symmetric matrices: a warp for each.

Jacobi's rotations: in each turn the rows, and then the columns, of disjoint pairs are mixed so that
what a pair has in common becomes 0. Turns go as in a tournament, so that in a sweep everybody meets
everybody; a sweep squares what is left beside the diagonal, once that is small.

Contract: float32 or float64; row-major batches of matrices of at most 32 rows; one triangle is
read. Values ascend; those of a matrix with nan or inf are nan.
Launch: WARPS warps in a block, which takes as many matrices.
Shared memory: 2 * WARPS * 1056 numbers. Reads and writes each matrix once.
Source: Golub and Van Loan 2013, "Matrix computations", section 8.5.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import cuda, float64, int32
from gpuflow.kernels.small_matrices import (
    DOUBLE,
    LINE,
    lane_of_warp,
    matrix_of_warp,
    number,
    shared_tiles,
    warp_largest,
    warp_sum,
)

# Given for each build, with DOUBLE, WARPS and AREA of small_matrices.
LOWER = 1  # the triangle that is read
VECTORS = 1  # eigenvectors are wanted too
LIMIT = 120  # of the exponent by which matrices are scaled

_MOST_SWEEPS = 16


def load_symmetric(source, tile, turned, base, start, size):
    """Copy a matrix from one triangle, and set ``turned`` to ones on the diagonal.

    Returns:
        The largest magnitude; inf if there is nan.
    """
    lane = lane_of_warp()
    largest = number(0.0)
    for i in range(size):
        if lane < size:
            is_read = lane <= i if LOWER else lane >= i
            value = source[start + (i * size + lane if is_read else lane * size + i)]
            tile[base + LINE * i + lane] = value
            largest = max(largest, number(math.fabs(value)))
            if value - value != number(0.0):
                largest = number(math.inf)
        turned[base + LINE * i + lane] = number(1.0) if lane == i else number(0.0)
    largest = warp_largest(largest)
    cuda.syncwarp()
    return largest


def find_eigenvalues(source, vectors, values, count, size, first, kept):
    """A V = V diag(values) of symmetric A.

    Args:
        source: (count, size, size), of which one triangle is read (LOWER).
        vectors: (count, size, kept), with VECTORS. values: (count, kept), ascending.
        count, size: sizes. first, kept: the values that are wanted.
    """
    tile, turned = shared_tiles()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    scale = load_symmetric(source, tile, turned, base, matrix * size * size, size)
    is_finite = scale < number(math.inf)
    # A power of two, so that squares neither overflow nor vanish and nothing is rounded.
    shift = number(1.0)
    if is_finite and scale > number(0.0):
        exponent = math.floor(math.log2(float64(scale)))
        shift = number(math.exp2(float64(-max(min(exponent, LIMIT), -LIMIT))))
    for i in range(size):
        if lane < size:
            tile[base + LINE * i + lane] *= shift
    cuda.syncwarp()
    players = int32(size + (size & 1))  # with one that pauses, if there is an odd number
    epsilon = number(1.2e-7) if not DOUBLE else number(2.3e-16)
    sweep = int32(0)
    while is_finite and sweep < _MOST_SWEEPS:
        beside, total = number(0.0), number(0.0)
        for i in range(size):
            if lane < size:
                value = tile[base + LINE * i + lane]
                total += value * value
                if lane != i:
                    beside += value * value
        beside, total = warp_sum(beside), warp_sum(total)
        if beside <= epsilon * epsilon * total:
            break
        for turn in range(players - 1):
            rotate_pairs(tile, turned, base, size, players, turn)
        sweep += 1
    eigenvalue = number(lane)
    if is_finite and lane < size:
        eigenvalue = tile[base + LINE * lane + lane]
    rank = int32(0)
    for i in range(size):
        other = cuda.shfl_sync(0xFFFFFFFF, eigenvalue, i)
        if other < eigenvalue or (other == eigenvalue and i < lane):
            rank += 1
    place = rank - first
    if lane < size and place >= 0 and place < kept:
        result = eigenvalue / shift
        values[matrix * kept + place] = result if is_finite else number(math.nan)
        if VECTORS:
            for i in range(size):
                value = turned[base + LINE * i + lane]
                value = value if is_finite else number(math.nan)
                vectors[(matrix * size + i) * kept + place] = value


def player_at(seat, players, turn):
    """Who sits at a seat: player 0 stays, the others move on by one seat in each turn."""
    if seat == 0:
        return int32(0)
    place = int32(seat - 1 + turn)
    return int32((place - (players - 1) if place >= players - 1 else place) + 1)


def pair_at(pair, players, turn):
    """The players of a pair in this turn, the lower one first."""
    one = player_at(int32(pair), players, turn)
    other = player_at(int32(players - 1 - pair), players, turn)
    return min(one, other), max(one, other)


def angle_of(tile, base, p, q):
    """Cosine and sine of the rotation after which p and q have nothing in common."""
    cosine, sine = number(1.0), number(0.0)
    between = tile[base + LINE * p + q]
    if between != number(0.0):
        gap = tile[base + LINE * q + q] - tile[base + LINE * p + p]
        ratio = gap / (number(2.0) * between)
        root = number(math.sqrt(number(1.0) + ratio * ratio))
        tangent = number(1.0) / (number(math.fabs(ratio)) + root)
        if ratio < number(0.0):
            tangent = -tangent
        cosine = number(1.0) / number(math.sqrt(number(1.0) + tangent * tangent))
        sine = tangent * cosine
    return cosine, sine


def rotate_pairs(tile, turned, base, size, players, turn):
    """One rotation for each of the pairs that meet in this turn: lane k has the angle of pair k."""
    lane = lane_of_warp()
    cosine, sine = number(1.0), number(0.0)
    if lane < players >> 1:
        p, q = pair_at(lane, players, turn)
        if q < size:
            cosine, sine = angle_of(tile, base, p, q)
    cuda.syncwarp()
    for pair in range(players >> 1):
        c = cuda.shfl_sync(0xFFFFFFFF, cosine, pair)
        s = cuda.shfl_sync(0xFFFFFFFF, sine, pair)
        p, q = pair_at(pair, players, turn)
        if q < size and lane < size:
            x, y = tile[base + LINE * p + lane], tile[base + LINE * q + lane]
            tile[base + LINE * p + lane] = c * x - s * y
            tile[base + LINE * q + lane] = s * x + c * y
    cuda.syncwarp()
    for pair in range(players >> 1):
        c = cuda.shfl_sync(0xFFFFFFFF, cosine, pair)
        s = cuda.shfl_sync(0xFFFFFFFF, sine, pair)
        p, q = pair_at(pair, players, turn)
        if q < size and lane < size:
            x, y = tile[base + LINE * lane + p], tile[base + LINE * lane + q]
            # What a rotation makes zero up to rounding is set to zero.
            tile[base + LINE * lane + p] = number(0.0) if lane == q else c * x - s * y
            tile[base + LINE * lane + q] = number(0.0) if lane == p else s * x + c * y
            if VECTORS:
                x, y = turned[base + LINE * lane + p], turned[base + LINE * lane + q]
                turned[base + LINE * lane + p] = c * x - s * y
                turned[base + LINE * lane + q] = s * x + c * y
    cuda.syncwarp()
