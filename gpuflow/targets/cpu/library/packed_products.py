"""Provider of products of narrow floats, integers and bools, by a kernel of gpuflow.

The product is cut into blocks whose packed operands fit a core's caches. Threads take chunks of
blocks, each with its own workspace. Matrix-vector products read operands directly.
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
from gpuflow.targets.cpu.codegen.product_tiles import PANELS, tile_shape
from gpuflow.targets.cpu.library.product_operands import Copies, readable
from gpuflow.targets.cpu.runtime.native.calls import NativeCall
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.pool import pool_threads
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices, load_text
from gpuflow.targets.layouts.product_axes import batch_axes, collapsed_axes

# Scalar products, and matrix elements that are read: with fewer, waking a worker costs more.
_SMALLEST_WORK, _SMALLEST_READ = 1 << 19, 1 << 16
_CHUNKS_PER_THREAD = 2
# Bytes of a slice of the depth, rows of a group, and columns of a block. A group's slice of the
# left operand must fit L2. Shorter slices of the depth would read and write more partial sums.
_SLICE_BYTES, _GROUP, _COLUMNS = 4096, 96, 256
_NARROW_FLOATS = (dtypes.bfloat16, dtypes.float16)


class Formats(NamedTuple):
    """Storage dtypes of the operands and the result, and the kind of panels (``PANELS``)."""

    left: str
    right: str
    out: str
    kind: str


@lru_cache(256)
def formats(left: np.dtype, right: np.dtype, out: np.dtype) -> Formats | None:
    """Formats of a product of these dtypes; None if this kernel does not compute it."""
    kind = _kind((left, right), out)
    return None if kind is None else Formats(left.name, right.name, out.name, kind)


def _kind(operands: tuple[np.dtype, np.dtype], out: np.dtype) -> str | None:
    every = (*operands, out)
    if all(dtype in _NARROW_FLOATS or dtype == dtypes.float32 for dtype in every):
        return "float32" if any(dtype in _NARROW_FLOATS for dtype in every) else None
    if any(dtype.kind not in "iub" for dtype in every) or (out.kind == "b" and operands[0] != out):
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
        operands: slots of the addresses of left operand, right operand and result.
        own: slots of the addresses of partial sums and packed blocks; empty if nothing is packed.
        extent: number of indices of the launch.
        memory: bytes of packed blocks.
        sums: bytes of partial sums between slices of the depth, which follow the packed blocks; 0
            if the result holds them.
        points: the work, as the number of elements of a cheap kernel that take as long.
    """

    source: LoopSource
    arguments: tuple[int, ...]
    operands: tuple[int, int, int]
    own: tuple[int, ...]
    extent: int
    memory: int
    sums: int
    points: int


