"""Products of narrow floats, integers and bools by our own kernel, in native programs.

The product is cut into blocks, whose packed operands fit a core's caches. Parts of the blocks go to
threads, each with workspace of its own.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base import dtypes
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Product
from gpuflow.core.views import View
from gpuflow.targets.cpu.codegen.product_tiles import PANELS, tile_shape
from gpuflow.targets.cpu.native.calls import NativeCall
from gpuflow.targets.cpu.native.copies import Places
from gpuflow.targets.cpu.native.pool import pool
from gpuflow.targets.cpu.native.program_writer import Code
from gpuflow.targets.cpu.native.services import NativeServices
from gpuflow.targets.cpu.printing.packed_products import WORDS, product_text
from gpuflow.targets.cpu.providers.product_operands import Copies, readable
from gpuflow.targets.layouts.product_axes import batch_axes, collapsed_axes

_SMALLEST_FLOPS = 1 << 20  # less work than this is done sooner than a worker wakes
_PARTS_PER_THREAD = 2
# Bytes of a slice of the depth, rows of a group, and columns of a block: a group of the left
# operand stays in a core's second cache. Shorter slices read and write more sums.
_SLICE_BYTES, _GROUP, _COLUMNS = 4096, 96, 256
_NARROW_FLOATS = (dtypes.bfloat16, dtypes.float16)


class Formats(NamedTuple):
    """Storage dtypes of the operands and the result, and the kind of panels."""

    left: str
    right: str
    out: str
    kind: str


@lru_cache(256)
def formats(left: np.dtype, right: np.dtype, out: np.dtype) -> Formats | None:
    """How a product of such dtypes is made; None: not by this kernel."""
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
    # The lower half of a product does not depend on signs, so that uint16 may be int16.
    if all(d.itemsize == 1 or d == np.int16 or d.itemsize == out.itemsize == 2 for d in operands):
        return "pairs"
    return "int32"


class PackedCall(NamedTuple):
    """The argument block of a product, and what it needs.

    Attributes:
        words: the block, with 0 for the addresses.
        parts: how many threads may take.
        memory: bytes that packed blocks take.
        sums: bytes of sums between slices of the depth, behind them.
        points: the work, in elements of a cheap kernel that take as long.
    """

    words: tuple[int, ...]
    parts: int
    memory: int
    sums: int
    points: int


@lru_cache(256)
def packed_call(
    product: Product, left: View, right: View, form: Formats, threads: int
) -> PackedCall | None:
    """The call for two operands in memory.

    Args:
        product: which dimensions are which.
        left, right: where the operands lie.
        form: their dtypes.
        threads: how many share the work.

    Returns:
        The call, or None where dimensions do not collapse, or the result is empty.
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
    count = prod([size for size, _, _ in batch])
    if 0 in (m, n, count):
        return None
    panel, (tile_rows, tile_columns) = PANELS[form.kind], tile_shape(form.kind)
    size = np.dtype(panel.packed).itemsize
    slice_depth = min(_SLICE_BYTES // size, max(k, 1))
    slices = max(-(-k // slice_depth), 1)
    flops = 2 * m * n * k * count
    wanted = 1 if flops < _SMALLEST_FLOPS else threads
    column_block = _block(n, _COLUMNS, 1, tile_columns)
    column_blocks = -(-n // column_block)
    row_block = _block(m, m, -(-wanted // (count * column_blocks)), tile_rows)
    row_group = min(_up(_GROUP, tile_rows), row_block)
    row_blocks = -(-m // row_block)
    blocks = count * row_blocks * column_blocks
    part_blocks = -(-blocks // min(blocks, wanted * _PARTS_PER_THREAD if wanted > 1 else 1))
    parts = -(-blocks // part_blocks)
    together = panel.together
    packed = row_group + column_block
    part_memory = _up(packed * _up(slice_depth, together), 64)
    is_apart = slices > 1 and np.dtype(panel.summed).itemsize != storage_dtype(
        np.dtype(form.out)
    ).itemsize
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    words = (
        0, 0, 0, 0, 0, m, n, k, a_row, a_step, b_column, b_step,
        inner[0], outer[1], inner[1], outer[2], inner[2],
        row_block, row_group, column_block, row_blocks, column_blocks, slice_depth, slices,
        blocks, part_blocks, part_memory,
    )  # fmt: skip
    sums = m * n * count * np.dtype(panel.summed).itemsize if is_apart else 0
    return PackedCall(words, parts, parts * part_memory * size, sums, flops // 16)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _block(size: int, most: int, parts: int, multiple: int) -> int:
    """Rows or columns of a block: whole tiles, of blocks of like sizes."""
    blocks = max(-(-size // most), min(parts, -(-size // multiple)))
    return _up(-(-size // blocks), multiple)


def _choose(product: Product, step: CallStep, target: Any) -> NativeCall | None:
    del target
    left, right = step.operands
    form = formats(left.aval.dtype, right.aval.dtype, step.eqn.outputs[0].aval.dtype)
    if form is None:
        return None

    def call_of(left: View, right: View) -> PackedCall | None:
        return packed_call(product, left, right, form, pool().threads)

    made = readable(product, step, call_of)
    if made is None:
        return None
    call, copies = made
    return NativeCall(partial(_emit, call, copies, form), copies.count + call.memory + call.sums)


def _emit(
    call: PackedCall, copies: Copies, form: Formats, step: CallStep, services: NativeServices,
    code: Code, places: Places,
) -> None:  # fmt: skip
    assert step.workspace is not None  # every call packs
    loaded = services.load_text(product_text(*form))
    code.keep(loaded)
    left, right = copies.places(step, services, code, places)
    register, start = places.place(step.workspace)
    memory = register, start + copies.count
    out = places.place(step.outputs[0])
    sums = (register, start + copies.count + call.memory) if call.sums else out
    block = code.block(call.words)
    at = {"a": left, "b": right, "out": out, "sums": sums, "memory": memory}
    for name, place in at.items():
        code.fill(block + WORDS.index(name), place)
    code.run(loaded.address, block, call.parts, 1, call.points)


PROVIDER = Provider("our product of packed blocks, in native programs", _choose)
