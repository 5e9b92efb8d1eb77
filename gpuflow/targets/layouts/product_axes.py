"""Views as BLAS operands: collapsed axes, a transposition flag and a leading dimension."""

from __future__ import annotations

from gpuflow.core.blocks import Product
from gpuflow.core.views import View

Dims = tuple[int, ...]
Axis = tuple[int, int]  # size and stride, in elements

PLAIN, TRANSPOSED = 111, 112  # CblasNoTrans, CblasTrans


def collapsed_axes(view: View, dims: Dims, levels: int) -> list[Axis] | None:
    """Collapse dimensions of a view to at most ``levels`` axes, outermost first.

    Dimensions of size 1 are dropped, and broadcast ones have stride 0. None: more axes are needed.
    """
    shape, strides, _, broadcast = view
    if len(dims) == 1 and shape[dims[0]] != 1:
        d = dims[0]
        return [(shape[d], 0 if broadcast and broadcast[d] else strides[d])]
    axes: list[Axis] = []
    for d in dims:
        size, stride = shape[d], strides[d]
        if size == 1:
            continue
        if broadcast and broadcast[d]:
            stride = 0
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes if len(axes) <= levels else None


def batch_axes(left: View, right: View, product: Product) -> list[tuple[int, int, int]] | None:
    """Collapse the batch dimensions to at most two axes (size, left stride, right stride).

    The outermost comes first. None: more than two axes are needed.
    """
    axes: list[tuple[int, int, int]] = []
    if not product.left[0]:
        return axes
    for a, b in zip(product.left[0], product.right[0], strict=True):
        size = left.shape[a]
        if size == 1:
            continue
        strides = [
            0 if view.broadcast and view.broadcast[d] else view.strides[d]
            for view, d in ((left, a), (right, b))
        ]
        one, other = strides
        if axes and axes[-1][1] == size * one and axes[-1][2] == size * other:
            axes[-1] = (axes[-1][0] * size, one, other)
        else:
            axes.append((size, one, other))
    return axes if len(axes) <= 2 else None


def leading_dimension(rows: list[Axis], columns: list[Axis]) -> tuple[int, int] | None:
    """Return CBLAS's transposition flag and leading dimension of a matrix, for row-major calls.

    Args:
        rows, columns: at most one axis each, as ``collapsed_axes`` returns them.

    Returns:
        Flag and leading dimension; None if neither axis has stride 1. The stride of an axis of
        size 1 is irrelevant.
    """
    row_size, row_stride = rows[0] if rows else (1, 0)
    size, stride = columns[0] if columns else (1, 0)
    if (size == 1 or stride == 1) and (row_size == 1 or row_stride >= size):
        return PLAIN, max(row_stride if row_size > 1 else size, 1)
    if (row_size == 1 or row_stride == 1) and (size == 1 or stride >= row_size):
        return TRANSPOSED, max(stride if size > 1 else row_size, 1)
    return None
