"""Provider of convolutions by cuDNN: finds an equivalent call, and the copies that it requires.

cuDNN distinguishes a convolution (y of x and w) from its gradients. In gpuflow, all three are
convolutions whose arrays have other roles. So sizes and layouts are matched with each:

    forward   out = y of x = left and w = right
    data      out = x of y = left, with lhs dilation as strides, and w = right, reversed
    filter    out = w of x = left and y = right, with rhs dilation as strides

x and y must be packed, with channels first or last. w is small, and is copied if it is not packed
or its taps are reversed.
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
from gpuflow.targets.cuda.library.convolution_sides import Side, padded_dims, unmirrored, unpacked
from gpuflow.targets.cuda.library.convolutions import add_convolution
from gpuflow.targets.cuda.library.copy_forms import MOST_DIMS, collapsed
from gpuflow.targets.cuda.library.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    ConvolutionCall,
    DeepLibrary,
    Dims,
    PlannedCall,
)
from gpuflow.targets.cuda.library.dnn.frontend import TYPES
from gpuflow.targets.cuda.library.launch_sequence import NOT_IN_USE, At, LaunchSequence
from gpuflow.targets.layouts.convolution_axes import MOST_SPACE

_LONGEST = (1 << 31) - 1  # most elements of an array
_ALIGNED = 16  # bytes that addresses must be multiples of


@record
class LibraryPlan:
    """An equivalent call of cuDNN for a convolution, with copies around it.

    Attributes:
        call: the call.
        chosen: the library's plan for it.
        offsets: offsets of left and right operand in elements of their buffers.
        copied: the view of the right operand to pack first; None: no copy.
        out_copied: the layout of the library's result to copy to the output; None: cuDNN writes the
            output directly.
    """

    call: ConvolutionCall
    chosen: PlannedCall
    offsets: tuple[int, int]
    copied: View | None
    out_copied: View | None


def planned(
    what: Convolution,
    views: Sequence[View],
    dtype: np.dtype,
    out: ShapedArray,
    library: DeepLibrary,
    deterministic: bool,
) -> LibraryPlan | None:
    """Find an equivalent call with a plan; None if the library has none.

    Args:
        what: the operation.
        views, dtype: layouts and dtype of both operands.
        out: the result, row-major.
        library: the library.
        deterministic: whether results must have the same bits in every run.
    """
    shapes = [view.shape for view in views] + [out.shape]
    if dtype not in TYPES or out.dtype != dtype or len(what.strides) > MOST_SPACE:
        return None
    if any(not 0 < prod(shape) <= _LONGEST for shape in shapes):
        return None
    for call, offsets, copied, out_copied in _candidates(what, views, dtype, out.shape):
        aligned_offsets = offsets[:1] if copied is not None else offsets
        if any(offset * dtype.itemsize % _ALIGNED for offset in aligned_offsets):
            continue
        copies = [view for view in (copied, out_copied) if view is not None]
        if any(len(collapsed(view)) > MOST_DIMS for view in copies):
            continue
        chosen = library.choose(call, deterministic)
        if chosen is not None:
            return LibraryPlan(call, chosen, offsets, copied, out_copied)
    return None


def add_planned(
    sequence: LaunchSequence,
    plan: LibraryPlan,
    locations: Sequence[At],
    out: At,
    shape: Dims,
    add_plain: Callable[[LaunchSequence], object],
) -> None:
    """Add the call, and copies around it.

    Args:
        sequence: receives the launches.
        plan: from ``planned``.
        locations: locations of both operands' buffers.
        out: location of the result, row-major.
        shape: shape of the result.
        add_plain: adds launches of our kernels for the convolution, for unaligned arrays.
    """
    dtype = plan.call.dtype
    left, right = (
        location.plus(offset * dtype.itemsize)
        for location, offset in zip(locations, plan.offsets, strict=True)
    )
    if plan.copied is not None:
        packed = sequence.memory(prod(plan.copied.shape) * dtype.itemsize)
        sequence.copy(right, packed, plan.copied, dtype)
        right = packed
    written = out
    if plan.out_copied is not None:
        written = sequence.memory(prod(shape) * dtype.itemsize)
    plain = sequence.instead()
    add_plain(plain)
    if plain.launches and plan.out_copied is not None:
        plain.copy(out, written, _inverse(plan.out_copied), dtype)  # it is copied back below
    sequence.call(plan.chosen, (left, right, written), plain)
    if plan.out_copied is not None:
        sequence.copy(written, out, plan.out_copied, dtype)


def _inverse(packed: View) -> View:
    """The view of row-major elements in the memory order of a packed view."""
    order = sorted(range(len(packed.shape)), key=lambda d: -packed.strides[d])
    return transpose(contiguous(packed.shape), order)


# --- candidate calls -----------------------------------------------------------------------

_Candidate = tuple[ConvolutionCall, tuple[int, int], View | None, View | None]


def _candidates(
    what: Convolution, views: Sequence[View], dtype: np.dtype, out: Dims
) -> list[_Candidate]:
    """Equivalent calls with offsets and copies, the likely cheapest first."""
    left, right = views
    right, signs = unmirrored(right, what.right[3])
    if len(signs) > 1:
        return []
    is_mirrored = signs == {-1}
    matches = [
        make(what, left, right, contiguous(out), is_mirrored) for make in (_forward, _data, _filter)
    ]
    possible = [match for match in matches if match is not None]
    # With more taps than positions, it is likely a filter gradient, which ranks first.
    long = prod(views[1].shape[d] for d in what.right[3]) > prod(out[d] for d in what.out[3])
    candidates: list[tuple[tuple[bool, ...], _Candidate]] = []
    for one, last in product(possible, (False, True)):
        call, x, w, y, is_reversed = one
        if not x.is_packed(last) or not y.is_packed(last):
            continue
        call = replace(call, channels_last=last, dtype=dtype, reduced=what.reduced)
        w = w.reversed if is_reversed else w
        is_filter, is_packed = call.kind == FILTER, w.is_packed(last)
        copied = None if is_packed or is_filter else w.permuted(last)
        out_copied = unpacked(w, last) if is_filter and not is_packed else None
        rank = (is_filter is not long, not is_packed, is_reversed)
        offsets = (left.offset, right.offset if is_filter else w.view.offset)
        candidates.append((rank, (call, offsets, copied, out_copied)))
    return [one for _, one in sorted(candidates, key=lambda pair: pair[0])]


# A call without packing, its x, w and y, and whether the taps of w must be reversed.
_Call = tuple[ConvolutionCall, Side, Side, Side, bool]
_NO_DTYPE = np.dtype(np.void)


def _forward(
    what: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Call | None:
    if any(hole != 1 for hole in what.left_dilation):
        return None
    (batch, free, depth, space), (batch2, free2, depth2, space2) = what.left, what.right
    x = Side(left, free, (*batch, *depth), space)
    w = Side(right, (*batch2, *free2), depth2, space2)
    y = Side(out, what.out[1], (*what.out[0], *what.out[2]), what.out[3])
    padding = [low for low, _ in what.padding]
    return _match(FORWARD, (x, w, y), padding, what.strides, what.right_dilation, is_mirrored)


def _data(what: Convolution, left: View, right: View, out: View, is_mirrored: bool) -> _Call | None:
    if any(stride != 1 for stride in what.strides):
        return None
    (batch, free, depth, space), (batch2, free2, depth2, space2) = what.left, what.right
    y = Side(left, free, (*batch, *depth), space)
    w = Side(right, (*batch2, *depth2), free2, space2)
    x = Side(out, what.out[1], (*what.out[0], *what.out[2]), what.out[3])
    # out[i] reads left[o] and tap t if i + t gap - low = o hole. Taps of cuDNN's w are reversed, so
    # its padding counts from the other end.
    padding = [
        (right.shape[d] - 1) * gap - low
        for d, gap, (low, _) in zip(space2, what.right_dilation, what.padding, strict=True)
    ]
    strides, gaps = what.left_dilation, what.right_dilation
    has_taps = any(right.shape[d] > 1 for d in space2)
    return _match(DATA, (x, w, y), padding, strides, gaps, has_taps and not is_mirrored)


def _filter(
    what: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Call | None:
    if is_mirrored or any(hole != 1 for hole in what.left_dilation):
        return None
    (batch, free, depth, space), (batch2, free2, depth2, space2) = what.left, what.right
    x = Side(left, depth, (*batch, *free), space)
    y = Side(right, depth2, (*batch2, *free2), space2)
    w = Side(out, (*what.out[0], *what.out[2]), what.out[1], what.out[3])
    padding = [low for low, _ in what.padding]
    return _match(FILTER, (x, w, y), padding, what.right_dilation, what.strides, False)


def _match(
    kind: str,
    sides: tuple[Side, Side, Side],
    padding: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    is_reversed: bool,
) -> _Call | None:
    """The call, without its packing; None if padding would have to be negative."""
    x, w, y = sides
    low, steps, gaps = (
        tuple(padded_dims(list(values), filling))
        for values, filling in ((padding, 0), (strides, 1), (dilation, 1))
    )
    pads: list[tuple[int, int]] = []
    for size, taps, positions, pad, step, gap in zip(
        x.sizes[2:], w.sizes[2:], y.sizes[2:], low, steps, gaps, strict=True
    ):
        # The high padding that gives these positions; up to a step of x may remain unread.
        high = (positions - 1) * step + (taps - 1) * gap + 1 - size - pad
        if pad < 0 or high <= -step:
            return None
        pads.append((pad, max(high, 0)))
    groups = x.sizes[1] // w.sizes[1]
    call = ConvolutionCall(
        kind, x.sizes, w.sizes, y.sizes, False, tuple(pads), steps, gaps, groups, _NO_DTYPE, False
    )
    return call, x, w, y, is_reversed


# --- the provider --------------------------------------------------------------------------


def plan_of(block: Convolution, step: CallStep, target: Any) -> LibraryPlan | None:
    """The plan of a call by the target's library; None if it has none, or there is no library."""
    if target.deep_library is None:
        return None
    return _plan_by(target.deep_library, block, step, not target.atomic_sums)


