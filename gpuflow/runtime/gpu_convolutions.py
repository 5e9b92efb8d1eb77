"""Convolutions on GPUs: which of the kernels, in what tiles, and how sums are split.

Everything follows from shapes, strides and dtypes, so results have the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

import gpuflow.kernels.convolution as tiled
import gpuflow.kernels.convolution_direct as direct
import gpuflow.kernels.scan as scan
import gpuflow.kernels.tiles as tiles
from gpuflow.base.records import record
from gpuflow.compiler.handwritten import SHARED_BYTES, Number
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.lowering import Convolution
from gpuflow.core.views import View
from gpuflow.runtime.convolution_axes import as_problem
from gpuflow.runtime.gpu_blocks import WIDE, At, Schedule, number_kind
from gpuflow.runtime.gpu_convolution_forms import (
    Form,
    direct_form,
    forms_of,
    skip,
    with_copied_right,
)

ENOUGH_BLOCKS = 256  # that keep a GPU busy
ENOUGH_THREADS = 1 << 16
FEWEST_SLICES = 8  # of the part of a sum that a block makes
FEWEST_PRODUCTS = 64  # of the part of a sum that a thread makes
# Tiles of 16 rows of a warp, and columns: from the largest on.
TILE_SHAPES = ((2, 64), (2, 32), (1, 64), (1, 32))
_MOST_PARTIAL_BYTES = 1 << 26
_LONGEST = 1 << 31  # spans of arrays are below it, in elements

# What things cost, in instructions of a thread; only ratios count. A product: by a thread alone,
# with a tile's fma, with tensor cores. An element that is read for a tile: in vectors, from
# neighboring places, from others. An element that is copied before, and a launch.
_DIRECT, _FMA, _MATRIX = 16.0, 1.3, 0.1
_VECTOR, _NEAR, _FAR = 0.4, 3.0, 6.0
COPY, LAUNCH = 40.0, 4e7

_TILE_KINDS = {
    scan.FLOAT32: tiles.FLOAT32, scan.BFLOAT16: tiles.BFLOAT16, scan.FLOAT16: tiles.FLOAT16,
}  # fmt: skip


@record
class _Call:
    """What is launched on what.

    Attributes:
        kind, pointer, itemsize: of both operands' elements.
        places: where they begin.
        out, out_kind, out_pointer, count: the result and its elements.
    """

    kind: int
    pointer: str
    itemsize: int
    places: Sequence[At]
    out: At
    out_kind: int
    out_pointer: str
    count: int


def add_convolution(
    schedule: Schedule, what: Convolution, places: Sequence[At], views: Sequence[View],
    kinds: Sequence[Any], out: tuple[At, ShapedArray],
) -> bool:  # fmt: skip
    """Add the launches of a convolution; False, and nothing, where kernels do not hold it.

    Args:
        schedule: to which. what: what to do.
        places, views, kinds: both operands, how they lie there, and their dtype.
        out: the result, row-major.
    """
    target, aval = out
    found, stored = number_kind(kinds[0]), number_kind(aval.dtype)
    if found is None or stored is None or WIDE[found[0]] != WIDE[stored[0]]:
        return False
    spans = [_span(view) for view in views]
    problem = as_problem(what, views[0], views[1], aval.shape)
    forms = [] if problem is None else forms_of(problem)
    if not forms or max(*spans, aval.size) >= _LONGEST:
        return False
    size = storage_dtype(kinds[0]).itemsize
    call = _Call(*found, size, places, target, *stored, aval.size)
    best = _best_tiles(forms, call) if 0 not in spans else None
    if best is not None:
        _add_tiles(schedule, call, *best)
    else:
        _add_direct(schedule, call, direct_form(forms[0]))
    return True


def _span(view: View) -> int:
    """Elements from the first to the last one of a view; 0: it is empty."""
    if 0 in view.shape:
        return 0
    sizes = zip(view.shape, view.strides, strict=True)
    return 1 + sum([(size - 1) * abs(stride) for size, stride in sizes])


# --- sums in parts -------------------------------------------------------------------------


def _parts(wanted: int, most: int, call: _Call) -> int:
    """In how many parts a sum is made: not more than there is memory for."""
    size = np.dtype(WIDE[call.kind]).itemsize
    return max(min(wanted, most, _MOST_PARTIAL_BYTES // (call.count * size)), 1)


def _sums(schedule: Schedule, call: _Call, parts: int) -> tuple[tuple[str, At], int]:
    """Where sums go, and as what: to the result, or in parts to the workspace."""
    if parts == 1:
        return (call.out_pointer, call.out), call.out_kind
    wide = np.dtype(WIDE[call.kind])
    kind, pointer = number_kind(wide) or (call.kind, call.pointer)
    return (pointer, schedule.memory(parts * call.count * wide.itemsize)), kind


def _add_sums(schedule: Schedule, call: _Call, parts: int, partial: tuple[str, At]) -> None:
    """Add the parts of each number, in order."""
    if parts > 1:
        arguments = [
            partial, (call.out_pointer, call.out), ("int64", call.count), ("int64", parts)
        ]  # fmt: skip
        constants = {"OUT_KIND": call.out_kind}
        schedule.for_each(direct.sum_parts, arguments, call.count, constants)


def _operands(schedule: Schedule, call: _Call, form: Form) -> list[tuple[str, At]]:
    """Where both operands begin, and the type of pointers; the right one may be copied."""
    dtype = np.dtype(f"u{call.itemsize}")
    places = [
        place.plus(offset * dtype.itemsize)
        for place, offset in zip(call.places, form.offsets, strict=True)
    ]
    if form.copied is not None:
        source = call.places[1].plus(form.copied.offset * dtype.itemsize)
        places[1] = schedule.memory(prod(form.copied.shape) * dtype.itemsize)
        schedule.copy(source, places[1], form.copied, dtype)
    return [(call.pointer, place) for place in places]


# --- a thread for each number --------------------------------------------------------------


def _add_direct(schedule: Schedule, call: _Call, form: Form) -> None:
    most = [-(-slide.taps // skip(slide)) for slide in form.slides]
    lines = form.depth[0] * most[0] * most[1]
    fewest = max(FEWEST_PRODUCTS // max(most[2], 1), 1)
    parts = _parts(-(-ENOUGH_THREADS // call.count), lines // fewest, call)
    part_lines = -(-lines // parts)
    parts = -(-lines // part_lines) if lines else 1
    numbers = [("int32", number) for number in (parts, part_lines, call.count)]
    target, out_kind = _sums(schedule, call, parts)
    schedule.for_each(
        direct.convolve_directly,
        [*_operands(schedule, call, form), target, *numbers, *form.numbers()],
        call.count * parts, {"KIND": call.kind, "OUT_KIND": out_kind},
    )  # fmt: skip
    _add_sums(schedule, call, parts, target)


# --- tiles of matrices ---------------------------------------------------------------------


@record
class Tiling:
    """How tiles cut a form.

    Attributes:
        row_tiles, columns: tiles of 16 rows of a warp, and columns, of a block.
        down, across: tiles of each phase.
        blocks: tiles of all phases and axes.
        slices: of a whole sum.
        parts: into which it is split.
    """

    row_tiles: int
    columns: int
    down: int
    across: int
    blocks: int
    slices: int
    parts: int = 1

    @property
    def busy(self) -> int:
        """Blocks, as far as they make a GPU faster."""
        return min(self.blocks * self.parts, ENOUGH_BLOCKS)


def _chunk(call: _Call) -> int:
    return 16 // call.itemsize


def _best_tiles(forms: list[Form], call: _Call) -> tuple[Form, Tiling] | None:
    """The form and its tiles; None where threads do better one by one."""
    if call.kind not in _TILE_KINDS:
        return None
    copies = [with_copied_right(form) for form in forms]
    every_form = forms + [form for form in copies if form is not None]
    form = min(every_form, key=lambda one: _cost(one, call))
    products = form.row_count * form.column_count * form.along * form.lines
    if _cost(form, call) > products * prod(axis[0] for axis in form.outer) * _DIRECT:
        return None
    found = [tiling(form, call, *shape) for shape in TILE_SHAPES]
    most = max(one.busy for one in found)
    # Of tiles that keep as many blocks busy, those that waste least, and of these the largest.
    useful = [one for one in found if one.busy == most]
    return form, min(useful, key=lambda one: one.blocks * one.row_tiles * one.columns)


def _cost(form: Form, call: _Call) -> float:
    """What a form costs in tiles of middle size: products, those with zeros too, and reading."""
    chunk, vectors = _chunk(call), form.vectors(_chunk(call))
    rows, columns = 64, 64 if form.column_count > 32 else 32
    work = rows * columns * (_FMA if call.kind == scan.FLOAT32 else _MATRIX)
    sides = zip((rows, columns), vectors, form.chunk_steps, form.lane_steps, strict=True)
    for count, vector, step, lane in sides:
        is_near = abs(step) == 1 or abs(lane) == 1
        work += count * (_VECTOR if vector else _NEAR if is_near else _FAR)
    tile_count = -(-form.row_count // rows) * -(-form.column_count // columns)
    along = -(-form.along // chunk) * chunk * form.lines
    cost = tile_count * along * work * prod(axis[0] for axis in form.outer)
    if form.copied is None:
        return cost
    return cost + LAUNCH + COPY * prod(form.copied.shape) if vectors[1] else float("inf")


def tiling(form: Form, call: _Call, row_tiles: int, columns: int) -> Tiling:
    """How tiles of a size cut a form."""
    down = -(-form.row_count // (16 * tiles.WARPS * row_tiles))
    across = -(-form.column_count // columns)
    blocks = down * across * form.phases * prod(axis[0] for axis in form.outer)
    slices = -(-form.lines * -(-form.along // _chunk(call)) // tiled.CHUNKS)
    parts = _parts(-(-ENOUGH_BLOCKS // blocks), slices // FEWEST_SLICES, call)
    return Tiling(row_tiles, columns, down, across, blocks, slices, parts)


def tile_constants(form: Form, call: _Call, how: Tiling) -> dict[str, Number]:
    """The constants of a build."""
    size, kind = tiled.CHUNKS * _chunk(call), _TILE_KINDS[call.kind]
    constants: dict[str, Number] = dict(
        tiles.tile_constants(kind, size, how.row_tiles, how.columns, True)
    )
    left, right = form.vectors(_chunk(call))
    constants.update({
        "OUT_KIND": tiles.FLOAT32 if how.parts > 1 else _TILE_KINDS[call.out_kind],
        "MARGINS": form.has_margins, "TAPS": form.taps, "LEFT_VECTOR": left,
        "RIGHT_VECTOR": right,
    })  # fmt: skip
    tile = (int(constants["ROWS"]) + how.columns) * int(constants["PITCH"])
    constants[SHARED_BYTES] = tiled.STAGES * tile * call.itemsize
    return constants


def _add_tiles(schedule: Schedule, call: _Call, form: Form, how: Tiling) -> None:
    slices = -(-how.slices // how.parts)
    how = replace(how, parts=-(-how.slices // slices))
    operands = _operands(schedule, call, form)
    target, _ = _sums(schedule, call, how.parts)
    # Neighboring lanes read neighboring elements; of vectors it does not matter.
    by_rows = [abs(step) != 1 for step in form.chunk_steps]
    numbers = (
        how.parts, slices * tiled.CHUNKS, call.count, how.down, how.across, form.rows_inner,
        *by_rows,
    )  # fmt: skip
    arguments = [*operands, target, *[("int32", int(number)) for number in numbers]]
    constants = tile_constants(form, call, how)
    plain = None
    if constants["LEFT_VECTOR"] or constants["RIGHT_VECTOR"]:
        plain = {**constants, "LEFT_VECTOR": False, "RIGHT_VECTOR": False}
    schedule.launch(
        tiled.convolve_tiles, [*arguments, *form.numbers()], (how.blocks * how.parts, 1, 1),
        tiles.THREADS, constants, plain,
    )  # fmt: skip
    _add_sums(schedule, call, how.parts, target)
