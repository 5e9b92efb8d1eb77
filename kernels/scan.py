"""Inclusive scans along one axis: y[i] = x[0] ? x[1] ? ... ? x[i], in an order fixed by the shape.

An array is (outer, length, inner), row-major; each of the outer * inner rows is scanned by itself,
from the front or from the end. Long rows are cut into chunks:

    totals     x of each chunk        ->  one value for each chunk
    a scan     of those values, in place
    scan       x of each chunk, starting from the total of the chunks before it  ->  y

    scan_rows      inner = 1: a block for each chunk, which is contiguous in memory
    scan_columns   a thread for each chunk; neighboring threads have neighboring columns

Contract: pointers of any alignment; ``y`` may be ``x`` itself; indices are int64.
Launch: a block for each chunk, of THREADS threads (a multiple of 32, at most 1024); or a thread for
each chunk. Shared memory: 32 numbers of 8 bytes.
Reads x once (twice with totals) and writes y once; nothing waits for other blocks, so that the
order of additions does not depend on when blocks run.
Source: Sengupta et al. 2007, "Scan primitives for GPU computing"; within a warp Hillis and Steele
1986, "Data parallel algorithms".

Tests: tests/kernels/test_kernel_scan.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import (
    barrier,
    bfloat16_to_float32,
    cuda,
    float16_to_float32,
    float32,
    float32_to_bfloat16,
    float32_to_float16,
    float64,
    int32,
    int64,
    maximum,
    minimum,
    shared_array,
    uint64,
    unrolled,
)

# KIND of elements. 16-bit floats are combined in float32, integers in 64 bits.
FLOAT32, FLOAT64, BFLOAT16, FLOAT16, SIGNED, UNSIGNED = range(6)
# COMBINE
ADD, MULTIPLY, MAXIMUM, MINIMUM, LOG_ADD_EXP = range(5)

# Given for each build.
KIND = FLOAT32
COMBINE = ADD
ITEMS = 8  # of a thread in each iteration
ONLY_TOTALS = 0  # store the total of each chunk only
CONTINUED = 0  # start from the total before the chunk
REVERSE = 0


def widened(element):
    """The value that is combined."""
    if KIND == BFLOAT16:
        return bfloat16_to_float32(element)
    elif KIND == FLOAT16:
        return float16_to_float32(element)
    elif KIND == SIGNED:
        return int64(element)
    elif KIND == UNSIGNED:
        return uint64(element)
    else:
        return element


def narrowed(value):
    """The element that is stored; integers lose their upper bits."""
    if KIND == BFLOAT16:
        return float32_to_bfloat16(value)
    elif KIND == FLOAT16:
        return float32_to_float16(value)
    else:
        return value


def neutral():
    """The neutral element of the combination."""
    if KIND == SIGNED:
        if COMBINE == ADD:
            return int64(0)
        elif COMBINE == MULTIPLY:
            return int64(1)
        elif COMBINE == MAXIMUM:
            return int64(-(1 << 63))
        else:
            return int64((1 << 63) - 1)
    elif KIND == UNSIGNED:
        if COMBINE == MULTIPLY:
            return uint64(1)
        elif COMBINE == MINIMUM:
            return uint64((1 << 64) - 1)
        else:
            return uint64(0)
    elif KIND == FLOAT64:
        if COMBINE == ADD:
            return float64(0.0)
        elif COMBINE == MULTIPLY:
            return float64(1.0)
        elif COMBINE == MINIMUM:
            return float64(math.inf)
        else:
            return float64(-math.inf)
    else:
        if COMBINE == ADD:
            return float32(0.0)
        elif COMBINE == MULTIPLY:
            return float32(1.0)
        elif COMBINE == MINIMUM:
            return float32(math.inf)
        else:
            return float32(-math.inf)


def combined(earlier, later):
    """The combination of two values; nan propagates."""
    if COMBINE == ADD:
        return earlier + later
    elif COMBINE == MULTIPLY:
        return earlier * later
    elif COMBINE == LOG_ADD_EXP:
        return log_add_exp(earlier, later)
    elif KIND in (SIGNED, UNSIGNED):
        if COMBINE == MAXIMUM:
            return max(earlier, later)
        else:
            return min(earlier, later)
    else:
        if COMBINE == MAXIMUM:
            return maximum(earlier, later)
        else:
            return minimum(earlier, later)


def log_add_exp(x, y):
    """log(exp(x) + exp(y)); equal infinities have no distance."""
    high = maximum(x, y)
    if high == minimum(x, y) and math.isinf(high):
        return high
    return high + math.log1p(math.exp(minimum(x, y) - high))


def from_lane_before(value, step):
    """The value of the lane ``step`` before this one."""
    if KIND == UNSIGNED:
        return uint64(cuda.shfl_up_sync(0xFFFFFFFF, int64(value), step))
    else:
        return cuda.shfl_up_sync(0xFFFFFFFF, value, step)


def from_last_lane(value):
    """The value of the last lane of the warp."""
    if KIND == UNSIGNED:
        return uint64(cuda.shfl_sync(0xFFFFFFFF, int64(value), 31))
    else:
        return cuda.shfl_sync(0xFFFFFFFF, value, 31)


def warp_scan(value, lane):
    """The scan over the lanes of a warp."""
    for step in unrolled(5):
        before = from_lane_before(value, 1 << step)
        if lane >= (1 << step):
            value = combined(before, value)
    return value


def row_of_block():
    """The index of the block's row, which may be out of bounds."""
    return int64(cuda.blockIdx.z) * cuda.gridDim.y + cuda.blockIdx.y


