"""One array of a convolution by role, how it is packed, and which way its taps are counted."""

from __future__ import annotations

from math import prod
from typing import TypeVar

from gpuflow.base.records import record
from gpuflow.core.views import View, contiguous
from gpuflow.targets.cuda.library.dnn.calls import Dims, packed_strides
from gpuflow.targets.layouts.convolution_axes import dense_stride

_FEWEST_SPACE = 2  # dimensions of space that libraries want
T = TypeVar("T")


@record
class Side:
    """One array of a convolution, in three roles.

    Attributes:
        view: its layout.
        first: dimensions of the batch, of a filter the outputs.
        second: of the channels, outermost first.
        space: those that slide.
    """

    view: View
    first: Dims
    second: Dims
    space: Dims

    @property
    def order(self) -> Dims:
        """All dimensions."""
        return (*self.first, *self.second, *self.space)

    @property
    def sizes(self) -> Dims:
        """Batch, channels, and space, of which there are enough."""
        shape = self.view.shape
        space = [shape[d] for d in self.space]
        return (
            prod(shape[d] for d in self.first), prod(shape[d] for d in self.second),
            *filled(space, 1),
        )  # fmt: skip

    def lies_packed(self, channels_last: bool) -> bool:
        """Whether the elements are packed so."""
        wanted = packed_strides(self.sizes, channels_last)
        roles = (self.first, self.second, *filled([(d,) for d in self.space], ()))
        for dims, size, stride in zip(roles, self.sizes, wanted, strict=True):
            axis = dense_stride(
                [self.view.shape[d] for d in dims], [_stride(self.view, d) for d in dims]
            )
            if size > 1 and axis != stride:
                return False
        return True

    def permuted(self, channels_last: bool) -> View:
        """The view from its first element on, with dimensions in the order of packed ones."""
        last = (*self.first, *self.space, *self.second)
        order = last if channels_last else self.order
        view = self.view
        strides = tuple(_stride(view, d) for d in order)
        return View(tuple(view.shape[d] for d in order), strides)

    @property
    def reversed(self) -> Side:
        """The side with its space counted from the other end."""
        strides, offset = list(self.view.strides), self.view.offset
        for d in self.space:
            if not (self.view.broadcast and self.view.broadcast[d]):
                offset += (self.view.shape[d] - 1) * strides[d]
                strides[d] = -strides[d]
        view = self.view._replace(strides=tuple(strides), offset=offset)
        return Side(view, self.first, self.second, self.space)


def unpacked(w: Side, channels_last: bool) -> View:
    """The result's elements, in its own order, where they are packed."""
    order = (*w.first, *w.space, *w.second) if channels_last else w.order
    shape = w.view.shape
    strides = contiguous([shape[d] for d in order]).strides
    by_dim = dict(zip(order, strides, strict=True))
    return View(shape, tuple(by_dim[d] for d in range(len(shape))))


def _stride(view: View, d: int) -> int:
    return 0 if view.broadcast and view.broadcast[d] else view.strides[d]


def filled(values: list[T], filling: T) -> list[T]:
    """As many dimensions of space as libraries want; those in front have one element."""
    return [filling] * (_FEWEST_SPACE - len(values)) + values


def unmirrored(view: View, space: Dims) -> tuple[View, set[int]]:
    """The view with taps counted forwards, and which ways they were counted."""
    strides, offset, signs = list(view.strides), view.offset, set()
    for d in space:
        if view.shape[d] > 1:
            signs.add(-1 if strides[d] < 0 else 1)
        if strides[d] < 0:
            offset += (view.shape[d] - 1) * strides[d]
            strides[d] = -strides[d]
    return view._replace(strides=tuple(strides), offset=offset), signs
