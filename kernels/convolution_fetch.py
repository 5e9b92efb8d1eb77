"""Copy slices of both operands of a convolution to shared memory; see convolution.py.

A slice is CHUNKS chunks of CHUNK elements, 16 bytes, along one axis of the sum. A thread fetches
one chunk of every LANE_ROWS-th row, and counts its coordinates: taps of three slides, and the index
of the chunk along its axis.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from gpuflow.kernels.convolution_axes import as_index, is_inside, split
from gpuflow.kernels.language import (
    copy_async,
    cuda,
    float32,
    int32,
    load_vector,
    store_vector,
    uint16,
)
from gpuflow.kernels.tiles import FLOAT32, THREADS

CHUNKS = 4
LANE_ROWS = THREADS // CHUNKS

# Set for each build; see convolution.py and tiles.py.
KIND = PITCH = ROWS = COLUMNS = CHUNK = 0
LONG = False
MARGINS = TAPS = LEFT_VECTOR = RIGHT_VECTOR = LEFT_ACROSS = RIGHT_ACROSS = False


def zero():
    """The element 0."""
    if KIND == FLOAT32:
        return float32(0)
    else:
        return uint16(0)


def own_chunk(by_rows):
    """The chunk of a slice that this thread fetches, and the first of its rows."""
    thread = int32(cuda.threadIdx.x)
    if by_rows:
        return int32(thread // LANE_ROWS), int32(thread % LANE_ROWS)
    else:
        return int32(thread % CHUNKS), int32(thread // CHUNKS)


def begin(state, chunk, counts):
    """Set ``state`` to the taps and the position of a chunk.

    Args:
        state: taps of each slide, and the index of the chunk along its axis, which is innermost.
        chunk: the first one. counts: of taps of the last two slides, and of chunks.
    """
    taps1, taps2, chunks = counts
    rest, along = split(chunk, chunks)
    rest, t2 = split(rest, taps2)
    t0, t1 = split(rest, taps1)
    state[0], state[1] = int32(t0), int32(t1)
    state[2], state[3] = int32(t2), int32(along)


def advance(state, counts):
    """Advance by one slice."""
    taps1, taps2, chunks = counts
    along = int32(state[3] + CHUNKS)
    while along >= chunks:
        along = int32(along - chunks)
        t2 = int32(state[2] + 1)
        if t2 == taps2:
            t2 = int32(0)
            t1 = int32(state[1] + 1)
            if t1 == taps1:
                t1 = int32(0)
                state[0] = int32(state[0] + 1)
            state[1] = t1
        state[2] = t2
    state[3] = along


def read_row(table, row):
    """The offset of a row in lhs, and its position in each slide."""
    if LONG:
        return table[4 * row], table[4 * row + 1], table[4 * row + 2], table[4 * row + 3]
    else:
        return load_vector(table, 4 * row, 4)


def slice_offset(state, steps, first, depth_step):
    """The offset of this thread's chunk of a slice in its row, in elements."""
    return as_index(
        state[0] * steps[0] + state[1] * steps[1] + state[2] * steps[2] + first * depth_step
    )


def tap_positions(state, gaps, first):
    """The offsets of the taps of this thread's chunk from those of a row's start, by slide."""
    p2 = as_index(state[2] * gaps[2])
    if TAPS:
        p2 = as_index(first * gaps[2])
    return as_index(state[0] * gaps[0]), as_index(state[1] * gaps[1]), p2