def scan_rows(x, y, totals, rows, length, chunk):
    """One chunk of a row, by a block; ``gridDim.x`` is the number of chunks.

    In each iteration a warp has ITEMS * 32 neighbors, and lanes are neighbors in memory.

    Args:
        x, y: elements; with ONLY_TOTALS there is no y.
        totals: of each row and chunk, int64, uint64, float32 or float64; with CONTINUED scanned.
        rows: their number. length: elements of one. chunk: elements of a chunk.
    """
    if KIND == FLOAT64:
        shared, scanned = shared_array(float64, 32), cuda.local.array(ITEMS, float64)
    elif KIND == SIGNED:
        shared, scanned = shared_array(int64, 32), cuda.local.array(ITEMS, int64)
    elif KIND == UNSIGNED:
        shared, scanned = shared_array(uint64, 32), cuda.local.array(ITEMS, uint64)
    else:
        shared, scanned = shared_array(float32, 32), cuda.local.array(ITEMS, float32)
    lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
    warps = int32(cuda.blockDim.x >> 5)
    row = row_of_block()
    if row >= rows:
        return
    begin = int64(cuda.blockIdx.x) * chunk
    stop = min(begin + chunk, length)
    chunk_id = row * cuda.gridDim.x + cuda.blockIdx.x
    carry = neutral()
    if CONTINUED and begin > 0:
        carry = totals[chunk_id - 1]
    while begin < stop:
        total = neutral()
        first = begin + int64(warp) * (32 * ITEMS) + lane
        for k in range(ITEMS):
            position = first + 32 * k
            value = neutral()
            if position < stop:
                value = widened(x[row * length + (length - 1 - position if REVERSE else position)])
            value = combined(total, warp_scan(value, lane))
            scanned[k] = value
            total = from_last_lane(value)
        if lane == 0:
            shared[warp] = total
        barrier()
        before = carry
        for other in range(warps):
            if other == warp:
                before = carry
            carry = combined(carry, shared[other])
        barrier()
        if not ONLY_TOTALS:
            for k in range(ITEMS):
                position = first + 32 * k
                if position < stop:
                    at = row * length + (length - 1 - position if REVERSE else position)
                    y[at] = narrowed(combined(before, scanned[k]))
        begin += int64(warps) * (32 * ITEMS)
    if ONLY_TOTALS and cuda.threadIdx.x == 0:
        totals[chunk_id] = carry


def scan_columns(x, y, totals, threads, length, inner, chunk, chunks):
    """One chunk of a column, by a thread.

    Args:
        x, y: elements; with ONLY_TOTALS there is no y.
        totals: (outer, chunks, inner), as for ``scan_rows``.
        threads: outer * chunks * inner.
        length: elements of a column. inner: adjacent columns.
        chunk: elements of a chunk. chunks: of a column.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    above = thread // inner
    column = thread - above * inner
    outer = above // chunks
    begin = (above - outer * chunks) * chunk
    stop = min(begin + chunk, length)
    base = outer * length * inner + column
    step = inner
    if REVERSE:
        base += (length - 1) * inner
        step = -inner
    carry = neutral()
    if CONTINUED and begin > 0:
        carry = totals[thread - inner]
    for position in range(begin, stop):
        carry = combined(carry, widened(x[base + position * step]))
        if not ONLY_TOTALS:
            y[base + position * step] = narrowed(carry)
    if ONLY_TOTALS:
        totals[thread] = carry
