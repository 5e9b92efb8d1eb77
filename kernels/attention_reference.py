"""Reference of the kernels of attention.py, in NumPy and in float64, with all scores in memory.

Tests: tests/kernels/test_kernel_attention.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_UNSEEN = -1e300
COUNTED = -1e30


def seen_keys(
    queries: int, keys: int, batch: int, heads: int, *, causal: bool = False,
    window: tuple[int, int] | None = None, mask: Any = None, query_lengths: Any = None,
    key_lengths: Any = None,
) -> np.ndarray:  # fmt: skip
    """The keys that each query sees, bool[batch, heads, queries, keys]."""
    t, s = np.arange(queries)[:, None], np.arange(keys)[None, :]
    seen = np.ones((batch, heads, queries, keys), bool)
    if causal:
        seen &= t >= s
    if window is not None:
        seen &= (t <= s + window[0]) & (t >= s - window[1])
    if mask is not None:
        seen &= mask
    if query_lengths is not None:
        seen &= (t < np.asarray(query_lengths)[:, None, None])[:, None]
    if key_lengths is not None:
        seen &= (s < np.asarray(key_lengths)[:, None, None])[:, None]
    return seen


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: np.ndarray, scale: float,
    bias: Any = None, query_lengths: Any = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """out and sums, as in the contract of attention.py."""
    weights, sums = _weights(query, key, seen, scale, bias, query_lengths)
    value = _for_each_head(value, query.shape[2])
    return np.einsum("bnts,bsnd->btnd", weights, value), sums


def attention_gradients(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, dout: np.ndarray, seen: np.ndarray,
    scale: float, bias: Any = None, query_lengths: Any = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """dquery, dkey and dvalue."""
    heads, key_heads = query.shape[2], key.shape[2]
    weights, _ = _weights(query, key, seen, scale, bias, query_lengths)
    wide_key, wide_value = _for_each_head(key, heads), _for_each_head(value, heads)
    query, dout = query.astype(np.float64), dout.astype(np.float64)
    of_weights = np.einsum("btnd,bsnd->bnts", dout, wide_value)
    dots = (weights * of_weights).sum(-1, keepdims=True)
    slopes = np.where(seen, weights * (of_weights - dots), 0) * scale
    dquery = np.einsum("bnts,bsnd->btnd", slopes, wide_key)
    dkey = np.einsum("bnts,btnd->bsnd", slopes, query)
    dvalue = np.einsum("bnts,btnd->bsnd", weights, dout)
    grouped = (*key.shape[:2], key_heads, heads // key_heads, key.shape[3])
    return dquery, dkey.reshape(grouped).sum(3), dvalue.reshape(grouped).sum(3)


def _weights(
    query: np.ndarray, key: np.ndarray, seen: np.ndarray, scale: float, bias: Any,
    query_lengths: Any,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    key = _for_each_head(key, query.shape[2])
    scores = np.einsum("btnd,bsnd->bnts", query.astype(np.float64), key) * scale
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    scores = np.where(seen, scores, _UNSEEN)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    sums = np.where(most == _UNSEEN, COUNTED * total, most + np.log(total))[..., 0]
    weights = weights / total
    if query_lengths is not None:
        counts = np.arange(query.shape[1])[None] < np.asarray(query_lengths)[:, None]
        weights = weights * counts[:, None, :, None]
    return weights, sums


def _for_each_head(x: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(x.astype(np.float64), heads // x.shape[2], axis=2)
