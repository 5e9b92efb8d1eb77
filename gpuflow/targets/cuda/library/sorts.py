"""Provider of sorts: a stable radix sort (kernels/radix_sort.py), and gathers in its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import gpuflow.kernels.copying as copying
import gpuflow.kernels.radix_sort as kernels
from gpuflow.base import dtypes
from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Sort
from gpuflow.kernels.selection import clear
from gpuflow.targets.cuda.library.copy_forms import TakeScalars, index_reaching, rows_grid
from gpuflow.targets.cuda.library.launch_sequence import (
    At,
    LaunchSequence,
    number_kind,
    on_rows,
    scalar_arguments,
    uint_pointer,
)
from gpuflow.targets.cuda.library.selection import FEWEST_BITS, add_selected, prepared_key_constants

_INDEX, _ORDER = "int64", "*uint32"
_SHAPES = ((32, 1), (64, 4), (128, 8))  # for short rows: threads per block, elements per thread
_DIGIT = 8  # bits
LONGEST_TILE = {32: 4096, 64: 2048}  # most elements that one block sorts, by storage bits of keys
_THREADS = 256
LONGEST_ROW = 1 << 31  # rows must be shorter
_RESIDENT = 2  # blocks of a pass that a multiprocessor must be able to run at once
_MOST_CHUNKS = 1024  # most blocks that count the digits of a row


class Key(NamedTuple):
    """A sort key: one scalar of each element of an array.

    Attributes:
        location, pointer: location of the array, and type of a pointer to its scalars.
        kind, bits, nan_above: see kernels/radix_sort.py.
        components: scalars per element (2 for complex numbers).
        component: index of this key among them.
    """

    location: At
    pointer: str
    kind: int
    bits: int
    nan_above: int = 0
    components: int = 1
    component: int = 0

    @property
    def storage_bits(self) -> int:
        """Bits in which codes (unsigned keys in sorted order) are stored."""
        return 64 if self.bits > 32 else 32


@record
class _Rows:
    """The shape of rows: row-major (outer, length, inner)."""

    outer: int
    length: int
    inner: int

    @property
    def count(self) -> int:
        return self.outer * self.inner


# --- keys ----------------------------------------------------------------------------------


@lru_cache(64)
def key_format(dtype: Any) -> tuple[int, int, int, int] | None:
    """KIND, bits, bits of the largest value but nan, and components of a dtype.

    None if kernels cannot sort the dtype.
    """
    stored = storage_dtype(dtype)
    if dtypes.is_complex(stored):
        fields = key_format(np.dtype(f"f{stored.itemsize // 2}"))
        return None if fields is None else (*fields[:3], 2)
    if stored in dtypes.NARROW_INTEGERS:
        kind = kernels.UNSIGNED if dtypes.is_unsigned(stored) else kernels.SIGNED
        return kind, dtypes.bits_of(stored), 0, 1
    if dtypes.is_floating(stored):
        largest = _largest_magnitude(stored)
        return None if largest is None else (kernels.FLOAT, 8 * stored.itemsize, largest, 1)
    if number_kind(stored) is None:
        return None
    signed = stored.kind == "i"
    return (kernels.SIGNED if signed else kernels.UNSIGNED), 8 * stored.itemsize, 0, 1


def _largest_magnitude(dtype: np.dtype) -> int | None:
    """The bits of the largest positive value; None for formats without a sign or with one nan."""
    bits, size = f"u{dtype.itemsize}", 8 * dtype.itemsize
    if "fnuz" in dtype.name or "fnu" in dtype.name:
        return None
    if np.isinf(np.array(np.inf).astype(dtype).astype(np.float32)):
        return int(np.array(np.inf).astype(dtype).view(bits))
    return (1 << (size - 1)) - 2  # float8_e4m3fn: all bits set is nan, and there is no infinity


# --- orders --------------------------------------------------------------------------------


def add_order(
    sequence: LaunchSequence,
    keys: Sequence[Key],
    rows: tuple[int, int, int],
    constants: dict[str, int],
) -> At:
    """Add the launches that find the order (argsort) of rows by keys.

    Args:
        sequence: receives the launches.
        keys: the sort keys, the primary one first.
        rows: (outer, length, inner).
        constants: ``DESCENDING`` and ``TOTAL_ORDER``, for all keys.

    Returns:
        Location of the order, uint32 of shape (rows, length).
    """
    shape = _Rows(*rows)
    size = 4 * shape.count * shape.length
    order, spare = sequence.memory(size), None
    for number, key in enumerate(reversed(keys)):
        key_constants = {**_key_constants(key), "ORDERED": int(number > 0), **constants}
        if shape.length <= LONGEST_TILE[key.storage_bits]:
            _add_tile(sequence, key, order, shape, key_constants)
            continue
        spare = sequence.memory(size) if spare is None else spare
        order, spare = _add_passes(sequence, key, (order, spare), shape, key_constants)
    return order


def _key_constants(key: Key) -> dict[str, int]:
    return {
        "KIND": key.kind,
        "BITS": key.bits,
        "STORAGE_BITS": key.storage_bits,
        "NAN_ABOVE": key.nan_above,
        "COMPONENTS": key.components,
        "COMPONENT": key.component,
    }


def _add_tile(
    sequence: LaunchSequence, key: Key, order: At, shape: _Rows, constants: dict[str, int]
) -> None:
    """Add the launch that sorts short rows, a block for each."""
    threads, items = _tile_shape(key, shape)
    sequence.launch(
        kernels.sort_tile,
        [(key.pointer, key.location), (_ORDER, order), (_ORDER, order), *_sizes(shape)],
        rows_grid(1, shape.count),
        threads,
        {**constants, **_block(threads, items)},
    )


def _tile_shape(key: Key, shape: _Rows) -> tuple[int, int]:
    """Threads of a block that sorts a short row, and elements per thread."""
    fitting = [pair for pair in _SHAPES if pair[0] * pair[1] >= shape.length]
    return fitting[0] if fitting else (_THREADS, LONGEST_TILE[key.storage_bits] // _THREADS)


def _add_keys_alone(
    sequence: LaunchSequence, key: Key, out: At, shape: _Rows, constants: dict[str, int]
) -> None:
    """Add the launches that sort values directly, without an order."""
    constants = {**_key_constants(key), "ORDERED": 0, **constants}
    if shape.length <= LONGEST_TILE[key.storage_bits]:
        threads, items = _tile_shape(key, shape)
        sequence.launch(
            kernels.sort_tile_of_keys,
            [(key.pointer, key.location), (key.pointer, out), *_sizes(shape)],
            rows_grid(1, shape.count),
            threads,
            {**constants, **_block(threads, items)},
        )
        return
    passes = _Passes(sequence, key, shape, constants)
    shifts = range(0, key.bits, _DIGIT)
    size = int(key.pointer.removeprefix("*uint")) // 8 * shape.count * shape.length
    # Passes alternate between two buffers, of which the result is one if its rows are contiguous.
    # Otherwise there are two spare buffers, and only the last pass writes the result.
    spare = [sequence.memory(size) for _ in range(min(len(shifts) - 1, 1 + (shape.inner > 1)))]
    if shape.inner == 1:
        spare.append(out)
    source, inner = key.location, shape.inner
    for number, shift in enumerate(shifts):
        is_last = number == len(shifts) - 1
        target = out if is_last else spare[(len(shifts) - 2 - number) % len(spare)]
        target_inner = shape.inner if is_last else 1
        arguments = [
            (key.pointer, source),
            *passes.buffers(number),
            (key.pointer, target),
            (_INDEX, shape.count),
            (_INDEX, shape.length),
            (_INDEX, inner),
            (_INDEX, target_inner),
            (_INDEX, shift),
        ]
        sequence.launch(
            kernels.move_keys,
            arguments,
            passes.grid,
            _THREADS,
            passes.constants,
            resident=_RESIDENT,
        )
        source, inner = target, 1


class _Passes:
    """Buffers of the passes over long rows; the constructor adds launches that count all digits.

    Attributes:
        grid: grid of each pass, with a block for each tile.
        constants: constants of each pass's kernel.
    """

    def __init__(
        self, sequence: LaunchSequence, key: Key, shape: _Rows, constants: dict[str, int]
    ) -> None:
        items = LONGEST_TILE[key.storage_bits] // _THREADS
        count = -(-key.bits // _DIGIT)
        self.constants = {**constants, **_block(_THREADS, items), "DIGITS": 256 * count}
        tiles = -(-shape.length // (_THREADS * items))
        self.grid = (shape.count * tiles, 1, 1)
        self._row_bytes, sum_count = 4 * 256 * shape.count, 256 * shape.count * tiles
        zeros = count * 256 * shape.count + sum_count + count
        self._totals = sequence.memory(4 * zeros)
        first = self._totals.plus(count * self._row_bytes)
        self._sums = (first, sequence.memory(4 * sum_count))
        self._tickets = first.plus(4 * sum_count)
        cleared = [(_ORDER, self._totals), (_INDEX, zeros)]
        sequence.for_each(clear, cleared, zeros, {})
        chunk = -(-tiles // _MOST_CHUNKS)
        arguments = [(key.pointer, key.location), (_ORDER, self._totals), *_sizes(shape)]
        sequence.launch(
            kernels.count_digits,
            [*arguments, (_INDEX, chunk)],
            rows_grid(-(-tiles // chunk), shape.count),
            _THREADS,
            self.constants,
        )

    def buffers(self, number: int) -> list[tuple[str, At]]:
        """Arguments of pass ``number``: digit totals, tile sums, sums to clear, and tickets."""
        buffers = [
            self._totals.plus(number * self._row_bytes),
            self._sums[number % 2],
            self._sums[(number + 1) % 2],
            self._tickets.plus(4 * number),
        ]
        return [(_ORDER, location) for location in buffers]


def _add_passes(
    sequence: LaunchSequence,
    key: Key,
    orders: tuple[At, At],
    shape: _Rows,
    constants: dict[str, int],
) -> tuple[At, At]:
    """Add the launches that sort long rows: digit counts, then a pass per digit.

    Args:
        orders: locations of the initial order and of a spare buffer of the same size.

    Returns:
        The locations of the final order and of the spare buffer: the same two, maybe swapped.
    """
    bits = key.storage_bits
    size = bits // 8 * shape.count * shape.length
    key_buffers = [sequence.memory(size), sequence.memory(size)]
    passes = _Passes(sequence, key, shape, constants)
    source, source_type = key.location, key.pointer
    order, target = orders
    pass_constants = passes.constants
    for number, shift in enumerate(range(0, key.bits, _DIGIT)):
        is_last = shift + _DIGIT >= key.bits
        arguments = [
            (source_type, source),
            (_ORDER, order),
            *passes.buffers(number),
            (f"*uint{bits}", key_buffers[0]),
            (_ORDER, target),
            *_sizes(shape),
            (_INDEX, shift),
        ]
        move_constants = {**pass_constants, "STORE_CODES": int(not is_last)}
        sequence.launch(
            kernels.move_digits,
            arguments,
            passes.grid,
            _THREADS,
            move_constants,
            resident=_RESIDENT if number else 1,  # preparing keys takes more registers
        )
        source, source_type = key_buffers[0], f"*uint{bits}"
        order, target = target, order
        key_buffers.reverse()
        pass_constants = {**prepared_key_constants(pass_constants), "BITS": bits}
    return order, target


def _sizes(shape: _Rows) -> list[tuple[str, int]]:
    return [(_INDEX, shape.count), (_INDEX, shape.length), (_INDEX, shape.inner)]


def _block(threads: int, items: int) -> dict[str, int]:
    return {
        "THREADS": threads,
        "ITEMS": items,
        "TILE": threads * items,
        "TALLIES": 8 * threads,
    }


# --- sorts ---------------------------------------------------------------------------------


def add_sort(
    sequence: LaunchSequence,
    sort: Sort,
    sources: Sequence[At],
    outs: Sequence[At],
    kinds: Sequence[Any],
) -> bool:
    """Add the launches of a sort; False, and no launch, if kernels do not support its keys.

    Args:
        sequence: receives the launches.
        sort: the operation.
        sources: locations of row-major operands, of which the first ``sort.keys`` are keys.
        outs: locations of the sorted operands, and optionally of int32 positions.
        kinds: dtypes of the operands.
    """
    keys: list[Key] = []
    for location, dtype in list(zip(sources, kinds, strict=True))[: sort.keys]:
        fields = key_format(dtype)
        if fields is None or sort.length >= LONGEST_ROW:
            return False
        kind, bits, largest, components = fields
        pointer = uint_pointer(storage_dtype(dtype).itemsize // components)
        keys += [
            Key(location, pointer, kind, bits, largest, components, component)
            for component in range(components)
        ]
    constants = {"DESCENDING": int(sort.descending), "TOTAL_ORDER": int(sort.total_order)}
    rows = (sort.outer, sort.length, sort.inner)
    is_alone = len(sources) == len(outs) == len(keys) == 1 and sort.out_length == sort.length
    if is_alone and keys[0].components == 1:
        _add_keys_alone(sequence, keys[0], outs[0], _Rows(*rows), constants)
        return True
    is_selected = len(keys) == 1 and _is_selected(sort, keys[0])
    if is_selected:
        order = _add_selected_order(sequence, keys[0], rows, sort.out_length, constants)
    else:
        order = add_order(sequence, keys, rows, constants)
    count = sort.outer * sort.out_length * sort.inner
    index, is_long = index_reaching(sort.outer * sort.length * sort.inner)
    scalars = TakeScalars(count, sort.length, sort.inner, taken=sort.out_length)
    sizes = scalar_arguments(copying.take, index, scalars)
    has_positions = len(outs) > len(sources)
    for number, (source, out, dtype) in enumerate(zip(sources, outs, kinds, strict=False)):
        pointer = uint_pointer(storage_dtype(dtype).itemsize)
        positions = outs[-1] if has_positions and number == 0 else order
        arguments = [(pointer, source), (_ORDER, order), (pointer, out), ("*int32", positions)]
        take_constants = {
            "SIZE": storage_dtype(dtype).itemsize,
            "POSITIONS": int(has_positions and number == 0),
            "SELECTED": int(is_selected),
            "LONG": is_long,
        }
        sequence.for_each(copying.take, [*arguments, *sizes], count, take_constants)
    return True


def _is_selected(sort: Sort, key: Key) -> bool:
    """Whether to select before sorting: rows are too long for one block, the selection is not."""
    tile = LONGEST_TILE[key.storage_bits]
    return key.bits >= FEWEST_BITS and sort.out_length <= tile < sort.length and key.components == 1


def _add_selected_order(
    sequence: LaunchSequence,
    key: Key,
    rows: tuple[int, int, int],
    k: int,
    constants: dict[str, int],
) -> At:
    """Add a selection and the sort of its result; location of the order (rows, k)."""
    items = LONGEST_TILE[key.storage_bits] // _THREADS
    key_constants = {**_key_constants(key), "ORDERED": 0, **constants, **_block(_THREADS, items)}
    least_keys, order = add_selected(sequence, (key.pointer, key.location), rows, k, key_constants)
    selected_key = Key(least_keys, uint_pointer(key.storage_bits // 8), kernels.CODES, key.bits)
    shape = _Rows(rows[0] * rows[2], k, 1)
    _add_tile(sequence, selected_key, order, shape, prepared_key_constants(key_constants))
    return order


PROVIDER = on_rows("kernels of ours", add_sort)
