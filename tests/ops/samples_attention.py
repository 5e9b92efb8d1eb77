"""How the sweep calls fused attention; its kernels are tested in tests/kernels."""

from __future__ import annotations

import numpy as np
from op_sweep import EXACT, Sample

_RNG = np.random.default_rng(11)
_QUERY, _KEY = (2, 3, 4, 16), (2, 5, 2, 16)
_FLOATS = ("float16", "bfloat16", "float32")
_HOW = {"scale": 0.25, "precision": EXACT}
_PLAIN = {**_HOW, "causal": True, "window": None, "present": (False,) * 4}
_FULL = {**_HOW, "causal": False, "window": (2, 1), "present": (True,) * 4}
_BIAS = _RNG.normal(size=(1, 4, 3, 5)).astype(np.float32)
_MASK = _RNG.random((2, 1, 3, 5)) < 0.7
_LENGTHS = (np.array([3, 2], np.int32), np.array([5, 0], np.int32))


def _loops(query, key, value, *extras, scale, causal, window, precision, present):
    """One query after the other, over the keys that it sees."""
    del precision
    remaining = iter(extras)
    bias, mask, query_lengths, key_lengths = (next(remaining) if x else None for x in present)
    batch, queries, heads, _ = query.shape
    keys, each = key.shape[1], heads // key.shape[2]
    out, sums = np.zeros(query.shape), np.zeros((batch, heads, queries))
    for b, n, t in np.ndindex(batch, heads, queries):
        seen = np.ones(keys, bool)
        for s in range(keys):
            seen[s] &= not causal or s <= t
            seen[s] &= window is None or t - window[0] <= s <= t + window[1]
            seen[s] &= key_lengths is None or s < key_lengths[b]
            seen[s] &= mask is None or mask[b, 0, t, s]
        counts = query_lengths is None or t < query_lengths[b]
        scores = key[b, :, n // each] @ query[b, t, n] * scale
        scores = scores if bias is None else scores + bias[0, n, t]
        if not counts or not seen.any():
            weights, sums[b, n, t] = np.ones(keys) / keys, -1e30 * keys
        else:
            powers = np.where(seen, np.exp(scores), 0)
            weights, sums[b, n, t] = powers / powers.sum(), np.log(powers.sum())
        out[b, t, n] = weights @ value[b, :, n // each] * counts
    return out, sums


_SAMPLES = [
    Sample((_QUERY, _KEY, _KEY), _PLAIN, dtypes=_FLOATS, reference=_loops, derivative=False),
    Sample(
        (_QUERY, _KEY, _KEY, _BIAS.shape, _MASK.shape, (2,), (2,)),
        _FULL,
        fixed={3: _BIAS, 4: _MASK, 5: _LENGTHS[0], 6: _LENGTHS[1]},
        dtypes=_FLOATS,
        reference=_loops,
        derivative=False,
    ),
]

SAMPLES = {"attention": _SAMPLES}
TESTED_ELSEWHERE = {
    "attention_gradients": "tests/nn/test_nn_attention_fused.py, tests/kernels",
}
