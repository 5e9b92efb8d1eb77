"""Provider of matrix products by the private BLAS (gemm, gemv), in blocks that threads share.

An index of ``gf_product`` (targets/cpu/runtime/native/product.ll) is one block of rows or columns
of one product of the stack. Operands are views: transposition is a flag, and batch dimensions are
strides. Products with vectors use gemv (vector_product.ll), which is faster because each matrix
element is read only once. Operands that BLAS cannot read in place are copied first.
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
from gpuflow.targets.cpu.library.product_operands import Copies, readable
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices
from gpuflow.targets.layouts.product_axes import (
    PLAIN,
    Axis,
    batch_axes,
    collapsed_axes,
    leading_dimension,
)

# With fewer operations than this, waking workers costs more than it saves.
_SMALLEST_FLOPS = 1 << 21
_BLOCK_MULTIPLE = 16  # rows or columns that OpenBLAS's kernels compute at a time


class ProductCall(NamedTuple):
    """The launch of a product.

    Attributes:
        blas: name of BLAS's function: a field of ``Blas``.
        function: name of the function of the native runtime that calls it.
        arguments: the argument block, with 0 for BLAS's function and for addresses.
        operands: slots of the addresses of left operand, right operand and result.
        extent: number of indices, each one block of one product.
        chunk: number of indices that a thread takes at a time.
        points: the work, as the number of elements of a cheap kernel that take as long.
    """

    blas: str
    function: str
    arguments: tuple[int, ...]
    operands: tuple[int, int, int]
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
        dtype: dtype of operands and result.
        threads: number of threads that share the work.

    Returns:
        The launch, or None if BLAS cannot read the operands in place, or a dimension is 0.
    """
    rows, depth = (collapsed_axes(left, dims, 1) for dims in product.left[1:])
    depth_too, columns = (collapsed_axes(right, dims, 1) for dims in product.right[1:])
    batch = batch_axes(left, right, product)
    if batch is None or rows is None or depth is None or depth_too is None or columns is None:
        return None
    of_left, of_right = leading_dimension(rows, depth), leading_dimension(depth_too, columns)
    m, n, k = (axes[0][0] if axes else 1 for axes in (rows, columns, depth))
    count = prod([size for size, _, _ in batch])
    if 0 in (m, n, k, count):
        return None
    if 1 in (m, n):
        return _vector_call((rows, depth), (depth_too, columns), batch, dtype.itemsize, threads)
    if of_left is None or of_right is None:
        return None
    (flag_a, leading_a), (flag_b, leading_b) = of_left, of_right
    itemsize = dtype.itemsize
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    columns_split, blocks, block = _blocks(m, n, k, count, threads)
    arguments = (
        0, flag_a, flag_b, m, n, k,
        0, leading_a, 0, leading_b, 0, n,
        blocks, block, int(columns_split), inner[0],
        outer[1] * itemsize, inner[1] * itemsize,
        outer[2] * itemsize, inner[2] * itemsize,
        inner[0] * m * n * itemsize, m * n * itemsize,
        (leading_a if flag_a == PLAIN else 1) * itemsize,
        (1 if flag_b == PLAIN else leading_b) * itemsize,
        (1 if columns_split else n) * itemsize,
    )  # fmt: skip
    extent, flops = count * blocks, 2 * m * n * k * count
    chunk = _chunk(extent, flops, threads)
    return ProductCall("gemm", "product", arguments, (6, 8, 10), extent, chunk, flops // 16)


def _vector_call(
    left: tuple[list[Axis], list[Axis]],
    right: tuple[list[Axis], list[Axis]],
    batch: list[tuple[int, int, int]],
    itemsize: int,
    threads: int,
) -> ProductCall | None:
    """Return the launch of matrix-vector products; of two vectors, the left one is the matrix."""
    (rows, depth), (depth_too, columns) = left, right
    is_left = not columns or columns[0][0] == 1
    # Rows of the matrix are elements of the result; a matrix on the right is read transposed.
    matrix_rows, matrix_depth, along = (
        (rows, depth, depth_too) if is_left else (columns, depth_too, depth)
    )
    matrix = leading_dimension(matrix_rows, matrix_depth)
    size, row_stride = matrix_rows[0] if matrix_rows else (1, 1)
    k, stride = along[0] if along else (1, 1)
    if matrix is None or (stride < 1 and k > 1):
        return None
    flag, leading = matrix
    count = prod([number for number, _, _ in batch])
    _, blocks, block = _blocks(size, 1, k, count, threads)
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    of_matrix, of_vector = (1, 2) if is_left else (2, 1)
    arguments = (
        0, flag, size, k, 0, leading, 0, max(stride, 1), 0, blocks, block, inner[0],
        outer[of_matrix] * itemsize, inner[of_matrix] * itemsize,
        outer[of_vector] * itemsize, inner[of_vector] * itemsize,
        inner[0] * size * itemsize, size * itemsize, row_stride * itemsize, itemsize,
    )  # fmt: skip
    slots = (4, 6, 8) if is_left else (6, 4, 8)
    # Counted as 16 operations per element, because reading the matrix takes longer than arithmetic.
    extent, flops = count * blocks, 16 * size * k * count
    chunk = _chunk(extent, flops, threads)
    return ProductCall("gemv", "vector_product", arguments, slots, extent, chunk, flops // 16)


def _blocks(m: int, n: int, k: int, count: int, threads: int) -> tuple[bool, int, int]:
    """Return whether columns are split (else rows), the number of blocks, and a block's size."""
    columns_split = n > m
    size = max(m, n)
    if count >= threads or 2 * m * n * k * count < _SMALLEST_FLOPS:
        return columns_split, 1, size
    requested = -(-threads // count)
    block = -(-size // requested)
    block = -(-block // _BLOCK_MULTIPLE) * _BLOCK_MULTIPLE
    return columns_split, -(-size // block), block


def _chunk(extent: int, flops: int, threads: int) -> int:
    if flops < _SMALLEST_FLOPS:
        return extent
    return -(-extent // (threads * 4)) if extent > threads else 1


def _choose(product: Product, step: CallStep, target: Any) -> NativeCall | None:
    del target
    dtype = step.eqn.outputs[0].aval.dtype
    if not product.one_dtype or _letter(dtype) is None or private_blas() is None:
        return None

    def call_of(left: View, right: View) -> ProductCall | None:
        return product_call(product, left, right, dtype, pool_threads())

    supported = readable(product, step, call_of)
    if supported is None:
        return None
    call, copies = supported
    return NativeCall(
        partial(_emit, call, copies),
        copies.count,
        lambda: [Build(native_function, (_function(call, dtype),))],
    )


def _function(call: ProductCall, dtype: np.dtype) -> str:
    return f"gf_{call.function}_{_letter(dtype)}"


def _emit(
    call: ProductCall,
    copies: Copies,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    dtype, blas = step.eqn.outputs[0].aval.dtype, private_blas()
    assert blas is not None  # checked by _choose
    operands = copies.locations(step, services, code, locations)
    block = code.block(call.arguments)
    code.data[block] = getattr(blas, call.blas)[dtype.name]
    for k, location in zip(call.operands, (*operands, locations.of(step.outputs[0])), strict=True):
        code.fill(block + k, location)
    function = native_function(_function(call, dtype))
    code.run(function, block, call.extent, call.chunk, call.points)


@cache
def _letter(dtype: np.dtype) -> str | None:
    """BLAS's letter for a dtype, or None; cached because ``dtype.name`` is slow."""
    return BLAS_LETTERS.get(dtype.name)


PROVIDER = Provider("BLAS in native programs", _choose)
