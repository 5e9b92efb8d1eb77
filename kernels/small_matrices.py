"""Decompositions of batches of small matrices: a warp for each, in shared memory.

    factor_lu           Gaussian elimination with partial pivoting
    factor_cholesky     the lower factor; nan where a matrix is not positive definite
    solve_triangular    substitution; a lane for each right-hand side, 32 at a time
    factor_qr           Householder reflections, with LAPACK's signs

Contract: float32 or float64; row-major batches of matrices of at most 32 rows and columns. nan and
inf do no harm to other matrices.
Launch: WARPS warps in a block, which takes as many matrices.
Shared memory: WARPS * 1056 numbers for each matrix that is held, two for the last two.
Reads and writes each matrix once.
Source: Golub and Van Loan 2013, "Matrix computations", algorithms 3.4.1, 4.2.2 and 5.1.1; LAPACK's
larfg for the signs of reflections.
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
AREA = 4224  # WARPS * 32 * 33: numbers of shared memory
LOWER = 1  # the triangle that is read, after transposition
TURNED = 0  # the transposed matrix is meant
UNIT = 0  # ones on the diagonal, which is not read

LINE = 33  # numbers from one row in shared memory to the next: columns lie in different banks


def number(value):
    """A number of the matrices' dtype."""
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
    """The number of the warp's matrix, where its shared memory begins, and the lane."""
    warp = cuda.threadIdx.x >> 5
    return int64(cuda.blockIdx.x) * WARPS + warp, int32(warp * (32 * LINE)), lane_of_warp()


def lane_of_warp():
    """The thread's number in its warp."""
    return int32(cuda.threadIdx.x & 31)


def load_matrix(source, tile, base, start, rows, columns):
    """Copy a matrix to shared memory."""
    lane = lane_of_warp()
    for row in range(rows):
        if lane < columns:
            tile[base + LINE * row + lane] = source[start + row * columns + lane]
    cuda.syncwarp()


def store_matrix(tile, target, base, start, rows, columns):
    """Copy a matrix from shared memory."""
    lane = lane_of_warp()
    cuda.syncwarp()
    for row in range(rows):
        if lane < columns:
            target[start + row * columns + lane] = tile[base + LINE * row + lane]


def pivot_of(tile, base, k, rows):
    """The first row from k on that has the largest number in column k."""
    lane = lane_of_warp()
    measure = number(-1.0)
    if lane >= k and lane < rows:
        measure = number(math.fabs(tile[base + LINE * lane + k]))
        if not measure >= number(0.0):  # nan is chosen where no number was before
            measure = number(math.inf) if lane == k else number(-1.0)
    chosen = lane
    for step in unrolled(5):
        other = shuffle_xor(measure, 1 << step)
        place = shuffle_xor(chosen, 1 << step)
        if other > measure or (other == measure and place < chosen):
            measure, chosen = other, place
    return chosen


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
    source_row = lane  # which row stands at the lane's place
    for k in range(size):
        chosen = pivot_of(tile, base, k, rows)
        pivot_row = cuda.shfl_sync(0xFFFFFFFF, source_row, chosen)
        this_row = cuda.shfl_sync(0xFFFFFFFF, source_row, k)
        if lane == k:
            source_row = pivot_row
        elif lane == chosen:
            source_row = this_row
        if lane == 0:
            pivots[matrix * size + k] = chosen
        cuda.syncwarp()
        if lane < columns and chosen != k:
            above = tile[base + LINE * k + lane]
            tile[base + LINE * k + lane] = tile[base + LINE * chosen + lane]
            tile[base + LINE * chosen + lane] = above
        cuda.syncwarp()
        pivot = tile[base + LINE * k + k]
        if lane > k and lane < rows:
            factor = tile[base + LINE * lane + k]
            if pivot != number(0.0):
                factor = factor / pivot
                tile[base + LINE * lane + k] = factor
            for j in range(k + 1, columns):
                tile[base + LINE * lane + j] -= factor * tile[base + LINE * k + j]
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
        square = tile[base + LINE * k + k]
        if not square > number(0.0):
            is_positive = False
        pivot = number(math.sqrt(square))
        cuda.syncwarp()
        if lane == k:
            tile[base + LINE * k + k] = pivot
        if lane > k and lane < size:
            tile[base + LINE * lane + k] /= pivot
        cuda.syncwarp()
        if lane > k and lane < size:
            factor = tile[base + LINE * lane + k]
            for j in range(k + 1, lane + 1):
                tile[base + LINE * lane + j] -= factor * tile[base + LINE * j + k]
        cuda.syncwarp()
    for row in range(size):
        if lane < size:
            value = tile[base + LINE * row + lane] if lane <= row else number(0.0)
            if not is_positive and lane <= row:
                value = number(math.nan)
            target[(matrix * size + row) * size + lane] = value