def _plan_by(
    library: DeepLibrary, block: Convolution, step: CallStep, deterministic: bool
) -> LibraryPlan | None:
    left, right = step.operands
    if left.aval.dtype != right.aval.dtype:
        return None
    return planned(
        block,
        [left.layout, right.layout],
        left.aval.dtype,
        step.eqn.outputs[0].aval,
        library,
        deterministic,
    )


def _choose(block: Convolution, step: CallStep, target: Any) -> LaunchSequence | None:
    plan = plan_of(block, step, target)
    if plan is None:
        return None
    sequence = LaunchSequence(3)
    locations, out = [At(0), At(1)], step.eqn.outputs[0].aval
    views, kinds = zip(*[(x.layout, x.aval.dtype) for x in step.operands], strict=True)
    add_planned(
        sequence,
        plan,
        locations,
        At(2),
        out.shape,
        lambda plain: add_convolution(plain, block, locations, views, kinds, (At(2), out)),
    )
    return sequence


@record
class _RecordedRequests:
    """A ``DeepLibrary`` that supports nothing and records requests, to explain refusals."""

    calls: list[ConvolutionCall]

    def choose(self, call: ConvolutionCall, deterministic: bool) -> None:
        del deterministic
        self.calls.append(call)


def _why_not(block: Convolution, step: CallStep, target: Any) -> str:
    if target.deep_library is None:
        return NOT_IN_USE
    requests: Any = _RecordedRequests([])
    _plan_by(requests, block, step, not target.atomic_sums)
    if not requests.calls:
        return "it has no such dtypes, layout, padding or alignment"
    reason: str = target.deep_library.why_not(requests.calls[0], not target.atomic_sums)
    return reason


PROVIDER = Provider("cuDNN", _choose, _why_not, lambda target: target.deep_library.version())
