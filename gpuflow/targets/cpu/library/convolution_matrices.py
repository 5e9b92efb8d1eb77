"""The matrices of a convolution's products: layouts, and blocks that fit a core's cache.

The axes u, i, j and o are defined in ``targets/cpu/runtime/native/convolution.ll``. P[(u, i), j] is
the packed matrix of lhs, and o are output channels. ``sums_columns`` is its form: if False (form
0), u is the depth, i are taps and j positions. If True (form 1), u is a free dimension of lhs, i
are positions and j taps. Strides and offsets are in elements.

Tests: tests/targets/cpu/test_native_convolutions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.views import View
from gpuflow.targets.layouts.convolution_axes import (
    Axes,
    Axis,
    ConvolutionProblem,
    Dims,
    Slide,
    dense_stride,
)

DIRECT, ROWS, COLUMNS = range(3)  # layouts of P: lhs in place, [(u, i), j], [j, (i, u)]
_MIN_COLUMNS = 64  # columns of a product, if possible
_MAX_ROW_LENGTH = (
    384  # elements of a row of P if columns are summed and that leaves memory for more
)
_UNLIMITED = 1 << 62


# --- the packed matrix ---------------------------------------------------------------------


@record
class PackedLayout:
    """Layout of the packed matrix P.

    Attributes:
        kind: DIRECT, ROWS or COLUMNS.
        leading: leading dimension, if it is DIRECT.
        j_stride: stride of j, if it is DIRECT.
        is_u_i_contiguous: whether u is contiguous along the last i, so that both are copied at
            once; for COLUMNS only.
        u_is_row: whether P is stored as [(u, i), j].
    """

    kind: int
    leading: int = 0
    j_stride: int = 0
    is_u_i_contiguous: bool = False
    u_is_row: bool = True

    def is_plain_left_operand(self, sums_columns: bool) -> bool:
        """Whether P needs no transposition as a left operand, whose columns are summed."""
        return self.u_is_row == sums_columns


def packed_layout(
    slides: Sequence[Slide],
    i_sizes: Dims,
    j_sizes: Dims,
    u: Axis,
    sums_columns: bool,
    packs_columns: bool,
) -> PackedLayout:
    """Return the layout of P: DIRECT if there is one i and no padding, else ROWS or COLUMNS."""
    is_unpadded = all(
        slide.pad == 0
        and slide.lhs_dilation == 1
        and slide.size >= (size - 1) * steps_of(slide, sums_columns)[1] + 1
        for slide, size in zip(slides, j_sizes, strict=True)
    )
    if prod(i_sizes) == 1 and is_unpadded:
        strides = [slide.lhs * steps_of(slide, sums_columns)[1] for slide in slides]
        j_stride, count = dense_stride(j_sizes, strides), prod(j_sizes)
        if j_stride is not None:
            if (j_stride == 1 or count == 1) and (u.size == 1 or u.lhs >= count):
                return PackedLayout(DIRECT, max(u.lhs, count), j_stride)
            if (u.size == 1 or u.lhs == 1) and (j_stride >= u.size or count == 1):
                return PackedLayout(DIRECT, max(j_stride, u.size), j_stride, u_is_row=False)
    if not packs_columns:
        return PackedLayout(ROWS)
    last = slides[-1]
    is_dense = steps_of(last, sums_columns)[0] == 1 and last.lhs_dilation == 1
    return PackedLayout(COLUMNS, is_u_i_contiguous=is_dense and last.lhs == u.size, u_is_row=False)


def steps_of(slide: Slide, sums_columns: bool) -> tuple[int, int]:
    """Distances in the dilated lhs of adjacent i, and of adjacent j."""
    if sums_columns:
        return slide.stride, slide.rhs_dilation
    return slide.rhs_dilation, slide.stride


# --- blocks --------------------------------------------------------------------------------


def blocks_of(
    sums_columns: bool,
    kind: int,
    i_sizes: Dims,
    j_sizes: Dims,
    u_size: int,
    elements: int,
    requested: int,
    step_count: int,
    most_splits: int,
) -> tuple[int, Dims] | None:
    """Return blocks of u and of each dimension of j whose packed matrix fits ``elements``.

    All sizes are positive.

    Args:
        sums_columns: the form of P.
        kind: layout of P.
        i_sizes, j_sizes: spatial sizes of i and j.
        u_size: size of u.
        elements: capacity of a packed matrix.
        requested: number of blocks of the work, unless they become too small.
        step_count: number of steps of the sum over axes that P does not have.
        most_splits: largest number of partial sums.

    Returns:
        The blocks, or None if even the smallest do not fit.
    """
    i_count, j_count = prod(i_sizes), prod(j_sizes)
    if kind == DIRECT:
        elements = _UNLIMITED  # nothing is packed
    u_block = u_size
    if sums_columns:
        # Split the sum first, by steps and then j; then the result, by u.
        splits = min(requested, most_splits)
        j_splits = min(-(-splits // step_count), max(j_count // _MAX_ROW_LENGTH, 1))
        requested = -(-requested // min(splits, step_count * j_splits))
        if kind != COLUMNS:
            row_length = min(j_count, max(elements // (i_count * u_size), _MAX_ROW_LENGTH))
            fitting = elements // (i_count * row_length)
            requested_u = max(-(-u_size // requested), -(-_MIN_COLUMNS // i_count))
            u_block = _equal_blocks(u_size, max(min(u_size, fitting, requested_u), 1))
        most_j = min(elements // (i_count * u_block), -(-j_count // j_splits))
    else:
        if kind != COLUMNS:
            fitting = elements // (i_count * min(j_count, 2 * _MIN_COLUMNS))
            u_block = _equal_blocks(u_size, max(min(u_size, fitting), 1))
        requested_j = max(-(-j_count // requested), _MIN_COLUMNS)
        most_j = min(elements // (i_count * u_block), requested_j)
    if most_j < 1:
        return None
    return u_block, _box(j_sizes, most_j)


def _equal_blocks(size: int, block: int) -> int:
    """A smaller block, of which ``size`` has as many, with sizes as similar as possible."""
    return -(-size // -(-size // block))


def _box(sizes: Dims, most: int) -> Dims:
    """A box of at most ``most`` elements: full inner dimensions, a range of the next, then 1."""
    block = [1] * len(sizes)
    for d in reversed(range(len(sizes))):
        block[d] = max(min(sizes[d], most), 1)
        if block[d] < sizes[d]:
            break
        most //= sizes[d]
    return tuple(block)


# --- operands ------------------------------------------------------------------------------


class _BlasLayout(NamedTuple):
    """A matrix of o and other dimensions that BLAS can address in place.

    Attributes:
        leading: leading dimension.
        o_is_row: whether o are its rows; else the other dimensions are.
    """

    leading: int
    o_is_row: bool


def _blas_layout(
    o_size: int, o_stride: int, other_count: int, other_stride: int
) -> _BlasLayout | None:
    """Return the layout of a matrix of o and collapsed other dimensions; None if there is none."""
    if (other_stride == 1 or other_count == 1) and (o_stride >= other_count or o_size == 1):
        return _BlasLayout(max(o_stride, other_count), True)
    if (o_stride == 1 or o_size == 1) and other_stride >= o_size:
        return _BlasLayout(other_stride, False)
    return None


def row_major_lhs(problem: ConvolutionProblem, axes: Axes) -> tuple[View, ConvolutionProblem, Axes]:
    """Copy lhs with the spatial dimensions innermost.

    Returns:
        The view to copy, and the problem and its axes with the strides of the copy.
    """
    in_lhs = [axis for axis in axes if axis.lhs]
    shape = (*(axis.size for axis in in_lhs), *(slide.size for slide in problem.slides))
    strides = (*(axis.lhs for axis in in_lhs), *(slide.lhs for slide in problem.slides))
    copy_strides = iter(row_major_strides(shape))
    copy_axes = [axis._replace(lhs=next(copy_strides) if axis.lhs else 0) for axis in axes]
    slides = [replace(slide, lhs=next(copy_strides)) for slide in problem.slides]
    view = View(shape, strides, problem.lhs_offset)
    return view, replace(problem, slides=slides, lhs_offset=0), copy_axes


@record
class RhsMatrix:
    """Layout of rhs as a matrix of output channels o and contracted dimensions.

    Attributes:
        offset, lhs_offset: first elements of rhs and lhs.
        leading: leading dimension of rhs.
        o_is_row: whether o are its rows.
        u_stride, j_stride: strides of u and j in rhs.
        outer, steps: outer axes, and axes of the sum that P does not have.
        copied_view: the view that is copied; None: rhs is read in place.
    """

    offset: int
    lhs_offset: int
    leading: int
    o_is_row: bool
    u_stride: int
    j_stride: int
    outer: Axes
    steps: Axes
    copied_view: View | None


def rhs_matrix(
    problem: ConvolutionProblem,
    right: View,
    sums_columns: bool,
    kind: int,
    i_sizes: Dims,
    j_sizes: Dims,
    u: Axis,
    o: Axis,
    outer: Axes,
    steps: Axes,
) -> RhsMatrix:
    """Return the layout of rhs: in place if BLAS can read it, else of a copy."""
    slide_strides = [slide.rhs for slide in problem.slides]
    if sums_columns:
        sizes, strides = list(j_sizes), slide_strides
    elif kind == COLUMNS:
        sizes, strides = [*i_sizes, u.size], [*slide_strides, u.rhs]
    else:
        sizes, strides = [u.size, *i_sizes], [u.rhs, *slide_strides]
    depth_stride, depth = dense_stride(sizes, strides), prod(sizes)
    if depth_stride is not None:
        layout = _blas_layout(o.size, o.rhs, depth, depth_stride)
        if layout is not None:
            u_stride, j_stride = (0, depth_stride) if sums_columns else (u.rhs, 0)
            return RhsMatrix(
                problem.rhs_offset,
                problem.lhs_offset,
                *layout,
                u_stride,
                j_stride,
                outer,
                steps,
                None,
            )
    # A copy in the order (outer, steps, o, summed axes); broadcast axes are copied once.
    in_rhs = [axis for axis in (*outer, *steps) if axis.rhs]
    shape = (*(axis.size for axis in in_rhs), o.size, *sizes)
    view = View(shape, (*(axis.rhs for axis in in_rhs), o.rhs, *strides), problem.rhs_offset)
    copy_strides = iter(row_major_strides(shape)[: len(in_rhs)])
    copy_axes = [
        axis._replace(rhs=next(copy_strides) if axis.rhs else 0) for axis in (*outer, *steps)
    ]
    u_stride = 0 if sums_columns else (1 if kind == COLUMNS else prod(i_sizes))
    return RhsMatrix(
        0,
        problem.lhs_offset,
        depth,
        True,
        u_stride,
        1 if sums_columns else 0,
        copy_axes[: len(outer)],
        copy_axes[len(outer) :],
        view,
    )


@record
class ResultMatrix:
    """The result as a matrix of output channels and positions, in the output or partial sums.

    Attributes:
        leading: leading dimension.
        o_is_row: whether o are its rows, so that rhs is the left operand.
        u_stride, j_stride: strides of u and j.
        partial_stride: elements between the partial sums of two splits; 0 without partial sums.
        outer: outer axes.
        partial_elements: size of all partial sums; 0: results are written to the output.
        sum_arguments: arguments of gf_sum_partials after the addresses.
        sum_rows: extent of gf_sum_partials.
    """

    leading: int
    o_is_row: bool
    u_stride: int
    j_stride: int
    partial_stride: int
    outer: Axes
    partial_elements: int
    sum_arguments: tuple[int, ...] = ()
    sum_rows: int = 0


def result_matrix(
    slides: Sequence[Slide],
    sums_columns: bool,
    kind: int,
    splits: int,
    u: Axis,
    o: Axis,
    outer: Axes,
    i_sizes: Dims,
    j_sizes: Dims,
) -> ResultMatrix:
    """Return the output if BLAS can write it and sums are not split, else partial sums."""
    slide_strides = [slide.out for slide in slides]
    if not sums_columns:
        sizes, strides = list(j_sizes), slide_strides
    elif kind == COLUMNS:
        sizes, strides = [*i_sizes, u.size], [*slide_strides, u.out]
    else:
        sizes, strides = [u.size, *i_sizes], [u.out, *slide_strides]
    x_stride, x_count = dense_stride(sizes, strides), prod(sizes)
    if x_stride is not None and splits == 1:
        layout = _blas_layout(o.size, o.out, x_count, x_stride)
        if layout is not None:
            u_stride, j_stride = u.out, 0
            if not sums_columns:
                u_stride, j_stride = 0, x_stride if x_count > 1 else 0
            return ResultMatrix(*layout, u_stride, j_stride, 0, outer, 0)
    # Partial sums in the order (outer, o, x), which gf_sum_partials adds up into the output.
    shape = (*(axis.size for axis in outer), o.size, *sizes)
    sum_strides = row_major_strides(shape)
    sum_axes = [axis._replace(out=stride) for axis, stride in zip(outer, sum_strides, strict=False)]
    u_stride = 1 if kind == COLUMNS else prod(i_sizes)
    out_strides = (*(axis.out for axis in outer), o.out, *strides)
    return ResultMatrix(
        x_count,
        True,
        u_stride if sums_columns else 0,
        0 if sums_columns else 1,
        prod(shape),
        sum_axes,
        splits * prod(shape),
        *_sum_arguments(splits, shape, sum_strides, out_strides),
    )


def _sum_arguments(
    splits: int, shape: Dims, sum_strides: Dims, out_strides: Dims
) -> tuple[tuple[int, ...], int]:
    """Arguments of gf_sum_partials after the addresses, and its extent in rows.

    Axes are sorted by their strides in the output, and collapsed. The innermost is a row.

    Args:
        splits: number of partial sums.
        shape: shape of a partial sum.
        sum_strides, out_strides: strides of its dimensions in a partial sum, and in the output.
    """
    dims = zip(shape, sum_strides, out_strides, strict=True)
    axes = sorted((-out_stride, size, stride) for size, stride, out_stride in dims if size > 1)
    table: list[tuple[int, int, int]] = []  # size, and strides in a partial sum and the output
    for negated, size, stride in axes:
        out_stride = -negated
        previous = table[-1] if len(table) > 1 else None  # the outermost axis is not collapsed
        if previous and previous[1:] == (stride * size, out_stride * size):
            table[-1] = (previous[0] * size, stride, out_stride)
        else:
            table.append((size, stride, out_stride))
    row = table.pop() if table else (1, 1, 1)
    total = prod(shape)
    arguments = (splits, total, len(table), *row, *(slot for axis in table for slot in axis))
    return arguments, total // row[0]
