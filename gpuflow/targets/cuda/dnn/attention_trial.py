"""A library's attention on small arrays, compared with NumPy, before programs use it.

The comparison of the library's causal mask is not documented, so the trial decides. Each kind is
tried once per process, with the library's own plan for it.
"""

from __future__ import annotations

import numpy as np

from gpuflow.base.util import warn
from gpuflow.targets.cuda.dnn.attention_calls import AttentionCall, ChosenAttention
from gpuflow.targets.cuda.dnn.cudnn import CudnnError
from gpuflow.targets.cuda.dnn.tried import Tried, is_near, warn_of

# Lengths that are no multiple of tiles; with fewer keys than queries and with more, which tells
# masks that begin at the first key from those that end at the last one.
_LENGTHS = ((72, 40), (40, 72))
_BATCH, _KEY_HEADS = 2, 2
_TOLERANCE = 2e-2
_Kind = tuple[np.dtype, int, int, bool]


class TriedAttention(Tried[AttentionCall, ChosenAttention, _Kind]):
    """The attention of a library."""

    def _kind(self, call: AttentionCall) -> _Kind:
        return call.dtype, call.size, call.heads // call.key_heads, call.causal

    def _tried(self, kind: _Kind, deterministic: bool) -> bool:
        calls = [small_call(lengths, *kind) for lengths in _LENGTHS]
        return all([self._tried_call(call, deterministic) for call in calls])

    def _tried_call(self, call: AttentionCall, deterministic: bool) -> bool:
        chosen = self._library.choose(call, deterministic)
        if chosen is None:
            return False  # it does not take so small a call: nothing is known of its masks
        try:
            is_right = self._agrees(chosen)
        except CudnnError as error:
            is_right = False
            warn(str(error))
        if not is_right:
            warn_of(call)
        return is_right

    def _agrees(self, chosen: ChosenAttention) -> bool:
        operands, wants = small_arrays(chosen.call)
        results = [
            np.full(want.shape, np.nan, dtype)
            for want, dtype in zip(wants, (chosen.call.dtype, np.float32), strict=True)
        ]
        self._run(chosen, operands, results)
        pairs = zip(results, wants, strict=True)
        return all(is_near(got, want, _TOLERANCE) for got, want in pairs)


def small_call(
    lengths: tuple[int, int], dtype: np.dtype, size: int, group: int, causal: bool
) -> AttentionCall:
    """A call in which all arguments matter: sizes above 1, and a scale that is not the default."""
    return AttentionCall(
        _BATCH, *lengths, _KEY_HEADS * group, _KEY_HEADS, size, 3 / size, causal, dtype
    )


def small_arrays(call: AttentionCall) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """query, key and value, and the result and logarithms in float64.

    Quarters between -1 and 1, which every dtype holds.
    """
    rng = np.random.default_rng(0)
    rows, columns = (call.queries, call.heads), (call.keys, call.key_heads)
    operands = [
        rng.integers(-4, 5, (call.batch, *length_and_heads, call.size)) / 4
        for length_and_heads in (rows, columns, columns)
    ]
    query, key, value = operands
    group = call.heads // call.key_heads
    key, value = (np.repeat(one, group, axis=2) for one in (key, value))
    scores = np.einsum("btnd,bsnd->bnts", query, key) * call.scale
    if call.causal:
        seen = np.tri(call.queries, call.keys, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    out = np.einsum("bnts,bsnd->btnd", weights / total, value)
    sums = (most + np.log(total))[..., 0]
    return [one.astype(call.dtype) for one in operands], [out, sums]