class _Sizes(NamedTuple):
    """Sizes and strides, in elements, of a stack of products.

    Attributes:
        m, n, k: rows, columns and depth.
        a_row, a_step: strides of the left operand along rows and depth.
        b_step, b_column: strides of the right operand along depth and columns.
        outer, inner: batch axes: size, and strides of left and right operand.
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
    product: Product, left: View, right: View, form: Formats, threads: int
) -> PackedCall | None:
    """Return the launch of a product.

    Args:
        product: dimension numbers: batch, free and contracted ones.
        left, right: layouts of the operands.
        form: dtypes of operands and result.
        threads: number of threads that share the work.

    Returns:
        The launch, or None if dimensions do not collapse to axes, or the result is empty.
    """
    axes = [
        collapsed_axes(view, dims, 1)
        for view, sides in ((left, product.left), (right, product.right))
        for dims in sides[1:]
    ]
    batch = batch_axes(left, right, product)
    if batch is None or any(one is None for one in axes):
        return None
    (m, a_row), (k, a_step), (_, b_step), (n, b_column) = [
        one[0] if one else (1, 1) for one in axes if one is not None
    ]
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    sizes = _Sizes(m, n, k, a_row, a_step, b_step, b_column, outer, inner)
    if m * n * sizes.count == 0:
        return None
    return (_vector_call if 1 in (m, n) else _matrix_call)(sizes, form, threads)


def _matrix_call(sizes: _Sizes, form: Formats, threads: int) -> PackedCall:
    """Return the launch of matrix products: sizes of blocks, slices of the depth, and chunks."""
    m, n, k, a_row, a_step, b_step, b_column, outer, inner = sizes
    panel, (tile_rows, tile_columns) = PANELS[form.kind], tile_shape(form.kind)
    size = np.dtype(panel.packed).itemsize
    slice_depth = min(_SLICE_BYTES // size, max(k, 1))
    slices = max(-(-k // slice_depth), 1)
    workers = 1 if sizes.work < _SMALLEST_WORK else threads
    column_block = _block(n, _COLUMNS, 1, tile_columns)
    column_blocks = -(-n // column_block)
    row_block = _block(m, m, -(-workers // (sizes.count * column_blocks)), tile_rows)
    row_group = min(_up(_GROUP, tile_rows), row_block)
    row_blocks = -(-m // row_block)
    blocks = sizes.count * row_blocks * column_blocks
    chunk_blocks = -(-blocks // min(blocks, workers * _CHUNKS_PER_THREAD if workers > 1 else 1))
    chunks = -(-blocks // chunk_blocks)
    chunk_elements = _up((row_group + column_block) * _up(slice_depth, panel.step_depth), 64)
    arguments = (
        0, 0, 0, 0, 0, m, n, k, a_row, a_step, b_column, b_step,
        inner[0], outer[1], inner[1], outer[2], inner[2],
        row_block, row_group, column_block, row_blocks, column_blocks, slice_depth, slices,
        blocks, chunk_blocks, chunk_elements,
    )  # fmt: skip
    width = np.dtype(panel.summed).itemsize
    is_separate = slices > 1 and width != storage_dtype(np.dtype(form.out)).itemsize
    sums = m * n * sizes.count * width if is_separate else 0
    memory = chunks * chunk_elements * size
    source = product_text(*form)
    return PackedCall(source, arguments, (0, 1, 2), (3, 4), chunks, memory, sums, sizes.work // 8)


def _vector_call(sizes: _Sizes, form: Formats, threads: int) -> PackedCall:
    """Return the launch of matrix-vector products; of two vectors, the left one is the matrix."""
    m, n, k, a_row, a_step, b_step, b_column, outer, inner = sizes
    is_left = n == 1
    if is_left:
        rows, own, vector_step, storages, of = m, (a_row, a_step), b_step, form[:2], (1, 2)
    else:
        rows, own, vector_step, storages, of = n, (b_column, b_step), a_step, form[1::-1], (2, 1)
    workers = 1 if sizes.work < _SMALLEST_READ else threads
    block = _block(rows, rows, -(-workers * _CHUNKS_PER_THREAD // sizes.count), 64)
    if workers == 1:
        block = rows
    blocks = -(-rows // block)
    arguments = (
        0,
        0,
        0,
        rows,
        k,
        *own,
        vector_step,
        blocks,
        block,
        inner[0],
        *[stride for which in of for stride in (outer[which], inner[which])],
    )
    slots = (0, 1, 2) if is_left else (1, 0, 2)
    source = vector_product_text(*storages, form.out, form.kind)
    return PackedCall(source, arguments, slots, (), blocks * sizes.count, 0, 0, sizes.work)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _block(size: int, most: int, fewest: int, multiple: int) -> int:
    """Return the rows or columns of a block: a multiple of the tile, for blocks of similar sizes.

    Args:
        size: rows or columns of the product.
        most: upper bound on the result, before it is rounded up.
        fewest: number of blocks requested.
        multiple: rows or columns of a tile.
    """
    blocks = max(-(-size // most), min(fewest, -(-size // multiple)))
    return _up(-(-size // blocks), multiple)


def _choose(product: Product, step: CallStep, target: Any) -> NativeCall | None:
    del target
    left, right = step.operands
    form = formats(left.aval.dtype, right.aval.dtype, step.eqn.outputs[0].aval.dtype)
    if form is None:
        return None

    def call_of(left: View, right: View) -> PackedCall | None:
        return packed_call(product, left, right, form, pool_threads())

    supported = readable(product, step, call_of)
    if supported is None:
        return None
    call, copies = supported
    workspace = copies.count + call.memory + call.sums
    return NativeCall(
        partial(_emit, call, copies), workspace, lambda: [Build(load_text, (call.source,))]
    )


def _emit(
    call: PackedCall,
    copies: Copies,
    step: CallStep,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    loaded = load_text(call.source)
    code.keep(loaded)
    operands = copies.locations(step, services, code, locations)
    out = locations.of(step.outputs[0])
    block = code.block(call.arguments)
    for k, location in zip(call.operands, (*operands, out), strict=True):
        code.fill(block + k, location)
    if call.own:
        assert step.workspace is not None  # reserved by the plan
        register, start = locations.of(step.workspace)
        memory = register, start + copies.count
        sums = (register, start + copies.count + call.memory) if call.sums else out
        for k, location in zip(call.own, (sums, memory), strict=True):
            code.fill(block + k, location)
    # Packed products have few large indices. Matrix-vector products may have one for each matrix.
    chunk = 1 if call.own else services.chunk(call.extent, call.points)
    code.run(loaded.address, block, call.extent, chunk, call.points)


PROVIDER = Provider("our product of packed blocks, in native programs", _choose)
