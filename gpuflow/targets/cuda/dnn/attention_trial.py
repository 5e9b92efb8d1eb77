"""A library's attention on small arrays, compared with NumPy, before programs use it.

What the library's causal mask compares is not in its documentation, so the trial decides. Each kind
is tried once a process, with the plan that the library itself takes for it.
"""

from __future__ import annotations

import numpy as np

from gpuflow.base.util import warn
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.dnn.attention_calls import (
    Attend,
    AttentionCall,
    Attentions,
    ChosenAttention,
)
from gpuflow.targets.cuda.dnn.cudnn import CudnnError
from gpuflow.targets.cuda.driver.api import GpuApi

# Lengths that are no multiple of tiles; with fewer keys than queries and with more, which tells
# masks that begin at the first key from those that end at the last one.
_LENGTHS = ((72, 40), (40, 72))
_BATCH, _KEY_HEADS = 2, 2
_TOLERANCE = 2e-2
_Key = tuple[np.dtype, int, int, bool]


class TriedAttention:
    """The calls of a library that were found to be right.

    Args:
        library: of the device.
        device: what copies to and from it.
    """

    def __init__(self, library: Attentions, device: GpuApi) -> None:
        self._library, self._device = library, device
        self._stream: int | None = None
        self._is_right: dict[_Key, bool] = {}

    def choose(self, call: AttentionCall, deterministic: bool) -> ChosenAttention | None:
        """What the library chooses, if it is right about small calls of this kind."""
        chosen = self._library.choose(call, deterministic)
        if chosen is None:
            return None
        key = (call.dtype, call.size, call.heads // call.key_heads, call.causal)
        if key not in self._is_right:
            self._is_right[key] = all([
                self._tried(small_call(lengths, *key), deterministic) for lengths in _LENGTHS
            ])  # fmt: skip
        return chosen if self._is_right[key] else None

    def bind(self, chosen: ChosenAttention, stream: int) -> Attend:
        """A call of the library."""
        return self._library.bind(chosen, stream)

    def _tried(self, call: AttentionCall, deterministic: bool) -> bool:
        """Whether the library does what NumPy does; it says so where it does not."""
        chosen = self._library.choose(call, deterministic)
        if chosen is None:
            return False  # it does not take so small a call: nothing is known of its masks
        try:
            is_right = self._agrees(chosen)
        except CudnnError as error:
            is_right = False
            warn(str(error))
        if not is_right:
            warn(
                f"[cudnn] it must give what NumPy gives for a small {call}; it does not, and such "
                "calls are left to gpuflow's own kernels. Fix: install a cuDNN for this driver, "
                "or set GPUFLOW_CUDNN=0."
            )
        return is_right

    def _agrees(self, chosen: ChosenAttention) -> bool:
        device, call = self._device, chosen.call
        device.activate()
        if self._stream is None:
            self._stream = device.stream()
        stream, pool = self._stream, device.pool()
        operands, wants = small_arrays(call)
        results = [
            np.full(want.shape, np.nan, dtype)
            for want, dtype in zip(wants, (call.dtype, np.float32), strict=True)
        ]
        arrays = [*operands, *results]
        counts = [*[array.nbytes for array in arrays], max(chosen.workspace_bytes, 1)]
        memory = [pool.malloc(count) for count in counts]
        places = [piece.ptr for piece in memory]
        for place, array in zip(places, arrays, strict=False):
            device.copy_in(place, address(array), array.nbytes, stream)
        self._library.bind(chosen, stream)(*places)
        for place, array in zip(places[3:5], results, strict=True):
            device.copy_out(address(array), place, array.nbytes, stream)
        device.synchronize(stream)
        return all(
            np.all(np.abs(got.astype(np.float64) - want) <= _TOLERANCE * (1 + abs(want)))
            for got, want in zip(results, wants, strict=True)
        )


def small_call(
    lengths: tuple[int, int], dtype: np.dtype, size: int, group: int, causal: bool
) -> AttentionCall:
    """A call of which every part counts: several of everything, and a scale of its own."""
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
