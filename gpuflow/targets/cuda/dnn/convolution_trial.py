"""Small convolutions that a library is compared with NumPy on, before programs use it."""

from __future__ import annotations

from itertools import product

import numpy as np

from gpuflow.targets.cuda.dnn.calls import DATA, FILTER, FORWARD, ConvolutionCall
from gpuflow.targets.cuda.dnn.tried import Arrays, Trial

_BATCH, _CHANNELS, _OUTPUTS, _IMAGE, _TAPS, _PLACES = 2, 8, 16, (7, 6), (3, 3), (4, 3)
_PADDING, _STRIDES = ((1, 1), (1, 1)), (2, 2)


def small_call(
    kind: str, dtype: np.dtype, channels_last: bool, reduced: bool
) -> ConvolutionCall:
    """A call of which every part counts: several of everything, strides and padding."""
    return ConvolutionCall(
        kind, (_BATCH, _CHANNELS, *_IMAGE), (_OUTPUTS, _CHANNELS, *_TAPS),
        (_BATCH, _OUTPUTS, *_PLACES), channels_last, _PADDING, _STRIDES, (1, 1), 1, dtype, reduced,
    )  # fmt: skip


def small_arrays(call: ConvolutionCall) -> tuple[Arrays, Arrays, Arrays]:
    """Both operands as they are packed, an array for the result, and the result in float64.

    Quarters between -1 and 1: products are exact in every dtype, and TF32 rounds none.
    """
    rng = np.random.default_rng(0)
    x, w, y = (rng.integers(-4, 5, dims) / 4 for dims in (call.x, call.w, call.y))
    padded = np.pad(x, ((0, 0), (0, 0), *_PADDING))
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
    inside = tuple(slice(pad, pad + size) for (pad, _), size in zip(_PADDING, _IMAGE, strict=True))
    sums[DATA] = sums[DATA][:, :, *inside]
    left, right = {FORWARD: (x, w), DATA: (y, w), FILTER: (x, y)}[call.kind]
    left, right, want = (_packed(a, call.channels_last) for a in (left, right, sums[call.kind]))
    result = np.full(want.shape, np.nan, call.dtype)
    return [left.astype(call.dtype), right.astype(call.dtype)], [result], [want]


def _packed(array: np.ndarray, channels_last: bool) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if channels_last else array)


def _kind(call: ConvolutionCall) -> tuple[str, np.dtype, bool, bool]:
    return call.kind, call.dtype, call.channels_last, call.reduced


def _tolerance(call: ConvolutionCall) -> float:
    # Algorithms may transform their operands, and round what comes of that.
    return 2e-2 if call.dtype.itemsize == 2 or call.reduced else 1e-4


TRIAL = Trial(_kind, lambda call: [small_call(*_kind(call))], small_arrays, _tolerance)
