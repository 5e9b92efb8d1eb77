"""Provider of matrix products by cuBLAS: a product as calls of a GEMM, without copies.

Transposed operands become flags, and a batch dimension a stride. A second batch dimension takes a
call for each of its elements.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Product
from gpuflow.core.views import View
from gpuflow.targets.cuda.library.launch_sequence import (
    At,
    EpilogueLaunch,
    GemmLaunch,
    LaunchSequence,
)
from gpuflow.targets.cuda.runtime.driver.api import Gemm
from gpuflow.targets.layouts.product_axes import (
    TRANSPOSED,
    batch_axes,
    collapsed_axes,
    leading_dimension,
)

_FLOAT32 = np.dtype(np.float32)
_HALVES = (np.dtype(np.float16), dtypes.bfloat16)
_FULL = (_FLOAT32, np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128))
_ROUNDED = (_FLOAT32, np.dtype(np.complex64))  # dtypes that may be rounded to TF32 if requested
_MOST_CALLS = 64  # most calls of a batch with two axes; larger ones are left to CuPy


def _choose(product: Product, step: CallStep, target: Any) -> LaunchSequence | None:
    """The launch sequence of a product; None if no GEMM supports its layouts and dtypes.

    It accumulates in float32 for operands of 16 bits, else in their dtype.
    """
    del target
    left, right, *others = step.operands
    dtype, out_dtype = left.aval.dtype, step.eqn.outputs[0].aval.dtype
    if dtypes.is_extended(dtype) or right.aval.dtype != dtype or not _has_gemm(dtype, out_dtype):
        return None
    gemm = _gemm(product, left.layout, right.layout, dtype, out_dtype)
    if gemm is None:
        return None
    count = len(step.operands)
    sequence = LaunchSequence(count + len(step.outputs))
    if product.epilogue is None:
        sequence.multiply(gemm)
        return sequence
    (left_at, right_at, _), *_ = gemm.locations
    # By False: the bias, or its gradient. By True: the auxiliary buffer, which the forward pass
    # writes and the gradient reads.
    extras: dict[bool, At] = {}
    is_gradient = product.epilogue.gradient
    for index, other in enumerate(others, 2):
        location = sequence.row_major(At(index), other.layout, storage_dtype(other.aval.dtype))
        if location is None:
            return None
        extras[is_gradient] = location
    if len(step.outputs) == 2:
        extras[not is_gradient] = At(count + 1)
    locations = (At(0, left_at), At(1, right_at), At(count), extras.get(False), extras.get(True))
    sequence.launches.append(EpilogueLaunch(gemm.gemm, product.epilogue, locations))
    return sequence


def _has_gemm(dtype: np.dtype, out_dtype: np.dtype) -> bool:
    if dtype in _HALVES:
        return out_dtype in (dtype, _FLOAT32)
    return dtype in _FULL and out_dtype == dtype


def _gemm(
    product: Product, left: View, right: View, dtype: np.dtype, out_dtype: np.dtype
) -> GemmLaunch | None:
    sides = ((left, product.left), (right, product.right))
    matrices = [
        [collapsed_axes(view, dims, 1) for dims in dim_groups[1:]] for view, dim_groups in sides
    ]
    batch = batch_axes(left, right, product)
    (rows, depth), (depth_too, columns) = matrices
    if batch is None or rows is None or depth is None or depth_too is None or columns is None:
        return None
    of_left, of_right = leading_dimension(rows, depth), leading_dimension(depth_too, columns)
    m, n, k = (prod(size for size, _ in axes) for axes in (rows, columns, depth))
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    if of_left is None or of_right is None or 0 in (m, n, k, outer[0], inner[0]):
        return None
    if outer[0] > _MOST_CALLS:
        return None
    (left_flag, left_leading), (right_flag, right_leading) = of_left, of_right
    gemm = Gemm(
        m,
        n,
        k,
        left_flag == TRANSPOSED,
        right_flag == TRANSPOSED,
        left_leading,
        right_leading,
        inner[0],
        inner[1],
        inner[2],
        m * n,
        dtype,
        out_dtype,
        reduced=product.reduced and dtype in _ROUNDED,
    )
    size, out_size = dtype.itemsize, out_dtype.itemsize
    locations = [
        (
            (left.offset + batch_index * outer[1]) * size,
            (right.offset + batch_index * outer[2]) * size,
            batch_index * inner[0] * m * n * out_size,
        )
        for batch_index in range(outer[0])
    ]
    return GemmLaunch(gemm, tuple(locations))


PROVIDER = Provider("cuBLAS", _choose)
