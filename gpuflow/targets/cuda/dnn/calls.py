"""Convolutions as libraries know them: three kinds of calls on packed arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from gpuflow.base.records import record

Dims = tuple[int, ...]

# The result is y; the gradient with respect to x; that with respect to w.
FORWARD, DATA, FILTER = "forward", "data", "filter"


@record
class ConvolutionCall:
    """``y[n, k, o] = sum of x[n, c, o stride + t dilation - padding] w[k, c, t]``, or a gradient.

    Arrays are packed: row-major in this order, or with channels last.

    Attributes:
        kind: FORWARD, DATA (x of w and y) or FILTER (w of x and y).
        x: batch, channels and space of the input.
        w: outputs, channels of one group, and taps.
        y: batch, channels and space of the output.
        channels_last: how all three are packed.
        padding, strides, dilation: for each dimension of space.
        groups: of channels.
        mirrored: taps of ``w`` are counted from the other end.
        dtype: of all three.
        reduced: float32 operands may be rounded to TF32.
    """

    kind: str
    x: Dims
    w: Dims
    y: Dims
    channels_last: bool
    padding: Dims
    strides: Dims
    dilation: Dims
    groups: int
    mirrored: bool
    dtype: np.dtype
    reduced: bool

    def __str__(self) -> str:
        operands = ", ".join(
            f"{name} {self.dtype.name}{list(dims)}"
            for name, dims in (("x", self.x), ("w", self.w), ("y", self.y))
        )
        return (
            f"{self.kind} convolution of {operands}, packed with channels "
            f"{'last' if self.channels_last else 'first'}, strides {list(self.strides)}, padding "
            f"{list(self.padding)}, dilation {list(self.dilation)}, groups {self.groups}"
        )


@record
class ChosenConvolution:
    """A call with the library's choice for it.

    Attributes:
        call: the operation.
        algorithm, math: the library's numbers of its algorithm, and of how it multiplies.
        workspace_bytes: memory that it needs besides.
    """

    call: ConvolutionCall
    algorithm: int
    math: int
    workspace_bytes: int


# Of the addresses of both operands, the output and the workspace; a fifth argument is the stream
# that is recorded, in place of the one that it was made for. FORWARD reads x and w, DATA y and w,
# FILTER x and y.
Convolve = Callable[..., None]


class Convolutions(Protocol):
    """A library of convolutions on one device."""

    def choose(self, call: ConvolutionCall, deterministic: bool) -> ChosenConvolution | None:
        """The library's choice; None if it does not support the call, or is missing.

        Args:
            call: the operation.
            deterministic: results must have the same bits in every run.
        """
        ...

    def why_not(self, call: ConvolutionCall, deterministic: bool) -> str:
        """Why ``choose`` gave None for a call; for ``gpuflow.explain``."""
        ...

    def version(self) -> str:
        """The library's version, where ``choose`` gave something."""
        ...

    def bind(self, chosen: ChosenConvolution, stream: int) -> Convolve:
        """The bound operation; it allocates nothing on the device."""
        ...
