"""Provider of convolutions by cuDNN: finds an equivalent call, and the copies that it requires.

cuDNN distinguishes a convolution (y of x and w) from its gradients. In gpuflow, all three are
convolutions whose arrays have other roles. So sizes and layouts are matched with each:

    forward   out = y of x = left and w = right
    data      out = x of y = left, with lhs dilation as strides, and w = right, reversed
    filter    out = w of x = left and y = right, with rhs dilation as strides

x and y must be packed, with channels first or last. w is small, and is copied if it is not packed
or its taps are reversed.

Tests: tests/targets/cuda/test_cudnn_plans.py, tests/targets/cuda/test_cudnn.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View, contiguous, transpose
from gpuflow.targets.cuda.library.convolution_arrays import (
    ConvolutionArray,
    padded_dims,
    unmirrored,
    unpacked,
)
from gpuflow.targets.cuda.library.convolutions import add_convolution
from gpuflow.targets.cuda.library.copy_launches import MAX_DIMS, collapsed
from gpuflow.targets.cuda.library.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    ConvolutionCall,
    Dims,
    DnnLibrary,
    PlannedCall,
)
from gpuflow.targets.cuda.library.dnn.frontend import DATA_TYPE_NAMES
from gpuflow.targets.cuda.library.launch_sequence import NOT_IN_USE, ArrayLocation, LaunchSequence
from gpuflow.targets.layouts.convolution_axes import MAX_SPATIAL_DIMENSIONS

_MAX_ELEMENTS = (1 << 31) - 1  # of an array, so that offsets fit into 32 bits
_ALIGNMENT_BYTES = 16  # addresses must be multiples of it


@record
class ConvolutionPlan:
    """A planned call of cuDNN that is equivalent to a convolution, and copies around it.

    Attributes:
        call: the call.
        planned_call: the same call, with the library's plan.
        offsets: first elements of left and right operand in their buffers; with ``right_copy``,
            the right one is that of the view to copy.
        right_copy: the view of the right operand to pack first; None: no copy.
        out_copy: the layout of the library's result to copy to the output; None: cuDNN writes the
            output directly.
    """

    call: ConvolutionCall
    planned_call: PlannedCall
    offsets: tuple[int, int]
    right_copy: View | None
    out_copy: View | None


def find_plan(
    convolution: Convolution,
    views: Sequence[View],
    dtype: np.dtype,
    out: ShapedArray,
    library: DnnLibrary,
    deterministic: bool,
) -> ConvolutionPlan | None:
    """Plan the likely cheapest equivalent call; None if the library supports none.

    Args:
        convolution: the operation.
        views, dtype: layouts and dtype of both operands.
        out: the result, row-major.
        library: the library.
        deterministic: whether results must have the same bits in every run.
    """
    shapes = [view.shape for view in views] + [out.shape]
    if (
        dtype not in DATA_TYPE_NAMES
        or out.dtype != dtype
        or len(convolution.strides) > MAX_SPATIAL_DIMENSIONS
    ):
        return None
    if any(not 0 < prod(shape) <= _MAX_ELEMENTS for shape in shapes):
        return None
    for call, offsets, right_copy, out_copy in _candidates(convolution, views, dtype, out.shape):
        # The copy of the right operand is aligned.
        aligned_offsets = offsets[:1] if right_copy is not None else offsets
        if any(offset * dtype.itemsize % _ALIGNMENT_BYTES for offset in aligned_offsets):
            continue
        copies = [view for view in (right_copy, out_copy) if view is not None]
        if any(len(collapsed(view)) > MAX_DIMS for view in copies):
            continue
        planned_call = library.plan_call(call, deterministic)
        if planned_call is not None:
            return ConvolutionPlan(call, planned_call, offsets, right_copy, out_copy)
    return None


def add_plan(
    sequence: LaunchSequence,
    plan: ConvolutionPlan,
    locations: Sequence[ArrayLocation],
    out: ArrayLocation,
    shape: Dims,
    add_unaligned: Callable[[LaunchSequence], object],
) -> None:
    """Add the call, and copies around it.

    Args:
        sequence: receives the launches.
        plan: from ``find_plan``.
        locations: locations of both operands' buffers; the plan's offsets are added.
        out: location of the result, row-major.
        shape: shape of the result.
        add_unaligned: adds launches of our kernels for the convolution, for unaligned arrays.
    """
    dtype = plan.call.dtype
    left, right = (
        location.plus(offset * dtype.itemsize)
        for location, offset in zip(locations, plan.offsets, strict=True)
    )
    if plan.right_copy is not None:
        packed = sequence.memory(prod(plan.right_copy.shape) * dtype.itemsize)
        sequence.copy(right, packed, plan.right_copy, dtype)
        right = packed
    library_out = out
    if plan.out_copy is not None:
        library_out = sequence.memory(prod(shape) * dtype.itemsize)
    unaligned = sequence.unaligned_sequence()
    add_unaligned(unaligned)
    if unaligned.launches and plan.out_copy is not None:
        # The copy below, which follows either, reads it in the order of the library's result.
        unaligned.copy(out, library_out, _inverse(plan.out_copy), dtype)
    sequence.call(plan.planned_call, (left, right, library_out), unaligned)
    if plan.out_copy is not None:
        sequence.copy(library_out, out, plan.out_copy, dtype)


def _inverse(packed: View) -> View:
    """The view of row-major elements in the memory order of a packed view."""
    order = sorted(range(len(packed.shape)), key=lambda d: -packed.strides[d])
    return transpose(contiguous(packed.shape), order)


# --- candidate calls -----------------------------------------------------------------------


class _Candidate(NamedTuple):
    """An equivalent call that cuDNN may not support; fields as in ``ConvolutionPlan``."""

    call: ConvolutionCall
    offsets: tuple[int, int]
    right_copy: View | None
    out_copy: View | None


class _Match(NamedTuple):
    """A convolution as a call of one kind, before its packing is known.

    Attributes:
        call: the call; packing, dtype and ``reduced`` are placeholders.
        x, w, y: its arrays, by the names of ``ConvolutionCall``.
        reverses_taps: whether the taps of w must be reversed.
    """

    call: ConvolutionCall
    x: ConvolutionArray
    w: ConvolutionArray
    y: ConvolutionArray
    reverses_taps: bool


_NO_DTYPE = np.dtype(np.void)


def _candidates(
    convolution: Convolution, views: Sequence[View], dtype: np.dtype, out: Dims
) -> list[_Candidate]:
    """Equivalent calls with offsets and copies, the likely cheapest first."""
    left, right = views
    right, signs = unmirrored(right, convolution.right[3])
    if len(signs) > 1:
        return []
    is_mirrored = signs == {-1}
    matches = [
        match_as(convolution, left, right, contiguous(out), is_mirrored)
        for match_as in (_forward, _data, _filter)
    ]
    possible = [match for match in matches if match is not None]
    taps = prod(right.shape[d] for d in convolution.right[3])
    positions = prod(out[d] for d in convolution.out[3])
    is_likely_filter = taps > positions  # then filter gradients rank first
    ranked: list[tuple[tuple[bool, ...], _Candidate]] = []
    for match, channels_last in product(possible, (False, True)):
        if not match.x.is_packed(channels_last) or not match.y.is_packed(channels_last):
            continue
        call = replace(
            match.call, channels_last=channels_last, dtype=dtype, reduced=convolution.reduced
        )
        w = match.w.with_taps_reversed if match.reverses_taps else match.w
        is_filter, is_packed = call.kind == FILTER, w.is_packed(channels_last)
        right_copy = None if is_packed or is_filter else w.permuted(channels_last)
        out_copy = unpacked(w, channels_last) if is_filter and not is_packed else None
        rank = (is_filter is not is_likely_filter, not is_packed, match.reverses_taps)
        offsets = (left.offset, right.offset if is_filter else w.view.offset)
        ranked.append((rank, _Candidate(call, offsets, right_copy, out_copy)))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])]


def _forward(
    convolution: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Match | None:
    """out = y of x = left and w = right; None if lhs is dilated.

    Here and below, ``is_mirrored`` says whether the taps of ``right`` were in reversed order.
    """
    if any(dilation != 1 for dilation in convolution.left_dilation):
        return None
    batch, free, depth, space = convolution.left
    right_batch, right_free, right_depth, right_space = convolution.right
    out_batch, out_rows, out_columns, out_space = convolution.out
    x = ConvolutionArray(left, free, (*batch, *depth), space)
    w = ConvolutionArray(right, (*right_batch, *right_free), right_depth, right_space)
    y = ConvolutionArray(out, out_rows, (*out_batch, *out_columns), out_space)
    padding = [low for low, _ in convolution.padding]
    return _match(
        FORWARD, (x, w, y), padding, convolution.strides, convolution.right_dilation, is_mirrored
    )


def _data(
    convolution: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Match | None:
    """out = x of y = left and w = right; None if windows have strides."""
    if any(stride != 1 for stride in convolution.strides):
        return None
    batch, free, depth, space = convolution.left
    right_batch, right_free, right_depth, right_space = convolution.right
    out_batch, out_rows, out_columns, out_space = convolution.out
    y = ConvolutionArray(left, free, (*batch, *depth), space)
    w = ConvolutionArray(right, (*right_batch, *right_depth), right_free, right_space)
    x = ConvolutionArray(out, out_rows, (*out_batch, *out_columns), out_space)
    # With rhs dilation g and lhs dilation h, out[i] reads left[o] and tap t if i + t g - low = o h.
    # Taps of cuDNN's w are reversed, so its padding counts from the other end.
    padding = [
        (right.shape[d] - 1) * gap - low
        for d, gap, (low, _) in zip(
            right_space, convolution.right_dilation, convolution.padding, strict=True
        )
    ]
    strides, gaps = convolution.left_dilation, convolution.right_dilation
    has_taps = any(right.shape[d] > 1 for d in right_space)
    return _match(DATA, (x, w, y), padding, strides, gaps, has_taps and not is_mirrored)


def _filter(
    convolution: Convolution, left: View, right: View, out: View, is_mirrored: bool
) -> _Match | None:
    """out = w of x = left and y = right; None if lhs is dilated or taps are reversed."""
    if is_mirrored or any(dilation != 1 for dilation in convolution.left_dilation):
        return None
    batch, free, depth, space = convolution.left
    right_batch, right_free, right_depth, right_space = convolution.right
    out_batch, out_rows, out_columns, out_space = convolution.out
    x = ConvolutionArray(left, depth, (*batch, *free), space)
    y = ConvolutionArray(right, right_depth, (*right_batch, *right_free), right_space)
    w = ConvolutionArray(out, (*out_batch, *out_columns), out_rows, out_space)
    padding = [low for low, _ in convolution.padding]
    return _match(
        FILTER, (x, w, y), padding, convolution.right_dilation, convolution.strides, False
    )


def _match(
    kind: str,
    arrays: tuple[ConvolutionArray, ConvolutionArray, ConvolutionArray],
    padding: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    reverses_taps: bool,
) -> _Match | None:
    """The call of a kind, without its packing; None if padding would have to be negative.

    Args:
        kind: FORWARD, DATA or FILTER.
        arrays: x, w and y.
        padding: low padding of x, per spatial dimension.
        strides, dilation: those of the call, per spatial dimension.
        reverses_taps: whether the taps of w must be reversed.
    """
    x, w, y = arrays
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
    return _Match(call, x, w, y, reverses_taps)


# --- the provider --------------------------------------------------------------------------


def plan_of(block: Convolution, step: CallStep, target: Any) -> ConvolutionPlan | None:
    """The plan of a call by the target's library; None if it has none, or there is no library."""
    if target.dnn_library is None:
        return None
    return _find_plan(target.dnn_library, block, step, not target.atomic_sums)


