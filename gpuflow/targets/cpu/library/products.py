"""Provider of matrix products by the private BLAS (gemm, gemv), in blocks that threads share.

An index of ``gf_product`` (targets/cpu/runtime/native/product.ll) is one block of rows or columns
of one product of the stack. Operands are views: transposition is a flag, and batch dimensions are
strides. Products with vectors use gemv (vector_product.ll), which is faster because each matrix
element is read only once. Operands that BLAS cannot read in place are copied first.

Tests: tests/targets/cpu/test_native_products.py.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Product
from gpuflow.core.views import View
from gpuflow.targets.cpu.library.blas import BLAS_LETTERS, private_blas
from gpuflow.targets.cpu.library.product_operands import OperandCopies, call_with_fewest_copies
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import CHUNKS_PER_THREAD, Build, NativeServices
from gpuflow.targets.layouts.product_axes import (
    PLAIN,
    StridedAxis,
    batch_axes,
    collapsed_axes,
    leading_dimension,
)

# With fewer floating-point operations than this, waking workers costs more than it saves.
_MIN_PARALLEL_FLOPS = 1 << 21
_BLOCK_MULTIPLE = 16  # rows or columns that OpenBLAS's kernels compute at a time


class ProductCall(NamedTuple):
    """The launch of a product.

    Attributes:
        blas: name of BLAS's function: a field of ``Blas``.
        function: name of the function of the native runtime that calls it: "product" (product.ll)
            or "vector_product" (vector_product.ll).
        arguments: the argument block of that function, with 0 for BLAS's function (slot 0) and for
            addresses. Strides are in bytes, leading dimensions in elements.
        array_slots: slots of the addresses of left operand, right operand and result.
        extent: number of indices, each one block of one product.
        chunk: number of indices that a thread takes at a time.
        points: the work, as the number of elements of a cheap kernel that take as long.
    """

    blas: str
    function: str
    arguments: tuple[int, ...]
    array_slots: tuple[int, int, int]
    extent: int
    chunk: int
    points: int


def product_call(
    product: Product, left: View, right: View, dtype: np.dtype, threads: int
) -> ProductCall | None:
    """Return the launch of a product.

    Args:
        product: dimension numbers: batch, free and contracted ones.
        left, right: layouts of the operands.
        dtype: dtype of operands and result, a key of ``BLAS_LETTERS``.
        threads: number of threads that share the work.

    Returns:
        The launch, or None if BLAS cannot read the operands in place, or a dimension is 0.
    """
    rows, depth = (collapsed_axes(left, dims, 1) for dims in product.left[1:])
    right_depth, columns = (collapsed_axes(right, dims, 1) for dims in product.right[1:])
    batch = batch_axes(left, right, product)
    if batch is None or rows is None or depth is None or right_depth is None or columns is None:
        return None
    left_leading = leading_dimension(rows, depth)
    right_leading = leading_dimension(right_depth, columns)
    m, n, k = (axes[0][0] if axes else 1 for axes in (rows, columns, depth))
    count = prod([size for size, _, _ in batch])
    if 0 in (m, n, k, count):
        return None
    if 1 in (m, n):
        return _vector_call((rows, depth), (right_depth, columns), batch, dtype.itemsize, threads)
    if left_leading is None or right_leading is None:
        return None
    (flag_a, leading_a), (flag_b, leading_b) = left_leading, right_leading
    itemsize = dtype.itemsize
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    split = _split_product(m, n, k, count, threads)
    arguments = (
        0, flag_a, flag_b, m, n, k,
        0, leading_a, 0, leading_b, 0, n,
        split.blocks, split.block_size, int(split.splits_columns), inner[0],
        outer[1] * itemsize, inner[1] * itemsize,
        outer[2] * itemsize, inner[2] * itemsize,
        inner[0] * m * n * itemsize, m * n * itemsize,
        (leading_a if flag_a == PLAIN else 1) * itemsize,
        (1 if flag_b == PLAIN else leading_b) * itemsize,
        (1 if split.splits_columns else n) * itemsize,
    )  # fmt: skip
    extent, flops = count * split.blocks, 2 * m * n * k * count
    chunk = _chunk_size(extent, flops, threads)
    return ProductCall("gemm", "product", arguments, (6, 8, 10), extent, chunk, flops // 16)


def _vector_call(
    left: tuple[list[StridedAxis], list[StridedAxis]],
    right: tuple[list[StridedAxis], list[StridedAxis]],
    batch: list[tuple[int, int, int]],
    itemsize: int,
    threads: int,
) -> ProductCall | None:
    """Return the launch of matrix-vector products; of two vectors, the left one is the matrix."""
    (rows, depth), (right_depth, columns) = left, right
    is_left = not columns or columns[0][0] == 1
    # Rows of the matrix are elements of the result; a matrix on the right is read transposed.
    matrix_rows, matrix_depth, vector_axes = (
        (rows, depth, right_depth) if is_left else (columns, right_depth, depth)
    )
    matrix_leading = leading_dimension(matrix_rows, matrix_depth)
    size, row_stride = matrix_rows[0] if matrix_rows else (1, 1)
    k, vector_stride = vector_axes[0] if vector_axes else (1, 1)
    if matrix_leading is None or (vector_stride < 1 and k > 1):
        return None
    flag, leading = matrix_leading
    count = prod([axis_size for axis_size, _, _ in batch])
    split = _split_product(size, 1, k, count, threads)
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    # Indices of the strides of matrix and vector in a batch axis.
    of_matrix, of_vector = (1, 2) if is_left else (2, 1)
    arguments = (
        0, flag, size, k, 0, leading, 0, max(vector_stride, 1), 0,
        split.blocks, split.block_size, inner[0],
        outer[of_matrix] * itemsize, inner[of_matrix] * itemsize,
        outer[of_vector] * itemsize, inner[of_vector] * itemsize,
        inner[0] * size * itemsize, size * itemsize, row_stride * itemsize, itemsize,
    )  # fmt: skip
    slots = (4, 6, 8) if is_left else (6, 4, 8)
    # Counted as 16 operations per element, because reading the matrix takes longer than arithmetic.
    extent, flops = count * split.blocks, 16 * size * k * count
    chunk = _chunk_size(extent, flops, threads)
    return ProductCall("gemv", "vector_product", arguments, slots, extent, chunk, flops // 16)


class _Split(NamedTuple):
    """The blocks of one product: of its columns, else of its rows; the last may be smaller."""

    splits_columns: bool
    blocks: int
    block_size: int


def _split_product(m: int, n: int, k: int, count: int, threads: int) -> _Split:
    """Split each of ``count`` products if there are fewer of them than threads."""
    splits_columns = n > m
    size = max(m, n)
    if count >= threads or 2 * m * n * k * count < _MIN_PARALLEL_FLOPS:
        return _Split(splits_columns, 1, size)
    requested = -(-threads // count)
    block_size = -(-size // requested)
    block_size = -(-block_size // _BLOCK_MULTIPLE) * _BLOCK_MULTIPLE
    return _Split(splits_columns, -(-size // block_size), block_size)


def _chunk_size(extent: int, flops: int, threads: int) -> int:
    if flops < _MIN_PARALLEL_FLOPS:
        return extent
    return -(-extent // (threads * CHUNKS_PER_THREAD)) if extent > threads else 1


def _choose(product: Product, step: CallStep, target: Any) -> NativeCall | None:
    del target
    dtype = step.eqn.outputs[0].aval.dtype
    if not product.one_dtype or _blas_letter(dtype) is None or private_blas() is None:
        return None

    def try_call(left: View, right: View) -> ProductCall | None:
        return product_call(product, left, right, dtype, pool_threads())

    supported = call_with_fewest_copies(product, step, try_call)
    if supported is None:
        return None
    call, copies = supported
    return NativeCall(
        partial(_emit, call, copies),
        copies.total_bytes,
        lambda: [Build(native_function, (_function_name(call, dtype),))],
    )


def _function_name(call: ProductCall, dtype: np.dtype) -> str:
    return f"gf_{call.function}_{_blas_letter(dtype)}"


def _emit(
    call: ProductCall,
    copies: OperandCopies,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    dtype, blas = step.eqn.outputs[0].aval.dtype, private_blas()
    assert blas is not None  # checked by _choose
    operands = copies.locations(step, services, code, locations)
    block = code.add_argument_block(call.arguments)
    code.data[block] = getattr(blas, call.blas)[dtype.name]
    for k, location in zip(
        call.array_slots, (*operands, locations.of(step.outputs[0])), strict=True
    ):
        code.set_address(block + k, location)
    function = native_function(_function_name(call, dtype))
    code.run(function, block, call.extent, call.chunk, call.points)


@cache
def _blas_letter(dtype: np.dtype) -> str | None:
    """BLAS's letter for a dtype, or None; cached because ``dtype.name`` is slow."""
    return BLAS_LETTERS.get(dtype.name)


PROVIDER = Provider("BLAS in native programs", _choose)
