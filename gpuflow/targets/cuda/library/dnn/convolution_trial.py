"""Self-check of cuDNN's convolutions: small calls, and a reference in NumPy.

Tests: tests/targets/cuda/test_cudnn.py.
"""

from __future__ import annotations

import numpy as np

from gpuflow.base.records import record
from gpuflow.targets.cuda.library.dnn.calls import DATA, FILTER, FORWARD, ConvolutionCall
from gpuflow.targets.cuda.library.dnn.self_check import Trial, TrialArrays

_BATCH, _CHANNELS, _OUTPUTS = 2, 8, 16


@record
class _Slide:
    """One spatial dimension: number of elements and taps, padding, stride, dilation."""

    size: int
    taps: int
    padding: tuple[int, int]
    stride: int
    dilation: int

    @property
    def positions(self) -> int:
        """The number of positions of the filter."""
        reach = (self.taps - 1) * self.dilation + 1
        return (self.size + sum(self.padding) - reach) // self.stride + 1

    def read(self, tap: int) -> slice:
        """The padded elements that a tap reads, one for each position."""
        first = tap * self.dilation
        return slice(first, first + self.stride * self.positions, self.stride)


# For each number of spatial dimensions: a plain call, and one with uneven padding and dilation.
_SLIDES = {
    2: (
        (_Slide(7, 3, (1, 1), 2, 1), _Slide(6, 3, (1, 1), 2, 1)),
        (_Slide(9, 3, (0, 1), 2, 1), _Slide(8, 3, (2, 1), 1, 2)),
    ),
    3: (
        (_Slide(5, 3, (1, 1), 1, 1), _Slide(4, 3, (1, 1), 2, 1), _Slide(6, 3, (1, 1), 1, 1)),
        (_Slide(5, 2, (1, 0), 1, 1), _Slide(6, 3, (0, 1), 2, 1), _Slide(7, 3, (1, 2), 1, 2)),
    ),
}


def small_calls(call: ConvolutionCall) -> list[ConvolutionCall]:
    """Two small calls of the kind of ``call``; the second one has groups and uneven padding."""
    simple, general = _SLIDES[len(call.strides)]
    return [
        ConvolutionCall(
            call.kind,
            (_BATCH, _CHANNELS, *[slide.size for slide in slides]),
            (_OUTPUTS, _CHANNELS // groups, *[slide.taps for slide in slides]),
            (_BATCH, _OUTPUTS, *[slide.positions for slide in slides]),
            call.channels_last,
            tuple([slide.padding for slide in slides]),
            tuple([slide.stride for slide in slides]),
            tuple([slide.dilation for slide in slides]),
            groups,
            call.dtype,
            call.reduced,
        )
        for slides, groups in ((simple, 1), (general, 2))
    ]


def small_arrays(call: ConvolutionCall) -> TrialArrays:
    """The arrays of a small call, packed as the call says.

    Elements are multiples of 1/4 in [-1, 1], so products are exact in every dtype and in TF32.
    """
    rng = np.random.default_rng(0)
    x, w, y = (rng.integers(-4, 5, dims) / 4 for dims in (call.x, call.w, call.y))
    slides = [
        _Slide(*sizes)
        for sizes in zip(
            call.x[2:], call.w[2:], call.padding, call.strides, call.dilation, strict=True
        )
    ]
    groups = call.groups
    padded = np.pad(x, ((0, 0), (0, 0), *call.padding))
    inputs = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    filters = w.reshape(groups, -1, *w.shape[1:])
    outputs = y.reshape(y.shape[0], groups, -1, *y.shape[2:])
    forward, data_gradient, filter_gradient = (
        np.zeros(array.shape) for array in (outputs, inputs, filters)
    )
    for taps in np.ndindex(*w.shape[2:]):
        read = (..., *[slide.read(tap) for slide, tap in zip(slides, taps, strict=True)])
        forward += np.einsum("ngc...,gkc->ngk...", inputs[read], filters[(..., *taps)])
        data_gradient[read] += np.einsum("ngk...,gkc->ngc...", outputs, filters[(..., *taps)])
        flat = [array.reshape(*array.shape[:3], -1) for array in (inputs[read], outputs)]
        filter_gradient[(..., *taps)] = np.einsum("ngcs,ngks->gkc", *flat)
    unpadded = [
        slice(low, low + slide.size) for slide, (low, _) in zip(slides, call.padding, strict=True)
    ]
    expected_by_kind = {
        FORWARD: forward.reshape(y.shape),
        DATA: data_gradient.reshape(padded.shape)[:, :, *unpadded],
        FILTER: filter_gradient.reshape(w.shape),
    }
    left, right = {FORWARD: (x, w), DATA: (y, w), FILTER: (x, y)}[call.kind]
    left, right, expected = (
        _packed(array, call.channels_last) for array in (left, right, expected_by_kind[call.kind])
    )
    result = np.full(expected.shape, np.nan, call.dtype)
    return TrialArrays([left.astype(call.dtype), right.astype(call.dtype)], [result], [expected])


def _packed(array: np.ndarray, channels_last: bool) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1) if channels_last else array)


def _kind_of(call: ConvolutionCall) -> tuple[str, np.dtype, bool, bool, int]:
    return call.kind, call.dtype, call.channels_last, call.reduced, len(call.strides)


def _tolerance(call: ConvolutionCall) -> float:
    # Algorithms may transform their operands, and round the results.
    return 2e-2 if call.dtype.itemsize == 2 or call.reduced else 1e-4


TRIAL = Trial(_kind_of, small_calls, small_arrays, _tolerance)
