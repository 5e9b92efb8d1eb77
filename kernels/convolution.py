"""Convolutions as products of matrices that are never materialized (implicit GEMM).

    out[m, n] = sum of left[m, k] * right[n, k] over k

where m are free dimensions of the left operand and positions of the result, n free dimensions of
the right one, and k depth and taps. Forward, the gradient by the input and that by the kernel are
this product with the axes in other roles.

A block makes a tile of the result, for one element of the axes that all three arrays have (groups),
and for one phase of positions: those that the same taps reach in a dilated operand
(convolution_axes.py). Slices of the sum pass through shared memory in two stages. Padding of the
left operand is 0 there, and is not read.

A slice is four chunks of 16 bytes: successive elements along one axis, which is depth, or with TAPS
the last slide. If these are contiguous in memory they are copied at once during the arithmetic
(LEFT_VECTOR, RIGHT_VECTOR). So are, of 16-bit types, contiguous elements of neighboring rows
(LEFT_ACROSS, RIGHT_ACROSS): such a tile is stored transposed in shared memory, and is transposed
back when loaded to registers. Else elements are read one by one, by lanes that have neighboring
chunks of a row, or the same chunk of neighboring rows (``left_by_rows``, ``right_by_rows``).

Products of 16-bit types run on tensor cores and are summed in float32. float32 is float32, unless
the build is REDUCED: then tensor cores multiply operands that are rounded to tensorfloat32, with 10
fraction bits. Each product has a relative error of up to 2^-10 + 2^-22, and sums are made in
float32; so the error is at most about 0.001 times the sum of the products' magnitudes.

Contract
    lhs, rhs      arrays by strides; their spans, like the result's, less than 2^31 elements, or
                  LONG and indices of 64 bits; chunks of a sum less than 2^31
    out           row-major; float32 (partials, *result) if several, see ``sum_partials``
    *_VECTOR      stride 1 along chunks, whole chunks, all else at multiples of 16 bytes
    *_ACROSS      stride 1 along m1 (with rows_inner) or n1, whose size is a multiple of 8, all else
                  at multiples of 16 bytes; *_by_rows
    launch        128 threads; blocks in x: (axes, phases, partials, row tiles, column tiles)
    shared        STAGES * (ROWS + COLUMNS) * PITCH elements, and 20 * ROWS + 8 * COLUMNS bytes
                  or, with LONG, twice as many

Each sum has one order, which follows from the shape.
Source: Chetlur et al. 2014, "cuDNN: efficient primitives for deep learning", section 3.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from gpuflow.kernels.convolution_axes import as_index, split, without_holes
from gpuflow.kernels.convolution_fetch import (
    CHUNKS,
    LANE_ROWS,
    advance,
    begin,
    fetch_left,
    fetch_left_across,
    fetch_right,
    fetch_right_across,
    own_chunk,
    put,
)
from gpuflow.kernels.language import (
    barrier,
    copy_commit,
    copy_wait,
    cuda,
    dynamic_shared,
    float32,
    float32_to_bfloat16,
    float32_to_float16,
    int32,
    int64,
    local_array,
    shared_array,
    store_vector,
    uint16,
)
from gpuflow.kernels.tiles import BFLOAT16, FLOAT32, THREADS, add_products, clear

STAGES = 2

# Set for each build; see tiles.py.
KIND = D = PITCH = M_TILES = ROWS = COLUMNS = N_TILES = CHUNK = 0
OUT_KIND = 0  # of stored elements
LONG = False  # indices have 64 bits
MARGINS = True  # positions may be in the padding of the left operand
TAPS = False  # chunks are taps of the last slide
LEFT_VECTOR = RIGHT_VECTOR = LEFT_ACROSS = RIGHT_ACROSS = False


def own_shared():
    """The block's shared memory as elements."""
    if KIND == FLOAT32:
        return dynamic_shared(float32)
    else:
        return dynamic_shared(uint16)


def store_sum(out, at, value):
    """Store an element of the result, or of a partial sum."""
    if OUT_KIND == FLOAT32:
        out[at] = value
    elif OUT_KIND == BFLOAT16:
        out[at] = float32_to_bfloat16(value)
    else:
        out[at] = float32_to_float16(value)


