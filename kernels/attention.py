"""Fused attention: scores, softmax and weighted values without a matrix of scores in memory.

Three kernels, of one build: a block holds a tile of *rows* and streams tiles of *columns* past it.

    kernel               rows      columns   sums in registers
    attention_forward    queries   keys      out
    attention_keys       keys      queries   dK, dV
    attention_queries    queries   keys      dQ

Each of the block's 4 warps has 16 * M_TILES rows. Tiles of columns are copied to shared memory
while the previous one is processed. Products of 16-bit types run on tensor cores, and those of
float32 where the build is REDUCED, of operands that are rounded to tensorfloat32: queries, keys,
values and weights. Else float32 uses the same layout of fragments with fma. Every sum has one
order, so results are the same in every run.

Scores are in base 2: ``s = (q . k * scale + bias) * log2(e)``, and weights ``2 ** (s - shift)``.

Contract
    query, out, dout, dquery   [B, T, N, D], row-major
    key, value, dkey, dvalue   [B, S, K, D]; N = K * G, query head n reads key head n // G
    sums          f32[B, N, T]: log(sum(exp(score))), or where no key is seen -1e30 * the number of
                  keys that the mean is taken of
    dots          f32[B, N, T]: sum(dout * out) over D
    bias, mask    [B, N, T, S] by strides, of which any may be 0; f32, bf16 or f16; bool
    query_lengths, key_lengths   i32[B]
    D             a multiple of 16, 16 to 128
    B, T, S       at least 1
    ALIGNED       query, key, value and dout begin at multiples of 16 bytes
    launch        128 threads, one block for each tile of rows of each head; SHARED_BYTES

Queries see keys where all of CAUSAL, WINDOW, mask and lengths allow it; the score of others is as
good as -inf. A query that sees none mixes all values equally, as a softmax of equal scores does;
one beyond its length gives 0.

Sources: Milakov and Gimelshein, Online normalizer calculation for softmax (2018); Dao et al.,
FlashAttention (2022), algorithms 1 and 4; Dao, FlashAttention-2 (2023), for the order of loops.

Tests: tests/kernels/test_kernel_attention.py, tests/kernels/test_attention_builds.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.attention_scores import (
    COUNTED,
    LN_2,
    SURELY_UNSEEN,
    keys_of,
    limits_of,
    offsets_of,
    own_shared,
    quad_maximum,
    quad_sum,
    queries_of_block,
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
    maximum,
    shared_array,
)
from gpuflow.kernels.tiles import (
    add_mixed,
    add_products,
    clear,
    load_both,
    load_rows,
    store_rows,
)

# Set for each build; see attention_scores.py and tiles.py.
D = PITCH = M_TILES = ROWS = COLUMNS = N_TILES = D_TILES = 0
CAUSAL = WINDOW = HAS_KEY_LENGTHS = False


def to_weights(scores, state, out):
    """Turn scores into weights; ``state``: the maximum and the sum of each row; rescales out.

    Source: Milakov and Gimelshein 2018, algorithm 3.
    """
    for r in range(2 * M_TILES):
        first = 4 * (r // 2) * N_TILES + 2 * (r % 2)
        most = state[2 * r]
        for n in range(N_TILES):
            most = maximum(most, maximum(scores[first + 4 * n], scores[first + 4 * n + 1]))
        most = quad_maximum(most)
        # A row without any score yet has weights of 0, not of nan.
        shift = most
        if most == float32(-math.inf):
            shift = float32(0)
        factor = exp2_approximate(state[2 * r] - shift)
        total = state[2 * r + 1] * factor
        for n in range(N_TILES):
            for c in range(2):
                weight = exp2_approximate(scores[first + 4 * n + c] - shift)
                scores[first + 4 * n + c] = weight
                total = total + weight
        state[2 * r] = most
        state[2 * r + 1] = total
        for d in range(D_TILES):
            for c in range(2):
                at = 4 * ((r // 2) * D_TILES + d) + 2 * (r % 2) + c
                out[at] = out[at] * factor


def attend(key, value, key_at, stride, t, first, end, state, out, task):
    """Mix the values of keys from ``first`` to ``end`` into out."""
    shared = own_shared()
    keys = task[8][1]
    warp_row, _ = warp_first()
    streams = ROWS * PITCH
    scores = local_array(float32, 4 * M_TILES * N_TILES)
    for r in range(2 * M_TILES):
        state[2 * r] = float32(-math.inf)
        state[2 * r + 1] = float32(0)
    clear(out, 4 * M_TILES * D_TILES)
    barrier()
    if first < end:
        load_both(shared, streams, key, value, key_at, stride, first, COLUMNS, keys)
    copy_commit()
    s, stage = first, streams
    while s < end:
        copy_wait(0)
        barrier()
        # All warps are done with the other stage.
        other = 2 * streams + 2 * COLUMNS * PITCH - stage
        after = s + COLUMNS
        if after < end:
            load_both(shared, other, key, value, key_at, stride, after, COLUMNS, keys)
        copy_commit()
        clear(scores, 4 * M_TILES * N_TILES)
        add_products(scores, shared, warp_row * PITCH, stage)
        to_scores(scores, t, s, task)
        to_weights(scores, state, out)
        add_mixed(out, scores, shared, stage + COLUMNS * PITCH)
        s, stage = after, other


def sees_nothing(t, state, flag, queries):
    """Whether a row of the block has seen no key; called by the whole block."""
    warp_row, lane_row = warp_first()
    if cuda.threadIdx.x == 0:
        flag[0] = 0
    barrier()
    for r in range(2 * M_TILES):
        row = t + warp_row + lane_row + 8 * r
        if row < queries and state[2 * r] <= float32(SURELY_UNSEEN):
            flag[0] = 1
    barrier()
    return flag[0] != 0


def attention_forward(
    query, key, value, bias, mask, query_lengths, key_lengths, out, sums, heads, group, queries,
    keys, bias_b, bias_n, bias_t, bias_s, mask_b, mask_n, mask_t, mask_s, left, right, scale,
):  # fmt: skip
    """out and sums of a tile of queries of one head."""
    pair, batch, head, t = queries_of_block(heads, queries)
    limits = limits_of(batch, queries, keys, query_lengths, key_lengths)
    task = task_of(
        batch, head, bias, bias_b, bias_n, bias_t, bias_s, mask, mask_b, mask_n, mask_t, mask_s,
        limits, left, right, scale,
    )  # fmt: skip
    own_at, key_at, stride = offsets_of(batch, head, heads, group, queries, keys)
    load_rows(own_shared(), 0, query, own_at, heads * D, t, ROWS, queries)
    state = local_array(float32, 4 * M_TILES)
    mixed = local_array(float32, 4 * M_TILES * D_TILES)
    first, end = keys_of(t, ROWS, task)
    attend(key, value, key_at, stride, t, first, end, state, mixed, task)
    if CAUSAL or WINDOW or HAS_KEY_LENGTHS:
        flag = shared_array(int32, 1)
        if sees_nothing(t, state, flag, limits[0]):
            # It mixes all values, so none may be left out.
            attend(key, value, key_at, stride, t, first - first, keys, state, mixed, task)
    warp_row, lane_row = warp_first()
    factors = local_array(float32, 2 * M_TILES)
    # Lanes that diverge between shuffles would make the assembler save all registers around each.
    barrier()
    for r in range(2 * M_TILES):
        state[2 * r + 1] = quad_sum(state[2 * r + 1])
    for r in range(2 * M_TILES):
        most, total = state[2 * r], state[2 * r + 1]
        row = t + warp_row + lane_row + 8 * r
        factors[r] = float32(1) / total
        result = most * float32(LN_2) + math.log(total)
        if most <= float32(SURELY_UNSEEN) and most > float32(-math.inf):
            result = float32(COUNTED) * total
        if row >= limits[0]:
            factors[r] = float32(0)
            result = float32(COUNTED) * float32(keys)
        if row < queries and cuda.threadIdx.x & 3 == 0:
            sums[pair * queries + row] = result
    store_rows(out, own_at, heads * D, t + warp_row, queries, mixed, factors)