def solve_triangular(a, b, x, count, size, sides, step, across):
    """T X = B, where T is a triangle of A, or of its transpose (TURNED).

    Args:
        a: (count, size, size). b: right-hand sides. x: the solutions, as ``b`` lies.
        count, size, sides: sizes.
        step, across: elements from one number of a right-hand side to the next, and from one
            side to the next.
    """
    tile, held = shared_tiles()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    load_matrix(a, tile, base, matrix * size * size, size, size)
    for first in range(0, sides, 32):
        if first + lane < sides:
            start = matrix * size * sides + (first + lane) * across
            for turn in range(size):
                row = turn if LOWER else size - 1 - turn
                value = b[start + row * step]
                for before in range(turn):
                    known = before if LOWER else size - 1 - before
                    at = base + (LINE * known + row if TURNED else LINE * row + known)
                    value -= tile[at] * held[base + LINE * known + lane]
                if not UNIT:
                    value /= tile[base + LINE * row + row]
                held[base + LINE * row + lane] = value
                x[start + row * step] = value


def make_reflection(tile, base, k, rows):
    """Put the reflection that clears column k below the diagonal there; gives its factor."""
    lane = lane_of_warp()
    below = number(0.0)
    if lane > k and lane < rows:
        below = tile[base + LINE * lane + k]
    # The sum is nan if a number is, which a comparison may lose.
    largest = warp_largest(number(math.fabs(below))) + warp_sum(below * number(0.0))
    head = tile[base + LINE * k + k]
    factor = number(0.0)
    if largest != number(0.0):
        largest = max(largest, number(math.fabs(head)))
        part = below / largest
        top = head / largest
        length = largest * number(math.sqrt(warp_sum(part * part) + top * top))
        new_head = -length if head >= number(0.0) else length
        factor = (new_head - head) / new_head
        cuda.syncwarp()
        if lane > k and lane < rows:
            tile[base + LINE * lane + k] = below / (head - new_head)
        if lane == k:
            tile[base + LINE * k + k] = new_head
    return factor


def reflect(tile, target, base, k, rows, factor):
    """Apply reflection k, which lies in ``tile``, to the lane's column of ``target``."""
    lane = lane_of_warp()
    total = target[base + LINE * k + lane]
    for i in range(k + 1, rows):
        total += tile[base + LINE * i + k] * target[base + LINE * i + lane]
    total *= factor
    target[base + LINE * k + lane] -= total
    for i in range(k + 1, rows):
        target[base + LINE * i + lane] -= tile[base + LINE * i + k] * total


def factor_qr(source, q, r, count, rows, columns, inner):
    """A = Q R.

    Args:
        source: (count, rows, columns). q: (count, rows, inner). r: (count, inner, columns).
        count, rows, columns: sizes. inner: ``rows``, or the smaller one of both sizes.
    """
    tile, turned = shared_tiles()
    matrix, base, lane = matrix_of_warp()
    if matrix >= count:
        return
    load_matrix(source, tile, base, matrix * rows * columns, rows, columns)
    size = int32(min(rows, columns))
    lane_factor = number(0.0)  # lane k keeps the factor of reflection k
    for k in range(size):
        factor = make_reflection(tile, base, k, rows)
        if lane == k:
            lane_factor = factor
        cuda.syncwarp()
        if lane > k and lane < columns:
            reflect(tile, tile, base, k, rows, factor)
        cuda.syncwarp()
    for i in range(rows):
        turned[base + LINE * i + lane] = number(1.0) if lane == i else number(0.0)
    for turn in range(size):
        k = size - 1 - turn
        reflect(tile, turned, base, k, rows, cuda.shfl_sync(0xFFFFFFFF, lane_factor, k))
    store_matrix(turned, q, base, matrix * rows * inner, rows, inner)
    for i in range(inner):
        if lane < columns:
            value = tile[base + LINE * i + lane] if lane >= i else number(0.0)
            r[(matrix * inner + i) * columns + lane] = value
