"""Reference of the kernels of convolution.py, in NumPy and in float64: one product at a time.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

Dims = tuple[int, ...]
Pairs = Sequence[tuple[int, int]]


def convolution(
    lhs: np.ndarray, rhs: np.ndarray, strides: Sequence[int], padding: Pairs,
    lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], feature_groups: int = 1,
    batch_groups: int = 1,
) -> np.ndarray:  # fmt: skip
    """The convolution of (batch, channels, *space) with (outputs, inputs, *space).

    Args:
        lhs, rhs: operands, of any dtype.
        strides, padding, lhs_dilation, rhs_dilation: of each dimension of space.
        feature_groups, batch_groups: of which one is 1.

    Returns:
        (batch, outputs, *space).

    Source: the definition of Conv in the XLA operation semantics.
    """
    x, w = _in_groups(lhs, rhs, feature_groups, batch_groups)
    how = (strides, padding, lhs_dilation, rhs_dilation)
    counts = _counts(x, w, how)
    out = np.zeros((x.shape[1], x.shape[0], w.shape[1], *counts))
    for position, tap, at in _meetings(x, w, how):
        out[:, :, :, *position] += np.einsum("gbc,goc->bgo", x[:, :, :, *at], w[:, :, :, *tap])
    return out.reshape(x.shape[1], rhs.shape[0], *counts)


def convolution_gradients(
    lhs: np.ndarray, rhs: np.ndarray, dout: np.ndarray, strides: Sequence[int], padding: Pairs,
    lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], feature_groups: int = 1,
    batch_groups: int = 1,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The gradients of ``sum(dout * convolution(lhs, rhs, ...))`` by lhs and by rhs."""
    x, w = _in_groups(lhs, rhs, feature_groups, batch_groups)
    how = (strides, padding, lhs_dilation, rhs_dilation)
    d = dout.astype(np.float64).reshape(x.shape[1], x.shape[0], w.shape[1], *dout.shape[2:])
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for position, tap, at in _meetings(x, w, how):
        slope = d[:, :, :, *position]
        dx[:, :, :, *at] += np.einsum("bgo,goc->gbc", slope, w[:, :, :, *tap])
        dw[:, :, :, *tap] += np.einsum("bgo,gbc->goc", slope, x[:, :, :, *at])
    if batch_groups == 1:
        dx = np.moveaxis(dx, 0, 1)
    return dx.reshape(lhs.shape), dw.reshape(rhs.shape)


_How = tuple[Sequence[int], Pairs, Sequence[int], Sequence[int]]


def _in_groups(
    lhs: np.ndarray, rhs: np.ndarray, feature_groups: int, batch_groups: int
) -> tuple[np.ndarray, np.ndarray]:
    """Operands in float64 with groups, of channels or of examples, in front."""
    lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
    groups, inputs = feature_groups * batch_groups, rhs.shape[1]
    batch = lhs.shape[0] // batch_groups
    if batch_groups > 1:
        x = lhs.reshape(groups, batch, *lhs.shape[1:])
    else:
        x = np.moveaxis(lhs.reshape(batch, groups, inputs, *lhs.shape[2:]), 1, 0)
    return x, rhs.reshape(groups, rhs.shape[0] // groups, *rhs.shape[1:])


def _counts(x: np.ndarray, w: np.ndarray, how: _How) -> list[int]:
    """The positions of the kernel along each axis."""
    return [_position_count(*one) for one in zip(x.shape[3:], w.shape[3:], *how, strict=True)]


def _position_count(
    size: int, taps: int, stride: int, pads: tuple[int, int], hole: int, gap: int
) -> int:
    whole = (size - 1) * hole + 1 if size else 0
    window = (taps - 1) * gap + 1 if taps else 0
    room = whole + sum(pads) - window
    return 0 if room < 0 else room // stride + 1


def _meetings(x: np.ndarray, w: np.ndarray, how: _How) -> Iterator[tuple[Dims, Dims, Dims]]:
    """Yield each position with each tap that reads an element there, and the element."""
    for position in product(*map(range, _counts(x, w, how))):
        for tap in product(*map(range, w.shape[3:])):
            tap_elements = [
                divmod(p * stride + t * gap - low, hole)
                for p, t, stride, (low, _), hole, gap in zip(position, tap, *how, strict=True)
            ]
            sizes = zip(tap_elements, x.shape[3:], strict=True)
            if all(remainder == 0 and 0 <= at < size for (at, remainder), size in sizes):
                yield position, tap, tuple(at for at, _ in tap_elements)
