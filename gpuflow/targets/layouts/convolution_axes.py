"""Canonical form of convolutions: collapsed axes, three spatial dimensions, no lhs dilation.

``as_problem`` collapses the dimensions of a call. ``phases`` removes lhs dilation, and
``split_positions`` divides a call whose packed matrix would have too few taps.

Tests: tests/targets/cpu/test_native_convolutions.py, tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View

Dims = tuple[int, ...]


class Axis(NamedTuple):
    """A dimension of a convolution: its size, and its strides in lhs, rhs and out, in elements.

    A stride is 0 if the array does not have the dimension.
    """

    size: int
    lhs: int
    rhs: int
    out: int


Axes = list[Axis]

MAX_SPATIAL_DIMENSIONS = 3  # spatial dimensions
# ``split_positions`` splits if fewer taps than this fit into the packed matrix, along a dimension
# of 2 to ``_MAX_SPLIT_POSITIONS`` positions.
_MIN_TAPS = 128
_MAX_SPLIT_POSITIONS = 8


@record
class Slide:
    """One spatial dimension, along which the kernel (rhs) slides over lhs.

    Attributes:
        size: elements of lhs.
        taps: elements of rhs.
        positions: elements of the result.
        lhs, rhs, out: strides of the three arrays along the dimension, in elements.
        stride: window stride.
        pad: low padding.
        lhs_dilation, rhs_dilation: dilations; rhs_dilation is negative if taps are mirrored.
    """

    size: int
    taps: int
    positions: int
    lhs: int
    rhs: int
    out: int
    stride: int
    pad: int
    lhs_dilation: int
    rhs_dilation: int

    def position(self, index: int, tap: int) -> int:
        """The index in the dilated lhs that a tap reads for an output index."""
        return index * self.stride + tap * self.rhs_dilation - self.pad


# Fills up calls with fewer than MAX_SPATIAL_DIMENSIONS dimensions: one position, one tap.
_TRIVIAL_SLIDE = Slide(1, 1, 1, 0, 0, 0, 1, 0, 1, 1)


@record
class ConvolutionProblem:
    """A convolution with as few axes as its strides allow.

    Attributes:
        outer: axes that lhs, rhs and out share, such as groups.
        depth: axes of lhs and rhs that are summed: input channels of a group.
        rows: axes of lhs and out: the batch.
        columns: axes of rhs and out: output channels of a group.
        slides: exactly MAX_SPATIAL_DIMENSIONS spatial dimensions, outermost first.
        lhs_offset, rhs_offset, out_offset: offsets of the first elements, in elements.
    """

    outer: Axes
    depth: Axes
    rows: Axes
    columns: Axes
    slides: list[Slide]
    lhs_offset: int
    rhs_offset: int
    out_offset: int = 0


# --- from views ---------------------------------------------------------------------------


def _stride(view: View, d: int) -> int:
    """The stride of dimension ``d`` in elements; 0 if it is broadcast."""
    return 0 if view.broadcast and view.broadcast[d] else view.strides[d]


def collapse_axes(axes: Axes) -> Axes:
    """Drop axes of size 1, and collapse adjacent ones whose strides in all arrays allow it."""
    collapsed: Axes = []
    for size, lhs, rhs, out in axes:
        if size == 1:
            continue
        if collapsed and collapsed[-1][1:] == (size * lhs, size * rhs, size * out):
            collapsed[-1] = Axis(collapsed[-1].size * size, lhs, rhs, out)
        else:
            collapsed.append(Axis(size, lhs, rhs, out))
    return collapsed


def as_problem(
    convolution: Convolution, left: View, right: View, out: Dims
) -> ConvolutionProblem | None:
    """Collapse the axes of a convolution of views, whose result is row-major of shape ``out``.

    None: more than MAX_SPATIAL_DIMENSIONS spatial dimensions slide.
    """
    out_strides = row_major_strides(out)
    lhs_batch, lhs_free, lhs_depth, lhs_space = convolution.left
    rhs_batch, rhs_free, rhs_depth, rhs_space = convolution.right
    out_batch, out_rows, out_columns, out_space = convolution.out

    def axes(*dims: Sequence[int | None]) -> Axes:
        """Axes of dimensions of lhs, rhs and out; None: the array does not have the axis."""
        uncollapsed = []
        for lhs, rhs, out_dim in zip(*dims, strict=True):
            size = left.shape[lhs] if out_dim is None else out[out_dim]
            lhs_stride = 0 if lhs is None else _stride(left, lhs)
            rhs_stride = 0 if rhs is None else _stride(right, rhs)
            out_stride = 0 if out_dim is None else out_strides[out_dim]
            uncollapsed.append(Axis(size, lhs_stride, rhs_stride, out_stride))
        return collapse_axes(uncollapsed)

    absent = [None] * max(len(left.shape), len(right.shape), len(out))
    slides = []
    space = zip(lhs_space, rhs_space, out_space, strict=True)
    for k, (lhs_dim, rhs_dim, out_dim) in enumerate(space):
        slide = Slide(
            left.shape[lhs_dim],
            right.shape[rhs_dim],
            out[out_dim],
            _stride(left, lhs_dim),
            _stride(right, rhs_dim),
            out_strides[out_dim],
            convolution.strides[k],
            convolution.padding[k][0],
            convolution.left_dilation[k],
            convolution.right_dilation[k],
        )
        if (slide.size, slide.taps, slide.positions) != (1, 1, 1) or slide.pad:
            slides.append(slide)
    if len(slides) > MAX_SPATIAL_DIMENSIONS:
        return None
    slides = [_TRIVIAL_SLIDE] * (MAX_SPATIAL_DIMENSIONS - len(slides)) + slides
    return ConvolutionProblem(
        axes(lhs_batch, rhs_batch, out_batch),
        axes(lhs_depth, rhs_depth, absent[: len(lhs_depth)]),
        axes(lhs_free, absent[: len(lhs_free)], out_rows),
        axes(absent[: len(rhs_free)], rhs_free, out_columns),
        slides,
        left.offset,
        right.offset,
    )


def dense_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of dimensions collapsed to one axis; 0 for one element, None if impossible."""
    innermost = None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size == 1:
            continue
        if innermost is None:
            innermost, length = stride, size
        elif stride != innermost * length:
            return None
        else:
            length *= size
    return 0 if innermost is None else innermost


