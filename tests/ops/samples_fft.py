"""How the sweep calls the Fourier transforms; the references are sums over all elements."""

from __future__ import annotations

import numpy as np
from op_sweep import Sample

from gpuflow.ops.fft.transforms import FftType

TOLERANCE = 64.0


def _matrix(length, sign):
    place = np.arange(length)
    return np.exp(sign * 2j * np.pi * np.outer(place, place) / max(length, 1))


def _reference(x, *, fft_type, fft_lengths):
    inverse = fft_type in (FftType.IFFT, FftType.IRFFT)
    x = x.astype(np.complex128)
    for axis, length in zip(range(-len(fft_lengths), 0), fft_lengths):
        matrix = _matrix(length, 1 if inverse else -1) / (length if inverse else 1)
        if fft_type is FftType.IRFFT and axis == -1:
            half = length // 2 + 1
            mirrored = x[..., 1 : half - (length % 2 == 0)][..., ::-1].conj()
            ends = x.copy()
            ends[..., 0] = x[..., 0].real
            if length % 2 == 0:
                ends[..., -1] = x[..., -1].real
            x = np.concatenate([ends, mirrored], -1)
        x = np.moveaxis(np.tensordot(x, matrix, ((axis,), (0,))), -1, axis)
    if fft_type is FftType.RFFT:
        return x[..., : fft_lengths[-1] // 2 + 1]
    return x.real if fft_type is FftType.IRFFT else x


def _samples(fft_type):
    samples = []
    for shape, count in (((5,), 1), ((2, 4), 1), ((3, 4), 2), ((2, 3, 5), 2), ((2, 3, 4), 3)):
        lengths = shape[len(shape) - count :]
        in_shape = shape
        if fft_type is FftType.IRFFT:
            in_shape = (*shape[:-1], shape[-1] // 2 + 1)
        params = {"fft_type": fft_type, "fft_lengths": lengths}
        samples.append(Sample((in_shape,), params, reference=_reference, tolerance=TOLERANCE))
    return samples


SAMPLES = {"fft": [sample for fft_type in FftType for sample in _samples(fft_type)]}
