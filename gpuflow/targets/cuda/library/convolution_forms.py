"""Canonical forms of convolutions for GPU kernels: a fixed number of axes and slides.

A slide is a spatial dimension (``layouts.convolution_axes.Slide``): a filter of taps over padded,
dilated elements. A phase is a set of positions that use the same taps, of which lhs dilation makes
several. Sums run over chunks of 16 bytes, along ``depth`` or along the taps of the last slide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import gcd, prod

from gpuflow.base.records import record
from gpuflow.core.views import View
from gpuflow.targets.layouts.convolution_axes import Axes, Axis, Problem, Slide, merged

_MOST_OUTER, _MOST_FREE, _MOST_SLIDES = 3, 2, 3
# Modes in which tiles read an operand to shared memory: element by element, in vectors along the
# chunks of a sum, or in vectors across neighboring rows.
ONE_BY_ONE, ALONG, ACROSS = range(3)
_HALVES = 8  # elements of a chunk of 16-bit elements
_ONE: Axis = (1, 0, 0, 0)  # fills up axes
_TRIVIAL = Slide(1, 1, 1, 0, 0, 0, 1, 0, 1, 1)  # fills up slides: one position, one tap


@record
class Form:
    """A convolution in the axes of the kernels; each axis has strides in lhs, rhs and out.

    Attributes:
        outer: three axes that all arrays have (groups).
        rows: two free axes of lhs.
        columns: two free axes of rhs.
        depth: the summed axis whose elements form chunks; of size 1 with ``taps``.
        slides: three slides. Further summed axes are slides of one position.
        offsets: offsets of lhs and rhs in elements.
        taps: whether chunks are taps of the last slide.
        copied: for lhs and rhs, the view of which a row-major copy is read; None: no copy.
    """

    outer: Axes
    rows: Axes
    columns: Axes
    depth: Axis
    slides: list[Slide]
    offsets: tuple[int, int]
    taps: bool = False
    copied: tuple[View | None, View | None] = (None, None)

    def scalars(self) -> list[int]:
        """Scalar arguments of ``convolve_tiles`` and ``convolve_directly``, after their own ones.

        The order must be that of their last parameters:

            outer axes      size, strides in lhs, rhs and out
            rows            size, strides in lhs and out
            columns         size, strides in rhs and out
            depth           size, strides in lhs and rhs
            slides          size0 to skip0 of kernels/convolution.py
        """
        free = [(m, lhs, out) for m, lhs, _, out in self.rows]
        free += [(n, rhs, out) for n, _, rhs, out in self.columns]
        slides = [
            (
                slide.size,
                slide.taps,
                slide.positions,
                slide.lhs,
                slide.rhs,
                slide.out,
                slide.stride,
                slide.pad,
                slide.lhs_dilation,
                slide.rhs_dilation,
                every(slide),
                skip(slide),
            )
            for slide in self.slides
        ]
        return list(chain(*self.outer, *free, self.depth[:3], *slides))

    @property
    def row_count(self) -> int:
        """Rows of the implicit matrix product, in the largest phase: free elements x positions."""
        positions = prod(-(-slide.positions // every(slide)) for slide in self.slides)
        return prod(axis[0] for axis in self.rows) * positions

    @property
    def column_count(self) -> int:
        """Columns of the implicit matrix product: free elements of the right operand."""
        return prod(axis[0] for axis in self.columns)

    @property
    def phases(self) -> int:
        """Number of phases: sets of positions that use the same taps."""
        return prod(min(every(slide), slide.positions) for slide in self.slides)

    @property
    def along(self) -> int:
        """The length of the dimension that is cut into chunks."""
        last = self.slides[-1]
        return -(-last.taps // skip(last)) if self.taps else self.depth[0]

    @property
    def passes(self) -> int:
        """The number of passes over that dimension: combinations of other taps."""
        slides = self.slides[:-1] if self.taps else self.slides
        return prod(-(-slide.taps // skip(slide)) for slide in slides)

    @property
    def chunk_steps(self) -> tuple[int, int]:
        """Strides of lhs and rhs along a chunk."""
        last = self.slides[-1]
        if self.taps:
            step = skip(last) * last.rhs_dilation // last.lhs_dilation
            return last.lhs * step, last.rhs * skip(last)
        return self.depth[1], self.depth[2]

    @property
    def lane_steps(self) -> tuple[int, int]:
        """Strides of lhs from one row to the next, and of rhs from one column to the next."""
        moving = [slide for slide in self.slides if slide.positions > 1]
        if self.rows_inner or not moving:
            return self.rows[-1][1], self.columns[-1][2]
        return moving[-1].lhs * moving[-1].stride, self.columns[-1][2]

    @property
    def rows_inner(self) -> bool:
        """Whether rows vary fastest along contiguous free elements of lhs, not along positions."""
        return self.rows[-1][0] > 1 and self.rows[-1][1] == 1

    @property
    def reads_padding(self) -> bool:
        """Whether some tap reads padding or a hole of lhs dilation."""
        return any(_reads_zeros(slide) for slide in self.slides)

    def read_modes(self, chunk: int) -> tuple[int, int]:
        """Read modes of lhs and rhs for chunks of ``chunk`` elements."""
        return self._read_mode(0, chunk), self._read_mode(1, chunk)

    def _read_mode(self, side: int, chunk: int) -> int:
        free = self.columns if side else self.rows
        size, step = free[-1][0], free[-1][1 + side]
        # Strides that must be multiples of a chunk, except those of slides of one element.
        steps = [axis[1 + side] for axis in (*self.outer, *free[:-1])] + [self.offsets[side]]
        moves = [(one.lhs, one.rhs)[side] for one in self.slides]
        moves = [
            0 if (one.size, one.taps)[side] == 1 else move
            for one, move in zip(self.slides, moves, strict=True)
        ]

        def are_aligned(*others: int) -> bool:
            return all(other % chunk == 0 for other in (*steps, *others))

        # With taps, chunks of lhs start at any position, and padding may be inside of them.
        is_whole = self.along % chunk == 0 and not (self.taps and side == 0)
        has_lhs_dilation = self.taps and any(one.lhs_dilation > 1 for one in self.slides)
        if self.chunk_steps[side] == 1 and is_whole and not has_lhs_dilation:
            return ALONG if are_aligned(step, *(moves[:-1] if self.taps else moves)) else ONE_BY_ONE
        # ``load_matrices_transposed`` transposes such tiles; it needs 16-bit elements.
        if chunk == _HALVES and step == 1 and size % chunk == 0:
            return ACROSS if are_aligned(self.depth[1 + side], *moves) else ONE_BY_ONE
        return ONE_BY_ONE


def every(slide: Slide) -> int:
    """Distance of neighboring positions that use the same taps."""
    return slide.lhs_dilation // gcd(slide.lhs_dilation, slide.stride)


def skip(slide: Slide) -> int:
    """Distance of neighboring taps that one position uses."""
    return slide.lhs_dilation // gcd(slide.lhs_dilation, slide.rhs_dilation)


def _reads_zeros(slide: Slide) -> bool:
    last = slide.position(slide.positions - 1, slide.taps - 1)
    return slide.lhs_dilation > 1 or slide.position(0, 0) < 0 or last >= slide.size


def without_trivial_slides(problem: Problem) -> Problem:
    """Convert slides of one tap or one position, without padding, to plain axes.

    Filters of size 1, and their gradients, thereby become matrix products with few, long axes.
    """
    rows, depth, slides = list(problem.rows), list(problem.depth), []
    offset = problem.lhs_offset
    for one in problem.slides:
        if min(one.taps, one.positions) != 1 or one == _TRIVIAL or _reads_zeros(one):
            slides.append(one)
            continue
        offset -= one.pad * one.lhs
        if one.positions > 1:
            rows.append((one.positions, one.stride * one.lhs, 0, one.out))
        elif one.taps > 1:
            depth.append((one.taps, one.rhs_dilation * one.lhs, one.rhs, 0))
    slides = _padded_slides(slides)
    return replace(
        problem, rows=merged(rows), depth=merged(depth), slides=slides, lhs_offset=offset
    )


def forms_of(problem: Problem) -> list[Form]:
    """All forms of a problem: with chunks along each depth axis, then along taps of each slide.

    Empty if the problem has more axes or slides than the kernels.
    """
    rows, columns = problem.rows[-_MOST_FREE:], problem.columns[-_MOST_FREE:]
    outer = problem.outer + problem.rows[:-_MOST_FREE] + problem.columns[:-_MOST_FREE]
    if len(outer) > _MOST_OUTER:
        return []
    moving = [slide for slide in problem.slides if slide != _TRIVIAL]
    outer, rows, columns = (
        [_ONE] * (most - len(axes)) + axes
        for axes, most in ((outer, _MOST_OUTER), (rows, _MOST_FREE), (columns, _MOST_FREE))
    )
    offsets = (problem.lhs_offset, problem.rhs_offset)
    depths, forms = problem.depth or [_ONE], []
    for index in range(len(depths) - 1, -1, -1):
        others = [_as_slide(axis) for k, axis in enumerate(depths) if k != index]
        if len(others) + len(moving) <= _MOST_SLIDES:
            slides = _padded_slides([*others, *moving])
            forms.append(Form(outer, rows, columns, depths[index], slides, offsets))
    others = [_as_slide(axis) for axis in problem.depth]
    if len(others) + len(moving) <= _MOST_SLIDES:
        for index, slide in enumerate(moving):
            if slide.taps > 1:
                slides = _padded_slides([*others, *moving[:index], *moving[index + 1 :], slide])
                forms.append(Form(outer, rows, columns, _ONE, slides, offsets, True))
    return forms


def _as_slide(axis: Axis) -> Slide:
    """A summed axis as a slide of one position, whose taps read one element each."""
    size, lhs, rhs, _ = axis
    return Slide(size, size, 1, lhs, rhs, 0, 1, 0, 1, 1)


def _padded_slides(slides: Sequence[Slide]) -> list[Slide]:
    return [_TRIVIAL] * (_MOST_SLIDES - len(slides)) + list(slides)


def direct_form(form: Form) -> Form:
    """The form for the direct kernel, where a thread computes one sum.

    If depth is longer than the taps of the last slide, it becomes the last slide, which is the
    innermost loop.
    """
    last = form.slides[-1]
    if form.taps or form.depth[0] <= last.taps or _TRIVIAL not in form.slides:
        return form
    others = list(form.slides)
    others.remove(_TRIVIAL)
    slides = [*others, _as_slide(form.depth)]
    return Form(form.outer, form.rows, form.columns, _ONE, slides, form.offsets)
