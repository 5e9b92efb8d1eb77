"""Candidate copies of a convolution's operands, with a layout that kernels read in vectors.

Kernels read an operand in vectors of 16 bytes only if its depth or its free dimension is innermost.
That is not the case for channels first, or filters as ``OIHW``. If tiles read such an operand
often, it is cheaper to copy it first. ``convolutions`` compares the costs.

Tests: tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from gpuflow.base.util import row_major_strides
from gpuflow.core.views import View
from gpuflow.targets.cuda.library.copy_launches import MAX_DIMS, collapsed, tiled_copy
from gpuflow.targets.cuda.library.implicit_gemm import (
    LHS,
    ONE_BY_ONE,
    RHS,
    ImplicitGemm,
    operand_elements,
    operand_stride,
)
from gpuflow.targets.layouts.convolution_axes import Axes


def with_copies(gemm: ImplicitGemm, chunk: int) -> Iterator[ImplicitGemm]:
    """Yield the GEMM, and GEMMs with copies of the operands that are read element by element.

    Args:
        gemm: the GEMM, without copies.
        chunk: elements of a vector of 16 bytes.
    """
    for left in _with_copied(gemm, LHS, chunk):
        yield from _with_copied(left, RHS, chunk)


def _with_copied(gemm: ImplicitGemm, operand: int, chunk: int) -> Iterator[ImplicitGemm]:
    """Yield the GEMM, and those with a copy of LHS or RHS that helps."""
    yield gemm
    if gemm.read_modes(chunk)[operand] != ONE_BY_ONE:
        return
    for candidate in (_copied(gemm, operand, True), _copied(gemm, operand, False)):
        if candidate is not None and candidate.read_modes(chunk)[operand] != ONE_BY_ONE:
            yield candidate


def _copied(gemm: ImplicitGemm, operand: int, depth_is_inner: bool) -> ImplicitGemm | None:
    """The GEMM with a copy of an operand; None if the copy kernel does not support its view.

    Args:
        gemm: the GEMM, in which the operand is not copied yet.
        operand: LHS or RHS.
        depth_is_inner: whether depth is innermost in the copy, instead of the last free axis.
    """
    free = gemm.columns if operand == RHS else gemm.rows
    axes = [*gemm.outer, *free]
    # Dimensions of the operand: outer axes, free axes, slides, depth.
    sizes = [axis.size for axis in axes]
    sizes += [operand_elements(slide, operand) for slide in gemm.slides]
    sizes.append(gemm.depth.size)
    strides = [operand_stride(dim, operand) for dim in (*axes, *gemm.slides, gemm.depth)]
    # Broadcast dimensions have size 1 in the copy.
    sizes = [size if stride else 1 for size, stride in zip(sizes, strides, strict=True)]
    order = list(range(len(sizes)))
    if not depth_is_inner:
        last_free = len(axes) - 1
        order.remove(last_free)
        order.append(last_free)
    shape = tuple(sizes[d] for d in order)
    view_strides = tuple(strides[d] for d in order)
    view = View(shape, view_strides, gemm.offsets[operand], (False,) * len(order))
    if 0 in shape or len(collapsed(view)) > MAX_DIMS:
        return None
    copy_strides = [0] * len(order)
    for d, size, stride in zip(order, shape, row_major_strides(shape), strict=True):
        copy_strides[d] = stride if size > 1 else 0
    next_strides = iter(copy_strides)  # in the order of ``sizes``
    field = ("lhs", "rhs")[operand]

    def with_copy_strides(axis_group: Axes) -> Axes:
        return [axis._replace(**{field: next(next_strides)}) for axis in axis_group]

    outer, free = with_copy_strides(gemm.outer), with_copy_strides(free)
    slides = [replace(slide, **{field: next(next_strides)}) for slide in gemm.slides]
    (depth,) = with_copy_strides([gemm.depth])
    offsets, copied_views = list(gemm.offsets), list(gemm.copied_views)
    offsets[operand], copied_views[operand] = 0, view
    return replace(
        gemm,
        outer=outer,
        rows=gemm.rows if operand == RHS else free,
        columns=free if operand == RHS else gemm.columns,
        depth=depth,
        slides=slides,
        offsets=(offsets[0], offsets[1]),
        copied_views=(copied_views[0], copied_views[1]),
    )


def copied_bytes(view: View, itemsize: int) -> int:
    """Estimated memory traffic of a copy in bytes; untiled copies count twice, as they reread."""
    return prod(view.shape) * itemsize * (4 if tiled_copy(view, itemsize) is None else 2)
