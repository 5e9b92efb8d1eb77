"""Provider of matrix products by cuBLAS: a product as calls of a GEMM, without copies.

Transposed operands become flags, and a batch dimension a stride. A second batch dimension takes a
call for each of its elements.

Tests: tests/targets/cuda/test_cuda_blas.py, tests/targets/cuda/test_gpu_epilogues.py.
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
    ArrayLocation,
    EpilogueLaunch,
    GemmLaunch,
    GemmOffsets,
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
_FULL_PRECISION = (
    _FLOAT32,
    np.dtype(np.float64),
    np.dtype(np.complex64),
    np.dtype(np.complex128),
)
_TF32_DTYPES = (_FLOAT32, np.dtype(np.complex64))  # dtypes that may be rounded to TF32 if requested
_MAX_CALLS = 64  # most calls of a batch with two axes; larger ones are left to CuPy


def _choose(product: Product, step: CallStep, target: Any) -> LaunchSequence | None:
    """The launch sequence of a product; None if no GEMM supports its layouts and dtypes.

    It accumulates in float32 for operands of 16 bits, else in their dtype.
    """
    del target
    left, right, *extra_operands = step.operands
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
    # The third operand and the second output, of which each may be missing.
    operand_extra: ArrayLocation | None = None
    output_extra = ArrayLocation(count + 1) if len(step.outputs) == 2 else None
    for index, operand in enumerate(extra_operands, 2):
        operand_extra = sequence.row_major(
            ArrayLocation(index), operand.layout, storage_dtype(operand.aval.dtype)
        )
        if operand_extra is None:
            return None
    # The forward pass reads the bias and writes the auxiliary buffer; the gradient reads that, and
    # writes the gradient of the bias.
    bias, aux = operand_extra, output_extra
    if product.epilogue.gradient:
        bias, aux = output_extra, operand_extra
    offsets = gemm.offsets[0]  # as ``gemm_with`` takes no batch
    locations = (
        ArrayLocation(0, offsets.left),
        ArrayLocation(1, offsets.right),
        ArrayLocation(count),
        bias,
        aux,
    )
    sequence.launches.append(EpilogueLaunch(gemm.gemm, product.epilogue, locations))
    return sequence


def _has_gemm(dtype: np.dtype, out_dtype: np.dtype) -> bool:
    """Whether cuBLAS has a GEMM of operands of ``dtype`` with a result of ``out_dtype``."""
    if dtype in _HALVES:
        return out_dtype in (dtype, _FLOAT32)
    return dtype in _FULL_PRECISION and out_dtype == dtype


def _gemm(
    product: Product, left: View, right: View, dtype: np.dtype, out_dtype: np.dtype
) -> GemmLaunch | None:
    """The GEMM calls of a product of views; None if the layouts need copies or too many calls."""
    _, left_rows, left_depth = product.left
    _, right_depth, right_columns = product.right
    rows, depth = (collapsed_axes(left, dims, 1) for dims in (left_rows, left_depth))
    depth_of_right, columns = (
        collapsed_axes(right, dims, 1) for dims in (right_depth, right_columns)
    )
    batch = batch_axes(left, right, product)
    if rows is None or depth is None or depth_of_right is None or columns is None or batch is None:
        return None
    left_matrix = leading_dimension(rows, depth)
    right_matrix = leading_dimension(depth_of_right, columns)
    m, n, k = (prod(size for size, _ in axes) for axes in (rows, columns, depth))
    # Size and strides of both operands. A call computes a batch along the inner axis.
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    calls, outer_left, outer_right = outer
    count, inner_left, inner_right = inner
    if left_matrix is None or right_matrix is None or 0 in (m, n, k, calls, count):
        return None
    if calls > _MAX_CALLS:
        return None
    (left_flag, left_leading), (right_flag, right_leading) = left_matrix, right_matrix
    gemm = Gemm(
        m,
        n,
        k,
        left_flag == TRANSPOSED,
        right_flag == TRANSPOSED,
        left_leading,
        right_leading,
        count,
        inner_left,
        inner_right,
        m * n,
        dtype,
        out_dtype,
        reduced=product.reduced and dtype in _TF32_DTYPES,
    )
    offsets = [
        GemmOffsets(
            (left.offset + call * outer_left) * dtype.itemsize,
            (right.offset + call * outer_right) * dtype.itemsize,
            call * count * m * n * out_dtype.itemsize,
        )
        for call in range(calls)
    ]
    return GemmLaunch(gemm, tuple(offsets))


PROVIDER = Provider("cuBLAS", _choose)