# --- splits --------------------------------------------------------------------------------


def split_positions(problem: ConvolutionProblem, elements: int) -> list[ConvolutionProblem]:
    """Split a dimension of few positions into one problem per position, if taps would be few.

    Args:
        problem: the problem. Its taps are to be columns of the packed matrix, and its positions
            rows (see ``cpu/library/convolution_calls``).
        elements: capacity of a packed matrix, in elements.
    """
    width = prod(slide.positions for slide in problem.slides) * max(
        (axis.size for axis in problem.rows), default=1
    )
    splittable = range(2, _MAX_SPLIT_POSITIONS + 1)
    outer_slides = enumerate(problem.slides[:-1])
    dimension = next((d for d, slide in outer_slides if slide.positions in splittable), None)
    if dimension is None or width * _MIN_TAPS <= elements:
        return [problem]
    slide = problem.slides[dimension]
    problems = []
    for position in range(slide.positions):
        slides = list(problem.slides)
        slides[dimension] = replace(slide, positions=1, pad=slide.pad - position * slide.stride)
        offset = problem.out_offset + position * slide.out
        problems += split_positions(replace(problem, slides=slides, out_offset=offset), elements)
    return problems


def with_taps_reversed(problem: ConvolutionProblem) -> ConvolutionProblem:
    """Mirror the taps of dimensions in which rhs has a negative stride, which becomes positive."""
    slides, offset = [], problem.rhs_offset
    for slide in problem.slides:
        if slide.rhs < 0:
            last = slide.taps - 1
            offset += last * slide.rhs
            pad = slide.pad - last * slide.rhs_dilation
            slide = replace(slide, rhs=-slide.rhs, pad=pad, rhs_dilation=-slide.rhs_dilation)
        slides.append(slide)
    return replace(problem, slides=slides, rhs_offset=offset)


def phases(problem: ConvolutionProblem) -> list[ConvolutionProblem]:
    """Split a problem with lhs dilation, whose ``out_offset`` is 0, into undilated ones.

    Each has the positions that read lhs elements, not the zeros between them, at the same taps.
    """
    options = [_phases_of(slide) for slide in problem.slides]
    return [
        replace(
            problem,
            slides=[part.slide for part in phase],
            rhs_offset=problem.rhs_offset + sum(part.rhs_offset for part in phase),
            out_offset=sum(part.out_offset for part in phase),
        )
        for phase in product(*options)
    ]


class _SlidePhase(NamedTuple):
    """One phase of a spatial dimension.

    Attributes:
        slide: the dimension without lhs dilation, of the positions and taps of the phase.
        rhs_offset: offset of its first tap in rhs, in elements.
        out_offset: offset of its first position in the result, in elements.
    """

    slide: Slide
    rhs_offset: int
    out_offset: int


def _phases_of(slide: Slide) -> list[_SlidePhase]:
    """The phases of one dimension."""
    dilation = slide.lhs_dilation
    if dilation == 1:
        return [_SlidePhase(slide, 0, 0)]
    position_step = dilation // gcd(dilation, slide.stride)
    tap_step = dilation // gcd(dilation, abs(slide.rhs_dilation))
    dimension_phases = []
    for first_position in range(min(position_step, slide.positions)):
        first_taps = [
            tap
            for tap in range(min(tap_step, slide.taps))
            if slide.position(first_position, tap) % dilation == 0
        ]
        if not first_taps:
            continue  # these positions read only the zeros between elements
        (first_tap,) = first_taps
        undilated = replace(
            slide,
            taps=-(-(slide.taps - first_tap) // tap_step),
            positions=-(-(slide.positions - first_position) // position_step),
            rhs=slide.rhs * tap_step,
            out=slide.out * position_step,
            stride=slide.stride * position_step // dilation,
            pad=-slide.position(first_position, first_tap) // dilation,
            rhs_dilation=slide.rhs_dilation * tap_step // dilation,
            lhs_dilation=1,
        )
        rhs_offset, out_offset = first_tap * slide.rhs, first_position * slide.out
        dimension_phases.append(_SlidePhase(undilated, rhs_offset, out_offset))
    return dimension_phases
