"""Views as BLAS operands: collapsed axes, a transposition flag and a leading dimension.

Tests: tests/targets/cpu/test_native_products.py, tests/targets/cuda/test_cuda_blas.py.
"""

from __future__ import annotations

from gpuflow.core.blocks import Product
from gpuflow.core.views import View

Dims = tuple[int, ...]
StridedAxis = tuple[int, int]  # size and stride, in elements
BatchAxis = tuple[int, int, int]  # size, and strides in left and right, in elements

PLAIN, TRANSPOSED = 111, 112  # CblasNoTrans, CblasTrans


def collapsed_axes(view: View, dims: Dims, max_axes: int) -> list[StridedAxis] | None:
    """Collapse dimensions of a view to at most ``max_axes`` axes, outermost first.

    Dimensions of size 1 are dropped, and broadcast ones have stride 0. None: more axes are needed.
    """
    shape, strides, _, broadcast = view
    if len(dims) == 1 and shape[dims[0]] != 1:
        d = dims[0]
        return [(shape[d], 0 if broadcast and broadcast[d] else strides[d])]
    axes: list[StridedAxis] = []
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
    return axes if len(axes) <= max_axes else None


def batch_axes(left: View, right: View, product: Product) -> list[BatchAxis] | None:
    """Collapse the batch dimensions to at most two axes, outermost first.

    None: more than two axes are needed.
    """
    axes: list[BatchAxis] = []
    if not product.left[0]:
        return axes
    for left_dim, right_dim in zip(product.left[0], product.right[0], strict=True):
        size = left.shape[left_dim]
        if size == 1:
            continue
        left_stride, right_stride = [
            0 if view.broadcast and view.broadcast[d] else view.strides[d]
            for view, d in ((left, left_dim), (right, right_dim))
        ]
        if axes and axes[-1][1:] == (size * left_stride, size * right_stride):
            axes[-1] = (axes[-1][0] * size, left_stride, right_stride)
        else:
            axes.append((size, left_stride, right_stride))
    return axes if len(axes) <= 2 else None


def leading_dimension(
    rows: list[StridedAxis], columns: list[StridedAxis]
) -> tuple[int, int] | None:
    """Return CBLAS's transposition flag and leading dimension of a matrix, for row-major calls.

    Args:
        rows, columns: at most one axis each, as ``collapsed_axes`` returns them.

    Returns:
        Flag and leading dimension; None if neither axis has stride 1. The stride of an axis of
        size 1 is irrelevant.
    """
    m, row_stride = rows[0] if rows else (1, 0)
    n, column_stride = columns[0] if columns else (1, 0)
    if (n == 1 or column_stride == 1) and (m == 1 or row_stride >= n):
        return PLAIN, max(row_stride if m > 1 else n, 1)
    if (m == 1 or row_stride == 1) and (n == 1 or column_stride >= m):
        return TRANSPOSED, max(column_stride if n > 1 else m, 1)
    return None
