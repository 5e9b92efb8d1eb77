"""Convolutions by a library: the equivalent library call, and the required copies.

A library distinguishes a convolution from its two gradients; in gpuflow all are convolutions of
arrays in other roles. So each of the three is tried on the sizes and on the layouts of the arrays:

    forward   out = y of x = left and w = right
    data      out = x of y = left, whose holes are strides, and w = right, which is mirrored
    filter    out = w of x = left and y = right, whose gaps are strides

x and y must be packed, with channels first or last; w, which is small, is copied where it is not.
Where both sides of x need other margins, x is a copy with margins: see convolution_margins.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View, contiguous, transpose
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
from gpuflow.targets.cuda.providers.convolution_margins import (
    Margins,
    add_margins,
    are_cheap,
    cut_margins,
)
from gpuflow.targets.cuda.providers.convolution_sides import Side, filled, unmirrored, unpacked
from gpuflow.targets.cuda.providers.convolutions import add_convolution
from gpuflow.targets.cuda.providers.copy_forms import MOST_DIMS, collapsed
from gpuflow.targets.cuda.providers.launch_sequence import NOT_IN_USE, At, Schedule
from gpuflow.targets.layouts.convolution_axes import MOST_SPACE

_LONGEST = (1 << 31) - 1  # elements of an array
_ALIGNED = 16  # bytes


@record
class LibraryPlan:
    """How a library makes a convolution.

    Attributes:
        chosen: its call.
        offsets: where both operands begin, in elements of their buffers.
        copied: the view of the right operand that is packed for it; None: its layout is supported.
        out_copied: the layout of the library's result, if it does not write to the result.
        margins: of x, which is a copy with them, or without them if it is the result; None: x is
            the array itself.
    """

    chosen: ChosenConvolution
    offsets: tuple[int, int]
    copied: View | None
    out_copied: View | None
    margins: Margins | None


def planned(
    what: Convolution, views: Sequence[View], dtype: np.dtype, out: ShapedArray,
    library: Convolutions, deterministic: bool,
) -> LibraryPlan | None:  # fmt: skip
    """How a library makes a convolution; None: it does not take it.

    Args:
        what: the operation.
        views, dtype: layouts of both operands, and their dtype.
        out: the result.
        library: whom to ask.
        deterministic: results must have the same bits in every run.
    """
    shapes = [view.shape for view in views] + [out.shape]
    if dtype not in TYPES or out.dtype != dtype or len(what.strides) > MOST_SPACE:
        return None
    if any(not 0 < prod(shape) <= _LONGEST for shape in shapes):
        return None
    for call, offsets, copied, out_copied, margins in _candidates(what, views, dtype, out.shape):
        if margins is not None and (prod(call.x) > _LONGEST or not are_cheap(call)):
            continue
        is_left_copied = margins is not None and call.kind != DATA
        places = [
            0 if is_copied else offset
            for offset, is_copied in zip(offsets, (is_left_copied, copied is not None), strict=True)
        ]
        if any(place * dtype.itemsize % _ALIGNED for place in places):
            continue
        copies = [view for view in (copied, out_copied) if view is not None]
        if any(len(collapsed(view)) > MOST_DIMS for view in copies):
            continue
        chosen = library.choose(call, deterministic)
        if chosen is not None:
            return LibraryPlan(chosen, offsets, copied, out_copied, margins)
    return None


def add_planned(
    schedule: Schedule, plan: LibraryPlan, places: Sequence[At], out: At, shape: Dims,
    add_plain: Callable[[Schedule], object],
) -> None:  # fmt: skip
    """Add the call, and copies around it.

    Args:
        schedule: to which.
        plan: of ``planned``.
        places: locations of both operands' buffers.
        out: where the result does, row-major.
        shape: of the result.
        add_plain: adds the convolution by launches of ours, which take arrays at any locations.
    """
    call, margins = plan.chosen.call, plan.margins
    dtype, image_bytes = call.dtype, prod(call.x) * call.dtype.itemsize
    left, right = (
        place.plus(offset * dtype.itemsize)
        for place, offset in zip(places, plan.offsets, strict=True)
    )
    if plan.copied is not None:
        packed = schedule.memory(prod(plan.copied.shape) * dtype.itemsize)
        schedule.copy(right, packed, plan.copied, dtype)
        right = packed
    written = out
    if margins is not None and call.kind == DATA:
        written = schedule.memory(image_bytes)
    elif margins is not None:
        image = schedule.memory(image_bytes)
        add_margins(schedule, left, image, call, margins)
        left = image
    if plan.out_copied is not None:
        written = schedule.memory(prod(shape) * dtype.itemsize)
    plain = schedule.instead()
    add_plain(plain)
    if plain.launches and plan.out_copied is not None:
        plain.copy(out, written, _inverse(plan.out_copied), dtype)  # it is copied back below
    if plain.launches and margins is not None and call.kind == DATA:
        add_margins(plain, out, written, call, margins)
    schedule.call(plan.chosen, (left, right, written), plain)
    if plan.out_copied is not None:
        schedule.copy(written, out, plan.out_copied, dtype)
    if margins is not None and call.kind == DATA:
        cut_margins(schedule, written, out, call, margins)


def _inverse(packed: View) -> View:
    """How row-major elements are read in the order in which a packed view has them."""
    order = sorted(range(len(packed.shape)), key=lambda d: -packed.strides[d])
    return transpose(contiguous(packed.shape), order)


# --- which call ----------------------------------------------------------------------------

_Candidate = tuple[ConvolutionCall, tuple[int, int], View | None, View | None, Margins | None]


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
    possible = [form for form in found if form is not None]
    # A sum over more taps than there are places is a filter's.
    long = prod(views[1].shape[d] for d in what.right[3]) > prod(out[d] for d in what.out[3])
    candidates: list[tuple[tuple[bool, ...], _Candidate]] = []
    for one, last in product(possible, (False, True)):
        call, x, w, y, margins = one
        if not x.lies_packed(last) or not y.lies_packed(last):
            continue
        call = replace(call, channels_last=last, dtype=dtype, reduced=what.reduced)
        is_filter, is_packed = call.kind == FILTER, w.lies_packed(last)
        copied = None if is_packed or is_filter else w.permuted(last)
        out_copied = unpacked(w, last) if is_filter and not is_packed else None
        rank = (is_filter is not long, margins is not None, not is_packed, call.mirrored)
        candidates.append((rank, (call, offsets, copied, out_copied, margins)))
    return [one for _, one in sorted(candidates, key=lambda pair: pair[0])]


_Form = tuple[ConvolutionCall, Side, Side, Side, Margins | None]
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
) -> _Form:  # fmt: skip
    """The call, not yet packed, with margins where its sizes are not those of the formula."""
    x, w, y = sides
    low, steps, gaps = (
        tuple(filled(list(values), filling))
        for values, filling in ((padding, 0), (strides, 1), (dilation, 1))
    )
    pads, image, shifts = list(low), list(x.sizes[2:]), [0] * len(low)
    room = zip(x.sizes[2:], w.sizes[2:], y.sizes[2:], low, steps, gaps, strict=True)
    for d, (size, taps, places, pad, step, gap) in enumerate(room):
        reach = (taps - 1) * gap + 1
        rest = size + 2 * pad - reach
        if pad < 0 or rest < 0 or rest // step + 1 != places:
            image[d], pads[d], shifts[d] = (places - 1) * step + reach, 0, pad
    margins = None
    if pads != list(low) or image != list(x.sizes[2:]):
        margins = Margins(x.sizes[2:], tuple(image), tuple(shifts))
    groups = x.sizes[1] // w.sizes[1]
    call = ConvolutionCall(
        kind, (*x.sizes[:2], *image), w.sizes, y.sizes, False, tuple(pads), steps, gaps, groups,
        mirrored, _NO_DTYPE, False,
    )  # fmt: skip
    return call, x, w, y, margins


# --- the provider --------------------------------------------------------------------------


def plan_of(block: Convolution, step: CallStep, target: Any) -> LibraryPlan | None:
    """How the library of a target makes a call; None: there is none, or it does not take it."""
    if target.convolutions is None:
        return None
    return _plan_by(target.convolutions, block, step, not target.atomic_sums)


def _plan_by(
    library: Convolutions, block: Convolution, step: CallStep, deterministic: bool
) -> LibraryPlan | None:
    left, right = step.operands
    if left.aval.dtype != right.aval.dtype:
        return None
    return planned(
        block, [left.lies, right.lies], left.aval.dtype, step.eqn.outputs[0].aval, library,
        deterministic,
    )  # fmt: skip


def _choose(block: Convolution, step: CallStep, target: Any) -> Schedule | None:
    plan = plan_of(block, step, target)
    if plan is None:
        return None
    schedule = Schedule(3)
    places, out = [At(0), At(1)], step.eqn.outputs[0].aval
    views, kinds = zip(*[(x.lies, x.aval.dtype) for x in step.operands], strict=True)
    add_planned(
        schedule, plan, places, At(2), out.shape,
        lambda plain: add_convolution(plain, block, places, views, kinds, (At(2), out)),
    )  # fmt: skip
    return schedule


@record
class _Asking:
    """A library that supports nothing, and records the requests."""

    calls: list[ConvolutionCall]

    def choose(self, call: ConvolutionCall, deterministic: bool) -> None:
        del deterministic
        self.calls.append(call)


def _why_not(block: Convolution, step: CallStep, target: Any) -> str:
    if target.convolutions is None:
        return NOT_IN_USE
    asking: Any = _Asking([])
    _plan_by(asking, block, step, not target.atomic_sums)
    if not asking.calls:
        return "it has no such dtypes, layout or padding, or copies would cost too much"
    reason: str = target.convolutions.why_not(asking.calls[0], not target.atomic_sums)
    return reason


PROVIDER = Provider("cuDNN", _choose, _why_not, lambda target: target.convolutions.version())
