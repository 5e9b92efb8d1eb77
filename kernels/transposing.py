"""Transposed copies that change the innermost dimension, through tiles in shared memory.

    target[i, j, a, b] = source[i * step_i + j * step_j + a + b * step_b]

where target has strides of its own for i, j and a, and 1 for b. Reads are of neighbors along a,
and writes along b: both of whole sectors of memory.

Contract: elements of SIZE bytes as unsigned integers, SIZE at most 8; below 2^31 tiles.
Launch: 256 threads; blocks in x: (i, j, tiles of a, tiles of b).

Tests: tests/kernels/test_kernel_strided_copies.py, tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from gpuflow.kernels.convolution_axes import split
from gpuflow.kernels.language import (
    barrier,
    cuda,
    int32,
    int64,
    shared_array,
    uint8,
    uint16,
    uint32,
    uint64,
)

TILE = 64  # elements of a tile in both directions
THREADS = 256

# Given for each build.
SIZE = 2  # bytes of an element
# Rows are 4 bytes longer, so that elements of a column are in different banks.
PITCH = 66


def own_tile():
    """The tile in shared memory."""
    if SIZE == 1:
        return shared_array(uint8, TILE * PITCH)
    elif SIZE == 2:
        return shared_array(uint16, TILE * PITCH)
    elif SIZE == 4:
        return shared_array(uint32, TILE * PITCH)
    else:
        return shared_array(uint64, TILE * PITCH)


def copy_transposed(
    source, target, size_j, size_a, size_b, step_i, step_j, step_b, out_i, out_j, out_a
):
    """One tile; steps are strides in source, and out_i, out_j, out_a those in target."""
    tile = own_tile()
    rest, tile_b = split(cuda.blockIdx.x, (size_b + TILE - 1) // TILE)
    rest, tile_a = split(rest, (size_a + TILE - 1) // TILE)
    i, j = split(rest, size_j)
    first_a, first_b = int64(tile_a * TILE), int64(tile_b * TILE)
    offset = int64(i * step_i + j * step_j)
    column, row = int32(cuda.threadIdx.x % TILE), int32(cuda.threadIdx.x // TILE)
    a = first_a + column
    for k in range(row, TILE, THREADS // TILE):
        b = first_b + k
        if a < size_a and b < size_b:
            tile[k * PITCH + column] = source[offset + a + b * step_b]
    barrier()
    offset = int64(i * out_i + j * out_j)
    b = first_b + column
    for k in range(row, TILE, THREADS // TILE):
        a = first_a + k
        if a < size_a and b < size_b:
            target[offset + a * out_a + b] = tile[column * PITCH + k]
