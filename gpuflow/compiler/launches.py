"""The launches that do the work of one kernel call on the CPU, from its sizes and strides.

A long reduction is split (``split``): the number of parts follows from the shape alone, so that
results do not depend on threads. What the parts leave over is one more call of their kernel, for a
part of another length. Transposed operands are for ``orders``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from gpuflow.compiler.cpu_narrow_rows import is_narrow
from gpuflow.compiler.cpu_printer import NARROW_ROWS, SHORT_ROWS
from gpuflow.compiler.lower import KernelCall, Word
from gpuflow.compiler.orders import (
    Values,
    in_memory_order,
    in_tiles,
    sizes_of,
    stride_of,
    strides_of,
    values_of,
)
from gpuflow.compiler.split import PART, SplitKernels, split_kernel
from gpuflow.compiler.target import Allocate
from gpuflow.core.jaxpr import Var
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Role, arguments, remembered

LONGEST_SHORT_ROW = 128  # elements: two turns of a loop over four vectors
# Points; with fewer, turning narrow rows saves less than it costs to build so large a kernel.
SMALLEST_TURNED = 1 << 13
SMALLEST_SPLIT = 1 << 16  # points; fewer take about as long as a second launch and waking a thread
MOST_PARTS = 64
SMALLEST_PART = 1 << 14  # points
SMALLEST_PART_ROWS = 32  # rows of a column kernel: its part stores a result for each column
ENOUGH_POINTS = 64  # of the axis that a launch splits: more need no parts
ENOUGH_COLUMNS = 8192  # when that axis is the innermost one: threads walk down their own columns
GROUPED_COLUMNS = 256
_ALIGNED_ROWS = 64


@dataclass(frozen=True)
class Cut:
    """How a reduction of one size is split.

    Attributes:
        parts: their number.
        rows: of a part; those of a group count as one.
        group: neighbouring rows that are taken as one long row.
        left: rows that the parts leave over.
    """

    parts: int
    rows: int
    group: int
    left: int


def launches(call: KernelCall, allocate: Allocate) -> tuple[KernelCall, ...]:
    """The calls that do the work of one: itself, or those of its two kernels.

    Args:
        call: of any kernel.
        allocate: gives a buffer of so many bytes.
    """
    if call.kernel.kind == "map":
        return (in_tiles(call),)
    call = in_memory_order(call)
    sizes = sizes_of(call)
    split = split_kernel(call.kernel) if call.points >= SMALLEST_SPLIT else None
    if split is None:
        return (_with_short_rows(call, sizes),)
    values = values_of(call)
    cut = _cut(call, split, sizes, values)
    if cut is None:
        return (_with_short_rows(call, sizes),)
    return _calls(call, split, cut, sizes, values, allocate)


def _with_short_rows(call: KernelCall, sizes: Mapping[str, int]) -> KernelCall:
    """The call of a kernel for rows of a few elements or vectors, if that is what it has."""
    kernel = call.kernel
    last = kernel.axes[-1] if kernel.axes else None
    if kernel.kind != "row" or last is None:
        return call
    if last.exact is not None:
        is_turned = call.points >= SMALLEST_TURNED and is_narrow(kernel)
        return replace(call, kernel=replace(kernel, kind=NARROW_ROWS)) if is_turned else call
    is_row = last.role is Role.ROW and sizes[last.name] < LONGEST_SHORT_ROW
    if not is_row:
        return call
    short = remembered(kernel, SHORT_ROWS, lambda: replace(kernel, kind=SHORT_ROWS))
    return replace(call, kernel=short)


def _cut(
    call: KernelCall,
    split: SplitKernels,
    sizes: Mapping[str, int],
    values: Values,
) -> Cut | None:
    order = [axis.name for axis in call.kernel.axes]
    kept = prod(sizes[axis] for axis in split.kept)
    rows = sizes[split.rows]
    if split.kept:
        is_outer = order.index(split.kept[0]) < order.index(split.rows)
        enough = ENOUGH_POINTS if is_outer else ENOUGH_COLUMNS
        if call.extent >= enough or kept >= ENOUGH_COLUMNS:
            return None
    group = 1
    if split.parts.kind == "column" and len(split.kept) == 1 and kept * 2 <= GROUPED_COLUMNS:
        group = GROUPED_COLUMNS // kept if _is_dense(split, sizes, values) else 1
    grouped = rows // group
    smallest = -(-SMALLEST_PART * rows // (call.points * group))
    if split.parts.kind == "column":
        smallest = max(smallest, SMALLEST_PART_ROWS)
    parts = min(MOST_PARTS, grouped // max(smallest, 1))
    if parts < 2:
        return None
    each = grouped // parts
    if each >= _ALIGNED_ROWS * _ALIGNED_ROWS:
        each -= each % _ALIGNED_ROWS
    return Cut(parts, each, group, rows - parts * each * group)


def _is_dense(split: SplitKernels, sizes: Mapping[str, int], values: Values) -> bool:
    """Whether each operand goes on in the next row where a row ends, or never changes."""
    (column,) = split.kept
    if split.parts.axes[-1].name != column:
        return False
    for operand in split.parts.operands:
        if operand in split.parts.operands[-len(split.scratch) :]:
            continue
        down = stride_of(operand, split.rows, split.parts, values)
        along = stride_of(operand, column, split.parts, values)
        if down != along * sizes[column]:
            return False
    return True


def _calls(
    call: KernelCall,
    split: SplitKernels,
    cut: Cut,
    sizes: Mapping[str, int],
    values: Values,
    allocate: Allocate,
) -> tuple[KernelCall, ...]:
    kept = prod(sizes[axis] for axis in split.kept)
    results = cut.parts * cut.group + (cut.left > 0)
    places = {
        part.name: allocate(results * kept * storage_dtype(part.dtype).itemsize)
        for part in split.scratch
    }
    done = cut.parts * cut.rows * cut.group
    writer = _Words(split, sizes, values, places)
    per_row = call.points // max(sizes[split.rows], 1)
    calls = [
        replace(
            call, kernel=split.parts, extent=cut.parts, points=done * per_row,
            words=writer.parts(cut.parts, cut.rows, cut.group, 0, 0),
        ),
        replace(
            call, kernel=split.parts, extent=1, points=cut.left * per_row,
            words=writer.parts(1, cut.left, 1, done, cut.parts * cut.group * kept),
        ),
        replace(
            call, kernel=split.combine, points=results * kept,
            extent=sizes[split.kept[0]] if split.kept else 1,
            words=writer.combine(results),
        ),
    ]  # fmt: skip
    return tuple(calls if cut.left else (calls[0], calls[2]))


def _slots(split: SplitKernels) -> list[tuple[str, Argument, int | Argument, int]]:
    """For each word of a part how it follows from the whole call's.

    A kind, the argument, how far apart rows are, and the bytes of an element: words are the "same"
    as in the whole call, or an "extent", or for "scratch" memory, or say how far rows go "down",
    or are addresses, "moved" to the part's first row.
    """
    kernel, slots = split.parts, []
    scratch = {part.name for part in split.scratch}
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    distances = strides_of(kernel)
    for argument in arguments(kernel):
        down, step = distances.get((argument.operand, split.rows), 0), 1
        if argument.kind == "extent":
            kind = "extent"
        elif argument.operand in scratch:
            kind = "scratch"
        elif argument.kind == "scalar":
            kind = "same"
        elif argument.kind == "stride":
            kind = "down" if argument.axis in (PART, split.rows) else "same"
        else:
            kind = "moved"
            step = 1 if argument.kind == "base" else itemsize[argument.operand]
        slots.append((kind, argument, down, step))
    return slots


@dataclass(frozen=True)
class _Words:
    """Writes the argument blocks of both kernels."""

    split: SplitKernels
    sizes: Mapping[str, int]
    values: Values
    places: Mapping[str, Var | None]

    def parts(
        self, count: int, rows: int, group: int, first_row: int, first_result: int
    ) -> tuple[Word, ...]:
        """``count`` parts of ``rows`` grouped rows, from a row and a place in the scratch on."""
        split, values = self.split, self.values
        extents = {**self.sizes, PART: count, split.rows: rows}
        if group > 1:
            extents[split.kept[0]] *= group
        inner = self._strides(group)
        words = []
        for kind, argument, down, step in remembered(split.parts, "slots", lambda: _slots(split)):
            if kind == "same":
                words.append(values[argument])
                continue
            if kind == "extent":
                words.append(Word(None, extents[argument.axis]))
                continue
            if kind == "scratch":
                words.append(self._scratch(argument, inner, first_result))
                continue
            distance = (values[down].value if isinstance(down, Argument) else down) * group
            if kind == "down":
                words.append(Word(None, distance * (rows if argument.axis == PART else 1)))
            else:
                word = values[argument]
                words.append(Word(word.buffer, word.value + first_row * distance * step))
        return tuple(words)

    def combine(self, results: int) -> tuple[Word, ...]:
        """The argument block of the combination."""
        extents = {**self.sizes, PART: results}
        words = []
        for argument in arguments(self.split.combine):
            if argument.kind == "extent":
                words.append(Word(None, extents[argument.axis]))
            elif argument.operand in self.places:
                words.append(self._scratch(argument, self._strides(1), 0))
            else:
                words.append(self.values[argument])
        return tuple(words)

    def _strides(self, group: int) -> dict[str, int]:
        """Of the scratch memory, row-major: parts, then kept axes."""
        strides, step = {}, 1
        for axis in reversed(self.split.kept):
            strides[axis] = step
            step *= self.sizes[axis]
        return {**strides, PART: step * group}

    def _scratch(self, argument: Argument, strides: Mapping[str, int], first: int) -> Word:
        if argument.kind == "stride":
            return Word(None, strides[argument.axis])
        if first == 0:
            return Word(self.places[argument.operand], 0)
        dtype = next(p.dtype for p in self.split.scratch if p.name == argument.operand)
        return Word(self.places[argument.operand], first * storage_dtype(dtype).itemsize)
