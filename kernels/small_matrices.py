"""Decompositions of batches of small matrices: a warp for each, in shared memory.

    factor_lu           Gaussian elimination with partial pivoting
    factor_cholesky     the lower factor; nan where a matrix is not positive definite
    solve_triangular    substitution; a lane for each right-hand side, 32 at a time
    factor_qr           Householder reflections, with LAPACK's signs

Contract: float32 or float64; row-major batches of matrices of at most 32 rows and columns. nan and
inf do no harm to other matrices.
Launch: WARPS warps in a block, which takes as many matrices.
Shared memory: WARPS * 1056 scalars for each matrix in it, two for the last two.
Reads and writes each matrix once.
Source: Golub and Van Loan 2013, "Matrix computations", algorithms 3.4.1, 4.2.2 and 5.1.1; LAPACK's
larfg for the signs of reflections.

Tests: tests/kernels/test_kernel_matrices.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import (
    cuda,
    float32,
    float64,
    int32,
    int64,
    shared_array,
    shuffle_xor,
    unrolled,
)

# Given for each build.
DOUBLE = 0  # float64
WARPS = 4  # of a block
AREA = 4224  # WARPS * 32 * 33: scalars in shared memory
LOWER = 1  # the triangle that is read, after transposition
TRANSPOSED = 0  # the matrix is transposed
UNIT = 0  # ones on the diagonal, which is not read

PITCH = 33  # scalars from one row in shared memory to the next: columns are in different banks


def real(value):
    """A scalar of the matrices' dtype."""
    if DOUBLE:
        return float64(value)
    else:
        return float32(value)


def warp_sum(value):
    """The sum over all lanes, in each of them."""
    for step in unrolled(5):
        value = value + shuffle_xor(value, 1 << step)
    return value


def warp_largest(value):
    """The largest number of all lanes, in each of them."""
    for step in unrolled(5):
        value = max(value, shuffle_xor(value, 1 << step))
    return value


def shared_tile():
    """Shared memory for a matrix of each warp; the same in each call."""
    if DOUBLE:
        return shared_array(float64, AREA)
    else:
        return shared_array(float32, AREA)


def shared_tiles():
    """Shared memory for two matrices of each warp; the same in each call."""
    if DOUBLE:
        return shared_array(float64, AREA), shared_array(float64, AREA)
    else:
        return shared_array(float32, AREA), shared_array(float32, AREA)


def matrix_of_warp():
    """The index of the warp's matrix, the offset of its shared memory, and the lane."""
    warp = cuda.threadIdx.x >> 5
    return int64(cuda.blockIdx.x) * WARPS + warp, int32(warp * (32 * PITCH)), lane_of_warp()


def lane_of_warp():
    """The thread's lane in its warp."""
    return int32(cuda.threadIdx.x & 31)


def load_matrix(source, tile, base, start, rows, columns):
    """Copy a matrix to shared memory."""
    lane = lane_of_warp()
    for row in range(rows):
        if lane < columns:
            tile[base + PITCH * row + lane] = source[start + row * columns + lane]
    cuda.syncwarp()


def store_matrix(tile, target, base, start, rows, columns):
    """Copy a matrix from shared memory."""
    lane = lane_of_warp()
    cuda.syncwarp()
    for row in range(rows):
        if lane < columns:
            target[start + row * columns + lane] = tile[base + PITCH * row + lane]


def pivot_of(tile, base, k, rows):
    """The first row from k on that has the largest number in column k."""
    lane = lane_of_warp()
    measure = real(-1.0)
    if lane >= k and lane < rows:
        measure = real(math.fabs(tile[base + PITCH * lane + k]))
        if not measure >= real(0.0):  # nan is only selected in row k
            measure = real(math.inf) if lane == k else real(-1.0)
    pivot_row = lane
    for step in unrolled(5):
        other = shuffle_xor(measure, 1 << step)
        candidate = shuffle_xor(pivot_row, 1 << step)
        if other > measure or (other == measure and candidate < pivot_row):
            measure, pivot_row = other, candidate
    return pivot_row


def factor_lu(source, factors, pivots, order, count, rows, columns):
    """P A = L U.

    Args:
        source: (count, rows, columns). factors: the same, U and below it L.
        pivots: int32 (count, min(rows, columns)). order: int32 (count, rows), the permutation.
        count, rows, columns: sizes.
    """
    tile = shared_tile()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    size = int32(min(rows, columns))
    load_matrix(source, tile, base, matrix * rows * columns, rows, columns)
    source_row = lane  # the row that the lane's row came from
    for k in range(size):
        selected = pivot_of(tile, base, k, rows)
        pivot_row = cuda.shfl_sync(0xFFFFFFFF, source_row, selected)
        this_row = cuda.shfl_sync(0xFFFFFFFF, source_row, k)
        if lane == k:
            source_row = pivot_row
        elif lane == selected:
            source_row = this_row
        if lane == 0:
            pivots[matrix * size + k] = selected
        cuda.syncwarp()
        if lane < columns and selected != k:
            above = tile[base + PITCH * k + lane]
            tile[base + PITCH * k + lane] = tile[base + PITCH * selected + lane]
            tile[base + PITCH * selected + lane] = above
        cuda.syncwarp()
        pivot = tile[base + PITCH * k + k]
        if lane > k and lane < rows:
            factor = tile[base + PITCH * lane + k]
            if pivot != real(0.0):
                factor = factor / pivot
                tile[base + PITCH * lane + k] = factor
            for j in range(k + 1, columns):
                tile[base + PITCH * lane + j] -= factor * tile[base + PITCH * k + j]
        cuda.syncwarp()
    store_matrix(tile, factors, base, matrix * rows * columns, rows, columns)
    if lane < rows:
        order[matrix * rows + lane] = source_row


