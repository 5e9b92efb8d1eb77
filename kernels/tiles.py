"""Tiles of matrices in shared memory and in registers: building blocks of matrix products.

A tile in shared memory has rows of D elements at a pitch of PITCH; 16 bytes between keep the eight
rows that ``load_matrices`` reads at once in different banks. A tile of sums in registers has
16 * M_TILES rows for each warp and 8 columns for each of its tiles n, as ``mma.m16n8k16`` lays them
out: element ``4 * (m * tiles + n) + e`` of lane l is

    row  16 * m + l // 4 + 8 * (e // 2)        column  8 * n + 2 * (l % 4) + e % 2

With REDUCED, tensor cores multiply float32 too, rounded to tensorfloat32: 10 fraction bits,
to nearest with ties away. A tile of ``mma.m16n8k8`` has the same layout. COLUMNS is a multiple of
16 then.

Tiles of 16-bit elements may be transposed (LEFT_ACROSS, RIGHT_ACROSS): D rows of ROWS or COLUMNS
elements, with 16 bytes between; ``load_matrices_transposed`` makes the same fragments of them.

Constants of the text: KIND of elements, D, PITCH, M_TILES, ROWS (of a block), COLUMNS (of a
streamed tile), N_TILES = COLUMNS / 8, D_TILES = D / 8, ALIGNED, and CHUNK: the elements of 16
bytes.

Tests: tests/kernels/test_kernel_attention.py, tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import (
    barrier,
    bfloat16_to_float32,
    bitcast,
    copy_async,
    cuda,
    float16_to_float32,
    float32,
    float32_to_bfloat16,
    float32_to_float16,
    int32,
    load_matrices,
    load_matrices_transposed,
    load_vector,
    local_array,
    multiply_bfloat16,
    multiply_float16,
    multiply_tensorfloat32,
    pack_bfloat16,
    pack_float16,
    round_tensorfloat32,
    shared_array,
    store_vector,
    uint16,
    uint32,
)

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
WARPS = 4
THREADS = 32 * WARPS

# Set by ``tile_constants`` for each build.
KIND = D = PITCH = M_TILES = ROWS = COLUMNS = N_TILES = D_TILES = CHUNK = 0
ALIGNED = True
REDUCED = LEFT_ACROSS = RIGHT_ACROSS = False


def tile_constants(
    kind: int, size: int, row_tiles: int, columns: int, aligned: bool
) -> dict[str, int]:
    """The constants of a build.

    Args:
        kind: FLOAT32, BFLOAT16 or FLOAT16.
        size: elements of a row, a multiple of 16.
        row_tiles: tiles of 16 rows of each warp.
        columns: rows of a streamed tile, a multiple of 16.
        aligned: whether all rows begin at multiples of 16 bytes.
    """
    chunk = 4 if kind == FLOAT32 else 8
    return {
        "KIND": kind, "D": size, "PITCH": size + chunk, "CHUNK": chunk, "ALIGNED": aligned,
        "M_TILES": row_tiles, "ROWS": 16 * WARPS * row_tiles, "COLUMNS": columns,
        "N_TILES": columns // 8, "D_TILES": size // 8,
    }  # fmt: skip


def load_rows(shared, at, source, base, stride, first, count, limit):
    """Begin to copy ``count`` rows from ``first`` on; those at ``limit`` and beyond become 0."""
    chunk = int32(cuda.threadIdx.x)
    while chunk < count * (D // CHUNK):
        row = chunk // (D // CHUNK)
        offset = (chunk - row * (D // CHUNK)) * CHUNK
        inside = first + row < limit
        index = base + offset
        if inside:
            index += (first + row) * stride
        target = at + row * PITCH + offset
        if ALIGNED:
            copy_async(shared, target, source, index, inside)
        else:
            for k in range(CHUNK):
                if inside:
                    shared[target + k] = source[index + k]
                elif KIND == FLOAT32:
                    shared[target + k] = float32(0)
                else:
                    shared[target + k] = uint16(0)
        chunk = int32(chunk + THREADS)


def load_both(shared, at, one, other, base, stride, first, count, limit):
    """``load_rows`` of two arrays of the same layout, one tile after the other."""
    load_rows(shared, at, one, base, stride, first, count, limit)
    load_rows(shared, at + count * PITCH, other, base, stride, first, count, limit)


def clear(values, count):
    """Set an array in registers to 0."""
    for k in range(count):
        values[k] = float32(0)


def add_products(sums, shared, left, right):
    """``sums[rows, columns] += left[rows, D] @ right[columns, D].T``; offsets of both tiles."""
    if KIND == FLOAT32 and not REDUCED:
        _add_products_plain(sums, shared, left, right)
    else:
        _add_products_matrix(sums, shared, left, right)


def add_mixed(sums, weights, shared, right):
    """``sums[rows, D] += weights[rows, columns] @ right[columns, D]``; the offset of one tile."""
    if REDUCED:
        _add_mixed_reduced(sums, weights, shared, right)
    elif KIND == FLOAT32:
        _add_mixed_plain(sums, weights, shared, right)
    else:
        _add_mixed_matrix(sums, weights, shared, right)


def _multiply(sums, at, a, a_at, b, b_at):
    if KIND == BFLOAT16:
        multiply_bfloat16(sums, at, a, a_at, b, b_at)
    elif REDUCED:
        multiply_tensorfloat32(sums, at, a, a_at, b, b_at)
    else:
        multiply_float16(sums, at, a, a_at, b, b_at)


def _pack(low, high):
    if KIND == BFLOAT16:
        return pack_bfloat16(low, high)
    else:
        return pack_float16(low, high)


def _add_products_matrix(sums, shared, left, right):
    lane = int32(cuda.threadIdx.x) & 31
    a, b = local_array(uint32, 4 * M_TILES), local_array(uint32, 4)
    if LEFT_ACROSS:
        left_row = left + ((lane & 7) + 8 * (lane >> 4)) * (ROWS + CHUNK) + 8 * ((lane >> 3) & 1)
    else:
        left_row = left + (lane & 15) * PITCH + CHUNK * (lane >> 4)
    if RIGHT_ACROSS:
        right_row = right + (lane & 15) * (COLUMNS + CHUNK) + 8 * (lane >> 4)
    else:
        right_row = right + ((lane & 7) + 8 * (lane >> 4)) * PITCH + CHUNK * ((lane >> 3) & 1)
    for k in range(D // (2 * CHUNK)):
        for m in range(M_TILES):
            if LEFT_ACROSS:
                offset = left_row + 16 * k * (ROWS + CHUNK) + 16 * m
                load_matrices_transposed(a, 4 * m, shared, offset)
            else:
                load_matrices(a, 4 * m, shared, left_row + 16 * m * PITCH + 2 * CHUNK * k)
        if REDUCED:
            round_tensorfloat32(a, 0, 4 * M_TILES)
        for n in range(N_TILES // 2):
            if RIGHT_ACROSS:
                offset = right_row + 16 * k * (COLUMNS + CHUNK) + 16 * n
                load_matrices_transposed(b, 0, shared, offset)
            else:
                load_matrices(b, 0, shared, right_row + 16 * n * PITCH + 2 * CHUNK * k)
            if REDUCED:
                round_tensorfloat32(b, 0, 4)
            for m in range(M_TILES):
                _multiply(sums, 4 * (m * N_TILES + 2 * n), a, 4 * m, b, 0)
                _multiply(sums, 4 * (m * N_TILES + 2 * n + 1), a, 4 * m, b, 2)


def _add_mixed_matrix(sums, weights, shared, right):
    lane = int32(cuda.threadIdx.x) & 31
    a, b = local_array(uint32, 4 * M_TILES), local_array(uint32, 4)
    right_row = right + (lane & 15) * PITCH + 8 * (lane >> 4)
    for k in range(N_TILES // 2):
        for m in range(M_TILES):
            for pair in range(4):
                # Two tiles of sums are one fragment of the left operand.
                at = 4 * (m * N_TILES + 2 * k) + 2 * pair
                a[4 * m + pair] = _pack(weights[at], weights[at + 1])
        for d in range(D // 16):
            load_matrices_transposed(b, 0, shared, right_row + 16 * k * PITCH + 16 * d)
            for m in range(M_TILES):
                _multiply(sums, 4 * (m * D_TILES + 2 * d), a, 4 * m, b, 0)
                _multiply(sums, 4 * (m * D_TILES + 2 * d + 1), a, 4 * m, b, 2)


def _add_mixed_reduced(sums, weights, shared, right):
    """As ``_add_mixed_matrix``, in steps of 8 rows of the right operand.

    A lane has sums of columns 2 l and 2 l + 1, but the left operand has l and l + 4, l being
    lane % 4. The order in which products are added is free, so rows of the right operand follow:

        position in the step     0  1  2  3  4  5  6  7
        column of the weights    0  2  4  6  1  3  5  7
    """
    lane = int32(cuda.threadIdx.x) & 31
    a, b = local_array(uint32, 4 * M_TILES), local_array(uint32, 2)
    right_row = right + 2 * (lane & 3) * PITCH + (lane >> 2)
    for k in range(N_TILES):
        for m in range(M_TILES):
            at = 4 * (m * N_TILES + k)
            a[4 * m] = bitcast(weights[at], uint32)
            a[4 * m + 1] = bitcast(weights[at + 2], uint32)
            a[4 * m + 2] = bitcast(weights[at + 1], uint32)
            a[4 * m + 3] = bitcast(weights[at + 3], uint32)
        round_tensorfloat32(a, 0, 4 * M_TILES)
        for d in range(D_TILES):
            offset = right_row + 8 * k * PITCH + 8 * d
            b[0] = bitcast(shared[offset], uint32)
            b[1] = bitcast(shared[offset + PITCH], uint32)
            round_tensorfloat32(b, 0, 2)
            for m in range(M_TILES):
                _multiply(sums, 4 * (m * D_TILES + d), a, 4 * m, b, 0)


def _add_products_plain(sums, shared, left, right):
    lane = int32(cuda.threadIdx.x) & 31
    left_row = left + (lane >> 2) * PITCH
    right_row = right + 2 * (lane & 3) * PITCH
    a = local_array(float32, 8 * M_TILES)
    for k in range(0, D, 4):
        for r in range(2 * M_TILES):
            x = load_vector(shared, left_row + 8 * r * PITCH + k, 4)
            for i in range(4):
                a[4 * r + i] = x[i]
        for n in range(N_TILES):
            for c in range(2):
                y = load_vector(shared, right_row + (8 * n + c) * PITCH + k, 4)
                for r in range(2 * M_TILES):
                    at = 4 * ((r // 2) * N_TILES + n) + 2 * (r % 2) + c
                    sums[at] = (
                        sums[at]
                        + a[4 * r] * y[0]
                        + a[4 * r + 1] * y[1]
                        + a[4 * r + 2] * y[2]
                        + a[4 * r + 3] * y[3]
                    )


def _add_mixed_plain(sums, weights, shared, right):
    lane = int32(cuda.threadIdx.x) & 31
    # Each lane needs the weights of its rows in all columns, of which the four lanes that share a
    # row hold two each. Four floats more for each row keep eight rows in different banks.
    staged = shared_array(float32, ROWS * (COLUMNS + 4))
    first = (int32(cuda.threadIdx.x) >> 5) * (16 * M_TILES) + (lane >> 2)
    # Of the whole block: lanes that may have diverged would cost the assembler all registers.
    barrier()
    for n in range(N_TILES):
        for r in range(2 * M_TILES):
            at = 4 * ((r // 2) * N_TILES + n) + 2 * (r % 2)
            offset = (first + 8 * r) * (COLUMNS + 4) + 8 * n + 2 * (lane & 3)
            store_vector(staged, offset, (weights[at], weights[at + 1]))
    cuda.syncwarp()
    right_row = right + 2 * (lane & 3)
    w = local_array(float32, 8 * M_TILES)
    for k in range(0, COLUMNS, 4):
        for r in range(2 * M_TILES):
            x = load_vector(staged, (first + 8 * r) * (COLUMNS + 4) + k, 4)
            for i in range(4):
                w[4 * r + i] = x[i]
        for i in range(4):
            for d in range(D_TILES):
                y = load_vector(shared, right_row + (k + i) * PITCH + 8 * d, 2)
                for r in range(2 * M_TILES):
                    at = 4 * ((r // 2) * D_TILES + d) + 2 * (r % 2)
                    sums[at] += w[4 * r + i] * y[0]
                    sums[at + 1] += w[4 * r + i] * y[1]


def store_rows(out, base, stride, first, limit, sums, factors):
    """Write the rows of a warp below ``limit``, row r of each lane times ``factors[r]``."""
    lane = int32(cuda.threadIdx.x) & 31
    for r in range(2 * M_TILES):
        row = first + 8 * r + (lane >> 2)
        if row < limit:
            offset = base + row * stride + 2 * (lane & 3)
            for d in range(D_TILES):
                at = 4 * ((r // 2) * D_TILES + d) + 2 * (r % 2)
                _store_pair(out, offset + 8 * d, sums[at] * factors[r], sums[at + 1] * factors[r])


def _store_pair(out, offset, low, high):
    if KIND == FLOAT32:
        store_vector(out, offset, (low, high))
    elif KIND == BFLOAT16:
        store_vector(out, offset, (float32_to_bfloat16(low), float32_to_bfloat16(high)))
    else:
        store_vector(out, offset, (float32_to_float16(low), float32_to_float16(high)))


def read_float32(source, offset):
    """An element of float32."""
    return source[offset]


def read_bfloat16(source, offset):
    """An element of bfloat16 as float32."""
    return bfloat16_to_float32(source[offset])


def read_float16(source, offset):
    """An element of float16 as float32."""
    return float16_to_float32(source[offset])
