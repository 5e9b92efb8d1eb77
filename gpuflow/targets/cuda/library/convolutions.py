"""Provider of convolutions by our kernels: selects forms, copies, tiles and splits by a cost model.

The selection depends on shapes, strides and dtypes only, so results have the same bits in every
run.
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
from gpuflow.targets.cuda.library.convolution_forms import (
    ACROSS,
    ALONG,
    ONE_BY_ONE,
    Form,
    direct_form,
    forms_of,
    skip,
    without_trivial_slides,
)
from gpuflow.targets.cuda.library.launch_sequence import WIDE, At, LaunchSequence, number_kind
from gpuflow.targets.layouts.convolution_axes import Problem, as_problem

ENOUGH_BLOCKS = 256  # blocks that keep a GPU busy
ENOUGH_THREADS = 1 << 16  # threads that keep a GPU busy, in the direct kernel
FEWEST_SLICES = 8  # least slices in a partial sum of a block
FEWEST_PRODUCTS = 64  # least products in a partial sum of a thread
# Tile shapes, the largest first: row tiles (of 16 rows per warp), and columns.
TILE_SHAPES = ((2, 64), (2, 32), (1, 64), (1, 32))
_MOST_PARTIAL_BYTES = 1 << 26  # of workspace for partial sums
LONGEST = 1 << 31  # from this span of an array on, in elements, scalars have 64 bits

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
class _Call:
    """The operands and the result of a convolution, as kernels take them.

    Attributes:
        kind, pointer, itemsize: ``scan.KIND``, pointer type and size of operand elements.
        locations: locations of lhs and rhs.
        out: location of the result, row-major.
        out_kind, out_pointer: ``scan.KIND`` and pointer type of its elements.
        count: elements of the result.
        reduced: whether float32 may be rounded to tensorfloat32.
        long: whether scalar arguments have 64 bits.
    """

    kind: int
    pointer: str
    itemsize: int
    locations: Sequence[At]
    out: At
    out_kind: int
    out_pointer: str
    count: int
    reduced: bool
    long: bool

    def scalar_arguments(self, values: Iterable[int]) -> list[tuple[str, int]]:
        """Scalar arguments: (type, value) of each of ``values``."""
        return [("int64" if self.long else "int32", int(value)) for value in values]


def add_convolution(
    sequence: LaunchSequence,
    what: Convolution,
    locations: Sequence[At],
    views: Sequence[View],
    kinds: Sequence[Any],
    out: tuple[At, ShapedArray],
) -> bool:
    """Add the launches of a convolution; False, and no launch, if kernels do not support it.

    Args:
        sequence: receives the launches.
        what: the operation.
        locations, views, kinds: locations, layouts and dtypes of both operands.
        out: location and aval of the result, row-major.
    """
    target, aval = out
    operand_kind, out_kind = number_kind(kinds[0]), number_kind(aval.dtype)
    if operand_kind is None or out_kind is None or WIDE[operand_kind[0]] != WIDE[out_kind[0]]:
        return False
    spans = [_span(view) for view in views]
    problem = as_problem(what, views[0], views[1], aval.shape)
    forms = [] if problem is None else _every_form(problem)
    if problem is None or not forms:
        return False
    size = storage_dtype(kinds[0]).itemsize
    long = max(*spans, aval.size, *_extents(problem)) >= LONGEST
    call = _Call(*operand_kind, size, locations, target, *out_kind, aval.size, what.reduced, long)
    best = _best_tiles(forms, call) if 0 not in spans else None
    if best is not None:
        _add_tiles(sequence, call, *best)
    else:
        _add_direct(sequence, call, direct_form(forms[0]))
    return True


def _span(view: View) -> int:
    """Elements from the first to the last one of a view in memory; 0 if it is empty."""
    if 0 in view.shape:
        return 0
    sizes = zip(view.shape, view.strides, strict=True)
    return 1 + sum([(size - 1) * abs(stride) for size, stride in sizes])


def _extents(problem: Problem) -> list[int]:
    """Values that indices must hold: terms of a sum, and positions in dilated, padded slides."""
    extents = [prod(axis[0] for axis in problem.depth) * prod(s.taps for s in problem.slides)]
    for slide in problem.slides:
        last = slide.position(slide.positions - 1, slide.taps - 1)
        extents += [abs(slide.pad), abs(last), slide.size * slide.lhs_dilation]
    return extents


# --- split sums ----------------------------------------------------------------------------


def _split_count(requested: int, most: int, call: _Call) -> int:
    """The number of partial sums per element, limited by ``most`` and by their memory."""
    size = np.dtype(WIDE[call.kind]).itemsize
    return max(min(requested, most, _MOST_PARTIAL_BYTES // (call.count * size)), 1)


def _sums(sequence: LaunchSequence, call: _Call, splits: int) -> tuple[tuple[str, At], int]:
    """Destination and KIND of sums: the result, or partial sums in the workspace."""
    if splits == 1:
        return (call.out_pointer, call.out), call.out_kind
    wide = np.dtype(WIDE[call.kind])
    kind, pointer = number_kind(wide) or (call.kind, call.pointer)
    return (pointer, sequence.memory(splits * call.count * wide.itemsize)), kind


def _add_sums(sequence: LaunchSequence, call: _Call, splits: int, partial: tuple[str, At]) -> None:
    """Launch the kernel that adds the partial sums of each element, in order."""
    if splits > 1:
        arguments = [
            partial,
            (call.out_pointer, call.out),
            ("int64", call.count),
            ("int64", splits),
        ]
        constants = {"OUT_KIND": call.out_kind}
        sequence.for_each(direct.sum_partials, arguments, call.count, constants)


def _operands(sequence: LaunchSequence, call: _Call, form: Form) -> list[tuple[str, At]]:
    """Pointer type and location of both operands, or of their copies, which it launches."""
    size, operands = call.itemsize, []
    for location, offset, view in zip(call.locations, form.offsets, form.copied, strict=True):
        if view is not None:
            source = location.plus(view.offset * size)
            location = sequence.memory(prod(view.shape) * size)
            sequence.copy(source, location, view, np.dtype(f"u{size}"))
        operands.append((call.pointer, location.plus(offset * size)))
    return operands


# --- direct convolution: a thread computes an element --------------------------------------


def _add_direct(sequence: LaunchSequence, call: _Call, form: Form) -> None:
    most = [-(-slide.taps // skip(slide)) for slide in form.slides]
    passes = form.depth[0] * most[0] * most[1]
    fewest = max(FEWEST_PRODUCTS // max(most[2], 1), 1)
    splits = _split_count(-(-ENOUGH_THREADS // call.count), passes // fewest, call)
    split_passes = -(-passes // splits)
    splits = -(-passes // split_passes) if passes else 1
    scalars = call.scalar_arguments((splits, split_passes, call.count, *form.scalars()))
    target, out_kind = _sums(sequence, call, splits)
    sequence.for_each(
        direct.convolve_directly,
        [*_operands(sequence, call, form), target, *scalars],
        call.count * splits,
        {"KIND": call.kind, "OUT_KIND": out_kind, "LONG": call.long},
    )
    _add_sums(sequence, call, splits, target)


# --- implicit matrix product: a block computes a tile --------------------------------------


@record
class Tiling:
    """The tiles of a form.

    Attributes:
        row_tiles: tiles of 16 rows per warp in a block's tile.
        columns: columns of a block's tile.
        down, across: number of tiles along rows and columns of one phase.
        blocks: number of tiles of all phases and outer axes.
        slices: slices of a whole sum, of ``tiled.CHUNKS`` chunks each.
        splits: partial sums of each element.
    """

    row_tiles: int
    columns: int
    down: int
    across: int
    blocks: int
    slices: int
    splits: int = 1

    @property
    def busy(self) -> int:
        """The number of blocks, at most ``ENOUGH_BLOCKS``."""
        return min(self.blocks * self.splits, ENOUGH_BLOCKS)


def _chunk(call: _Call) -> int:
    return 16 // call.itemsize


def _every_form(problem: Problem) -> list[Form]:
    """All forms of a problem, also with trivial slides as plain axes."""
    forms, other = forms_of(problem), without_trivial_slides(problem)
    return forms if other == problem else forms + forms_of(other)


def _best_tiles(forms: list[Form], call: _Call) -> tuple[Form, Tiling] | None:
    """The cheapest form with its tiling; None if the direct kernel is cheaper."""
    if call.kind not in _TILE_KINDS:
        return None
    form = min(forms, key=lambda one: _cost(one, call))
    if _cost(form, call) > LAUNCH:
        every_copy = chain(*(with_copies(one, _chunk(call)) for one in forms))
        form = min(every_copy, key=lambda one: _cost(one, call))
    products = form.row_count * form.column_count * form.along * form.passes * form.phases
    if _cost(form, call) > products * prod(axis[0] for axis in form.outer) * _DIRECT:
        return None
    tilings = [tiling(form, call, *shape) for shape in TILE_SHAPES]
    most = max(one.busy for one in tilings)
    # Among tilings with the most busy blocks, the one with the least padding, then the largest.
    useful = [one for one in tilings if one.busy == most]
    return form, min(useful, key=lambda one: one.blocks * one.row_tiles * one.columns)


def _cost(form: Form, call: _Call) -> float:
    """The cost of a form with tiles of a medium size: products (with padding), reads, copies."""
    chunk = _chunk(call)
    rows, columns = 64, 64 if form.column_count > 32 else 32
    is_plain = call.kind == scan.FLOAT32
    work = rows * columns * ((_REDUCED if call.reduced else _FMA) if is_plain else _MATRIX)
    modes = form.read_modes(chunk)
    sides = zip((rows, columns), modes, form.chunk_steps, form.lane_steps, strict=True)
    for count, mode, step, lane in sides:
        is_near = abs(step) == 1 or abs(lane) == 1
        work += count * (_VECTOR if mode != ONE_BY_ONE else _NEAR if is_near else _FAR)
    tile_count = -(-form.row_count // rows) * -(-form.column_count // columns)
    along = -(-form.along // chunk) * chunk * form.passes
    cost = tile_count * along * work * form.phases * prod(axis[0] for axis in form.outer)
    copies = [view for view in form.copied if view is not None]
    bytes_copied = sum([copied_bytes(view, call.itemsize) for view in copies])
    return cost + LAUNCH * len(copies) + COPY * bytes_copied


def tiling(form: Form, call: _Call, row_tiles: int, columns: int) -> Tiling:
    """The tiles of a form, for a tile shape of ``TILE_SHAPES``."""
    down = -(-form.row_count // (16 * tiles.WARPS * row_tiles))
    across = -(-form.column_count // columns)
    blocks = down * across * form.phases * prod(axis[0] for axis in form.outer)
    slices = -(-form.passes * -(-form.along // _chunk(call)) // tiled.CHUNKS)
    splits = _split_count(-(-ENOUGH_BLOCKS // blocks), slices // FEWEST_SLICES, call)
    return Tiling(row_tiles, columns, down, across, blocks, slices, splits)


def tile_constants(form: Form, call: _Call, how: Tiling) -> dict[str, Scalar]:
    """The constants of a build of ``convolve_tiles``."""
    size, kind = tiled.CHUNKS * _chunk(call), _TILE_KINDS[call.kind]
    constants: dict[str, Scalar] = dict(
        tiles.tile_constants(kind, size, how.row_tiles, how.columns, True)
    )
    left, right = form.read_modes(_chunk(call))
    constants.update(
        {
            "OUT_KIND": tiles.FLOAT32 if how.splits > 1 else _TILE_KINDS[call.out_kind],
            "REDUCED": call.reduced and kind == tiles.FLOAT32,
            "MARGINS": form.reads_padding,
            "TAPS": form.taps,
            "LEFT_VECTOR": left == ALONG,
            "RIGHT_VECTOR": right == ALONG,
            "LONG": call.long,
            "LEFT_ACROSS": left == ACROSS,
            "RIGHT_ACROSS": right == ACROSS,
        }
    )
    tile = (int(constants["ROWS"]) + how.columns) * int(constants["PITCH"])
    constants[SHARED_BYTES] = tiled.STAGES * tile * call.itemsize
    return constants


def _add_tiles(sequence: LaunchSequence, call: _Call, form: Form, how: Tiling) -> None:
    slices = -(-how.slices // how.splits)
    how = replace(how, splits=-(-how.slices // slices))
    operands = _operands(sequence, call, form)
    target, _ = _sums(sequence, call, how.splits)
    # Lanes read neighboring elements: along rows, or along a chunk. Irrelevant for vectors.
    modes = zip(form.read_modes(_chunk(call)), form.chunk_steps, strict=True)
    by_rows = [mode == ACROSS or abs(step) != 1 for mode, step in modes]
    scalars = call.scalar_arguments(
        (
            how.splits,
            slices * tiled.CHUNKS,
            call.count,
            how.down,
            how.across,
            form.rows_inner,
            *by_rows,
            *form.scalars(),
        )
    )
    constants = tile_constants(form, call, how)
    plain = None
    if any(constants[name] for name in _IN_VECTORS):
        plain = {**constants, **dict.fromkeys(_IN_VECTORS, False)}
    sequence.launch(
        tiled.convolve_tiles,
        [*operands, target, *scalars],
        (how.blocks * how.splits, 1, 1),
        tiles.THREADS,
        constants,
        plain,
    )
    _add_sums(sequence, call, how.splits, target)


def _choose(block: Convolution, step: CallStep, target: Any) -> LaunchSequence | None:
    """Kernels read operands in their own layout."""
    del target
    sequence, out = LaunchSequence(3), (At(2), step.eqn.outputs[0].aval)
    views, kinds = zip(*[(x.layout, x.aval.dtype) for x in step.operands], strict=True)
    return sequence if add_convolution(sequence, block, [At(0), At(1)], views, kinds, out) else None


PROVIDER = Provider("kernels of ours", _choose)
