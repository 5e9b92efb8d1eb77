"""The matrices of a convolution's products: layouts, and blocks that fit a core's cache.

The axes u, i, j and o are defined in ``targets/cpu/runtime/native/convolution.ll``. P[(u, i), j] is
the packed matrix of lhs, and o are output channels. In form 0, u is the depth, i are taps and j
positions. In form 1, u is a free dimension of lhs, i are positions and j taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.views import View
from gpuflow.targets.layouts.convolution_axes import Axes, Axis, Dims, Problem, Slide, dense_stride

DIRECT, ROWS, COLUMNS = range(3)  # layouts of P: lhs in place, [(u, i), j], [j, (i, u)]
_FEWEST_COLUMNS = 64  # columns of a product, if possible
_LONGEST_ROWS = 384  # elements of a row of P in form 1, if that leaves memory for more rows


# --- the packed matrix ---------------------------------------------------------------------


@record
class Layout:
    """Layout of the packed matrix P.

    Attributes:
        kind: DIRECT, ROWS or COLUMNS.
        leading: leading dimension, if it is DIRECT.
        j: stride of j, if it is DIRECT.
        joined: whether u is contiguous along the last i, so that both are copied at once.
        u_is_row: whether P is stored as [(u, i), j].
    """

    kind: int
    leading: int = 0
    j: int = 0
    joined: bool = False
    u_is_row: bool = True

    def plain(self, form: int) -> bool:
        """Whether P needs no transposition as a left operand, whose columns are summed."""
        return self.u_is_row == bool(form)


def packed_layout(
    slides: Sequence[Slide], i_sizes: Dims, j_sizes: Dims, u: Axis, form: int, columns: bool
) -> Layout:
    """Return the layout of P: DIRECT if there is one i and no padding, else ROWS or COLUMNS."""
    still = all(
        slide.pad == 0
        and slide.lhs_dilation == 1
        and slide.size >= (n - 1) * steps_of(slide, form)[1] + 1
        for slide, n in zip(slides, j_sizes, strict=True)
    )
    if prod(i_sizes) == 1 and still:
        along = [slide.lhs * steps_of(slide, form)[1] for slide in slides]
        j, count = dense_stride(j_sizes, along), prod(j_sizes)
        if j is not None and (j == 1 or count == 1) and (u[0] == 1 or u[1] >= count):
            return Layout(DIRECT, max(u[1], count), j)
        if j is not None and (u[0] == 1 or u[1] == 1) and (j >= u[0] or count == 1):
            return Layout(DIRECT, max(j, u[0]), j, u_is_row=False)
    if not columns:
        return Layout(ROWS)
    last = slides[-1]
    joined = steps_of(last, form)[0] == 1 and last.lhs_dilation == 1 and last.lhs == u[0]
    return Layout(COLUMNS, joined=joined, u_is_row=False)


def steps_of(slide: Slide, form: int) -> tuple[int, int]:
    """Distances in the dilated lhs of adjacent i, and of adjacent j."""
    return (slide.stride, slide.rhs_dilation) if form else (slide.rhs_dilation, slide.stride)


# --- blocks --------------------------------------------------------------------------------


def blocks_of(
    form: int,
    kind: int,
    i_sizes: Dims,
    j_sizes: Dims,
    u: int,
    elements: int,
    requested: int,
    steps: int,
    most_splits: int,
) -> tuple[int, Dims] | None:
    """Return blocks of u and of each dimension of j whose packed matrix fits ``elements``.

    Args:
        form: 0 or 1.
        kind: layout of P.
        i_sizes, j_sizes: spatial sizes of i and j.
        u: size of u.
        elements: capacity of a packed matrix.
        requested: number of blocks of the work, unless they become too small.
        steps: number of steps of the sum over axes that P does not have.
        most_splits: largest number of partial sums.

    Returns:
        The blocks, or None if even the smallest do not fit.
    """
    i, j = prod(i_sizes), prod(j_sizes)
    if kind == DIRECT:
        elements = 1 << 62  # nothing is packed, so there is no limit
    if form:
        # Split the sum first, by steps and then j; then the result, by u.
        splits = min(requested, most_splits)
        j_splits = min(-(-splits // steps), max(j // _LONGEST_ROWS, 1))
        requested = -(-requested // min(splits, steps * j_splits))
        u_block = u
        if kind != COLUMNS:
            fitting = elements // (i * min(j, max(elements // (i * u), _LONGEST_ROWS)))
            split = max(-(-u // requested), -(-_FEWEST_COLUMNS // i))
            u_block = max(min(u, fitting, split), 1)
            u_block = -(-u // -(-u // u_block))
        most = min(elements // (i * u_block), -(-j // j_splits))
    else:
        u_block = u
        if kind != COLUMNS:
            u_block = max(min(u, elements // (i * min(j, 2 * _FEWEST_COLUMNS))), 1)
            u_block = -(-u // -(-u // u_block))
        split = max(-(-j // requested), _FEWEST_COLUMNS)
        most = min(elements // (i * u_block), split)
    if most < 1:
        return None
    return u_block, _box(j_sizes, most)


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


def row_major_lhs(problem: Problem, axes: Axes) -> tuple[View, Problem, Axes]:
    """Copy lhs with the spatial dimensions innermost.

    Returns:
        The view to copy, and the problem and its axes with the strides of the copy.
    """
    strided = [(n, lhs) for n, lhs, _, _ in axes if lhs]
    shape = (*(n for n, _ in strided), *(slide.size for slide in problem.slides))
    strides = (*(lhs for _, lhs in strided), *(slide.lhs for slide in problem.slides))
    dense = iter(row_major_strides(shape))
    moved_axes = [(n, next(dense) if lhs else 0, rhs, to) for n, lhs, rhs, to in axes]
    slides = [replace(slide, lhs=next(dense)) for slide in problem.slides]
    view = View(shape, strides, problem.lhs_offset)
    return view, replace(problem, slides=slides, lhs_offset=0), moved_axes


@record
class Rhs:
    """Layout of rhs as a matrix of output channels o and contracted dimensions.

    Attributes:
        offset, lhs_offset: first elements of rhs and lhs.
        leading: leading dimension of rhs.
        plain: whether o are its rows.
        u, j: strides of u and j in rhs.
        outer, steps: outer axes, and axes of the sum that P does not have.
        copied: the view that is copied; None: rhs is read in place.
    """

    offset: int
    lhs_offset: int
    leading: int
    plain: bool
    u: int
    j: int
    outer: Axes
    steps: Axes
    copied: View | None


def rhs_matrix(
    problem: Problem,
    right: View,
    form: int,
    kind: int,
    i_sizes: Dims,
    j_sizes: Dims,
    u: Axis,
    o: Axis,
    outer: Axes,
    steps: Axes,
) -> Rhs:
    """Return the layout of rhs: in place if BLAS can read it, else of a copy."""
    strides = [slide.rhs for slide in problem.slides]
    if form:
        sizes, along = list(j_sizes), strides
    elif kind == COLUMNS:
        sizes, along = [*i_sizes, u[0]], [*strides, u[2]]
    else:
        sizes, along = [u[0], *i_sizes], [u[2], *strides]
    depth, total = dense_stride(sizes, along), prod(sizes)
    if depth is not None:
        layout = None
        if (depth == 1 or total == 1) and (o[2] >= total or o[0] == 1):
            layout = max(o[2], total), True
        elif (o[2] == 1 or o[0] == 1) and depth >= o[0]:
            layout = depth, False
        if layout is not None:
            u_stride, j_stride = (0, depth) if form else (u[2], 0)
            return Rhs(
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
    strided = [(n, rs) for n, _, rs, _ in (*outer, *steps) if rs]
    shape = (*(n for n, _ in strided), o[0], *sizes)
    view = View(shape, (*(rs for _, rs in strided), o[2], *along), problem.rhs_offset)
    dense = iter(row_major_strides(shape)[: len(strided)])
    moved_axes = [(n, ls, next(dense) if rs else 0, os) for n, ls, rs, os in (*outer, *steps)]
    u_stride = 0 if form else (1 if kind == COLUMNS else prod(i_sizes))
    return Rhs(
        0,
        problem.lhs_offset,
        total,
        True,
        u_stride,
        1 if form else 0,
        moved_axes[: len(outer)],
        moved_axes[len(outer) :],
        view,
    )


@record
class Target:
    """The result as a matrix of output channels and positions, in the output or partial sums.

    Attributes:
        leading: leading dimension.
        rhs_first: whether o are its rows, so that rhs is the left operand.
        u, j: strides of u and j.
        partial_stride: elements between the partial sums of two splits; 0 without partial sums.
        outer: outer axes.
        partial: elements of all partial sums; 0: results are written to the output.
        summed: arguments of gf_sum_partials after the addresses.
        rows: extent of gf_sum_partials.
    """

    leading: int
    rhs_first: bool
    u: int
    j: int
    partial_stride: int
    outer: Axes
    partial: int
    summed: tuple[int, ...] = ()
    rows: int = 0


def target_matrix(
    slides: Sequence[Slide],
    form: int,
    kind: int,
    splits: int,
    u: Axis,
    o: Axis,
    outer: Axes,
    i_sizes: Dims,
    j_sizes: Dims,
) -> Target:
    """Return the output if BLAS can write it and sums are not split, else partial sums."""
    strides = [slide.out for slide in slides]
    if not form:
        sizes, along = list(j_sizes), strides
    elif kind == COLUMNS:
        sizes, along = [*i_sizes, u[0]], [*strides, u[3]]
    else:
        sizes, along = [u[0], *i_sizes], [u[3], *strides]
    x, total = dense_stride(sizes, along), prod(sizes)
    if x is not None and splits == 1:
        layout = None
        if (x == 1 or total == 1) and (o[3] >= total or o[0] == 1):
            layout = max(o[3], total), True
        elif (o[3] == 1 or o[0] == 1) and x >= o[0]:
            layout = x, False
        if layout is not None:
            packed_strides = (u[3], 0) if form else (0, x if total > 1 else 0)
            return Target(*layout, *packed_strides, 0, outer, 0)
    # Partial sums in the order (outer, o, x), which gf_sum_partials adds up into the output.
    shape = (*(axis[0] for axis in outer), o[0], *sizes)
    dense = row_major_strides(shape)
    moved_axes = [(n, ls, rs, stride) for (n, ls, rs, _), stride in zip(outer, dense, strict=False)]
    u_stride = 1 if kind == COLUMNS else prod(i_sizes)
    targets = (*(axis[3] for axis in outer), o[3], *along)
    return Target(
        total,
        True,
        u_stride if form else 0,
        0 if form else 1,
        prod(shape),
        moved_axes,
        splits * prod(shape),
        *_sum_arguments(splits, shape, dense, targets),
    )


def _sum_arguments(
    splits: int, shape: Dims, dense: Dims, targets: Dims
) -> tuple[tuple[int, ...], int]:
    """Arguments of gf_sum_partials after the addresses, and its extent in rows.

    Axes are sorted by their strides in the output, and collapsed. The innermost is a row.
    """
    axes = sorted(
        (-to, n, stride) for n, stride, to in zip(shape, dense, targets, strict=True) if n > 1
    )
    rows: list[tuple[int, int, int]] = []
    for to, n, stride in axes:
        to = -to
        before = rows[-1] if len(rows) > 1 else None  # the outermost axis is not collapsed
        if before and before[1:] == (stride * n, to * n):
            rows[-1] = (before[0] * n, stride, to)
        else:
            rows.append((n, stride, to))
    n, stride, to = rows.pop() if rows else (1, 1, 1)
    table = (argument for row in rows for argument in row)
    return (splits, prod(shape), len(rows), n, stride, to, *table), prod(shape) // n