def store_tile(out, sums, row_outs, column_table, rows, columns):
    """Store the sums of the rows and columns of a tile that are in bounds."""
    lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
    for r in range(2 * M_TILES):
        row = int32(16 * M_TILES * warp + 8 * r + (lane >> 2))
        if row < rows:
            target = row_outs[row]
            for n in range(N_TILES):
                for c in range(2):
                    column = int32(8 * n + 2 * (lane & 3) + c)
                    if column < columns:
                        value = sums[4 * ((r // 2) * N_TILES + n) + 2 * (r % 2) + c]
                        store_sum(out, target + column_table[2 * column + 1], value)


def list_rows(table, outs, first, count, rows_inner, slides, free, lhs_at, out_at):
    """Fill tables of the rows: offset in lhs and position in each slide; and offset in out."""
    (c0, s0, q0, l0, w0), (c1, s1, q1, l1, w1), (c2, s2, q2, l2, w2) = slides
    m0, m0_l, m0_o, m1, m1_l, m1_o = free
    row = int32(cuda.threadIdx.x)
    while row < ROWS:
        # Rows past the last one repeat it, or are not read across; they are not stored.
        rest = as_index(min(first + row, count - 1))
        if rows_inner:
            rest, j1 = split(rest, m1)
            rest, j0 = split(rest, m0)
            rest, k2 = split(rest, c2)
            k0, k1 = split(rest, c1)
        else:
            rest, k2 = split(rest, c2)
            rest, k1 = split(rest, c1)
            rest, k0 = split(rest, c0)
            j0, j1 = split(rest, m1)
        p0, p1, p2 = as_index(q0 + k0 * s0), as_index(q1 + k1 * s1), as_index(q2 + k2 * s2)
        base = as_index(lhs_at + j0 * m0_l + j1 * m1_l + p0 * l0 + p1 * l1 + p2 * l2)
        if LONG:
            table[4 * row], table[4 * row + 1] = base, p0
            table[4 * row + 2], table[4 * row + 3] = p1, p2
        else:
            store_vector(table, 4 * row, (base, p0, p1, p2))
        outs[row] = as_index(out_at + j0 * m0_o + j1 * m1_o + k0 * w0 + k1 * w1 + k2 * w2)
        row = int32(row + THREADS)


def list_columns(table, first, columns, n1, n0_r, n0_o, n1_r, n1_o, rhs_at):
    """Fill the table of the columns: offsets in rhs and in out."""
    column = int32(cuda.threadIdx.x)
    while column < COLUMNS:
        k0, k1 = split(min(first + column, columns - 1), n1)
        table[2 * column] = as_index(rhs_at + k0 * n0_r + k1 * n1_r)
        table[2 * column + 1] = as_index(k0 * n0_o + k1 * n1_o)
        column = int32(column + THREADS)


def add_slices(
    sums, lhs, rhs, row_table, column_table, first, end, counts, left, right, by_rows, limits
):
    """Add the products of all chunks from ``first`` to ``end``."""
    shared = own_shared()
    # Arrays in registers belong to the function that makes them.
    if KIND == FLOAT32:
        left_held = local_array(float32, CHUNK * (ROWS // LANE_ROWS))
        right_held = local_array(float32, CHUNK * (COLUMNS // LANE_ROWS))
    else:
        left_held = local_array(uint16, CHUNK * (ROWS // LANE_ROWS))
        right_held = local_array(uint16, CHUNK * (COLUMNS // LANE_ROWS))
    left_state, right_state = local_array(int32, 4), local_array(int32, 4)
    left_own, right_own = own_chunk(by_rows[0]), own_chunk(by_rows[1])
    begin(left_state, first + left_own[0], counts)
    begin(right_state, first + right_own[0], counts)
    warp_row = int32(cuda.threadIdx.x >> 5) * (16 * M_TILES)
    if not LEFT_ACROSS:
        warp_row = warp_row * PITCH
    both = (ROWS + COLUMNS) * PITCH
    # The first iteration only fetches.
    chunk, stage = int32(first - CHUNKS), int32(both)
    while chunk < end:
        copy_wait(0)
        barrier()
        # All warps are done with the other stage.
        after, other = int32(chunk + CHUNKS), int32(both - stage)
        if after < end:
            if LEFT_ACROSS:
                fetch_left_across(
                    shared, other, lhs, row_table, left_state, left_own,
                    after + left_own[0] < end, left, limits[0],
                )  # fmt: skip
            else:
                fetch_left(
                    left_held, shared, other, lhs, row_table, left_state, left_own,
                    after + left_own[0] < end, left,
                )  # fmt: skip
            if RIGHT_ACROSS:
                fetch_right_across(
                    shared, other + ROWS * PITCH, rhs, column_table, right_state, right_own,
                    after + right_own[0] < end, right, limits[1],
                )  # fmt: skip
            else:
                fetch_right(
                    right_held, shared, other + ROWS * PITCH, rhs, column_table, right_state,
                    right_own, after + right_own[0] < end, right,
                )  # fmt: skip
            advance(left_state, counts)
            advance(right_state, counts)
        copy_commit()
        if chunk >= first:
            add_products(sums, shared, stage + warp_row, stage + ROWS * PITCH)
        if after < end:
            if not LEFT_VECTOR and not LEFT_ACROSS:
                put(shared, other, left_held, ROWS // LANE_ROWS, left_own)
            if not RIGHT_VECTOR and not RIGHT_ACROSS:
                put(shared, other + ROWS * PITCH, right_held, COLUMNS // LANE_ROWS, right_own)
        chunk, stage = after, other


def convolve_tiles(
    lhs, rhs, out, partials, partial_chunks, partial_size, row_tiles, column_tiles, rows_inner,
    left_by_rows, right_by_rows,
    a0, a0_l, a0_r, a0_o, a1, a1_l, a1_r, a1_o, a2, a2_l, a2_r, a2_o,
    m0, m0_l, m0_o, m1, m1_l, m1_o, n0, n0_r, n0_o, n1, n1_r, n1_o, depth, depth_l, depth_r,
    size0, taps0, positions0, lhs0, rhs0, out0, step0, pad0, hole0, gap0, every0, skip0,
    size1, taps1, positions1, lhs1, rhs1, out1, step1, pad1, hole1, gap1, every1, skip1,
    size2, taps2, positions2, lhs2, rhs2, out2, step2, pad2, hole2, gap2, every2, skip2,
):  # fmt: skip
    """A tile of the result, or of its partial sums.

    Args:
        lhs, rhs, out: see above.
        partials: of each sum. partial_chunks: chunks of a partial sum, a multiple of 4.
        partial_size: elements of the result. row_tiles, column_tiles: of each phase.
        rows_inner: free dimensions are the fastest of m; else positions are.
        left_by_rows, right_by_rows: see above.
        a0 to skip2: axes, as for ``convolve_directly``; depth is 1 with TAPS.
    """
    rest, column_tile = split(cuda.blockIdx.x, column_tiles)
    rest, row_tile = split(rest, row_tiles)
    rest, partial = split(rest, partials)
    rest, phase2 = split(rest, min(every2, positions2))
    rest, phase1 = split(rest, min(every1, positions1))
    rest, phase0 = split(rest, min(every0, positions0))
    rest, i2 = split(rest, a2)
    i0, i1 = split(rest, a1)
    first0, own0, count0, move0, near0, start0 = without_holes(
        taps0, positions0, step0, pad0, hole0, gap0, every0, skip0, phase0
    )
    first1, own1, count1, move1, near1, start1 = without_holes(
        taps1, positions1, step1, pad1, hole1, gap1, every1, skip1, phase1
    )
    first2, own2, count2, move2, near2, start2 = without_holes(
        taps2, positions2, step2, pad2, hole2, gap2, every2, skip2, phase2
    )
    first_row, first_column = int32(row_tile * ROWS), int32(column_tile * COLUMNS)
    rows, columns = as_index(m0 * m1 * count0 * count1 * count2), as_index(n0 * n1)
    if first_row >= rows:
        return
    lhs_at = as_index(i0 * a0_l + i1 * a1_l + i2 * a2_l)
    rhs_at = as_index(
        i0 * a0_r + i1 * a1_r + i2 * a2_r + first0 * rhs0 + first1 * rhs1 + first2 * rhs2
    )
    out_at = as_index(
        i0 * a0_o + i1 * a1_o + i2 * a2_o + phase0 * out0 + phase1 * out1 + phase2 * out2
        + partial * partial_size
    )  # fmt: skip
    if LONG:
        row_table, row_outs = shared_array(int64, 4 * ROWS), shared_array(int64, ROWS)
        column_table = shared_array(int64, 2 * COLUMNS)
    else:
        row_table, row_outs = shared_array(int32, 4 * ROWS), shared_array(int32, ROWS)
        column_table = shared_array(int32, 2 * COLUMNS)
    slides = (
        (count0, move0, start0, lhs0, as_index(out0 * every0)),
        (count1, move1, start1, lhs1, as_index(out1 * every1)),
        (count2, move2, start2, lhs2, as_index(out2 * every2)),
    )
    free = (m0, m0_l, m0_o, m1, m1_l, m1_o)
    list_rows(row_table, row_outs, first_row, rows, rows_inner, slides, free, lhs_at, out_at)
    list_columns(column_table, first_column, columns, n1, n0_r, n0_o, n1_r, n1_o, rhs_at)
    barrier()
    left_steps = (as_index(near0 * lhs0), as_index(near1 * lhs1), as_index(near2 * lhs2))
    right_steps = (as_index(skip0 * rhs0), as_index(skip1 * rhs1), as_index(skip2 * rhs2))
    chunks2 = own2
    if TAPS:
        depth, depth_l, depth_r, chunks2 = own2, left_steps[2], right_steps[2], as_index(1)
    chunks = as_index((depth + CHUNK - 1) // CHUNK)
    counts = (own1, chunks2, chunks)
    first = as_index(partial * partial_chunks)
    end = as_index(min(first + partial_chunks, own0 * own1 * chunks2 * chunks))
    left = ((size0, size1, size2), (near0, near1, near2), left_steps, depth, depth_l)
    right = (right_steps, depth, depth_r)
    limits = (as_index(rows - first_row), as_index(columns - first_column))
    sums = local_array(float32, 4 * M_TILES * N_TILES)
    clear(sums, 4 * M_TILES * N_TILES)
    add_slices(
        sums, lhs, rhs, row_table, column_table, first, end, counts, left, right,
        (left_by_rows, right_by_rows), limits,
    )  # fmt: skip
    store_tile(out, sums, row_outs, column_table, limits[0], limits[1])
