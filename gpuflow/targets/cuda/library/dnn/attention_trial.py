"""Self-check of cuDNN's attention: small calls, and a reference in NumPy.

It also detects an unexpected alignment of the library's causal mask.

Tests: tests/targets/cuda/test_cudnn_attention.py.
"""

from __future__ import annotations

import numpy as np

from gpuflow.targets.cuda.library.dnn.calls import AttentionCall
from gpuflow.targets.cuda.library.dnn.self_check import Trial, TrialArrays

# (queries, keys), not multiples of tiles. Fewer keys than queries, and more: that distinguishes
# causal masks that are aligned to the first key from those aligned to the last one.
_LENGTHS = ((72, 40), (40, 72))
_BATCH, _KEY_HEADS = 2, 2


def small_call(
    lengths: tuple[int, int],
    dtype: np.dtype,
    size: int,
    group: int,
    causal: bool,
    gradient: bool = False,
) -> AttentionCall:
    """A small call whose sizes are above 1 and whose scale is not the default.

    Args:
        lengths: queries and keys.
        dtype, size, causal, gradient: as in ``AttentionCall``.
        group: query heads per key head.
    """
    return AttentionCall(
        _BATCH,
        *lengths,
        _KEY_HEADS * group,
        _KEY_HEADS,
        size,
        3 / size**0.5,
        causal,
        dtype,
        gradient,
    )


def small_arrays(call: AttentionCall) -> TrialArrays:
    """The arrays of a small call.

    query, key, value and the cotangent are multiples of 1/4 in [-1, 1], exact in every dtype.
    """
    rng = np.random.default_rng(0)
    rows, columns = (call.queries, call.heads), (call.keys, call.key_heads)
    query, key, value, cotangent = (
        rng.integers(-4, 5, (call.batch, *length_and_heads, call.size)) / 4
        for length_and_heads in (rows, columns, columns, rows)
    )
    group = call.heads // call.key_heads
    # Keys and values of each query head.
    head_keys, head_values = (np.repeat(array, group, axis=2) for array in (key, value))
    scores = np.einsum("btnd,bsnd->bnts", query, head_keys) * call.scale
    if call.causal:
        mask = np.tri(call.queries, call.keys, dtype=bool)
        scores = np.where(mask, scores, -np.inf)
    row_max = scores.max(-1, keepdims=True)
    weights = np.exp(scores - row_max)
    total = weights.sum(-1, keepdims=True)
    weights = weights / total
    out = np.einsum("bnts,bsnd->btnd", weights, head_values)
    logsumexp = (row_max + np.log(total))[..., 0]
    operands = [array.astype(call.dtype) for array in (query, key, value)]
    if not call.gradient:
        results = [
            np.full(out.shape, np.nan, call.dtype),
            np.full(logsumexp.shape, np.nan, np.float32),
        ]
        return TrialArrays(operands, results, [out, logsumexp])
    operands += [np.ascontiguousarray(array, call.dtype) for array in (out, cotangent)]
    operands.append(np.ascontiguousarray(logsumexp, np.float32))
    dscores = np.einsum("btnd,bsnd->bnts", cotangent, head_values)
    dscores -= np.einsum("btnd,btnd->bnt", cotangent, out)[..., None]
    dscores *= weights * call.scale
    per_key = (call.batch, call.keys, call.key_heads, group, call.size)
    dquery = np.einsum("bnts,bsnd->btnd", dscores, head_keys)
    dkey = np.einsum("bnts,btnd->bsnd", dscores, query).reshape(per_key).sum(3)
    dvalue = np.einsum("bnts,btnd->bsnd", weights, cotangent).reshape(per_key).sum(3)
    expected = [dquery, dkey, dvalue]
    results = [np.full(gradient.shape, np.nan, call.dtype) for gradient in expected]
    return TrialArrays(operands, results, expected)


def _kind_of(call: AttentionCall) -> tuple[np.dtype, int, int, bool, bool]:
    return call.dtype, call.size, call.heads // call.key_heads, call.causal, call.gradient


def _small_calls(call: AttentionCall) -> list[AttentionCall]:
    return [small_call(lengths, *_kind_of(call)) for lengths in _LENGTHS]


# needs_all: without a result for both lengths, the alignment of the mask would be unknown.
TRIAL = Trial(_kind_of, _small_calls, small_arrays, lambda call: 2e-2, needs_all=True)