def _find_plan(
    library: DnnLibrary, block: Convolution, step: CallStep, deterministic: bool
) -> ConvolutionPlan | None:
    left, right = step.operands
    if left.aval.dtype != right.aval.dtype:
        return None
    return find_plan(
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
    locations, out = [ArrayLocation(0), ArrayLocation(1)], step.eqn.outputs[0].aval
    views, operand_dtypes = zip(*[(x.layout, x.aval.dtype) for x in step.operands], strict=True)
    add_plan(
        sequence,
        plan,
        locations,
        ArrayLocation(2),
        out.shape,
        lambda unaligned: add_convolution(
            unaligned, block, locations, views, operand_dtypes, (ArrayLocation(2), out)
        ),
    )
    return sequence


@record
class _RecordedRequests:
    """A ``DnnLibrary`` that supports nothing and records requests, to explain refusals."""

    calls: list[ConvolutionCall]

    def plan_call(self, call: ConvolutionCall, deterministic: bool) -> None:
        del deterministic
        self.calls.append(call)


def _why_not(block: Convolution, step: CallStep, target: Any) -> str:
    if target.dnn_library is None:
        return NOT_IN_USE
    requests: Any = _RecordedRequests([])
    _find_plan(requests, block, step, not target.atomic_sums)
    if not requests.calls:
        return "it has no such dtypes, layout, padding or alignment"
    reason: str = target.dnn_library.why_not(requests.calls[0], not target.atomic_sums)
    return reason


PROVIDER = Provider("cuDNN", _choose, _why_not, lambda target: target.dnn_library.version())
