"""cuDNN descriptors of a convolution: its arrays, and how the filter slides."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gpuflow.base.util import row_major_strides
from gpuflow.targets.cuda.dnn import cudnn
from gpuflow.targets.cuda.dnn.calls import ConvolutionCall


class Descriptors:
    """The cuDNN descriptors of a call.

    Args:
        library: from ``open_cudnn``.
        call: the call to describe.
        math: how products are made.
        order: names of both operands and the output, as cuDNN orders them.

    Attributes:
        convolution: how the filter slides.
        arrays: of both operands and the output, as cuDNN orders them.

    Raises:
        CudnnError: the library does not take it.
    """

    def __init__(self, library: Any, call: ConvolutionCall, math: int, order: str) -> None:
        self._library, self._call = library, call
        self._made: list[tuple[str, int]] = []
        made = {"x": self._tensor(call.x), "w": self._filter(), "y": self._tensor(call.y)}
        self.arrays = [made[name] for name in order]
        self.convolution = self._convolution()
        self.set_math(math)

    def set_math(self, math: int) -> None:
        """Set the math mode of products."""
        self._set("cudnnSetConvolutionMathType", self.convolution, math)

    def _set(self, name: str, *arguments: Any) -> None:
        cudnn.checked(self._library, self._call, name, *arguments)

    def _new(self, kind: str) -> int:
        made = ctypes.c_void_p()
        self._set(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        self._made.append((kind, made.value or 0))
        return made.value or 0

    def _tensor(self, dims: Sequence[int]) -> int:
        made, kind = self._new("Tensor"), cudnn.TYPES[self._call.dtype]
        strides = packed_strides(dims, self._call.channels_last)
        arrays = _integers(dims), _integers(strides)
        self._set("cudnnSetTensorNdDescriptor", made, kind, len(dims), *arrays)
        return made

    def _filter(self) -> int:
        call, made = self._call, self._new("Filter")
        layout = cudnn.NHWC if call.channels_last else cudnn.NCHW
        dims = (len(call.w), _integers(call.w))
        self._set("cudnnSetFilterNdDescriptor", made, cudnn.TYPES[call.dtype], layout, *dims)
        return made

    def _convolution(self) -> int:
        call, made = self._call, self._new("Convolution")
        mode = cudnn.CONVOLUTION if call.mirrored else cudnn.CROSS_CORRELATION
        wide = cudnn.DOUBLE if call.dtype == np.float64 else cudnn.FLOAT
        arrays = [_integers(dims) for dims in (call.padding, call.strides, call.dilation)]
        count = len(call.padding)
        self._set("cudnnSetConvolutionNdDescriptor", made, count, *arrays, mode, wide)
        self._set("cudnnSetConvolutionGroupCount", made, call.groups)
        return made

    def __del__(self) -> None:
        with suppress(Exception):  # it was not made completely, or the process ends
            for kind, made in self._made:
                getattr(self._library, f"cudnnDestroy{kind}Descriptor")(made)


def _integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def packed_strides(dims: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    """The strides of an array of batch, channels and space, in elements."""
    if not channels_last:
        return row_major_strides(tuple(dims))
    batch, channels, *space = dims
    first, *inner, last = row_major_strides((batch, *space, channels))
    return (first, last, *inner)
