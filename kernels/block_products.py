"""A stack of matrix products by one block, as a step of a program of one block.

    out[b, m, n] = sum over k of left[b, m, k] * right[b, k, n]

Operands have any strides, in shared or in global memory; the result is row-major. Constants of the
text: BATCH, M, N, K; the steps of the left operand LEFT_B, LEFT_M, LEFT_K, and of the right one
RIGHT_B, RIGHT_K, RIGHT_N, in elements; KIND of the operands and OUT_KIND of the result.

The block has 32 x 8 threads. With 16-bit elements each warp makes tiles of 16 x 32 by tensor cores,
whose fragments are read in place; see kernels/tiles.py for their layout in registers. With float32
and float64 each thread makes 4 x 4 sums, whose rows and columns are strided by the threads along
them, so that neighbours read neighbours.

Tests: tests/targets/cuda/test_block_programs.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import (
    cuda,
    float32,
    float32_to_bfloat16,
    float32_to_float16,
    float64,
    int32,
    local_array,
    multiply_bfloat16,
    multiply_float16,
    uint32,
    unrolled,
)
from gpuflow.kernels.tiles import BFLOAT16, FLOAT16, FLOAT32

FLOAT64 = 3
THREADS = 256
WARPS = 8
SIDE = 4  # of the sums of a thread

BATCH = M = N = K = 0
LEFT_B = LEFT_M = LEFT_K = RIGHT_B = RIGHT_K = RIGHT_N = 0
KIND = OUT_KIND = 0


def multiply_in_block(out, left, right):
    """The products; the caller has barriers before and after."""
    if KIND in (FLOAT32, FLOAT64):
        _multiply_plain(out, left, right)
    else:
        _multiply_matrix(out, left, right)


def _store(out, index, value):
    if OUT_KIND == BFLOAT16:
        out[index] = float32_to_bfloat16(value)
    elif OUT_KIND == FLOAT16:
        out[index] = float32_to_float16(value)
    else:
        out[index] = value


def _multiply_plain(out, left, right):
    thread = int32(32 * cuda.threadIdx.y + cuda.threadIdx.x)
    if KIND == FLOAT64:
        sums = local_array(float64, SIDE * SIDE)
        lefts = local_array(float64, SIDE)
    else:
        sums = local_array(float32, SIDE * SIDE)
        lefts = local_array(float32, SIDE)
    rows, columns = (M + SIDE - 1) // SIDE, (N + SIDE - 1) // SIDE
    tile = thread
    while tile < BATCH * rows * columns:
        batch = tile // (rows * columns)
        rest = tile - batch * (rows * columns)
        row = rest // columns
        column = rest - row * columns
        for i in unrolled(SIDE * SIDE):
            sums[i] = 0
        for k in range(K):
            for i in unrolled(SIDE):
                # Rows and columns past the end are those at the end, and are not stored.
                m = min(row + i * rows, int32(M - 1))
                lefts[i] = left[batch * LEFT_B + m * LEFT_M + k * LEFT_K]
            for j in unrolled(SIDE):
                n = min(column + j * columns, int32(N - 1))
                value = right[batch * RIGHT_B + k * RIGHT_K + n * RIGHT_N]
                for i in unrolled(SIDE):
                    sums[SIDE * i + j] += lefts[i] * value
        for i in unrolled(SIDE):
            for j in unrolled(SIDE):
                m, n = row + i * rows, column + j * columns
                if m < M and n < N:
                    _store(out, (batch * M + m) * N + n, sums[SIDE * i + j])
        tile = int32(tile + THREADS)


def _pair(source, base, row, limit, row_step, k, k_step):
    """Two elements of a row that are neighbours along the depth, packed; zeros out of bounds."""
    low, high = uint32(0), uint32(0)
    if row < limit:
        index = base + row * row_step + k * k_step
        if k < K:
            low = uint32(source[index])
        if k + 1 < K:
            high = uint32(source[index + k_step])
    return uint32(low | (high << uint32(16)))


def _multiply_matrix(out, left, right):
    lane, warp = int32(cuda.threadIdx.x), int32(cuda.threadIdx.y)
    group, pair = lane >> 2, 2 * (lane & 3)
    a, b = local_array(uint32, 4), local_array(uint32, 2)
    sums = local_array(float32, 16)
    rows, columns = (M + 15) // 16, (N + 31) // 32
    tile = warp
    while tile < BATCH * rows * columns:
        batch = tile // (rows * columns)
        rest = tile - batch * (rows * columns)
        row = (rest // columns) * 16 + group
        column = (rest - (rest // columns) * columns) * 32
        for i in unrolled(16):
            sums[i] = float32(0)
        left_at, right_at = batch * LEFT_B, batch * RIGHT_B
        for step in range((K + 15) // 16):
            k = int32(16 * step) + pair
            a[0] = _pair(left, left_at, row, M, LEFT_M, k, LEFT_K)
            a[1] = _pair(left, left_at, row + 8, M, LEFT_M, k, LEFT_K)
            a[2] = _pair(left, left_at, row, M, LEFT_M, k + 8, LEFT_K)
            a[3] = _pair(left, left_at, row + 8, M, LEFT_M, k + 8, LEFT_K)
            for n in unrolled(4):
                at = column + 8 * n + group
                b[0] = _pair(right, right_at, at, N, RIGHT_N, k, RIGHT_K)
                b[1] = _pair(right, right_at, at, N, RIGHT_N, k + 8, RIGHT_K)
                if KIND == BFLOAT16:
                    multiply_bfloat16(sums, 4 * n, a, 0, b, 0)
                else:
                    multiply_float16(sums, 4 * n, a, 0, b, 0)
        for n in unrolled(4):
            for e in unrolled(4):
                m, at = row + 8 * (e // 2), column + 8 * n + pair + e % 2
                if m < M and at < N:
                    _store(out, (batch * M + m) * N + at, sums[4 * n + e])
        tile = int32(tile + WARPS)
