"""Convolutions as GPUs' kernels hold them: few axes of each kind, three slides, chunks of a sum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import gcd, prod

from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.views import View
from gpuflow.runtime.convolution_axes import Axes, Axis, Problem, Slide
from gpuflow.runtime.gpu_blocks import collapsed

_MOST_OUTER, _MOST_FREE, _MOST_SLIDES = 3, 2, 3
_MOST_COPIED = 4  # dimensions of an array that a copy may have
_ONE: Axis = (1, 0, 0, 0)
_STILL = Slide(1, 1, 1, 0, 0, 0, 1, 0, 1, 1)


@record
class Form:
    """A convolution in the axes that kernels hold; each has its strides in lhs, rhs and out.

    Attributes:
        outer, rows, columns: three axes, two and two.
        depth: the axis of chunks.
        slides: three; with ``taps`` chunks are taps of the last one, and depth has size 1.
        offsets: where lhs and rhs begin, in elements.
        copied: the right operand is a row-major copy of this view.
    """

    outer: Axes
    rows: Axes
    columns: Axes
    depth: Axis
    slides: list[Slide]
    offsets: tuple[int, int]
    taps: bool = False
    copied: View | None = None

    def numbers(self) -> list[tuple[str, int]]:
        """The arguments that both kernels have for it."""
        free = [(m, lhs, out) for m, lhs, _, out in self.rows]
        free += [(n, rhs, out) for n, _, rhs, out in self.columns]
        slides = [
            (
                slide.size, slide.taps, slide.places, slide.lhs, slide.rhs, slide.out,
                slide.stride, slide.pad, slide.hole, slide.gap, every(slide), skip(slide),
            )
            for slide in self.slides
        ]  # fmt: skip
        return [("int32", value) for value in chain(*self.outer, *free, self.depth[:3], *slides)]

    @property
    def row_count(self) -> int:
        """Free elements of the left operand times places, of the phase that has most."""
        places = prod(-(-slide.places // every(slide)) for slide in self.slides)
        return prod(axis[0] for axis in self.rows) * places

    @property
    def column_count(self) -> int:
        """Free elements of the right operand."""
        return prod(axis[0] for axis in self.columns)

    @property
    def phases(self) -> int:
        """How many sets of places there are that meet the same taps."""
        return prod(min(every(slide), slide.places) for slide in self.slides)

    @property
    def along(self) -> int:
        """What is cut into chunks."""
        last = self.slides[-1]
        return -(-last.taps // skip(last)) if self.taps else self.depth[0]

    @property
    def lines(self) -> int:
        """How often that is passed."""
        slides = self.slides[:-1] if self.taps else self.slides
        return prod(-(-slide.taps // skip(slide)) for slide in slides)

    @property
    def chunk_steps(self) -> tuple[int, int]:
        """Strides of both operands along a chunk."""
        last = self.slides[-1]
        if self.taps:
            return last.lhs * (skip(last) * last.gap // last.hole), last.rhs * skip(last)
        return self.depth[1], self.depth[2]

    @property
    def lane_steps(self) -> tuple[int, int]:
        """Strides of both operands from one row or column to the next."""
        moving = [slide for slide in self.slides if slide.places > 1]
        if self.rows_inner or not moving:
            return self.rows[-1][1], self.columns[-1][2]
        return moving[-1].lhs * moving[-1].stride, self.columns[-1][2]

    @property
    def rows_inner(self) -> bool:
        """Whether free elements of the left operand lie together, and are the fastest of rows."""
        return self.rows[-1][0] > 1 and self.rows[-1][1] == 1

    @property
    def has_margins(self) -> bool:
        """Whether some tap meets a margin."""
        return any(_leaves(slide) for slide in self.slides)

    def vectors(self, chunk: int) -> tuple[bool, bool]:
        """Whether chunks of so many elements of each operand are vectors in memory."""
        if self.along % chunk or (self.taps and any(slide.hole > 1 for slide in self.slides)):
            return False, False
        slides = self.slides[:-1] if self.taps else self.slides
        left = [axis[1] for axis in (*self.outer, *self.rows)] + [one.lhs for one in slides]
        right = [axis[2] for axis in (*self.outer, *self.columns)] + [one.rhs for one in slides]
        aligned = [
            all(step % chunk == 0 for step in (*steps, offset))
            for steps, offset in zip((left, right), self.offsets, strict=True)
        ]
        first, second = (step == 1 for step in self.chunk_steps)
        # With taps, places begin anywhere, and margins cut through chunks of the left operand.
        return first and aligned[0] and not self.taps, second and aligned[1]


def every(slide: Slide) -> int:
    """How far apart places are that meet the same taps."""
    return slide.hole // gcd(slide.hole, slide.stride)


def skip(slide: Slide) -> int:
    """How far apart taps are that a place meets."""
    return slide.hole // gcd(slide.hole, slide.gap)


def _leaves(slide: Slide) -> bool:
    last = slide.position(slide.places - 1, slide.taps - 1)
    return slide.hole > 1 or slide.position(0, 0) < 0 or last >= slide.size


def forms_of(problem: Problem) -> list[Form]:
    """The forms that a problem can take: with depth in chunks first, then with taps."""
    rows, columns = problem.rows[-_MOST_FREE:], problem.columns[-_MOST_FREE:]
    outer = problem.outer + problem.rows[:-_MOST_FREE] + problem.columns[:-_MOST_FREE]
    if len(outer) > _MOST_OUTER:
        return []
    own = [slide for slide in problem.slides if slide != _STILL]
    outer, rows, columns = (
        [_ONE] * (most - len(axes)) + axes
        for axes, most in ((outer, _MOST_OUTER), (rows, _MOST_FREE), (columns, _MOST_FREE))
    )
    offsets = (problem.lhs_offset, problem.rhs_offset)
    depths, forms = problem.depth or [_ONE], []
    for number in range(len(depths) - 1, -1, -1):
        others = [_as_slide(axis) for k, axis in enumerate(depths) if k != number]
        if len(others) + len(own) <= _MOST_SLIDES:
            slides = _three([*others, *own])
            forms.append(Form(outer, rows, columns, depths[number], slides, offsets))
    others = [_as_slide(axis) for axis in problem.depth]
    if len(others) + len(own) <= _MOST_SLIDES:
        for number, slide in enumerate(own):
            if slide.taps > 1:
                slides = _three([*others, *own[:number], *own[number + 1 :], slide])
                forms.append(Form(outer, rows, columns, _ONE, slides, offsets, True))
    return forms


def _as_slide(axis: Axis) -> Slide:
    """An axis that is summed over, as taps of which each meets one element."""
    size, lhs, rhs, _ = axis
    return Slide(size, size, 1, lhs, rhs, 0, 1, 0, 1, 1)


def _three(slides: Sequence[Slide]) -> list[Slide]:
    return [_STILL] * (_MOST_SLIDES - len(slides)) + list(slides)


def direct_form(form: Form) -> Form:
    """The form in which threads sum: the innermost loop is over the depth, if taps are few."""
    last = form.slides[-1]
    if form.taps or form.depth[0] <= last.taps or _STILL not in form.slides:
        return form
    others = list(form.slides)
    others.remove(_STILL)
    slides = [*others, _as_slide(form.depth)]
    return Form(form.outer, form.rows, form.columns, _ONE, slides, form.offsets)


def with_copied_right(form: Form) -> Form | None:
    """The form whose right operand is a copy with the depth innermost, if a copy can be made."""
    if form.taps:
        return None
    sizes, steps = [], []
    for size, step in (
        *[(axis[0] if axis[2] else 1, axis[2]) for axis in (*form.outer, *form.columns)],
        *[(slide.taps, slide.rhs) for slide in form.slides],
        (form.depth[0], form.depth[2]),
    ):
        sizes.append(size)
        steps.append(step)
    view = View(tuple(sizes), tuple(steps), form.offsets[1], (False,) * len(sizes))
    if len(collapsed(view)) > _MOST_COPIED:
        return None
    dense = zip(sizes, row_major_strides(sizes), strict=True)
    places = iter([step if size > 1 else 0 for size, step in dense])

    def moved(axes: Axes) -> Axes:
        return [(size, lhs, next(places), out) for size, lhs, _, out in axes]

    outer, columns = moved(form.outer), moved(form.columns)
    slides = [
        Slide(
            one.size, one.taps, one.places, one.lhs, next(places), one.out, one.stride, one.pad,
            one.hole, one.gap,
        )
        for one in form.slides
    ]  # fmt: skip
    (depth,) = moved([form.depth])
    return Form(outer, form.rows, columns, depth, slides, (form.offsets[0], 0), False, view)
