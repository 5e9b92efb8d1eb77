"""The gradients of attention: sums over queries for keys and values, over keys for queries.

The contract is in attention.py. Weights are computed again from ``sums``; with P the weights,
dP = dout @ value.T and ``dots`` = sum(dout * out),

    dS = P * (dP - dots)     dQ = scale * dS @ K     dK = scale * dS.T @ Q     dV = P.T @ dout

Source: Dao et al., FlashAttention (2022), algorithm 4.

Tests: tests/kernels/test_kernel_attention.py, tests/kernels/test_attention_builds.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.attention_scores import (
    COUNTED,
    LOG2_E,
    SURELY_COUNTED,
    all_seen,
    keys_of,
    limits_of,
    offsets_of,
    own_shared,
    queries_of,
    queries_of_block,
    score,
    task_of,
    to_scores,
    warp_first,
)
from gpuflow.kernels.language import (
    barrier,
    copy_commit,
    copy_wait,
    cuda,
    exp2_approximate,
    float32,
    int32,
    local_array,
    shared_array,
)
from gpuflow.kernels.tiles import THREADS, add_mixed, add_products, clear, load_both, store_rows

# Set for each build; see attention_scores.py and tiles.py.
D = PITCH = M_TILES = ROWS = COLUMNS = N_TILES = D_TILES = 0
CAUSAL = WINDOW = HAS_MASK = HAS_KEY_LENGTHS = False


def shift_of(row_sum):
    """The shift of the scores of a row, and the score of keys that it does not see."""
    if row_sum <= float32(SURELY_COUNTED):
        return math.log2(row_sum * float32(1 / COUNTED)), float32(0)
    return row_sum * float32(LOG2_E), float32(-math.inf)


def multiply_both(scores, slopes, shared, warp_row, stage):
    """Products of the block's rows and of a stage's: of the first tiles, and of the second ones."""
    clear(scores, 4 * M_TILES * N_TILES)
    clear(slopes, 4 * M_TILES * N_TILES)
    add_products(scores, shared, warp_row * PITCH, stage)
    add_products(slopes, shared, (ROWS + warp_row) * PITCH, stage + COLUMNS * PITCH)


def store_times(out, base, stride, first, limit, sums, factor):
    """``store_rows`` with one factor for all rows."""
    factors = local_array(float32, 2 * M_TILES)
    for r in range(2 * M_TILES):
        factors[r] = factor
    store_rows(out, base, stride, first, limit, sums, factors)


# --- keys and values -------------------------------------------------------------------------


def load_queries(
    shared, stage, columns, column, query, dout, sums, dots, batch, head, heads, queries, t, limits
):
    """Begin to copy a tile of queries and of dout; what their columns need goes to ``columns``."""
    query_at, row_at = (batch * queries * heads + head) * D, (batch * heads + head) * queries
    load_both(shared, stage, query, dout, query_at, heads * D, t, COLUMNS, limits[0])
    position = int32(cuda.threadIdx.x)
    if position < COLUMNS:
        shift, unseen, dot = float32(0), float32(-math.inf), float32(0)
        if t + position < limits[0]:
            shift, unseen = shift_of(sums[row_at + t + position])
            dot = dots[row_at + t + position]
        columns[column + position] = shift
        columns[column + COLUMNS + position] = unseen
        columns[column + 2 * COLUMNS + position] = dot


def to_slopes_by_column(scores, slopes, columns, column, t, s, task):
    """Products become weights, and products with values the slopes of scores; rows are keys."""
    lane = int32(cuda.threadIdx.x) & 31
    warp_row, lane_row = warp_first()
    plain = all_seen(t, COLUMNS, s, ROWS, task)
    for n in range(N_TILES):
        for c in range(2):
            position = 8 * n + 2 * (lane & 3) + c
            shift, unseen = columns[column + position], columns[column + COLUMNS + position]
            dot = columns[column + 2 * COLUMNS + position]
            for r in range(2 * M_TILES):
                at = 4 * ((r // 2) * N_TILES + n) + 2 * (r % 2) + c
                if plain:
                    x = scores[at] * task[10]
                else:
                    row = s + warp_row + lane_row + 8 * r
                    x = score(scores[at], t + position, row, unseen, task)
                weight = exp2_approximate(x - shift)
                slope = weight * (slopes[at] - dot)
                if (CAUSAL or WINDOW or HAS_MASK or HAS_KEY_LENGTHS) and unseen == float32(0):
                    slope = float32(0)
                scores[at] = weight
                slopes[at] = slope


def has_counted(sums, row_at, count, flag):
    """Whether one of ``count`` queries sees nothing; called by the whole block."""
    if cuda.threadIdx.x == 0:
        flag[0] = 0
    barrier()
    position = int32(cuda.threadIdx.x)
    while position < count:
        if sums[row_at + position] <= float32(SURELY_COUNTED):
            flag[0] = 1
        position = int32(position + THREADS)
    barrier()
    return flag[0] != 0


def queries_of_group(s, task, sums, row_at, group, queries):
    """``queries_of`` the block's keys; all queries if one of a head of the group sees nothing."""
    first, end = queries_of(s, ROWS, task)
    if CAUSAL or WINDOW or HAS_KEY_LENGTHS:
        flag = shared_array(int32, 1)
        count = task[8][0]
        for g in range(group):
            if has_counted(sums, row_at + g * queries, count, flag):
                first, end = first - first, count
            barrier()
    return first, end


