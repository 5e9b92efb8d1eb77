"""Canonical forms of convolutions for GPU kernels: few axes, three slides, chunks of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import gcd, prod

from gpuflow.base.records import record
from gpuflow.core.views import View
from gpuflow.targets.layouts.convolution_axes import Axes, Axis, Problem, Slide, merged

_MOST_OUTER, _MOST_FREE, _MOST_SLIDES = 3, 2, 3
# Read modes, from an operand to shared memory: in vectors along chunks, or across rows.
ONE_BY_ONE, ALONG, ACROSS = range(3)
_HALVES = 8  # elements of a chunk, if they have 16 bits
_ONE: Axis = (1, 0, 0, 0)
_STILL = Slide(1, 1, 1, 0, 0, 0, 1, 0, 1, 1)


@record
class Form:
    """A convolution in the axes of the kernels; each has its strides in lhs, rhs and out.

    Attributes:
        outer, rows, columns: three axes, two and two.
        depth: the axis of chunks.
        slides: three; with ``taps`` chunks are taps of the last one, and depth has size 1.
        offsets: of lhs and rhs, in elements.
        copied: the view of which each operand is a row-major copy; None: it is read in place.
    """

    outer: Axes
    rows: Axes
    columns: Axes
    depth: Axis
    slides: list[Slide]
    offsets: tuple[int, int]
    taps: bool = False
    copied: tuple[View | None, View | None] = (None, None)

    def numbers(self) -> list[int]:
        """The scalar arguments of both kernels."""
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
        """Free elements of the left operand times positions, of the largest phase."""
        positions = prod(-(-slide.positions // every(slide)) for slide in self.slides)
        return prod(axis[0] for axis in self.rows) * positions

    @property
    def column_count(self) -> int:
        """Free elements of the right operand."""
        return prod(axis[0] for axis in self.columns)

    @property
    def phases(self) -> int:
        """Number of phases: sets of positions that use the same taps."""
        return prod(min(every(slide), slide.positions) for slide in self.slides)

    @property
    def along(self) -> int:
        """The size of the dimension that is cut into chunks."""
        last = self.slides[-1]
        return -(-last.taps // skip(last)) if self.taps else self.depth[0]

    @property
    def passes(self) -> int:
        """The number of passes over that dimension."""
        slides = self.slides[:-1] if self.taps else self.slides
        return prod(-(-slide.taps // skip(slide)) for slide in slides)

    @property
    def chunk_steps(self) -> tuple[int, int]:
        """Strides of both operands along a chunk."""
        last = self.slides[-1]
        if self.taps:
            step = skip(last) * last.rhs_dilation // last.lhs_dilation
            return last.lhs * step, last.rhs * skip(last)
        return self.depth[1], self.depth[2]

    @property
    def lane_steps(self) -> tuple[int, int]:
        """Strides of both operands from one row or column to the next."""
        moving = [slide for slide in self.slides if slide.positions > 1]
        if self.rows_inner or not moving:
            return self.rows[-1][1], self.columns[-1][2]
        return moving[-1].lhs * moving[-1].stride, self.columns[-1][2]

    @property
    def rows_inner(self) -> bool:
        """Whether free elements of the left operand are contiguous, and the fastest of rows."""
        return self.rows[-1][0] > 1 and self.rows[-1][1] == 1

    @property
    def reads_padding(self) -> bool:
        """Whether some tap reads padding."""
        return any(_leaves(slide) for slide in self.slides)

    def read_modes(self, chunk: int) -> tuple[int, int]:
        """The read modes of both operands for a chunk size: ALONG, ACROSS or ONE_BY_ONE."""
        return self._read_mode(0, chunk), self._read_mode(1, chunk)

    def _read_mode(self, side: int, chunk: int) -> int:
        free = self.columns if side else self.rows
        size, step = free[-1][0], free[-1][1 + side]
        # Strides other than the contiguous one; slides of one element do not matter.
        steps = [axis[1 + side] for axis in (*self.outer, *free[:-1])] + [self.offsets[side]]
        moves = [(one.lhs, one.rhs)[side] for one in self.slides]
        moves = [
            0 if (one.size, one.taps)[side] == 1 else move
            for one, move in zip(self.slides, moves, strict=True)
        ]

        def are_aligned(*others: int) -> bool:
            return all(other % chunk == 0 for other in (*steps, *others))

        # With taps, positions begin anywhere, and padding cuts through chunks of the left operand.
        is_whole = self.along % chunk == 0 and not (self.taps and side == 0)
        has_lhs_dilation = self.taps and any(one.lhs_dilation > 1 for one in self.slides)
        if self.chunk_steps[side] == 1 and is_whole and not has_lhs_dilation:
            return ALONG if are_aligned(step, *(moves[:-1] if self.taps else moves)) else ONE_BY_ONE
        # Matrices are transposed by loads from shared memory, in elements of 16 bits.
        if chunk == _HALVES and step == 1 and size % chunk == 0:
            return ACROSS if are_aligned(self.depth[1 + side], *moves) else ONE_BY_ONE
        return ONE_BY_ONE


def every(slide: Slide) -> int:
    """Distance of positions that use the same taps."""
    return slide.lhs_dilation // gcd(slide.lhs_dilation, slide.stride)


def skip(slide: Slide) -> int:
    """Distance of taps that a position uses."""
    return slide.lhs_dilation // gcd(slide.lhs_dilation, slide.rhs_dilation)


def _leaves(slide: Slide) -> bool:
    last = slide.position(slide.positions - 1, slide.taps - 1)
    return slide.lhs_dilation > 1 or slide.position(0, 0) < 0 or last >= slide.size


def without_still_slides(problem: Problem) -> Problem:
    """The problem with sliding dimensions of one tap or position without padding as plain axes.

    So kernels of size 1, and their gradients, are products of matrices with few, long axes.
    """
    rows, depth, slides = list(problem.rows), list(problem.depth), []
    offset = problem.lhs_offset
    for one in problem.slides:
        if min(one.taps, one.positions) != 1 or one == _STILL or _leaves(one):
            slides.append(one)
            continue
        offset -= one.pad * one.lhs
        if one.positions > 1:
            rows.append((one.positions, one.stride * one.lhs, 0, one.out))
        elif one.taps > 1:
            depth.append((one.taps, one.rhs_dilation * one.lhs, one.rhs, 0))
    slides = _three(slides)
    return replace(
        problem, rows=merged(rows), depth=merged(depth), slides=slides, lhs_offset=offset
    )


def forms_of(problem: Problem) -> list[Form]:
    """All forms of a problem: those with depth in chunks, then those with taps."""
    rows, columns = problem.rows[-_MOST_FREE:], problem.columns[-_MOST_FREE:]
    outer = problem.outer + problem.rows[:-_MOST_FREE] + problem.columns[:-_MOST_FREE]
    if len(outer) > _MOST_OUTER:
        return []
    moving = [slide for slide in problem.slides if slide != _STILL]
    outer, rows, columns = (
        [_ONE] * (most - len(axes)) + axes
        for axes, most in ((outer, _MOST_OUTER), (rows, _MOST_FREE), (columns, _MOST_FREE))
    )
    offsets = (problem.lhs_offset, problem.rhs_offset)
    depths, forms = problem.depth or [_ONE], []
    for index in range(len(depths) - 1, -1, -1):
        others = [_as_slide(axis) for k, axis in enumerate(depths) if k != index]
        if len(others) + len(moving) <= _MOST_SLIDES:
            slides = _three([*others, *moving])
            forms.append(Form(outer, rows, columns, depths[index], slides, offsets))
    others = [_as_slide(axis) for axis in problem.depth]
    if len(others) + len(moving) <= _MOST_SLIDES:
        for index, slide in enumerate(moving):
            if slide.taps > 1:
                slides = _three([*others, *moving[:index], *moving[index + 1 :], slide])
                forms.append(Form(outer, rows, columns, _ONE, slides, offsets, True))
    return forms


def _as_slide(axis: Axis) -> Slide:
    """A reduced axis as a slide whose taps read one element each."""
    size, lhs, rhs, _ = axis
    return Slide(size, size, 1, lhs, rhs, 0, 1, 0, 1, 1)


def _three(slides: Sequence[Slide]) -> list[Slide]:
    return [_STILL] * (_MOST_SLIDES - len(slides)) + list(slides)


def direct_form(form: Form) -> Form:
    """The form for one sum per thread: the innermost loop is over the depth, if taps are few."""
    last = form.slides[-1]
    if form.taps or form.depth[0] <= last.taps or _STILL not in form.slides:
        return form
    others = list(form.slides)
    others.remove(_STILL)
    slides = [*others, _as_slide(form.depth)]
    return Form(form.outer, form.rows, form.columns, _ONE, slides, form.offsets)
