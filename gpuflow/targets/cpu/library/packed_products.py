"""Provider of products of narrow floats, integers and bools, by a kernel of gpuflow.

The product is cut into blocks whose packed operands fit a core's caches. Threads take chunks of
blocks, each with its own workspace. Matrix-vector products read operands directly.

The blocks depend on shapes and on the number of threads; sums over the depth are always in the same
order, so results do not.

Tests: tests/targets/cpu/test_packed_products.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.caches import lru_cache
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Product
from gpuflow.core.views import View
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.printing.packed_products import product_text
from gpuflow.targets.cpu.codegen.printing.vector_products import vector_product_text
from gpuflow.targets.cpu.codegen.product_tiles import PANEL_FORMATS, tile_shape
from gpuflow.targets.cpu.library.product_operands import OperandCopies, call_with_fewest_copies
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices, load_text
from gpuflow.targets.layouts.product_axes import batch_axes, collapsed_axes

# Scalar products, and matrix elements that are read: with fewer, waking a worker costs more.
_MIN_PARALLEL_PRODUCTS, _MIN_PARALLEL_READS = 1 << 19, 1 << 16
_CHUNKS_PER_THREAD = 2
# Bytes of a slice of the depth of one row, rows of a group, and columns of a block. A group's slice
# of the left operand must fit L2. Shorter slices would read and write more partial sums.
_SLICE_BYTES, _GROUP_ROWS, _BLOCK_COLUMNS = 4096, 96, 256
_NARROW_FLOATS = (dtypes.bfloat16, dtypes.float16)


class ProductFormats(NamedTuple):
    """Names of the dtypes of operands and result, and the kind of panels (``PANEL_FORMATS``)."""

    left: str
    right: str
    out: str
    kind: str


@lru_cache(256)
def product_formats(left: np.dtype, right: np.dtype, out: np.dtype) -> ProductFormats | None:
    """Return the formats of a product of these dtypes; None if this kernel does not compute it."""
    kind = _panel_kind((left, right), out)
    return None if kind is None else ProductFormats(left.name, right.name, out.name, kind)


def _panel_kind(operands: tuple[np.dtype, np.dtype], out: np.dtype) -> str | None:
    all_dtypes = (*operands, out)
    if all(dtype in _NARROW_FLOATS or dtype == dtypes.float32 for dtype in all_dtypes):
        return "float32" if any(dtype in _NARROW_FLOATS for dtype in all_dtypes) else None
    if any(dtype.kind not in "iub" for dtype in all_dtypes):
        return None
    if out.kind == "b" and operands[0] != out:
        return None
    if out.itemsize == 8:
        return "int64"
    # For a 16-bit result, signs do not matter: the lower half of a product is the same.
    if all(d.itemsize == 1 or d == np.int16 or d.itemsize == out.itemsize == 2 for d in operands):
        return "pairs"
    return "int32"


class PackedCall(NamedTuple):
    """The launch of a product, and its workspace.

    Attributes:
        source: the kernel.
        arguments: the argument block, with 0 for addresses.
        array_slots: slots of the addresses of left operand, right operand and result.
        scratch_slots: slots of the addresses of partial sums and packed blocks; empty if nothing is
            packed.
        extent: number of indices of the launch.
        packed_bytes: size of the packed blocks of all indices.
        sums_bytes: size of the partial sums between slices of the depth, which follow the packed
            blocks; 0 if the result holds them.
        points: the work, as the number of elements of a cheap kernel that take as long.
    """

    source: LoopSource
    arguments: tuple[int, ...]
    array_slots: tuple[int, int, int]
    scratch_slots: tuple[int, ...]
    extent: int
    packed_bytes: int
    sums_bytes: int
    points: int


class _Sizes(NamedTuple):
    """Sizes and strides, in elements, of a stack of products.

    Attributes:
        m, n, k: rows, columns and depth.
        a_row, a_step: strides of the left operand along rows and depth.
        b_step, b_column: strides of the right operand along depth and columns.
        outer, inner: batch axes: size, and strides of left and right operand; size 1 if missing.
    """

    m: int
    n: int
    k: int
    a_row: int
    a_step: int
    b_step: int
    b_column: int
    outer: tuple[int, int, int]
    inner: tuple[int, int, int]

    @property
    def count(self) -> int:
        """Number of products in the stack."""
        return self.outer[0] * self.inner[0]

    @property
    def work(self) -> int:
        """Number of scalar products."""
        return self.m * self.n * self.k * self.count


@lru_cache(256)
def packed_call(
    product: Product, left: View, right: View, formats: ProductFormats, threads: int
) -> PackedCall | None:
    """Return the launch of a product.

    Args:
        product: dimension numbers: batch, free and contracted ones.
        left, right: layouts of the operands.
        formats: dtypes of operands and result.
        threads: number of threads that share the work.

    Returns:
        The launch, or None if dimensions do not collapse to axes, or the result is empty.
    """
    axes = [
        collapsed_axes(view, dims, 1)
        for view, dim_groups in ((left, product.left), (right, product.right))
        for dims in dim_groups[1:]
    ]
    batch = batch_axes(left, right, product)
    if batch is None or any(axis is None for axis in axes):
        return None
    (m, a_row), (k, a_step), (_, b_step), (n, b_column) = [
        axis[0] if axis else (1, 1) for axis in axes if axis is not None
    ]
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    sizes = _Sizes(m, n, k, a_row, a_step, b_step, b_column, outer, inner)
    if m * n * sizes.count == 0:
        return None
    return (_vector_call if 1 in (m, n) else _matrix_call)(sizes, formats, threads)


def _matrix_call(sizes: _Sizes, formats: ProductFormats, threads: int) -> PackedCall:
    """Return the launch of matrix products: sizes of blocks, slices of the depth, and chunks."""
    m, n, k, a_row, a_step, b_step, b_column, outer, inner = sizes
    panel, (tile_rows, tile_columns) = PANEL_FORMATS[formats.kind], tile_shape(formats.kind)
    packed_itemsize = np.dtype(panel.packed).itemsize
    slice_depth = min(_SLICE_BYTES // packed_itemsize, max(k, 1))
    slices = max(-(-k // slice_depth), 1)
    workers = 1 if sizes.work < _MIN_PARALLEL_PRODUCTS else threads
    column_block = _block_size(n, _BLOCK_COLUMNS, 1, tile_columns)
    column_blocks = -(-n // column_block)
    row_block = _block_size(m, m, -(-workers // (sizes.count * column_blocks)), tile_rows)
    row_group = min(_round_up(_GROUP_ROWS, tile_rows), row_block)
    row_blocks = -(-m // row_block)
    blocks = sizes.count * row_blocks * column_blocks
    chunk_blocks = -(-blocks // min(blocks, workers * _CHUNKS_PER_THREAD if workers > 1 else 1))
    chunks = -(-blocks // chunk_blocks)
    chunk_elements = _round_up(
        (row_group + column_block) * _round_up(slice_depth, panel.step_depth), 64
    )
    arguments = (
        0, 0, 0, 0, 0, m, n, k, a_row, a_step, b_column, b_step,
        inner[0], outer[1], inner[1], outer[2], inner[2],
        row_block, row_group, column_block, row_blocks, column_blocks, slice_depth, slices,
        blocks, chunk_blocks, chunk_elements,
    )  # fmt: skip
    sum_itemsize = np.dtype(panel.summed).itemsize
    is_separate = slices > 1 and sum_itemsize != storage_dtype(np.dtype(formats.out)).itemsize
    return PackedCall(
        product_text(*formats),
        arguments,
        array_slots=(0, 1, 2),
        scratch_slots=(3, 4),
        extent=chunks,
        packed_bytes=chunks * chunk_elements * packed_itemsize,
        sums_bytes=m * n * sizes.count * sum_itemsize if is_separate else 0,
        points=sizes.work // 8,
    )


def _vector_call(sizes: _Sizes, formats: ProductFormats, threads: int) -> PackedCall:
    """Return the launch of matrix-vector products; of two vectors, the left one is the matrix."""
    m, n, k, a_row, a_step, b_step, b_column, outer, inner = sizes
    is_left = n == 1
    # The dtypes of matrix and vector, and the indices of their strides in a batch axis.
    if is_left:
        rows, row_stride, depth_stride, vector_stride = m, a_row, a_step, b_step
        storages, stride_indices = formats[:2], (1, 2)
    else:
        rows, row_stride, depth_stride, vector_stride = n, b_column, b_step, a_step
        storages, stride_indices = formats[1::-1], (2, 1)
    workers = 1 if sizes.work < _MIN_PARALLEL_READS else threads
    block = _block_size(rows, rows, -(-workers * _CHUNKS_PER_THREAD // sizes.count), 64)
    if workers == 1:
        block = rows
    blocks = -(-rows // block)
    arguments = (
        0,
        0,
        0,
        rows,
        k,
        row_stride,
        depth_stride,
        vector_stride,
        blocks,
        block,
        inner[0],
        *[stride for index in stride_indices for stride in (outer[index], inner[index])],
    )
    return PackedCall(
        vector_product_text(*storages, formats.out, formats.kind),
        arguments,
        array_slots=(0, 1, 2) if is_left else (1, 0, 2),
        scratch_slots=(),
        extent=blocks * sizes.count,
        packed_bytes=0,
        sums_bytes=0,
        points=sizes.work,
    )


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _block_size(size: int, most: int, fewest: int, multiple: int) -> int:
    """Return the rows or columns of a block: a multiple of the tile, for blocks of similar sizes.

    Args:
        size: rows or columns of the product.
        most: upper bound on the result, before it is rounded up.
        fewest: number of blocks requested.
        multiple: rows or columns of a tile.
    """
    blocks = max(-(-size // most), min(fewest, -(-size // multiple)))
    return _round_up(-(-size // blocks), multiple)


def _choose(product: Product, step: CallStep, target: Any) -> NativeCall | None:
    del target
    left, right = step.operands
    formats = product_formats(left.aval.dtype, right.aval.dtype, step.eqn.outputs[0].aval.dtype)
    if formats is None:
        return None

    def try_call(left: View, right: View) -> PackedCall | None:
        return packed_call(product, left, right, formats, pool_threads())

    supported = call_with_fewest_copies(product, step, try_call)
    if supported is None:
        return None
    call, copies = supported
    workspace = copies.total_bytes + call.packed_bytes + call.sums_bytes
    return NativeCall(
        partial(_emit, call, copies), workspace, lambda: [Build(load_text, (call.source,))]
    )


def _emit(
    call: PackedCall,
    copies: OperandCopies,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    loaded = load_text(call.source)
    code.keep_alive(loaded)
    operands = copies.locations(step, services, code, locations)
    out = locations.of(step.outputs[0])
    block = code.add_argument_block(call.arguments)
    for slot, location in zip(call.array_slots, (*operands, out), strict=True):
        code.set_address(block + slot, location)
    if call.scratch_slots:
        assert step.workspace is not None  # reserved by the plan
        packed = locations.of(step.workspace).shifted(copies.total_bytes)
        sums = packed.shifted(call.packed_bytes) if call.sums_bytes else out
        for slot, location in zip(call.scratch_slots, (sums, packed), strict=True):
            code.set_address(block + slot, location)
    # Packed products have few large indices. Matrix-vector products may have one for each matrix.
    chunk = 1 if call.scratch_slots else services.chunk(call.extent, call.points)
    code.run(loaded.address, block, call.extent, chunk, call.points)


PROVIDER = Provider("our product of packed blocks, in native programs", _choose)