def attention_keys(
    query, key, value, dout, bias, mask, query_lengths, key_lengths, sums, dots, dkey, dvalue,
    heads, group, queries, keys, bias_b, bias_n, bias_t, bias_s, mask_b, mask_n, mask_t, mask_s,
    left, right, scale,
):  # fmt: skip
    """dkey and dvalue of a tile of keys of one key head, over the queries of its whole group."""
    tiles = (keys + ROWS - 1) // ROWS
    pair = cuda.blockIdx.x // tiles
    s = (cuda.blockIdx.x - pair * tiles) * ROWS
    batch = pair // (heads // group)
    key_head = pair - batch * (heads // group)
    limits = limits_of(batch, queries, keys, query_lengths, key_lengths)
    own_stride = heads // group * D
    own_at = batch * keys * own_stride + key_head * D
    shared, warp_row = own_shared(), warp_first()[0]
    streams = 2 * ROWS * PITCH
    load_both(shared, 0, key, value, own_at, own_stride, s, ROWS, keys)
    task = task_of(
        batch, key_head * group, bias, bias_b, bias_n, bias_t, bias_s, mask, mask_b, mask_n,
        mask_t, mask_s, limits, left, right, scale,
    )  # fmt: skip
    row_at = (batch * heads + key_head * group) * queries
    first, end = queries_of_group(s, task, sums, row_at, group, queries)
    columns = shared_array(float32, 6 * COLUMNS)
    scores = local_array(float32, 4 * M_TILES * N_TILES)
    slopes = local_array(float32, 4 * M_TILES * N_TILES)
    of_keys = local_array(float32, 4 * M_TILES * D_TILES)
    of_values = local_array(float32, 4 * M_TILES * D_TILES)
    clear(of_keys, 4 * M_TILES * D_TILES)
    clear(of_values, 4 * M_TILES * D_TILES)
    head, after_last = key_head * group, (key_head + 1) * group
    if first >= end:
        head = after_last
    t, next_t, next_head = first, first, head
    stage, column = streams, 0
    if head < after_last:
        load_queries(
            shared, stage, columns, 0, query, dout, sums, dots, batch, head, heads, queries, t,
            limits,
        )  # fmt: skip
    copy_commit()
    while head < after_last:
        copy_wait(0)
        barrier()
        # All warps are done with the other stage.
        other, other_column = 2 * streams + 2 * COLUMNS * PITCH - stage, 3 * COLUMNS - column
        next_t = t + COLUMNS
        if next_t >= end:
            next_t, next_head = first, head + 1
        if next_head < after_last:
            load_queries(
                shared, other, columns, other_column, query, dout, sums, dots, batch, next_head,
                heads, queries, next_t, limits,
            )  # fmt: skip
        copy_commit()
        multiply_both(scores, slopes, shared, warp_row, stage)
        task = task_of(
            batch, head, bias, bias_b, bias_n, bias_t, bias_s, mask, mask_b, mask_n, mask_t,
            mask_s, limits, left, right, scale,
        )  # fmt: skip
        to_slopes_by_column(scores, slopes, columns, column, t, s, task)
        add_mixed(of_values, scores, shared, stage + COLUMNS * PITCH)
        add_mixed(of_keys, slopes, shared, stage)
        t, head, stage, column = next_t, next_head, other, other_column
    store_times(dvalue, own_at, own_stride, s + warp_row, keys, of_values, float32(1))
    store_times(dkey, own_at, own_stride, s + warp_row, keys, of_keys, scale)


# --- queries ---------------------------------------------------------------------------------


def to_slopes_by_row(scores, slopes, shifts, row_dots):
    """Scores and products with values become the slopes of scores; rows are queries."""
    for r in range(2 * M_TILES):
        for n in range(N_TILES):
            for c in range(2):
                at = 4 * ((r // 2) * N_TILES + n) + 2 * (r % 2) + c
                weight = exp2_approximate(scores[at] - shifts[r])
                slopes[at] = weight * (slopes[at] - row_dots[r])


def attention_queries(
    query, key, value, dout, bias, mask, query_lengths, key_lengths, sums, dots, dquery, heads,
    group, queries, keys, bias_b, bias_n, bias_t, bias_s, mask_b, mask_n, mask_t, mask_s, left,
    right, scale,
):  # fmt: skip
    """dquery of a tile of queries of one head."""
    pair, batch, head, t = queries_of_block(heads, queries)
    limits = limits_of(batch, queries, keys, query_lengths, key_lengths)
    task = task_of(
        batch, head, bias, bias_b, bias_n, bias_t, bias_s, mask, mask_b, mask_n, mask_t, mask_s,
        limits, left, right, scale,
    )  # fmt: skip
    own_at, key_at, stride = offsets_of(batch, head, heads, group, queries, keys)
    shared, (warp_row, lane_row) = own_shared(), warp_first()
    streams = 2 * ROWS * PITCH
    load_both(shared, 0, query, dout, own_at, heads * D, t, ROWS, queries)
    shifts, row_dots = local_array(float32, 2 * M_TILES), local_array(float32, 2 * M_TILES)
    for r in range(2 * M_TILES):
        row = t + warp_row + lane_row + 8 * r
        shifts[r] = float32(0)
        row_dots[r] = float32(0)
        if row < limits[0]:
            shifts[r] = shift_of(sums[pair * queries + row])[0]
            row_dots[r] = dots[pair * queries + row]
    scores = local_array(float32, 4 * M_TILES * N_TILES)
    slopes = local_array(float32, 4 * M_TILES * N_TILES)
    mixed = local_array(float32, 4 * M_TILES * D_TILES)
    clear(mixed, 4 * M_TILES * D_TILES)
    # Keys that are left out have weights of 0, or scores on which nothing depends.
    s, end = keys_of(t, ROWS, task)
    stage = streams
    if s < end:
        load_both(shared, stage, key, value, key_at, stride, s, COLUMNS, keys)
    copy_commit()
    while s < end:
        copy_wait(0)
        barrier()
        other = 2 * streams + 2 * COLUMNS * PITCH - stage
        after = s + COLUMNS
        if after < end:
            load_both(shared, other, key, value, key_at, stride, after, COLUMNS, keys)
        copy_commit()
        multiply_both(scores, slopes, shared, warp_row, stage)
        to_scores(scores, t, s, task)
        to_slopes_by_row(scores, slopes, shifts, row_dots)
        add_mixed(mixed, slopes, shared, stage)
        s, stage = after, other
    store_times(dquery, own_at, heads * D, t + warp_row, queries, mixed, scale)
