"""Planner of convolutions: one call as products of packed matrices (im2col) that threads share.

``targets/cpu/runtime/native/convolution.ll`` defines the meaning of an index, of the arguments, and
of the axes u, i, j and o. This module makes all decisions. None of them, and no result, depends on
the number of threads, except the chunk.

The packed matrix P of lhs has two forms, by ``sums_columns``:

    False (form 0), few taps: rows of P are taps and depth, columns are positions of the result, and
        rows are summed
    True (form 1), more taps than positions, as in the gradient of a kernel: rows are positions and
        a free dimension, columns are taps, and columns are summed

Strides and offsets are in elements, but in bytes in argument blocks.

Tests: tests/targets/cpu/test_native_convolutions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from gpuflow.base.records import record
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View
from gpuflow.targets.cpu.library.convolution_matrices import (
    ROWS,
    blocks_of,
    packed_layout,
    result_matrix,
    rhs_matrix,
    row_major_lhs,
    steps_of,
)
from gpuflow.targets.layouts.convolution_axes import (
    Axes,
    Axis,
    ConvolutionProblem,
    Dims,
    Slide,
    as_problem,
    phases,
    split_positions,
    with_taps_reversed,
)

SLOT_BYTES = 1 << 19  # capacity of a packed matrix, so that it stays in a core's L2
_NO_TRANS, _TRANS = 111, 112  # CblasNoTrans, CblasTrans
_MIN_FLOPS = 1 << 21  # less work runs on one thread
_REQUESTED_INDICES = 16  # number of indices that larger work is split into
_MIN_COPY = 8  # fewest contiguous elements of u for which P is packed by columns
_MIN_READS = 4  # fewest reads of an element that justify a copy of lhs with space innermost
_MAX_PARTIAL_BYTES = 1 << 24  # of partial sums
_CHUNKS_PER_THREAD = 4
_ALIGNMENT = 64  # of the parts of the workspace, in bytes
LHS_ARGUMENT, RHS_ARGUMENT, OUT_ARGUMENT = 5, 6, 7  # argument slots of the addresses
SLOT_ARGUMENTS = (1, 2, 3, 4)
TABLE_ARGUMENT, STEP_TABLE_ARGUMENT = 12, 15


@record
class ConvolutionCall:
    """One launch of ``gf_convolution``, with the copies before it and the sums after it.

    Attributes:
        arguments: the argument block, with 0 for functions, slots and tables, and byte offsets for
            addresses.
        outer_table, step_table: sizes and byte strides of outer axes, and of steps of the sum.
        extent: number of indices.
        chunk: number of indices that a thread takes at a time.
        points: the work, as the number of elements of a cheap kernel that take as long.
        rhs_copy: the view of rhs that is copied to be dense; None: rhs is read in place.
        partial_elements: size of the array of partial sums; 0: results are written to the output.
        sum_arguments: arguments of gf_sum_partials after the addresses.
        sum_rows: extent of gf_sum_partials.
        out_offset: byte offset of the first element that gf_sum_partials writes to the output.
        lhs_copy: the view of lhs that is copied first; None: lhs is read in place.
    """

    arguments: tuple[int, ...]
    outer_table: tuple[int, ...]
    step_table: tuple[int, ...]
    extent: int
    chunk: int
    points: int
    rhs_copy: View | None
    partial_elements: int
    sum_arguments: tuple[int, ...]
    sum_rows: int
    out_offset: int
    lhs_copy: View | None


class ConvolutionCalls(NamedTuple):
    """The launches of a convolution, one after the other.

    Attributes:
        calls: the launches.
        skips_positions: whether no call writes some positions of the result, which must then be set
            to 0 first.
    """

    calls: list[ConvolutionCall]
    skips_positions: bool


class WorkspaceLayout(NamedTuple):
    """Byte offsets of the copies of lhs and rhs and of the partial sums, and the size of it all."""

    lhs_copy: int
    rhs_copy: int
    partial_sums: int
    total_bytes: int


def workspace_layout(call: ConvolutionCall, itemsize: int) -> WorkspaceLayout:
    """Return the layout of the workspace of one call."""
    counts = [0 if view is None else prod(view.shape) for view in (call.lhs_copy, call.rhs_copy)]
    offsets, end = [], 0
    for count in (*counts, call.partial_elements):
        offsets.append(end)
        end += -(-count * itemsize // _ALIGNMENT) * _ALIGNMENT
    return WorkspaceLayout(*offsets, end)


def plan_convolution(
    convolution: Convolution, left: View, right: View, out: Dims, dtype: np.dtype, threads: int
) -> ConvolutionCalls | None:
    """Return the calls of a convolution.

    Args:
        convolution: dimension numbers, strides, padding and dilations.
        left, right: layouts of lhs and rhs.
        out: shape of the result, which is row-major.
        dtype: dtype of operands and result.
        threads: number of threads that share the work.

    Returns:
        The calls; None if an array is empty, too many dimensions slide, or a packed matrix would be
        too large.
    """
    if 0 in (*left.shape, *right.shape, *out):
        return None
    taps = prod(right.shape[d] for d in convolution.right[3])
    sums_columns = taps > prod(out[d] for d in convolution.out[3])
    problem = as_problem(convolution, left, right, out)
    if problem is None:
        return None
    # P as rows takes mirrored taps in memory order; P as columns copies runs of taps anyway.
    problem_for_rows = problem if sums_columns else with_taps_reversed(problem)
    elements = SLOT_BYTES // dtype.itemsize
    by_columns, by_rows = (
        split_positions(variant, elements) if sums_columns else phases(variant)
        for variant in (problem, problem_for_rows)
    )
    calls = []
    for for_columns, for_rows in zip(by_columns, by_rows, strict=True):
        candidates = (
            _call(subproblem, sums_columns, packs_columns, right, out, dtype, threads)
            for packs_columns, subproblem in ((True, for_columns), (False, for_rows))
        )
        call = next((call for call in candidates if call is not None), None)
        if call is None:
            return None
        calls.append(call)
    covered = sum(prod(slide.positions for slide in subproblem.slides) for subproblem in by_columns)
    total = prod(slide.positions for slide in problem.slides)
    return ConvolutionCalls(calls, covered < total)


# --- one call ------------------------------------------------------------------------------


def _call(
    problem: ConvolutionProblem,
    sums_columns: bool,
    packs_columns: bool,
    right: View,
    out: Dims,
    dtype: np.dtype,
    threads: int,
) -> ConvolutionCall | None:
    """Return the call for one subproblem, or None if this layout of P does not apply.

    Args:
        problem: the subproblem.
        sums_columns: the form of P, see the module.
        packs_columns: whether P is packed by columns, with u contiguous; else by rows.
        right: layout of rhs.
        out: shape of the result.
        dtype: dtype of operands and result.
        threads: number of threads that share the work.
    """
    slides = problem.slides
    taps = tuple(slide.taps for slide in slides)
    positions = tuple(slide.positions for slide in slides)
    i_sizes, j_sizes = (positions, taps) if sums_columns else (taps, positions)
    u, others = _split_off_axis(problem.rows if sums_columns else problem.depth, packs_columns)
    if packs_columns and (u.lhs != 1 or u.size < _MIN_COPY or slides[-1].lhs == 1):
        return None
    o, other_columns = _split_off_axis(problem.columns, False)
    free, steps = (others, problem.depth) if sums_columns else (problem.rows, others)
    outer = [*problem.outer, *free, *other_columns]
    layout = packed_layout(slides, i_sizes, j_sizes, u, sums_columns, packs_columns)
    lhs_copy = None
    is_strided = slides[-1].size > 1 and slides[-1].lhs != 1
    if layout.kind == ROWS and is_strided and prod(i_sizes) >= _MIN_READS:
        lhs_copy, problem, axes = row_major_lhs(problem, [*outer, *steps, u])
        slides, outer, u = problem.slides, axes[: len(outer)], axes[-1]
        steps = axes[len(outer) : -1]
    rhs = rhs_matrix(
        problem, right, sums_columns, layout.kind, i_sizes, j_sizes, u, o, outer, steps
    )
    itemsize = dtype.itemsize
    outer_count, step_count = _index_count(outer), _index_count(steps)
    flops = 2 * prod(i_sizes) * prod(j_sizes) * u.size * o.size * outer_count * step_count
    is_parallel = flops >= _MIN_FLOPS
    blocks = _choose_blocks(
        sums_columns,
        layout.kind,
        i_sizes,
        j_sizes,
        u.size,
        outer_count,
        step_count,
        is_parallel,
        prod(out) * itemsize,
        itemsize,
    )
    if blocks is None:
        return None
    result = result_matrix(
        slides, sums_columns, layout.kind, blocks.splits, u, o, rhs.outer, i_sizes, j_sizes
    )
    extent = outer_count * blocks.result_blocks * blocks.splits
    arguments = (
        0, 0, 0, 0, 0, rhs.lhs_offset * itemsize, rhs.offset * itemsize,
        0 if result.partial_elements else problem.out_offset * itemsize,
        blocks.splits, blocks.result_blocks, int(sums_columns), len(outer), 0,
        step_count, len(steps), 0, result.partial_stride * itemsize,
        u.size, blocks.u, u.lhs * itemsize, rhs.u_stride * itemsize, result.u_stride * itemsize,
        prod(blocks.j_counts), rhs.j_stride * itemsize, result.j_stride * itemsize,
        layout.kind, layout.leading, layout.j_stride * itemsize,
        int(result.o_is_row), _transposition_flag(rhs.o_is_row, result.o_is_row),
        _transposition_flag(layout.is_plain_left_operand(sums_columns), not result.o_is_row),
        o.size, max(rhs.leading, 1), max(result.leading, 1), prod(i_sizes),
        int(layout.is_u_i_contiguous),
        *_slide_arguments(slides, sums_columns, blocks.j, blocks.j_counts, itemsize),
    )  # fmt: skip
    chunk = max(extent // (threads * _CHUNKS_PER_THREAD), 1) if is_parallel else extent
    return ConvolutionCall(
        arguments,
        _axis_table(result.outer, itemsize),
        _axis_table(rhs.steps, itemsize),
        extent,
        chunk,
        flops // 16,
        rhs.copied_view,
        result.partial_elements,
        result.sum_arguments,
        result.sum_rows,
        problem.out_offset * itemsize,
        lhs_copy,
    )


class _Blocks(NamedTuple):
    """The division of a call into indices.

    Attributes:
        u: size of a block of u.
        j: sizes of a block of j, by spatial dimension.
        j_counts: numbers of blocks of j, by spatial dimension.
        result_blocks: number of blocks of the result, for each index of the outer axes.
        splits: number of ranges of the sum, each with a partial sum.
    """

    u: int
    j: Dims
    j_counts: tuple[int, ...]
    result_blocks: int
    splits: int


def _choose_blocks(
    sums_columns: bool,
    kind: int,
    i_sizes: Dims,
    j_sizes: Dims,
    u_size: int,
    outer_count: int,
    step_count: int,
    is_parallel: bool,
    result_bytes: int,
    itemsize: int,
) -> _Blocks | None:
    """Choose the blocks of a call; None if even the smallest packed matrix is too large.

    Args:
        sums_columns, kind, i_sizes, j_sizes, u_size, step_count: as for ``blocks_of``.
        outer_count: number of indices of the outer axes.
        is_parallel: whether the work is large enough for several threads.
        result_bytes: size of the result.
        itemsize: bytes of an element.
    """
    # The sum may be split as well, if its partial sums fit into _MAX_PARTIAL_BYTES.
    most_splits = max(_MAX_PARTIAL_BYTES // result_bytes, 1)
    requested = -(-_REQUESTED_INDICES // outer_count) if is_parallel else 1
    blocks = blocks_of(
        sums_columns,
        kind,
        i_sizes,
        j_sizes,
        u_size,
        SLOT_BYTES // itemsize,
        requested,
        step_count,
        most_splits,
    )
    if blocks is None:
        return None
    u_block, j_blocks = blocks
    j_counts = tuple(-(-size // block) for size, block in zip(j_sizes, j_blocks, strict=True))
    # Blocks of the result are ranges of u or of j; those of the other axis are summed.
    result_blocks, summed_blocks = prod(j_counts), -(-u_size // u_block)
    if sums_columns:
        result_blocks, summed_blocks = summed_blocks, result_blocks
    splits = 1
    if is_parallel:
        requested_splits = -(-_REQUESTED_INDICES // (outer_count * result_blocks))
        splits = min(step_count * summed_blocks, requested_splits, most_splits)
    return _Blocks(u_block, j_blocks, j_counts, result_blocks, splits)


def _index_count(axes: Axes) -> int:
    return prod(axis.size for axis in axes)


def _axis_table(axes: Axes, itemsize: int) -> tuple[int, ...]:
    """Sizes and byte strides of axes, as ``gf_convolution`` reads them."""
    table: list[int] = []
    for axis in axes:
        table += (axis.size, axis.lhs * itemsize, axis.rhs * itemsize, axis.out * itemsize)
    return tuple(table)


def _transposition_flag(is_plain_left_operand: bool, is_left: bool) -> int:
    """CBLAS's transposition flag of a matrix.

    Args:
        is_plain_left_operand: whether it needs no transposition as a left operand.
        is_left: whether it is the left operand.
    """
    return _NO_TRANS if is_plain_left_operand == is_left else _TRANS


def _split_off_axis(axes: Axes, prefers_dense: bool) -> tuple[Axis, Axes]:
    """Select the axis of a product and return it with the others.

    It is the last axis, or if ``prefers_dense`` the first with stride 1 in lhs, if there is one.
    Its size is 1 if there are no axes.
    """
    if not axes:
        return Axis(1, 0, 0, 0), []
    position = len(axes) - 1
    if prefers_dense:
        position = next((k for k, axis in enumerate(axes) if axis.lhs == 1), position)
    return axes[position], [axis for k, axis in enumerate(axes) if k != position]


def _slide_arguments(
    slides: Sequence[Slide],
    sums_columns: bool,
    j_blocks: Dims,
    j_block_counts: Sequence[int],
    itemsize: int,
) -> list[int]:
    """The twelve argument slots of each spatial dimension."""
    arguments = []
    for slide, block, count in zip(slides, j_blocks, j_block_counts, strict=True):
        i_size, j_size = slide.taps, slide.positions
        if sums_columns:
            i_size, j_size = j_size, i_size
        i_step, j_step = steps_of(slide, sums_columns)
        common = gcd(slide.lhs_dilation, j_step)
        arguments += [
            i_size,
            i_step,
            j_step,
            slide.pad,
            slide.size,
            slide.lhs_dilation,
            slide.lhs * itemsize,
            j_size,
            block,
            count,
            slide.lhs_dilation // common,
            j_step // common,
        ]
    return arguments