def fetch_left(held, shared, at, lhs, table, state, assignment, in_range, left):
    """Begin to copy this thread's chunks of rows, or read them into registers."""
    sizes, gaps, steps, depth, depth_step = left
    chunk, first_row = assignment
    first = as_index(state[3] * CHUNK)
    p0, p1, p2 = tap_positions(state, gaps, first)
    offset = slice_offset(state, steps, first, depth_step)
    for k in range(ROWS // LANE_ROWS):
        row = int32(first_row + LANE_ROWS * k)
        base, q0, q1, q2 = read_row(table, row)
        is_read = in_range
        if MARGINS:
            is_read = is_read and is_inside(q0 + p0, sizes[0]) and is_inside(q1 + p1, sizes[1])
            if not TAPS:
                is_read = is_read and is_inside(q2 + p2, sizes[2])
        index = as_index(base + offset)
        if LEFT_VECTOR:
            if not is_read:
                index = as_index(0)
            copy_async(shared, at + row * PITCH + chunk * CHUNK, lhs, index, is_read)
        else:
            for j in range(CHUNK):
                value = zero()
                if TAPS and MARGINS:
                    also = is_inside(q2 + p2 + j * gaps[2], sizes[2])
                else:
                    also = True
                if is_read and also and first + j < depth:
                    value = lhs[index + j * depth_step]
                held[CHUNK * k + j] = value


def fetch_right(held, shared, at, rhs, table, state, assignment, in_range, right):
    """The same for columns, which have no padding."""
    steps, depth, depth_step = right
    chunk, first_column = assignment
    first = as_index(state[3] * CHUNK)
    offset = slice_offset(state, steps, first, depth_step)
    for k in range(COLUMNS // LANE_ROWS):
        column = int32(first_column + LANE_ROWS * k)
        index = as_index(table[2 * column] + offset)
        if RIGHT_VECTOR:
            if not in_range:
                index = as_index(0)
            copy_async(shared, at + column * PITCH + chunk * CHUNK, rhs, index, in_range)
        else:
            for j in range(CHUNK):
                value = zero()
                if in_range and first + j < depth:
                    value = rhs[index + j * depth_step]
                held[CHUNK * k + j] = value


def fetch_left_across(shared, at, lhs, table, state, assignment, in_range, left, rows):
    """Begin to copy 16 bytes of neighboring rows for each element of this thread's chunk."""
    sizes, gaps, steps, depth, depth_step = left
    chunk, lane = assignment
    first = as_index(state[3] * CHUNK)
    p0, p1, p2 = tap_positions(state, gaps, first)
    offset = slice_offset(state, steps, first, depth_step)
    for i in range(ROWS // LANE_ROWS):
        item = int32(lane + LANE_ROWS * i)
        k, row = int32(item // (ROWS // CHUNK)), int32(item % (ROWS // CHUNK) * CHUNK)
        base, q0, q1, q2 = read_row(table, row)
        is_read = in_range and first + k < depth and row < rows
        if MARGINS:
            is_read = is_read and is_inside(q0 + p0, sizes[0]) and is_inside(q1 + p1, sizes[1])
            if TAPS:
                is_read = is_read and is_inside(q2 + p2 + k * gaps[2], sizes[2])
            else:
                is_read = is_read and is_inside(q2 + p2, sizes[2])
        index = as_index(base + offset + k * depth_step)
        if not is_read:
            index = as_index(0)
        copy_async(shared, at + (chunk * CHUNK + k) * (ROWS + CHUNK) + row, lhs, index, is_read)


def fetch_right_across(shared, at, rhs, table, state, assignment, in_range, right, columns):
    """The same for columns, which have no padding."""
    steps, depth, depth_step = right
    chunk, lane = assignment
    first = as_index(state[3] * CHUNK)
    offset = slice_offset(state, steps, first, depth_step)
    for i in range(COLUMNS // LANE_ROWS):
        item = int32(lane + LANE_ROWS * i)
        k, column = int32(item // (COLUMNS // CHUNK)), int32(item % (COLUMNS // CHUNK) * CHUNK)
        is_read = in_range and first + k < depth and column < columns
        index = as_index(table[2 * column] + offset + k * depth_step)
        if not is_read:
            index = as_index(0)
        target = at + (chunk * CHUNK + k) * (COLUMNS + CHUNK) + column
        copy_async(shared, target, rhs, index, is_read)


def put(shared, at, held, count, assignment):
    """Write the elements in registers to shared memory, 16 bytes at a time."""
    chunk, row = assignment
    for k in range(count):
        target = at + (row + LANE_ROWS * k) * PITCH + chunk * CHUNK
        h = CHUNK * k
        if KIND == FLOAT32:
            store_vector(shared, target, (held[h], held[h + 1], held[h + 2], held[h + 3]))
        else:
            store_vector(
                shared, target,
                (held[h], held[h + 1], held[h + 2], held[h + 3], held[h + 4], held[h + 5],
                 held[h + 6], held[h + 7]),
            )  # fmt: skip
