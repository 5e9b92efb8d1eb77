"""Convolutions by a library: which of its calls is the same sum, and what is copied for it.

A library tells a convolution from its two gradients; here all are convolutions of arrays in other
roles. So each of the three is tried on the sizes and on how the arrays lie:

    forward   out = y of x = left and w = right
    data      out = x of y = left, whose holes are strides, and w = right, which is mirrored
    filter    out = w of x = left and y = right, whose gaps are strides

x and y must be packed, with channels first or last; w, which is small, is copied where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Convolution
from gpuflow.core.views import View, contiguous
from gpuflow.targets.cuda.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    ChosenConvolution,
    ConvolutionCall,
    Convolutions,
    Dims,
)
from gpuflow.targets.cuda.dnn.cudnn import TYPES
from gpuflow.targets.cuda.providers.convolution_sides import Side, filled, unmirrored, unpacked
from gpuflow.targets.cuda.providers.launch_sequence import At, Schedule, collapsed
from gpuflow.targets.layouts.convolution_axes import MOST_SPACE

_LONGEST = (1 << 31) - 1  # elements of an array
_ALIGNED = 16  # bytes
_MOST_COPIED_DIMS = 4


@record
class LibraryPlan:
    """How a library makes a convolution.

    Attributes:
        chosen: its call.
        offsets: where both operands begin, in elements of their buffers.
        copied: the view of the right operand that is packed for it; None: it lies as it must.
        out_copied: how the result's elements lie where the library writes them, if it does not
            write them to the result.
    """

    chosen: ChosenConvolution
    offsets: tuple[int, int]
    copied: View | None
    out_copied: View | None


def planned(
    what: Convolution, views: Sequence[View], dtype: np.dtype, out: ShapedArray,
    library: Convolutions, deterministic: bool,
) -> LibraryPlan | None:  # fmt: skip
    """How a library makes a convolution; None: it does not take it.

    Args:
        what: what to do.
        views, dtype: how both operands lie, and their dtype.
        out: the result.
        library: whom to ask.
        deterministic: results must have the same bits in every run.
    """
    shapes = [view.shape for view in views] + [out.shape]
    if dtype not in TYPES or out.dtype != dtype or len(what.strides) > MOST_SPACE:
        return None
    if any(not 0 < prod(shape) <= _LONGEST for shape in shapes):
        return None
    for call, offsets, copied, out_copied in _candidates(what, views, dtype, out.shape):
        places = [offsets[0], 0 if copied is not None else offsets[1]]
        if any(place * dtype.itemsize % _ALIGNED for place in places):
            continue
        copies = [view for view in (copied, out_copied) if view is not None]
        if any(len(collapsed(view)) > _MOST_COPIED_DIMS for view in copies):
            continue
        chosen = library.choose(call, deterministic)
        if chosen is not None:
            return LibraryPlan(chosen, offsets, copied, out_copied)
    return None


def add_planned(
    schedule: Schedule, plan: LibraryPlan, places: Sequence[At], out: At, shape: Dims
) -> None:
    """Add the call, and copies around it.

    Args:
        schedule: to which.
        plan: of ``planned``.
        places: where both operands' buffers begin.
        out: where the result does, row-major.
        shape: of the result.
    """
    dtype = plan.chosen.call.dtype
    left, right = (
        place.plus(offset * dtype.itemsize)
        for place, offset in zip(places, plan.offsets, strict=True)
    )
    if plan.copied is not None:
        packed = schedule.memory(prod(plan.copied.shape) * dtype.itemsize)
        schedule.copy(right, packed, plan.copied, dtype)
        right = packed
    written = out
    if plan.out_copied is not None:
        written = schedule.memory(prod(shape) * dtype.itemsize)
    workspace = schedule.memory(plan.chosen.workspace_bytes)
    schedule.call(plan.chosen, (left, right, written, workspace))
    if plan.out_copied is not None:
        schedule.copy(written, out, plan.out_copied, dtype)


# --- which call ----------------------------------------------------------------------------

_Candidate = tuple[ConvolutionCall, tuple[int, int], View | None, View | None]


def _candidates(
    what: Convolution, views: Sequence[View], dtype: np.dtype, out: Dims
) -> list[_Candidate]:
    """Calls that make the same sums, the likeliest first, with offsets and copies."""
    left, right = views
    right, signs = unmirrored(right, what.right[3])
    if len(signs) > 1:
        return []
    is_mirrored = signs == {-1}
    offsets = (left.offset, right.offset)
    found = [
        make(what, left, right, contiguous(out), is_mirrored)
        for make in (_forward, _data, _filter)
    ]
    possible = [one for one in found if one is not None]
    # A sum over more taps than there are places is a filter's.
    long = prod(views[1].shape[d] for d in what.right[3]) > prod(out[d] for d in what.out[3])
    candidates: list[tuple[tuple[bool, ...], _Candidate]] = []
    for (call, x, w, y), last in ((one, last) for one in possible for last in (False, True)):
        if not x.lies_packed(last) or not y.lies_packed(last):
            continue
        call = replace(call, channels_last=last, dtype=dtype, reduced=what.reduced)
        is_filter, is_packed = call.kind == FILTER, w.lies_packed(last)
        copied = None if is_packed or is_filter else w.permuted(last)
        out_copied = unpacked(w, last) if is_filter and not is_packed else None
        rank = (is_filter is not long, not is_packed, call.mirrored)
        candidates.append((rank, (call, offsets, copied, out_copied)))
    return [one for _, one in sorted(candidates, key=lambda pair: pair[0])]


_Form = tuple[ConvolutionCall, Side, Side, Side]
_NO_DTYPE = np.dtype(np.void)


def _forward(
    what: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Form | None:
    if any(hole != 1 for hole in what.left_dilation):
        return None
    (batch, free, depth, space), (batch2, free2, depth2, space2) = what.left, what.right
    x = Side(left, free, (*batch, *depth), space)
    w = Side(right, (*batch2, *free2), depth2, space2)
    y = Side(out, what.out[1], (*what.out[0], *what.out[2]), what.out[3])
    padding = [low for low, _ in what.padding]
    return _form(FORWARD, (x, w, y), padding, what.strides, what.right_dilation, is_mirrored)


def _data(
    what: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Form | None:
    if any(stride != 1 for stride in what.strides):
        return None
    (batch, free, depth, space), (batch2, free2, depth2, space2) = what.left, what.right
    y = Side(left, free, (*batch, *depth), space)
    w = Side(right, (*batch2, *depth2), free2, space2)
    x = Side(out, what.out[1], (*what.out[0], *what.out[2]), what.out[3])
    # out[i] reads left[o] and tap t where i + t gap - low = o hole; t counts from the other end.
    padding = [
        (right.shape[d] - 1) * gap - low
        for d, gap, (low, _) in zip(space2, what.right_dilation, what.padding, strict=True)
    ]
    strides, gaps = what.left_dilation, what.right_dilation
    has_taps = any(right.shape[d] > 1 for d in space2)
    return _form(DATA, (x, w, y), padding, strides, gaps, has_taps and not is_mirrored)


def _filter(
    what: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Form | None:
    if is_mirrored or any(hole != 1 for hole in what.left_dilation):
        return None
    (batch, free, depth, space), (batch2, free2, depth2, space2) = what.left, what.right
    x = Side(left, depth, (*batch, *free), space)
    y = Side(right, depth2, (*batch2, *free2), space2)
    w = Side(out, (*what.out[0], *what.out[2]), what.out[1], what.out[3])
    padding = [low for low, _ in what.padding]
    return _form(FILTER, (x, w, y), padding, what.right_dilation, what.strides, False)


def _form(
    kind: str, sides: tuple[Side, Side, Side], padding: Sequence[int],
    strides: Sequence[int], dilation: Sequence[int], mirrored: bool,
) -> _Form | None:  # fmt: skip
    """The call, not yet packed; None where its sizes are not those of the library's formula."""
    x, w, y = sides
    pads, steps, gaps = (
        tuple(filled(list(values), filling))
        for values, filling in ((padding, 0), (strides, 1), (dilation, 1))
    )
    room = zip(x.sizes[2:], w.sizes[2:], y.sizes[2:], pads, steps, gaps, strict=True)
    for size, taps, places, pad, step, gap in room:
        rest = size + 2 * pad - (taps - 1) * gap - 1
        if pad < 0 or rest < 0 or rest // step + 1 != places:
            return None
    groups = x.sizes[1] // w.sizes[1]
    call = ConvolutionCall(
        kind, x.sizes, w.sizes, y.sizes, False, pads, steps, gaps, groups, mirrored, _NO_DTYPE,
        False,
    )  # fmt: skip
    return call, x, w, y
