"""Planner of convolutions: one call as products of packed matrices (im2col) that threads share.

``targets/cpu/runtime/native/convolution.ll`` defines the meaning of an index, of the arguments, and
of the axes u, i, j and o. This module makes all decisions. None of them, and no result, depends on
the number of threads, except the chunk.

Form 0, for few taps: rows of the packed matrix are taps and depth, columns are positions of the
result, and rows are summed. Form 1, for more taps than positions, as in the gradient of a kernel:
rows are positions and a free dimension, columns are taps, and columns are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from gpuflow.base.records import record
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View
from gpuflow.targets.cpu.library.convolution_matrices import (
    ROWS,
    blocks_of,
    packed_layout,
    rhs_matrix,
    row_major_lhs,
    steps_of,
    target_matrix,
)
from gpuflow.targets.layouts.convolution_axes import (
    Axes,
    Axis,
    Dims,
    Problem,
    Slide,
    as_problem,
    phases,
    split_positions,
    with_taps_reversed,
)

SLOT_BYTES = 1 << 19  # capacity of a packed matrix, so that it stays in a core's L2
_PLAIN, _TRANSPOSED = 111, 112  # CblasNoTrans, CblasTrans
_SMALLEST_FLOPS = 1 << 21  # less work runs on one thread
_TASKS = 16  # number of indices that larger work is split into
_SHORTEST_COPY = 8  # fewest contiguous elements of u for which P is packed by columns
_FEWEST_READS = 4  # fewest reads of an element that justify a copy of lhs with space innermost
_MOST_PARTIAL_BYTES = 1 << 24  # of partial sums
_ALIGNMENT = 64
LHS_ARGUMENT, RHS_ARGUMENT, OUT_ARGUMENT = 5, 6, 7  # argument slots of the addresses
SLOT_ARGUMENTS = (1, 2, 3, 4)
TABLE_ARGUMENT, STEP_TABLE_ARGUMENT = 12, 15


@record
class ConvolutionCall:
    """One launch of ``gf_convolution``, with the copies before it and the sums after it.

    Attributes:
        arguments: the argument block, with 0 for functions, slots and tables, and byte offsets for
            addresses.
        table, step_table: sizes and byte strides of outer axes, and of steps of the sum.
        extent: number of indices.
        chunk: number of indices that a thread takes at a time.
        points: the work, as the number of elements of a cheap kernel that take as long.
        copied: the view of rhs that is copied to be dense; None: rhs is read in place.
        partial: elements of the array of partial sums; 0: results are written to the output.
        summed: arguments of gf_sum_partials after the addresses.
        rows: extent of gf_sum_partials.
        offset: byte offset of the first element that gf_sum_partials writes to the output.
        copied_lhs: the view of lhs that is copied first; None: lhs is read in place.
    """

    arguments: tuple[int, ...]
    table: tuple[int, ...]
    step_table: tuple[int, ...]
    extent: int
    chunk: int
    points: int
    copied: View | None
    partial: int
    summed: tuple[int, ...]
    rows: int
    offset: int
    copied_lhs: View | None


def workspace_offsets(call: ConvolutionCall, itemsize: int) -> tuple[list[int], int]:
    """Byte offsets of the copies of lhs and rhs and of the partial sums, and the total bytes."""
    counts = [0 if view is None else prod(view.shape) for view in (call.copied_lhs, call.copied)]
    offsets, at = [], 0
    for count in (*counts, call.partial):
        offsets.append(at)
        at += -(-count * itemsize // _ALIGNMENT) * _ALIGNMENT
    return offsets, at


def convolution_call(
    convolution: Convolution, left: View, right: View, out: Dims, dtype: np.dtype, threads: int
) -> tuple[list[ConvolutionCall], bool] | None:
    """Return the calls of a convolution.

    Args:
        convolution: dimension numbers, strides, padding and dilations.
        left, right: layouts of lhs and rhs.
        out: shape of the result.
        dtype: dtype of operands and result.
        threads: number of threads that share the work.

    Returns:
        The calls, and whether they skip positions of the result, which must then be set to 0
        first. None if an array is empty, too many dimensions slide, or a packed matrix would be
        too large.
    """
    if 0 in (*left.shape, *right.shape, *out):
        return None
    taps = prod(right.shape[d] for d in convolution.right[3])
    form = int(taps > prod(out[d] for d in convolution.out[3]))
    problem = as_problem(convolution, left, right, out)
    if problem is None:
        return None
    # P as rows takes mirrored taps in memory order; P as columns copies runs of taps anyway.
    rows = problem if form else with_taps_reversed(problem)
    options = ((True, problem), (False, rows))
    elements = SLOT_BYTES // dtype.itemsize
    subproblems = [
        split_positions(variant, elements) if form else phases(variant) for _, variant in options
    ]
    calls = []
    for variants in zip(*subproblems, strict=True):
        candidates = (
            _call(variant, form, columns, right, out, dtype, threads)
            for (columns, _), variant in zip(options, variants, strict=True)
        )
        call = next((call for call in candidates if call is not None), None)
        if call is None:
            return None
        calls.append(call)
    covered = sum(prod(slide.positions for slide in variant.slides) for variant in subproblems[0])
    return calls, covered < prod(slide.positions for slide in problem.slides)


# --- one call ------------------------------------------------------------------------------


def _call(
    problem: Problem,
    form: int,
    columns: bool,
    right: View,
    out: Dims,
    dtype: np.dtype,
    threads: int,
) -> ConvolutionCall | None:
    """Return the call for one subproblem, or None if this layout of P does not apply.

    Args:
        problem: the subproblem.
        form: 0 or 1.
        columns: whether P is packed by columns, with u contiguous; else by rows.
        right: layout of rhs.
        out: shape of the result.
        dtype: dtype of operands and result.
        threads: number of threads that share the work.
    """
    slides = problem.slides
    names = ("positions", "taps") if form else ("taps", "positions")
    i_sizes, j_sizes = (tuple(getattr(slide, name) for slide in slides) for name in names)
    u, others = _select_u(problem.rows if form else problem.depth, columns)
    if columns and (u[1] != 1 or u[0] < _SHORTEST_COPY or slides[-1].lhs == 1):
        return None
    o, more = _select_u(problem.columns, False)
    free, steps = (others, problem.depth) if form else (problem.rows, others)
    outer = [*problem.outer, *free, *more]
    layout = packed_layout(slides, i_sizes, j_sizes, u, form, columns)
    copied = None
    is_strided = slides[-1].size > 1 and slides[-1].lhs != 1
    if layout.kind == ROWS and is_strided and prod(i_sizes) >= _FEWEST_READS:
        copied, problem, axes = row_major_lhs(problem, [*outer, *steps, u])
        slides, outer, u = problem.slides, axes[: len(outer)], axes[-1]
        steps = axes[len(outer) : -1]
    rhs = rhs_matrix(problem, right, form, layout.kind, i_sizes, j_sizes, u, o, outer, steps)
    elements = SLOT_BYTES // dtype.itemsize
    flops = 2 * prod(i_sizes) * prod(j_sizes) * u[0] * o[0] * _count(outer) * _count(steps)
    # The sum may be split as well, if its partial sums fit into _MOST_PARTIAL_BYTES.
    most = max(_MOST_PARTIAL_BYTES // (prod(out) * dtype.itemsize), 1)
    requested = -(-_TASKS // _count(outer)) if flops >= _SMALLEST_FLOPS else 1
    blocks = blocks_of(
        form, layout.kind, i_sizes, j_sizes, u[0], elements, requested, _count(steps), most
    )
    if blocks is None:
        return None
    u_block, j_blocks = blocks
    counts = [-(-n // b) for n, b in zip(j_sizes, j_blocks, strict=True)]
    x_blocks = -(-u[0] // u_block) if form else prod(counts)
    iterations = _count(steps) * (prod(counts) if form else -(-u[0] // u_block))
    tasks = _count(outer) * x_blocks
    splits = min(iterations, -(-_TASKS // tasks), most) if flops >= _SMALLEST_FLOPS else 1
    to = target_matrix(slides, form, layout.kind, splits, u, o, rhs.outer, i_sizes, j_sizes)
    size = dtype.itemsize
    extent = tasks * splits
    arguments = (
        0, 0, 0, 0, 0, rhs.lhs_offset * size, rhs.offset * size,
        0 if to.partial else problem.out_offset * size,
        splits, x_blocks, form, len(outer), 0, _count(steps), len(steps), 0,
        to.partial_stride * size,
        u[0], u_block, u[1] * size, rhs.u * size, to.u * size,
        prod(counts), rhs.j * size, to.j * size,
        layout.kind, layout.leading, layout.j * size,
        int(to.rhs_first), _flag(rhs.plain, to.rhs_first),
        _flag(layout.plain(form), not to.rhs_first),
        o[0], max(rhs.leading, 1), max(to.leading, 1), prod(i_sizes), int(layout.joined),
        *_slide_arguments(slides, form, j_blocks, counts, size),
    )  # fmt: skip
    table = [w for n, *strides in to.outer for w in (n, *(s * size for s in strides))]
    step_table = [w for n, *strides in rhs.steps for w in (n, *(s * size for s in strides))]
    chunk = extent if flops < _SMALLEST_FLOPS else max(extent // (threads * 4), 1)
    return ConvolutionCall(
        arguments,
        tuple(table),
        tuple(step_table),
        extent,
        chunk,
        flops // 16,
        rhs.copied,
        to.partial,
        to.summed,
        to.rows,
        problem.out_offset * size,
        copied,
    )


def _count(axes: Axes) -> int:
    return prod(axis[0] for axis in axes)


def _flag(plain: bool, first: bool) -> int:
    """CBLAS's transposition flag of a matrix.

    Args:
        plain: whether its rows are those of a left operand.
        first: whether it is the left operand.
    """
    return _PLAIN if plain == first else _TRANSPOSED


def _select_u(axes: Axes, dense: bool) -> tuple[Axis, Axes]:
    """Select the axis of a product and return it with the others.

    It is the last axis, or if ``dense`` the first with stride 1 in lhs, if there is one.
    """
    if not axes:
        return (1, 0, 0, 0), []
    position = len(axes) - 1
    if dense:
        position = next((k for k, axis in enumerate(axes) if axis[1] == 1), position)
    return axes[position], [axis for k, axis in enumerate(axes) if k != position]


def _slide_arguments(
    slides: Sequence[Slide], form: int, blocks: Dims, counts: Sequence[int], size: int
) -> list[int]:
    """The twelve argument slots of each spatial dimension."""
    arguments = []
    for slide, block, count in zip(slides, blocks, counts, strict=True):
        i, j = (slide.positions, slide.taps) if form else (slide.taps, slide.positions)
        i_step, j_step = steps_of(slide, form)
        common = gcd(slide.lhs_dilation, j_step)
        arguments += [
            i,
            i_step,
            j_step,
            slide.pad,
            slide.size,
            slide.lhs_dilation,
            slide.lhs * size,
            j,
            block,
            count,
            slide.lhs_dilation // common,
            j_step // common,
        ]
    return arguments
