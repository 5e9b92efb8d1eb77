"""Copies into row-major memory: of strided arrays, and of permuted rows.

Contract: elements of SIZE bytes as unsigned integers, two for one of 16 bytes; at most four
dimensions, with strides in elements, of any sign. Neighboring threads write neighbors.
Launch: ``copy_strided`` as in ``gpuflow.targets.cuda.library.copy_launches``; ``take`` with a
thread for each element.

Tests: tests/kernels/test_kernel_copying.py, tests/kernels/test_kernel_strided_copies.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import (
    cuda,
    int32,
    int64,
    load_readonly,
    load_vector_readonly,
    split_index,
    store_vector,
    unrolled,
)

# Given for each build.
SIZE = 4  # bytes of an element
EACH = 1  # strided copies: elements of a row that a thread copies
VECTORS = 0  # strided copies: they are contiguous in both arrays, and copied as a vector
DIMS = 4  # strided copies: dimensions
LONG = 0  # sizes or offsets need 64 bits
POSITIONS = 0  # take: store the position of each element, too
SELECTED = 0  # take: the order has only elements that are taken


def index(value):
    """A position or a size."""
    if LONG:
        return int64(value)
    else:
        return int32(value)


def first_index():
    """The global id of this thread, in a grid of one dimension."""
    return index(index(cuda.blockIdx.x) * index(cuda.blockDim.x) + index(cuda.threadIdx.x))


def copy_strided(source, target, bits, rows, size1, size2, size3, step0, step1, step2, step3):
    """Copy ``rows`` rows of ``size3`` elements of stride ``step3``.

    Rows are of (any, size1, size2), with strides ``step0``, ``step1``, ``step2``. 2^bits threads
    of a block go along a row, and the others along other rows.
    """
    thread = int32(cuda.threadIdx.x)
    wide = int32(1 << bits)
    block_row = index(int32(cuda.blockIdx.z) * int32(cuda.gridDim.y) + int32(cuda.blockIdx.y))
    row = index(block_row * (int32(cuda.blockDim.x) >> bits) + (thread >> bits))
    if row >= rows:
        return
    if DIMS > 2:
        above, third = split_index(row, index(size2))
        offset = index(third * step2)
        if DIMS > 3:
            first, second = split_index(above, index(size1))
            offset = index(offset + second * step1 + first * step0)
        else:
            offset = index(offset + above * step1)
    else:
        offset = index(row * step2)
    start = index(row * size3)
    first_column = index(index(cuda.blockIdx.x) * wide * EACH)
    if VECTORS:
        column = index(first_column + (thread & (wide - 1)) * EACH)
        if column < size3:
            values = load_vector_readonly(source, index(offset + column), EACH)
            store_vector(target, index(start + column), values)
    else:
        for k in unrolled(EACH):
            column = index(first_column + (thread & (wide - 1)) + k * wide)
            if column < size3:
                at = index(offset + column * step3)
                if SIZE == 16:
                    target[2 * int64(start + column)] = load_readonly(source, 2 * int64(at))
                    target[2 * int64(start + column) + 1] = load_readonly(source, 2 * int64(at) + 1)
                else:
                    target[index(start + column)] = load_readonly(source, at)


def take(source, order, target, positions, count, length, inner, taken):
    """Take the first ``taken`` elements of each row, in an order.

    Args:
        source: (outer, length, inner) elements of SIZE bytes, as unsigned integers.
        order: uint32 (rows, length), or with SELECTED (rows, taken).
        target: (outer, taken, inner). positions: int32 of that shape, with POSITIONS.
        count: outer * taken * inner, a thread for each.
        length, inner, taken: sizes; all integers are int32, or int64 with LONG.
    """
    thread = first_index()
    if thread >= count:
        return
    above, column = split_index(thread, inner)
    outer, position = split_index(above, taken)
    pitch = taken if SELECTED else length
    order_row = index(index(outer * inner + column) * pitch)
    element = index(order[index(order_row + position)])
    offset = index(index(outer * length + element) * inner + column)
    if SIZE == 16:
        target[2 * int64(thread)] = source[2 * int64(offset)]
        target[2 * int64(thread) + 1] = source[2 * int64(offset) + 1]
    else:
        target[thread] = source[offset]
    if POSITIONS:
        positions[thread] = int32(element)
