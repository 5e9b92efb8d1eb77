"""Canonical form of convolutions: collapsed axes, three spatial dimensions, no lhs dilation.

``as_problem`` collapses the dimensions of a call. ``phases`` removes lhs dilation, and
``split_positions`` divides a call whose packed matrix would have too few taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod

from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View

Dims = tuple[int, ...]
Axis = tuple[int, int, int, int]  # size and strides in lhs, rhs and out, in elements
Axes = list[Axis]

MOST_SPACE = 3  # spatial dimensions
# ``split_positions`` splits if fewer taps than this fit into the packed matrix, along a dimension
# of 2 to ``_MOST_SPLIT`` positions.
_FEWEST_TAPS = 128
_MOST_SPLIT = 8


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


_STILL = Slide(1, 1, 1, 0, 0, 0, 1, 0, 1, 1)  # fills up calls with fewer than MOST_SPACE dimensions


@record
class Problem:
    """A convolution with as few axes as its strides allow.

    Attributes:
        outer: axes that lhs, rhs and out share, such as groups.
        depth: axes of lhs and rhs that are summed: input channels of a group.
        rows: axes of lhs and out: the batch.
        columns: axes of rhs and out: output channels of a group.
        slides: exactly MOST_SPACE spatial dimensions, outermost first.
        lhs_offset, rhs_offset, out_offset: first elements.
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
    return 0 if view.broadcast and view.broadcast[d] else view.strides[d]


def merged(axes: Axes) -> Axes:
    """Drop axes of size 1, and collapse adjacent ones whose strides all allow it."""
    result: Axes = []
    for size, lhs, rhs, to in axes:
        if size == 1:
            continue
        if result and result[-1][1:] == (size * lhs, size * rhs, size * to):
            result[-1] = (result[-1][0] * size, lhs, rhs, to)
        else:
            result.append((size, lhs, rhs, to))
    return result


def as_problem(convolution: Convolution, left: View, right: View, out: Dims) -> Problem | None:
    """Collapse the axes of a convolution of views.

    None: more than MOST_SPACE spatial dimensions slide.
    """
    strides = row_major_strides(out)
    batch, free, depth, space = convolution.left
    batch2, free2, depth2, space2 = convolution.right
    out_batch, out_rows, out_columns, out_space = convolution.out

    def axes(*dims: Sequence[int | None]) -> Axes:
        unmerged = []
        for lhs, rhs, to in zip(*dims, strict=True):
            size = left.shape[lhs] if to is None else out[to]
            unmerged.append(
                (
                    size,
                    0 if lhs is None else _stride(left, lhs),
                    0 if rhs is None else _stride(right, rhs),
                    0 if to is None else strides[to],
                )
            )
        return merged(unmerged)

    nothing = [None] * max(len(left.shape), len(right.shape), len(out))
    slides = []
    for k, (s, s2, to) in enumerate(zip(space, space2, out_space, strict=True)):
        slide = Slide(
            left.shape[s],
            right.shape[s2],
            out[to],
            _stride(left, s),
            _stride(right, s2),
            strides[to],
            convolution.strides[k],
            convolution.padding[k][0],
            convolution.left_dilation[k],
            convolution.right_dilation[k],
        )
        if (slide.size, slide.taps, slide.positions) != (1, 1, 1) or slide.pad:
            slides.append(slide)
    if len(slides) > MOST_SPACE:
        return None
    slides = [_STILL] * (MOST_SPACE - len(slides)) + slides
    return Problem(
        axes(batch, batch2, out_batch),
        axes(depth, depth2, nothing[: len(depth)]),
        axes(free, nothing[: len(free)], out_rows),
        axes(nothing[: len(free2)], free2, out_columns),
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


def split_positions(problem: Problem, elements: int) -> list[Problem]:
    """Split a dimension of few positions into one problem per position, if taps would be few.

    Args:
        problem: the problem, in form 1 (``cpu/library/convolution_calls``).
        elements: capacity of a packed matrix.
    """
    width = prod(slide.positions for slide in problem.slides) * max(
        (axis[0] for axis in problem.rows), default=1
    )
    few = range(2, _MOST_SPLIT + 1)
    d = next((d for d, slide in enumerate(problem.slides[:-1]) if slide.positions in few), None)
    if d is None or width * _FEWEST_TAPS <= elements:
        return [problem]
    slide = problem.slides[d]
    problems = []
    for position in range(slide.positions):
        slides = list(problem.slides)
        slides[d] = replace(slide, positions=1, pad=slide.pad - position * slide.stride)
        offset = problem.out_offset + position * slide.out
        problems += split_positions(replace(problem, slides=slides, out_offset=offset), elements)
    return problems


def with_taps_reversed(problem: Problem) -> Problem:
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


def phases(problem: Problem) -> list[Problem]:
    """Split a problem with lhs dilation into undilated ones.

    Each has the positions that read lhs elements, not the zeros between them, at the same taps.
    """
    options = [_phases_of(slide) for slide in problem.slides]
    return [
        replace(
            problem,
            slides=[slide for slide, _, _ in phase],
            rhs_offset=problem.rhs_offset + sum(rhs for _, rhs, _ in phase),
            out_offset=sum(out for _, _, out in phase),
        )
        for phase in product(*options)
    ]


def _phases_of(slide: Slide) -> list[tuple[Slide, int, int]]:
    """The phases of one dimension, with the rhs and out offsets of their first tap and position."""
    dilation = slide.lhs_dilation
    if dilation == 1:
        return [(slide, 0, 0)]
    position_step = dilation // gcd(dilation, slide.stride)
    tap_step = dilation // gcd(dilation, abs(slide.rhs_dilation))
    dimension_phases = []
    for r in range(min(position_step, slide.positions)):
        first_taps = range(min(tap_step, slide.taps))
        starts = [i for i in first_taps if not slide.position(r, i) % dilation]
        if not starts:
            continue  # these positions read only the zeros between elements
        (i,) = starts
        dimension_phases.append(
            (
                replace(
                    slide,
                    taps=-(-(slide.taps - i) // tap_step),
                    positions=-(-(slide.positions - r) // position_step),
                    rhs=slide.rhs * tap_step,
                    out=slide.out * position_step,
                    stride=slide.stride * position_step // dilation,
                    pad=-slide.position(r, i) // dilation,
                    rhs_dilation=slide.rhs_dilation * tap_step // dilation,
                    lhs_dilation=1,
                ),
                i * slide.rhs,
                r * slide.out,
            )
        )
    return dimension_phases
