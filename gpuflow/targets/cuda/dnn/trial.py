"""A library's convolutions on small arrays, compared with NumPy, before programs use them.

A driver that does not match the library, or a mistake in the arguments, would give plausible but
wrong numbers. Each kind of call is tried once per process, for each dtype and layout, with the
library's own algorithm for it.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from gpuflow.targets.cuda.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    ChosenConvolution,
    ConvolutionCall,
)
from gpuflow.targets.cuda.dnn.tried import Tried, is_near, warn_of

_BATCH, _CHANNELS, _OUTPUTS, _IMAGE, _TAPS, _PLACES = 2, 8, 16, (7, 6), (3, 3), (4, 3)
_PADDING, _STRIDES = (1, 1), (2, 2)
_Kind = tuple[str, np.dtype, bool, bool]


class TriedConvolutions(Tried[ConvolutionCall, ChosenConvolution, _Kind]):
    """The convolutions of a library."""

    def _kind(self, call: ConvolutionCall) -> _Kind:
        return call.kind, call.dtype, call.channels_last, call.reduced

    def _tried(self, kind: _Kind, deterministic: bool) -> bool:
        call = small_call(*kind)
        chosen = self._library.choose(call, deterministic)
        if chosen is None:
            return True  # it does not take so small a call: nothing is known
        is_right = self._agrees(chosen)
        if not is_right:
            warn_of(call)
        return is_right

    def _agrees(self, chosen: ChosenConvolution) -> bool:
        call = chosen.call
        left, right, want = small_arrays(call)
        got = np.full(want.shape, np.nan, call.dtype)
        self._run(chosen, [left, right], [got])
        # Algorithms may transform their operands, and round what comes of that.
        is_rough = call.dtype.itemsize == 2 or call.reduced
        return is_near(got, want, 2e-2 if is_rough else 1e-4)


def small_call(
    kind: str, dtype: np.dtype, channels_last: bool, reduced: bool
) -> ConvolutionCall:
    """A call of which every part counts: several of everything, strides and padding."""
    return ConvolutionCall(
        kind, (_BATCH, _CHANNELS, *_IMAGE), (_OUTPUTS, _CHANNELS, *_TAPS),
        (_BATCH, _OUTPUTS, *_PLACES), channels_last, _PADDING, _STRIDES, (1, 1), 1, False, dtype,
        reduced,
    )  # fmt: skip


def small_arrays(call: ConvolutionCall) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both operands as they are packed, and the result in float64.

    Quarters between -1 and 1: products are exact in every dtype, and TF32 rounds none.
    """
    rng = np.random.default_rng(0)
    x, w, y = (rng.integers(-4, 5, dims) / 4 for dims in (call.x, call.w, call.y))
    padded = np.pad(x, ((0, 0), (0, 0), (_PADDING[0],) * 2, (_PADDING[1],) * 2))
    sums = {FORWARD: np.zeros(call.y), DATA: np.zeros(padded.shape), FILTER: np.zeros(call.w)}
    for i, j in product(*map(range, _TAPS)):
        down, along = (
            slice(tap, tap + step * count, step)
            for tap, step, count in zip((i, j), _STRIDES, _PLACES, strict=True)
        )
        read, tap = padded[:, :, down, along], w[:, :, i, j]
        sums[FORWARD] += np.einsum("nchw,kc->nkhw", read, tap)
        sums[DATA][:, :, down, along] += np.einsum("nkhw,kc->nchw", y, tap)
        sums[FILTER][:, :, i, j] += np.einsum("nchw,nkhw->kc", read, y)
    inside = tuple(slice(pad, pad + size) for pad, size in zip(_PADDING, _IMAGE, strict=True))
    sums[DATA] = sums[DATA][:, :, *inside]
    left, right = {FORWARD: (x, w), DATA: (y, w), FILTER: (x, y)}[call.kind]
    left, right, want = (_packed(a, call.channels_last) for a in (left, right, sums[call.kind]))
    return left.astype(call.dtype), right.astype(call.dtype), want


def _packed(array: np.ndarray, channels_last: bool) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if channels_last else array)
