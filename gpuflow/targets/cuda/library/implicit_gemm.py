"""Convolutions as implicit matrix products for GPU kernels: a fixed number of axes and slides.

Rows of the product are free elements of lhs times output positions, columns are free elements of
rhs, and its sums run over depth and taps. The kernels compute it without storing the matrix of lhs.

A slide is a spatial dimension (``layouts.convolution_axes.Slide``): a filter of taps over padded,
dilated elements. A phase is a set of positions that use the same taps, of which lhs dilation makes
several. Sums run over chunks of 16 bytes, along ``depth`` or along the taps of the last slide.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import gcd, prod

from gpuflow.base.records import record
from gpuflow.core.views import View
from gpuflow.targets.layouts.convolution_axes import (
    Axes,
    Axis,
    ConvolutionProblem,
    Slide,
    collapse_axes,
)

# Axes and slides in the parameters of kernels/convolution.py.
_OUTER_AXES, _FREE_AXES, _SLIDES = 3, 2, 3
LHS, RHS = 0, 1  # operands, as indices
# Modes in which tiles read an operand to shared memory: element by element, in vectors along the
# chunks of a sum, or in vectors across neighboring rows.
ONE_BY_ONE, ALONG, ACROSS = range(3)
_CHUNK_OF_HALVES = 8  # elements of a chunk of 16-bit elements
_TRIVIAL_AXIS = Axis(1, 0, 0, 0)  # fills up axes
_TRIVIAL_SLIDE = Slide(1, 1, 1, 0, 0, 0, 1, 0, 1, 1)  # fills up slides: one position, one tap


@record
class ImplicitGemm:
    """A convolution in the axes of the kernels; each axis has strides in lhs, rhs and out.

    Attributes:
        outer: three axes that all arrays have (groups), outermost first.
        rows: two free axes of lhs.
        columns: two free axes of rhs.
        depth: the summed axis whose elements form chunks; of size 1 with ``chunks_are_taps``.
        slides: three slides. Further summed axes are slides of one position.
        offsets: first elements of lhs and rhs; of the copy, if the operand is copied.
        chunks_are_taps: whether chunks are taps of the last slide, instead of elements of depth.
        copied_views: for lhs and rhs, the view of which a row-major copy is read; None: no copy.
            Strides are those in the copy.
    """

    outer: Axes
    rows: Axes
    columns: Axes
    depth: Axis
    slides: list[Slide]
    offsets: tuple[int, int]
    chunks_are_taps: bool = False
    copied_views: tuple[View | None, View | None] = (None, None)

    def scalars(self) -> list[int]:
        """Scalar arguments of ``convolve_tiles`` and ``convolve_directly``, after their own ones.

        The order must be that of their last parameters:

            outer axes      size, strides in lhs, rhs and out
            rows            size, strides in lhs and out
            columns         size, strides in rhs and out
            depth           size, strides in lhs and rhs
            slides          size0 to skip0 of kernels/convolution.py; its ``every`` and ``skip``
                            are ``position_step`` and ``tap_step``
        """
        free = [(axis.size, axis.lhs, axis.out) for axis in self.rows]
        free += [(axis.size, axis.rhs, axis.out) for axis in self.columns]
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
                position_step(slide),
                tap_step(slide),
            )
            for slide in self.slides
        ]
        return list(chain(*self.outer, *free, self.depth[:3], *slides))

    @property
    def row_count(self) -> int:
        """Rows of the implicit matrix product, in the largest phase: free elements x positions."""
        positions = prod(-(-slide.positions // position_step(slide)) for slide in self.slides)
        return prod(axis.size for axis in self.rows) * positions

    @property
    def column_count(self) -> int:
        """Columns of the implicit matrix product: free elements of the right operand."""
        return prod(axis.size for axis in self.columns)

    @property
    def phases(self) -> int:
        """Number of phases: sets of positions that use the same taps."""
        return prod(min(position_step(slide), slide.positions) for slide in self.slides)

    @property
    def chunked_length(self) -> int:
        """The length of the dimension that is cut into chunks, in one phase."""
        last = self.slides[-1]
        return -(-last.taps // tap_step(last)) if self.chunks_are_taps else self.depth.size

    @property
    def passes(self) -> int:
        """The number of passes over that dimension: combinations of other taps."""
        slides = self.slides[:-1] if self.chunks_are_taps else self.slides
        return prod(-(-slide.taps // tap_step(slide)) for slide in slides)

    @property
    def chunk_strides(self) -> tuple[int, int]:
        """Strides of lhs and rhs along a chunk, in elements."""
        last = self.slides[-1]
        if self.chunks_are_taps:
            step = tap_step(last) * last.rhs_dilation // last.lhs_dilation
            return last.lhs * step, last.rhs * tap_step(last)
        return self.depth.lhs, self.depth.rhs

    @property
    def neighbor_strides(self) -> tuple[int, int]:
        """Strides of lhs from one row to the next, and of rhs from one column to the next."""
        moving = [slide for slide in self.slides if slide.positions > 1]
        if self.rows_inner or not moving:
            return self.rows[-1].lhs, self.columns[-1].rhs
        return moving[-1].lhs * moving[-1].stride, self.columns[-1].rhs

    @property
    def rows_inner(self) -> bool:
        """Whether rows vary fastest along contiguous free elements of lhs, not along positions."""
        return self.rows[-1].size > 1 and self.rows[-1].lhs == 1

    @property
    def reads_padding(self) -> bool:
        """Whether some tap reads padding or a hole of lhs dilation."""
        return any(_reads_zeros(slide) for slide in self.slides)

    def read_modes(self, chunk: int) -> tuple[int, int]:
        """Read modes of lhs and rhs for chunks of ``chunk`` elements of 16 bytes in total.

        ALONG and ACROSS assume that the operands themselves are aligned to 16 bytes.
        """
        return self._read_mode(LHS, chunk), self._read_mode(RHS, chunk)

    def _read_mode(self, operand: int, chunk: int) -> int:
        *outer_free, inner = self.columns if operand == RHS else self.rows
        inner_stride = operand_stride(inner, operand)
        # Strides that must be multiples of a chunk, except those of slides of one element.
        strides = [operand_stride(axis, operand) for axis in (*self.outer, *outer_free)]
        strides.append(self.offsets[operand])
        slide_strides = [
            0 if operand_elements(slide, operand) == 1 else operand_stride(slide, operand)
            for slide in self.slides
        ]

        def are_aligned(*others: int) -> bool:
            return all(stride % chunk == 0 for stride in (*strides, *others))

        taps = self.chunks_are_taps
        # With taps, chunks of lhs start at any position, and padding may be inside of them.
        is_whole = self.chunked_length % chunk == 0 and not (taps and operand == LHS)
        has_lhs_dilation = taps and any(slide.lhs_dilation > 1 for slide in self.slides)
        if self.chunk_strides[operand] == 1 and is_whole and not has_lhs_dilation:
            others = slide_strides[:-1] if taps else slide_strides
            return ALONG if are_aligned(inner_stride, *others) else ONE_BY_ONE
        # ``load_matrices_transposed`` transposes such tiles; it needs 16-bit elements.
        if chunk == _CHUNK_OF_HALVES and inner_stride == 1 and inner.size % chunk == 0:
            depth_stride = operand_stride(self.depth, operand)
            return ACROSS if are_aligned(depth_stride, *slide_strides) else ONE_BY_ONE
        return ONE_BY_ONE


def operand_stride(dimension: Axis | Slide, operand: int) -> int:
    """The stride of LHS or RHS along an axis or a slide, in elements."""
    return dimension.rhs if operand == RHS else dimension.lhs


def operand_elements(slide: Slide, operand: int) -> int:
    """The number of elements of LHS, or taps of RHS, along a slide."""
    return slide.taps if operand == RHS else slide.size


def position_step(slide: Slide) -> int:
    """Distance of neighboring positions that use the same taps."""
    return slide.lhs_dilation // gcd(slide.lhs_dilation, slide.stride)


def tap_step(slide: Slide) -> int:
    """Distance of neighboring taps that one position uses."""
    return slide.lhs_dilation // gcd(slide.lhs_dilation, slide.rhs_dilation)


def _reads_zeros(slide: Slide) -> bool:
    """Whether a tap reads padding, or a zero between elements of lhs."""
    last = slide.position(slide.positions - 1, slide.taps - 1)
    return slide.lhs_dilation > 1 or slide.position(0, 0) < 0 or last >= slide.size


def without_trivial_slides(problem: ConvolutionProblem) -> ConvolutionProblem:
    """Convert slides of one tap or one position, without padding, to plain axes.

    Filters of size 1, and their gradients, thereby become matrix products with few, long axes.
    """
    rows, depth, slides = list(problem.rows), list(problem.depth), []
    offset = problem.lhs_offset
    for slide in problem.slides:
        if min(slide.taps, slide.positions) != 1 or slide == _TRIVIAL_SLIDE or _reads_zeros(slide):
            slides.append(slide)
            continue
        offset -= slide.pad * slide.lhs
        if slide.positions > 1:
            rows.append(Axis(slide.positions, slide.stride * slide.lhs, 0, slide.out))
        elif slide.taps > 1:
            depth.append(Axis(slide.taps, slide.rhs_dilation * slide.lhs, slide.rhs, 0))
    slides = _padded_slides(slides)
    return replace(
        problem,
        rows=collapse_axes(rows),
        depth=collapse_axes(depth),
        slides=slides,
        lhs_offset=offset,
    )


def implicit_gemms_of(problem: ConvolutionProblem) -> list[ImplicitGemm]:
    """All implicit GEMMs of a problem: chunks along each depth axis, then along taps of each slide.

    Empty if the problem has more axes or slides than the kernels.
    """
    rows, columns = problem.rows[-_FREE_AXES:], problem.columns[-_FREE_AXES:]
    outer = problem.outer + problem.rows[:-_FREE_AXES] + problem.columns[:-_FREE_AXES]
    if len(outer) > _OUTER_AXES:
        return []
    moving = [slide for slide in problem.slides if slide != _TRIVIAL_SLIDE]
    outer, rows, columns = (
        [_TRIVIAL_AXIS] * (count - len(axes)) + axes
        for axes, count in ((outer, _OUTER_AXES), (rows, _FREE_AXES), (columns, _FREE_AXES))
    )
    offsets = (problem.lhs_offset, problem.rhs_offset)
    depths, gemms = problem.depth or [_TRIVIAL_AXIS], []
    for index in range(len(depths) - 1, -1, -1):
        others = [_as_slide(axis) for k, axis in enumerate(depths) if k != index]
        if len(others) + len(moving) <= _SLIDES:
            slides = _padded_slides([*others, *moving])
            gemms.append(ImplicitGemm(outer, rows, columns, depths[index], slides, offsets))
    others = [_as_slide(axis) for axis in problem.depth]
    if len(others) + len(moving) <= _SLIDES:
        for index, slide in enumerate(moving):
            if slide.taps > 1:
                slides = _padded_slides([*others, *moving[:index], *moving[index + 1 :], slide])
                gemms.append(
                    ImplicitGemm(outer, rows, columns, _TRIVIAL_AXIS, slides, offsets, True)
                )
    return gemms


def _as_slide(axis: Axis) -> Slide:
    """A summed axis as a slide of one position, whose taps read one element each."""
    return Slide(axis.size, axis.size, 1, axis.lhs, axis.rhs, 0, 1, 0, 1, 1)


def _padded_slides(slides: Sequence[Slide]) -> list[Slide]:
    return [_TRIVIAL_SLIDE] * (_SLIDES - len(slides)) + list(slides)


def for_direct_kernel(gemm: ImplicitGemm) -> ImplicitGemm:
    """The GEMM for the direct kernel, where a thread computes one sum.

    If depth is longer than the taps of the last slide, it becomes the last slide, which is the
    innermost loop.
    """
    last = gemm.slides[-1]
    is_tap_loop_longer = gemm.depth.size <= last.taps
    if gemm.chunks_are_taps or is_tap_loop_longer or _TRIVIAL_SLIDE not in gemm.slides:
        return gemm
    others = list(gemm.slides)
    others.remove(_TRIVIAL_SLIDE)
    slides = [*others, _as_slide(gemm.depth)]
    return ImplicitGemm(gemm.outer, gemm.rows, gemm.columns, _TRIVIAL_AXIS, slides, gemm.offsets)