def factor_cholesky(source, target, count, size):
    """A = L L^T from the lower triangle; above the diagonal of ``target`` are zeros.

    Args:
        source, target: (count, size, size). count, size: sizes.
    """
    tile = shared_tile()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    load_matrix(source, tile, base, matrix * size * size, size, size)
    is_positive = True
    for k in range(size):
        square = tile[base + PITCH * k + k]
        if not square > real(0.0):
            is_positive = False
        pivot = real(math.sqrt(square))
        cuda.syncwarp()
        if lane == k:
            tile[base + PITCH * k + k] = pivot
        if lane > k and lane < size:
            tile[base + PITCH * lane + k] /= pivot
        cuda.syncwarp()
        if lane > k and lane < size:
            factor = tile[base + PITCH * lane + k]
            for j in range(k + 1, lane + 1):
                tile[base + PITCH * lane + j] -= factor * tile[base + PITCH * j + k]
        cuda.syncwarp()
    for row in range(size):
        if lane < size:
            value = tile[base + PITCH * row + lane] if lane <= row else real(0.0)
            if not is_positive and lane <= row:
                value = real(math.nan)
            target[(matrix * size + row) * size + lane] = value


def solve_triangular(a, b, x, count, size, sides, step, across):
    """T X = B, where T is a triangle of A, or of its transpose (TRANSPOSED).

    Args:
        a: (count, size, size). b: right-hand sides. x: the solutions, with the layout of ``b``.
        count, size, sides: sizes.
        step, across: strides within a right-hand side, and from one side to the next.
    """
    tile, solution = shared_tiles()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    load_matrix(a, tile, base, matrix * size * size, size, size)
    for first in range(0, sides, 32):
        if first + lane < sides:
            start = matrix * size * sides + (first + lane) * across
            for done in range(size):
                row = done if LOWER else size - 1 - done
                value = b[start + row * step]
                for before in range(done):
                    solved = before if LOWER else size - 1 - before
                    at = base + (PITCH * solved + row if TRANSPOSED else PITCH * row + solved)
                    value -= tile[at] * solution[base + PITCH * solved + lane]
                if not UNIT:
                    value /= tile[base + PITCH * row + row]
                solution[base + PITCH * row + lane] = value
                x[start + row * step] = value


def make_reflection(tile, base, k, rows):
    """Store the reflection that clears column k below the diagonal there; returns its factor."""
    lane = lane_of_warp()
    below = real(0.0)
    if lane > k and lane < rows:
        below = tile[base + PITCH * lane + k]
    # The sum is nan if a number is, which a comparison may lose.
    largest = warp_largest(real(math.fabs(below))) + warp_sum(below * real(0.0))
    head = tile[base + PITCH * k + k]
    factor = real(0.0)
    if largest != real(0.0):
        largest = max(largest, real(math.fabs(head)))
        scaled = below / largest
        top = head / largest
        length = largest * real(math.sqrt(warp_sum(scaled * scaled) + top * top))
        new_head = -length if head >= real(0.0) else length
        factor = (new_head - head) / new_head
        cuda.syncwarp()
        if lane > k and lane < rows:
            tile[base + PITCH * lane + k] = below / (head - new_head)
        if lane == k:
            tile[base + PITCH * k + k] = new_head
    return factor


def reflect(tile, target, base, k, rows, factor):
    """Apply reflection k, which is in ``tile``, to the lane's column of ``target``."""
    lane = lane_of_warp()
    total = target[base + PITCH * k + lane]
    for i in range(k + 1, rows):
        total += tile[base + PITCH * i + k] * target[base + PITCH * i + lane]
    total *= factor
    target[base + PITCH * k + lane] -= total
    for i in range(k + 1, rows):
        target[base + PITCH * i + lane] -= tile[base + PITCH * i + k] * total


def factor_qr(source, q, r, count, rows, columns, inner):
    """A = Q R.

    Args:
        source: (count, rows, columns). q: (count, rows, inner). r: (count, inner, columns).
        count, rows, columns: sizes. inner: ``rows``, or the smaller one of both sizes.
    """
    tile, q_tile = shared_tiles()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    load_matrix(source, tile, base, matrix * rows * columns, rows, columns)
    size = int32(min(rows, columns))
    lane_factor = real(0.0)  # lane k keeps the factor of reflection k
    for k in range(size):
        factor = make_reflection(tile, base, k, rows)
        if lane == k:
            lane_factor = factor
        cuda.syncwarp()
        if lane > k and lane < columns:
            reflect(tile, tile, base, k, rows, factor)
        cuda.syncwarp()
    for i in range(rows):
        q_tile[base + PITCH * i + lane] = real(1.0) if lane == i else real(0.0)
    for step in range(size):
        k = size - 1 - step
        reflect(tile, q_tile, base, k, rows, cuda.shfl_sync(0xFFFFFFFF, lane_factor, k))
    store_matrix(q_tile, q, base, matrix * rows * inner, rows, inner)
    for i in range(inner):
        if lane < columns:
            value = tile[base + PITCH * i + lane] if lane >= i else real(0.0)
            r[(matrix * inner + i) * columns + lane] = value
