"""An array of a convolution by role (batch, channels, space): packing, and mirrored dimensions.

Strides and offsets are in elements.

Tests: tests/targets/cuda/test_cudnn_plans.py.
"""

from __future__ import annotations

from math import prod
from typing import TypeVar

from gpuflow.base.records import record
from gpuflow.core.views import View, contiguous
from gpuflow.targets.cuda.library.dnn.calls import Dims, packed_strides
from gpuflow.targets.layouts.convolution_axes import dense_stride

_MIN_SPATIAL_DIMS = 2  # least number of spatial dimensions that cuDNN supports
T = TypeVar("T")  # a value of a spatial dimension


@record
class ConvolutionArray:
    """An array of a convolution, whose dimensions have three roles.

    Attributes:
        view: layout of the array.
        first: dimensions of the batch, or of the outputs for a filter.
        second: dimensions of the channels, outermost first.
        space: spatial dimensions.
    """

    view: View
    first: Dims
    second: Dims
    space: Dims

    @property
    def order(self) -> Dims:
        """All dimensions, in the order of roles."""
        return (*self.first, *self.second, *self.space)

    @property
    def sizes(self) -> Dims:
        """Sizes of batch and channels, and at least two spatial sizes."""
        shape = self.view.shape
        space = [shape[d] for d in self.space]
        return (
            prod(shape[d] for d in self.first),
            prod(shape[d] for d in self.second),
            *padded_dims(space, 1),
        )

    def is_packed(self, channels_last: bool) -> bool:
        """Whether the array is packed, with channels last or first."""
        expected = packed_strides(self.sizes, channels_last)
        dims_by_role = (self.first, self.second, *padded_dims([(d,) for d in self.space], ()))
        for dims, size, packed_stride in zip(dims_by_role, self.sizes, expected, strict=True):
            stride = dense_stride(
                [self.view.shape[d] for d in dims], [_stride(self.view, d) for d in dims]
            )
            if size > 1 and stride != packed_stride:
                return False
        return True

    def permuted(self, channels_last: bool) -> View:
        """The view with dimensions in packed order; the offset is dropped."""
        channels_last_order = (*self.first, *self.space, *self.second)
        order = channels_last_order if channels_last else self.order
        view = self.view
        strides = tuple(_stride(view, d) for d in order)
        return View(tuple(view.shape[d] for d in order), strides)

    @property
    def with_taps_reversed(self) -> ConvolutionArray:
        """The array with its spatial dimensions reversed, by negative strides."""
        strides, offset = list(self.view.strides), self.view.offset
        for d in self.space:
            if not (self.view.broadcast and self.view.broadcast[d]):
                offset += (self.view.shape[d] - 1) * strides[d]
                strides[d] = -strides[d]
        view = self.view._replace(strides=tuple(strides), offset=offset)
        return ConvolutionArray(view, self.first, self.second, self.space)


def unpacked(w: ConvolutionArray, channels_last: bool) -> View:
    """The view of a packed array of this shape, in the order of ``w``'s dimensions."""
    order = (*w.first, *w.space, *w.second) if channels_last else w.order
    shape = w.view.shape
    strides = contiguous([shape[d] for d in order]).strides
    by_dim = dict(zip(order, strides, strict=True))
    return View(shape, tuple(by_dim[d] for d in range(len(shape))))


def _stride(view: View, d: int) -> int:
    """The stride of a dimension; 0 if it is broadcast."""
    return 0 if view.broadcast and view.broadcast[d] else view.strides[d]


def padded_dims(values: list[T], filling: T) -> list[T]:
    """Pad a list of spatial values on the left to ``_MIN_SPATIAL_DIMS``."""
    return [filling] * (_MIN_SPATIAL_DIMS - len(values)) + values


def unmirrored(view: View, space: Dims) -> tuple[View, set[int]]:
    """The view with spatial strides made positive, and the set of their original signs.

    Dimensions of size 1 do not count; the set is {1}, {-1}, both, or empty.
    """
    strides, offset, signs = list(view.strides), view.offset, set()
    for d in space:
        if view.shape[d] > 1:
            signs.add(-1 if strides[d] < 0 else 1)
        if strides[d] < 0:
            offset += (view.shape[d] - 1) * strides[d]
            strides[d] = -strides[d]
    return view._replace(strides=tuple(strides), offset=offset), signs
