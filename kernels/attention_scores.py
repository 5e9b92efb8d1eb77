"""Scores of attention and their visibility, and code that the kernels of attention.py share.

Tests: tests/kernels/test_kernel_attention.py.
"""

from __future__ import annotations

import math

from gpuflow.kernels.language import (
    cuda,
    dynamic_shared,
    float32,
    int32,
    maximum,
    shuffle_xor,
    uint16,
)
from gpuflow.kernels.tiles import (
    BFLOAT16,
    FLOAT32,
    read_bfloat16,
    read_float16,
    read_float32,
)

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
# The score of keys that are not seen, and its upper bound: finite, so that rows of them stay so.
UNSEEN, SURELY_UNSEEN = -3.0e38, -2.9e38
# Encodes in sums that a row sees nothing.
COUNTED, SURELY_COUNTED = -1.0e30, -0.9e30

# Set for each build, with the constants of tiles.py.
KIND = M_TILES = N_TILES = ROWS = COLUMNS = D = BIAS_KIND = 0
CAUSAL = WINDOW = HAS_MASK = HAS_BIAS = HAS_QUERY_LENGTHS = HAS_KEY_LENGTHS = False


def read_bias(bias, index):
    """An element of the bias as float32."""
    if BIAS_KIND == FLOAT32:
        return read_float32(bias, index)
    elif BIAS_KIND == BFLOAT16:
        return read_bfloat16(bias, index)
    else:
        return read_float16(bias, index)


def score(product, t, s, unseen, task):
    """Score of query t and key s in base 2; ``unseen`` if t does not see s, -inf out of bounds."""
    bias, bias_at, bias_t, bias_s, mask, mask_at, mask_t, mask_s, limits, window, scale = task
    queries, keys, key_limit = limits
    if t >= queries or s >= keys:
        return float32(-math.inf)
    x = product * scale
    if HAS_BIAS:
        x = x + read_bias(bias, bias_at + t * bias_t + s * bias_s) * float32(LOG2_E)
    if HAS_KEY_LENGTHS and s >= key_limit:
        x = unseen
    if CAUSAL and t < s:
        x = unseen
    if WINDOW and (t > s + window[0] or t < s - window[1]):
        x = unseen
    if HAS_MASK and mask[mask_at + t * mask_t + s * mask_s] == 0:
        x = unseen
    return x


def queries_of_block(heads, queries):
    """The head's index among all batches, its batch, its index there; the first query.

    Later tiles, which see more keys, come first.
    """
    tiles = (queries + ROWS - 1) // ROWS
    pair = cuda.blockIdx.x // tiles
    batch = pair // heads
    first = (tiles - 1 - (cuda.blockIdx.x - pair * tiles)) * ROWS
    return pair, batch, pair - batch * heads, first


def offsets_of(batch, head, heads, group, queries, keys):
    """The offsets of a head's queries and of its keys, and the stride of keys."""
    stride = heads // group * D
    query_at = (batch * queries * heads + head) * D
    return query_at, batch * keys * stride + head // group * D, stride


def task_of(
    batch, head, bias, bias_b, bias_n, bias_t, bias_s, mask, mask_b, mask_n, mask_t, mask_s,
    limits, left, right, scale,
):  # fmt: skip
    """The arguments of ``score`` and the functions below for one head."""
    return (
        bias, batch * bias_b + head * bias_n, bias_t, bias_s,
        mask, batch * mask_b + head * mask_n, mask_t, mask_s,
        limits, (left, right), scale * float32(LOG2_E),
    )  # fmt: skip


def all_seen(t, t_count, s, s_count, task):
    """Whether scores of a tile from (t, s) on are its products alone."""
    _, _, _, _, _, _, _, _, limits, window, _ = task
    queries, keys, key_limit = limits
    if HAS_BIAS or HAS_MASK:
        return False
    seen = t + t_count <= queries and s + s_count <= keys and s + s_count <= key_limit
    if CAUSAL:
        seen = seen and s + s_count - 1 <= t
    if WINDOW:
        seen = seen and t + t_count - 1 <= s + window[0] and t >= s + s_count - 1 - window[1]
    return seen


def keys_of(t, t_count, task):
    """The first and the last but one of the keys that queries from t on may see."""
    _, _, _, _, _, _, _, _, limits, window, _ = task
    queries, keys, key_limit = limits
    first, end, last = t - t, min(keys, key_limit), min(t + t_count, queries) - 1
    if CAUSAL:
        end = min(end, last + 1)
    if WINDOW:
        first = max(first, t - window[0])
        end = min(end, last + window[1] + 1)
    if t >= queries:
        end = first
    return first // COLUMNS * COLUMNS, end


def queries_of(s, s_count, task):
    """The first and the last but one of the queries that may see keys from s on."""
    _, _, _, _, _, _, _, _, limits, window, _ = task
    queries, keys, key_limit = limits
    first, end, last = s - s, queries, min(s + s_count, keys) - 1
    if CAUSAL:
        first = max(first, s)
    if WINDOW:
        first = max(first, s - window[1])
        end = min(end, last + window[0] + 1)
    if s >= key_limit:
        end = first
    return first // COLUMNS * COLUMNS, end


def to_scores(products, t, s, task):
    """Turn products of the warp's queries, rows from t on, and keys from s on into scores."""
    lane = int32(cuda.threadIdx.x) & 31
    warp_row, lane_row = warp_first()
    if all_seen(t, ROWS, s, COLUMNS, task):
        for k in range(4 * M_TILES * N_TILES):
            products[k] = products[k] * task[10]
    else:
        for r in range(2 * M_TILES):
            row = t + warp_row + lane_row + 8 * r
            for n in range(N_TILES):
                for c in range(2):
                    at = 4 * ((r // 2) * N_TILES + n) + 2 * (r % 2) + c
                    column = s + 8 * n + 2 * (lane & 3) + c
                    products[at] = score(products[at], row, column, float32(UNSEEN), task)


def warp_first():
    """The first row of this warp within the block's tile, and of this lane within the warp's."""
    thread = int32(cuda.threadIdx.x)
    return (thread >> 5) * (16 * M_TILES), (thread & 31) >> 2


def own_shared():
    """The block's shared memory as elements."""
    if KIND == FLOAT32:
        return dynamic_shared(float32)
    else:
        return dynamic_shared(uint16)


def quad_sum(x):
    """The sum over the four lanes that share a row."""
    x = x + shuffle_xor(x, 1)
    return x + shuffle_xor(x, 2)


def quad_maximum(x):
    """The maximum over the four lanes that share a row."""
    x = maximum(x, shuffle_xor(x, 1))
    return maximum(x, shuffle_xor(x, 2))


def limits_of(batch, queries, keys, query_lengths, key_lengths):
    """The counts of queries and keys of a batch, and the count of visible keys."""
    key_limit = keys
    if HAS_QUERY_LENGTHS:
        queries = min(queries, max(query_lengths[batch], 0))
    if HAS_KEY_LENGTHS:
        key_limit = min(keys, max(key_lengths[batch], 0))
    return queries, keys, key_limit
