"""Provider of convolutions by our kernels: selects a GEMM, copies, tiles and splits by costs.

The selection depends on shapes, strides and dtypes only, so results have the same bits in every
run.

Tests: tests/kernels/test_kernel_convolution.py, tests/kernels/test_kernels_offline.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np

import gpuflow.kernels.convolution as tiled
import gpuflow.kernels.convolution_direct as direct
import gpuflow.kernels.scan as scan
import gpuflow.kernels.tiles as tiles
from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View
from gpuflow.targets.cuda.codegen.handwritten import SHARED_BYTES, Scalar
from gpuflow.targets.cuda.library.convolution_copies import copied_bytes, with_copies
from gpuflow.targets.cuda.library.implicit_gemm import (
    ACROSS,
    ALONG,
    ONE_BY_ONE,
    ImplicitGemm,
    for_direct_kernel,
    implicit_gemms_of,
    tap_step,
    without_trivial_slides,
)
from gpuflow.targets.cuda.library.launch_sequence import (
    WIDE,
    ArrayLocation,
    LaunchSequence,
    ScalarFormat,
    scalar_format,
)
from gpuflow.targets.layouts.convolution_axes import ConvolutionProblem, as_problem

ENOUGH_BLOCKS = 256  # blocks that keep a GPU busy
ENOUGH_THREADS = 1 << 16  # threads that keep a GPU busy, in the direct kernel
MIN_SLICES = 8  # least slices in a partial sum of a block
MIN_PRODUCTS = 64  # least products in a partial sum of a thread
# (row tiles of 16 rows per warp, columns) of tiles, the largest first.
TILE_SHAPES = ((2, 64), (2, 32), (1, 64), (1, 32))
_MAX_PARTIAL_BYTES = 1 << 26  # of workspace for partial sums
MAX_LENGTH = 1 << 31  # from this span of an array on, in elements, scalars have 64 bits

# Costs in instructions of a thread, from data sheets and instruction counts, not measured. Only
# ratios matter.
#   _DIRECT to _REDUCED   a product: by the direct kernel; in tiles by fma, by tensor cores of 16
#                         bits, by tensor cores of tensorfloat32 with rounding
#   _VECTOR, _NEAR, _FAR  an element that a tile reads: in vectors, from neighboring addresses, from
#                         others. A load takes as long as four instructions, as four schedulers
#                         share a load unit; its address and predicate take two more
#   COPY                  a byte that a copy reads or writes: 2e13 instructions, 2e12 bytes a second
#   LAUNCH                a launch
_DIRECT, _FMA, _MATRIX, _REDUCED = 16.0, 1.3, 0.1, 0.25
_VECTOR, _NEAR, _FAR = 0.4, 6.0, 12.0
COPY, LAUNCH = 10.0, 4e7

_IN_VECTORS = ("LEFT_VECTOR", "RIGHT_VECTOR", "LEFT_ACROSS", "RIGHT_ACROSS")
_TILE_KINDS = {
    scan.FLOAT32: tiles.FLOAT32,
    scan.BFLOAT16: tiles.BFLOAT16,
    scan.FLOAT16: tiles.FLOAT16,
}


@record
class _ConvolutionArguments:
    """The operands and the result of a convolution, as kernels take them.

    Attributes:
        format: format of operand elements.
        itemsize: bytes of an operand element.
        locations: locations of lhs and rhs.
        out: location of the result, row-major.
        out_format: format of its elements.
        count: number of elements of the result, at least 1.
        reduced: whether float32 may be rounded to tensorfloat32.
        long: whether scalar arguments have 64 bits.
    """

    format: ScalarFormat
    itemsize: int
    locations: Sequence[ArrayLocation]
    out: ArrayLocation
    out_format: ScalarFormat
    count: int
    reduced: bool
    long: bool

    def scalar_arguments(self, values: Iterable[int]) -> list[tuple[str, int]]:
        """Scalar arguments: (type, value) of each of ``values``."""
        return [("int64" if self.long else "int32", int(value)) for value in values]


def add_convolution(
    sequence: LaunchSequence,
    convolution: Convolution,
    locations: Sequence[ArrayLocation],
    views: Sequence[View],
    operand_dtypes: Sequence[Any],
    out: tuple[ArrayLocation, ShapedArray],
) -> bool:
    """Add the launches of a convolution; False, and no launch, if kernels do not support it.

    Args:
        sequence: receives the launches.
        convolution: the operation.
        locations: locations of both operands' buffers; offsets of ``views`` are added.
        views: layouts of both operands.
        operand_dtypes: their dtypes, which must be equal.
        out: location and aval of the result: row-major, and not empty.
    """
    target, aval = out
    operand_format, out_format = scalar_format(operand_dtypes[0]), scalar_format(aval.dtype)
    if operand_format is None or out_format is None:
        return False
    if WIDE[operand_format.kind] != WIDE[out_format.kind]:
        return False
    spans = [_span(view) for view in views]
    problem = as_problem(convolution, views[0], views[1], aval.shape)
    gemms = [] if problem is None else _all_gemms(problem)
    if problem is None or not gemms:
        return False
    size = storage_dtype(operand_dtypes[0]).itemsize
    long = max(*spans, aval.size, *_extents(problem)) >= MAX_LENGTH
    call = _ConvolutionArguments(
        operand_format,
        size,
        locations,
        target,
        out_format,
        aval.size,
        convolution.reduced,
        long,
    )
    best = _best_tiles(gemms, call) if 0 not in spans else None
    if best is not None:
        _add_tiles(sequence, call, *best)
    else:
        _add_direct(sequence, call, for_direct_kernel(gemms[0]))
    return True


def _span(view: View) -> int:
    """Elements from the first to the last one of a view in memory; 0 if it is empty."""
    if 0 in view.shape:
        return 0
    sizes = zip(view.shape, view.strides, strict=True)
    return 1 + sum([(size - 1) * abs(stride) for size, stride in sizes])


def _extents(problem: ConvolutionProblem) -> list[int]:
    """Values that indices must hold: terms of a sum, and positions in dilated, padded slides."""
    extents = [prod(axis.size for axis in problem.depth) * prod(s.taps for s in problem.slides)]
    for slide in problem.slides:
        last = slide.position(slide.positions - 1, slide.taps - 1)
        extents += [abs(slide.pad), abs(last), slide.size * slide.lhs_dilation]
    return extents


# --- split sums ----------------------------------------------------------------------------


def _split_count(requested: int, most: int, call: _ConvolutionArguments) -> int:
    """The number of partial sums per element, limited by ``most`` and by their memory."""
    size = np.dtype(WIDE[call.format.kind]).itemsize
    return max(min(requested, most, _MAX_PARTIAL_BYTES // (call.count * size)), 1)


def _sums(
    sequence: LaunchSequence, call: _ConvolutionArguments, splits: int
) -> tuple[tuple[str, ArrayLocation], int]:
    """Destination (pointer type, location) and KIND of sums: the result, or partial sums.

    Partial sums are in the workspace, in the dtype of the accumulator.
    """
    if splits == 1:
        return (call.out_format.pointer, call.out), call.out_format.kind
    wide = np.dtype(WIDE[call.format.kind])
    kind, pointer = scalar_format(wide) or call.format
    return (pointer, sequence.memory(splits * call.count * wide.itemsize)), kind


def _add_sums(
    sequence: LaunchSequence,
    call: _ConvolutionArguments,
    splits: int,
    partial: tuple[str, ArrayLocation],
) -> None:
    """Launch the kernel that adds the partial sums of each element, in order."""
    if splits > 1:
        arguments = [
            partial,
            (call.out_format.pointer, call.out),
            ("int64", call.count),
            ("int64", splits),
        ]
        constants = {"OUT_KIND": call.out_format.kind}
        sequence.for_each(direct.sum_partials, arguments, call.count, constants)


def _operands(
    sequence: LaunchSequence, call: _ConvolutionArguments, gemm: ImplicitGemm
) -> list[tuple[str, ArrayLocation]]:
    """Pointer type and location of both operands, or of their copies, which it adds."""
    size, operands = call.itemsize, []
    for location, offset, view in zip(call.locations, gemm.offsets, gemm.copied_views, strict=True):
        if view is not None:
            source = location.plus(view.offset * size)
            location = sequence.memory(prod(view.shape) * size)
            sequence.copy(source, location, view, np.dtype(f"u{size}"))
        operands.append((call.format.pointer, location.plus(offset * size)))
    return operands


# --- direct convolution: a thread computes an element --------------------------------------


def _add_direct(sequence: LaunchSequence, call: _ConvolutionArguments, gemm: ImplicitGemm) -> None:
    """Add the launch of ``convolve_directly``, whose inner loop is over taps of the last slide."""
    taps0, taps1, taps2 = [-(-slide.taps // tap_step(slide)) for slide in gemm.slides]
    passes = gemm.depth.size * taps0 * taps1
    fewest_passes = max(MIN_PRODUCTS // max(taps2, 1), 1)
    splits = _split_count(-(-ENOUGH_THREADS // call.count), passes // fewest_passes, call)
    split_passes = -(-passes // splits)
    splits = -(-passes // split_passes) if passes else 1
    scalars = call.scalar_arguments((splits, split_passes, call.count, *gemm.scalars()))
    target, out_kind = _sums(sequence, call, splits)
    sequence.for_each(
        direct.convolve_directly,
        [*_operands(sequence, call, gemm), target, *scalars],
        call.count * splits,
        {"KIND": call.format.kind, "OUT_KIND": out_kind, "LONG": call.long},
    )
    _add_sums(sequence, call, splits, target)


# --- implicit matrix product: a block computes a tile --------------------------------------


@record
class Tiling:
    """The tiles of an implicit GEMM.

    Attributes:
        row_tiles: tiles of 16 rows per warp in a block's tile.
        columns: columns of a block's tile.
        tiles_down, tiles_across: number of tiles along rows and columns of one phase.
        blocks: number of tiles of all phases and outer axes.
        slices: slices of a whole sum, of ``tiled.CHUNKS`` chunks each.
        splits: number of partial sums of each element.
    """

    row_tiles: int
    columns: int
    tiles_down: int
    tiles_across: int
    blocks: int
    slices: int
    splits: int = 1

    @property
    def busy_blocks(self) -> int:
        """The number of blocks, at most ``ENOUGH_BLOCKS``."""
        return min(self.blocks * self.splits, ENOUGH_BLOCKS)


def _chunk(call: _ConvolutionArguments) -> int:
    """Elements of a chunk of 16 bytes."""
    return 16 // call.itemsize


def _all_gemms(problem: ConvolutionProblem) -> list[ImplicitGemm]:
    """All implicit GEMMs of a problem, also with trivial slides as plain axes."""
    gemms, simplified = implicit_gemms_of(problem), without_trivial_slides(problem)
    return gemms if simplified == problem else gemms + implicit_gemms_of(simplified)


def _best_tiles(
    gemms: list[ImplicitGemm], call: _ConvolutionArguments
) -> tuple[ImplicitGemm, Tiling] | None:
    """The cheapest GEMM with its tiling; None if the direct kernel is cheaper.

    Copies are considered if the GEMM costs more than a launch.
    """
    if call.format.kind not in _TILE_KINDS:
        return None
    gemm = min(gemms, key=lambda candidate: _cost(candidate, call))
    if _cost(gemm, call) > LAUNCH:
        candidates = chain(*(with_copies(candidate, _chunk(call)) for candidate in gemms))
        gemm = min(candidates, key=lambda candidate: _cost(candidate, call))
    products = gemm.row_count * gemm.column_count * gemm.chunked_length * gemm.passes * gemm.phases
    if _cost(gemm, call) > products * prod(axis.size for axis in gemm.outer) * _DIRECT:
        return None
    tilings = [make_tiling(gemm, call, *shape) for shape in TILE_SHAPES]
    most_busy = max(tiling.busy_blocks for tiling in tilings)
    # Among tilings with the most busy blocks, the one with the least padding, then the largest.
    busiest = [tiling for tiling in tilings if tiling.busy_blocks == most_busy]
    return gemm, min(busiest, key=lambda tiling: tiling.blocks * tiling.row_tiles * tiling.columns)


def _cost(gemm: ImplicitGemm, call: _ConvolutionArguments) -> float:
    """The cost of a GEMM with tiles of a medium size: products (with padding), reads, copies.

    The unit is that of the constants above.
    """
    chunk = _chunk(call)
    rows, columns = 64, 64 if gemm.column_count > 32 else 32
    is_float32 = call.format.kind == scan.FLOAT32
    product = (_REDUCED if call.reduced else _FMA) if is_float32 else _MATRIX
    # Of one term of the sums of a tile.
    term_cost = rows * columns * product
    operands = zip(
        (rows, columns),
        gemm.read_modes(chunk),
        gemm.chunk_strides,
        gemm.neighbor_strides,
        strict=True,
    )
    for count, mode, chunk_stride, neighbor_stride in operands:
        is_near = abs(chunk_stride) == 1 or abs(neighbor_stride) == 1
        term_cost += count * (_VECTOR if mode != ONE_BY_ONE else _NEAR if is_near else _FAR)
    tile_count = -(-gemm.row_count // rows) * -(-gemm.column_count // columns)
    terms = -(-gemm.chunked_length // chunk) * chunk * gemm.passes
    cost = tile_count * terms * term_cost * gemm.phases * prod(axis.size for axis in gemm.outer)
    copies = [view for view in gemm.copied_views if view is not None]
    bytes_copied = sum([copied_bytes(view, call.itemsize) for view in copies])
    return cost + LAUNCH * len(copies) + COPY * bytes_copied


def make_tiling(
    gemm: ImplicitGemm, call: _ConvolutionArguments, row_tiles: int, columns: int
) -> Tiling:
    """The tiles of a GEMM, for a tile shape of ``TILE_SHAPES``."""
    tiles_down = -(-gemm.row_count // (16 * tiles.WARPS * row_tiles))
    tiles_across = -(-gemm.column_count // columns)
    blocks = tiles_down * tiles_across * gemm.phases * prod(axis.size for axis in gemm.outer)
    slices = -(-gemm.passes * -(-gemm.chunked_length // _chunk(call)) // tiled.CHUNKS)
    splits = _split_count(-(-ENOUGH_BLOCKS // blocks), slices // MIN_SLICES, call)
    return Tiling(row_tiles, columns, tiles_down, tiles_across, blocks, slices, splits)


def tile_constants(
    gemm: ImplicitGemm, call: _ConvolutionArguments, tiling: Tiling
) -> dict[str, Scalar]:
    """The constants of a build of ``convolve_tiles``."""
    size, kind = tiled.CHUNKS * _chunk(call), _TILE_KINDS[call.format.kind]
    constants: dict[str, Scalar] = dict(
        tiles.tile_constants(kind, size, tiling.row_tiles, tiling.columns, True)
    )
    left, right = gemm.read_modes(_chunk(call))
    constants.update(
        {
            "OUT_KIND": tiles.FLOAT32 if tiling.splits > 1 else _TILE_KINDS[call.out_format.kind],
            "REDUCED": call.reduced and kind == tiles.FLOAT32,
            "MARGINS": gemm.reads_padding,
            "TAPS": gemm.chunks_are_taps,
            "LEFT_VECTOR": left == ALONG,
            "RIGHT_VECTOR": right == ALONG,
            "LONG": call.long,
            "LEFT_ACROSS": left == ACROSS,
            "RIGHT_ACROSS": right == ACROSS,
        }
    )
    tile_elements = (int(constants["ROWS"]) + tiling.columns) * int(constants["PITCH"])
    constants[SHARED_BYTES] = tiled.STAGES * tile_elements * call.itemsize
    return constants


def _add_tiles(
    sequence: LaunchSequence, call: _ConvolutionArguments, gemm: ImplicitGemm, tiling: Tiling
) -> None:
    """Add the launch of ``convolve_tiles``, and of the sum of partial sums."""
    split_slices = -(-tiling.slices // tiling.splits)
    tiling = replace(tiling, splits=-(-tiling.slices // split_slices))
    operands = _operands(sequence, call, gemm)
    target, _ = _sums(sequence, call, tiling.splits)
    # Lanes read neighboring elements: along rows, or along a chunk. Irrelevant for vectors.
    modes = zip(gemm.read_modes(_chunk(call)), gemm.chunk_strides, strict=True)
    by_rows = [mode == ACROSS or abs(step) != 1 for mode, step in modes]
    scalars = call.scalar_arguments(
        (
            tiling.splits,
            split_slices * tiled.CHUNKS,
            call.count,
            tiling.tiles_down,
            tiling.tiles_across,
            gemm.rows_inner,
            *by_rows,
            *gemm.scalars(),
        )
    )
    constants = tile_constants(gemm, call, tiling)
    unaligned_constants = None
    if any(constants[name] for name in _IN_VECTORS):
        unaligned_constants = {**constants, **dict.fromkeys(_IN_VECTORS, False)}
    sequence.launch(
        tiled.convolve_tiles,
        [*operands, target, *scalars],
        (tiling.blocks * tiling.splits, 1, 1),
        tiles.THREADS,
        constants,
        unaligned_constants,
    )
    _add_sums(sequence, call, tiling.splits, target)


def _choose(block: Convolution, step: CallStep, target: Any) -> LaunchSequence | None:
    """The launch sequence of a convolution, which reads operands in their own layout."""
    del target
    sequence, out = LaunchSequence(3), (ArrayLocation(2), step.eqn.outputs[0].aval)
    locations = [ArrayLocation(0), ArrayLocation(1)]
    views, operand_dtypes = zip(*[(x.layout, x.aval.dtype) for x in step.operands], strict=True)
    is_added = add_convolution(sequence, block, locations, views, operand_dtypes, out)
    return sequence if is_added else None


PROVIDER = Provider("kernels of ours", _choose)
