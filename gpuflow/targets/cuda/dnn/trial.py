"""A library's convolutions on small arrays, compared with NumPy, before programs use them.

A driver that does not fit the library, or a mistake in what is passed, would give numbers that look
right. Each kind of call is tried once a process, for each dtype and way to lie in memory, with the
algorithm that the library itself takes for it.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from gpuflow.base.util import warn
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    ChosenConvolution,
    ConvolutionCall,
    Convolutions,
    Convolve,
)
from gpuflow.targets.cuda.driver.api import GpuApi

_BATCH, _CHANNELS, _OUTPUTS, _IMAGE, _TAPS, _PLACES = 2, 8, 16, (7, 6), (3, 3), (4, 3)
_PADDING, _STRIDES = (1, 1), (2, 2)
_Key = tuple[str, np.dtype, bool, bool]


class TriedConvolutions:
    """The calls of a library that were found to be right.

    Args:
        library: of the device.
        device: what copies to and from it.
    """

    def __init__(self, library: Convolutions, device: GpuApi) -> None:
        self._library, self._device = library, device
        self._stream: int | None = None
        self._is_right: dict[_Key, bool] = {}

    def choose(self, call: ConvolutionCall, deterministic: bool) -> ChosenConvolution | None:
        """What the library chooses, if it is right about a small call of this kind."""
        chosen = self._library.choose(call, deterministic)
        if chosen is None:
            return None
        key = (call.kind, call.dtype, call.channels_last, call.reduced)
        if key not in self._is_right:
            self._is_right[key] = self._tried(key, deterministic)
        return chosen if self._is_right[key] else None

    def bind(self, chosen: ChosenConvolution, stream: int) -> Convolve:
        """A call of the library."""
        return self._library.bind(chosen, stream)

    def _tried(self, key: _Key, deterministic: bool) -> bool:
        """Whether the library does what NumPy does; it says so where it does not."""
        call = small_call(*key)
        chosen = self._library.choose(call, deterministic)
        if chosen is None:
            return True  # it does not take so small a call: nothing is known
        is_right = self._agrees(chosen)
        if not is_right:
            warn(
                f"[cudnn] it must give what NumPy gives for a small {call}; it does not, and such "
                "calls are left to gpuflow's own kernels. Fix: install a cuDNN for this driver, "
                "or set GPUFLOW_CUDNN=0."
            )
        return is_right

    def _agrees(self, chosen: ChosenConvolution) -> bool:
        device, call = self._device, chosen.call
        device.activate()
        if self._stream is None:
            self._stream = device.stream()
        stream, pool = self._stream, device.pool()
        left, right, want = small_arrays(call)
        got = np.empty(want.shape, call.dtype)
        counts = (left.nbytes, right.nbytes, got.nbytes, max(chosen.workspace_bytes, 1))
        memory = [pool.malloc(count) for count in counts]
        places = [piece.ptr for piece in memory]
        for place, array in zip(places, (left, right), strict=False):
            device.copy_in(place, address(array), array.nbytes, stream)
        self._library.bind(chosen, stream)(*places)
        device.copy_out(address(got), places[2], got.nbytes, stream)
        device.synchronize(stream)
        # Algorithms may transform their operands, and round what comes of that.
        is_rough = call.dtype.itemsize == 2 or call.reduced
        tolerance = 2e-2 if is_rough else 1e-4
        return bool(np.all(np.abs(got.astype(np.float64) - want) <= tolerance * (1 + abs(want))))


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
