"""Provider of sorts: a stable radix sort (kernels/radix_sort.py), and gathers in its order.

Tests: tests/kernels/test_kernel_sort.py, tests/kernels/test_kernel_top_k.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import gpuflow.kernels.copying as copying
import gpuflow.kernels.radix_sort as kernels
from gpuflow.base import dtypes
from gpuflow.base.caches import lru_cache
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Sort
from gpuflow.kernels.selection import clear
from gpuflow.targets.cuda.library.copy_launches import TakeScalars, index_reaching, rows_grid
from gpuflow.targets.cuda.library.launch_sequence import (
    ArrayLocation,
    LaunchSequence,
    on_rows,
    scalar_arguments,
    scalar_format,
    uint_pointer,
)
from gpuflow.targets.cuda.library.selection import (
    MIN_BITS,
    RowShape,
    add_selected,
    prepared_key_constants,
)

_INDEX, _ORDER = "int64", "*uint32"
_BLOCK_SHAPES = ((32, 1), (64, 4), (128, 8))  # for short rows: (threads, elements per thread)
_DIGIT_BITS = 8
_DIGIT_VALUES = 1 << _DIGIT_BITS
# Most elements that one block sorts, by storage bits of keys: so that it needs at most 48 KiB of
# shared memory.
MAX_TILE = {32: 4096, 64: 2048}
_THREADS = 256
MAX_ROW_LENGTH = 1 << 31  # rows must be shorter
_RESIDENT_BLOCKS = 2  # blocks of a pass that a multiprocessor must be able to run at once
_MAX_CHUNKS = 1024  # most blocks that count the digits of a row


class Key(NamedTuple):
    """A sort key: one scalar of each element of an array.

    Attributes:
        location, pointer: location of the array, and type of a pointer to its scalars.
        kind, bits, nan_above: see kernels/radix_sort.py.
        components: scalars per element (2 for complex numbers).
        component: index of this key among them.
    """

    location: ArrayLocation
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


# --- keys ----------------------------------------------------------------------------------


class KeyFormat(NamedTuple):
    """How the elements of a dtype are sort keys.

    Attributes:
        kind: KIND of kernels/radix_sort.py.
        bits: bits of a scalar.
        nan_above: for floats, the bits of the largest magnitude that is not nan; else 0.
        components: scalars per element (2 for complex numbers), each of which is a key.
    """

    kind: int
    bits: int
    nan_above: int = 0
    components: int = 1


@lru_cache(64)
def key_format(dtype: Any) -> KeyFormat | None:
    """The format of a dtype's elements as keys; None if kernels cannot sort them."""
    stored = storage_dtype(dtype)
    if dtypes.is_complex(stored):
        component = key_format(np.dtype(f"f{stored.itemsize // 2}"))
        return None if component is None else component._replace(components=2)
    if stored in dtypes.NARROW_INTEGERS:
        kind = kernels.UNSIGNED if dtypes.is_unsigned(stored) else kernels.SIGNED
        return KeyFormat(kind, dtypes.bits_of(stored))
    if dtypes.is_floating(stored):
        largest = _largest_magnitude(stored)
        return None if largest is None else KeyFormat(kernels.FLOAT, 8 * stored.itemsize, largest)
    if scalar_format(stored) is None:
        return None
    kind = kernels.SIGNED if stored.kind == "i" else kernels.UNSIGNED
    return KeyFormat(kind, 8 * stored.itemsize)


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
    shape: RowShape,
    constants: dict[str, int],
) -> ArrayLocation:
    """Add the launches that find the order (argsort) of rows by keys.

    Args:
        sequence: receives the launches.
        keys: the sort keys, the primary one first.
        shape: shape of the keys; rows must be shorter than MAX_ROW_LENGTH.
        constants: ``DESCENDING`` and ``TOTAL_ORDER``, for all keys.

    Returns:
        Location of the order, uint32 of shape (rows, length).
    """
    size = 4 * shape.row_count * shape.length
    order, spare = sequence.memory(size), None
    for index, key in enumerate(reversed(keys)):
        key_constants = {**_key_constants(key), "ORDERED": int(index > 0), **constants}
        if shape.length <= MAX_TILE[key.storage_bits]:
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
    sequence: LaunchSequence,
    key: Key,
    order: ArrayLocation,
    shape: RowShape,
    constants: dict[str, int],
) -> None:
    """Add the launch that sorts short rows, a block for each."""
    threads, items = _tile_shape(key, shape)
    sequence.launch(
        kernels.sort_tile,
        [(key.pointer, key.location), (_ORDER, order), (_ORDER, order), *_sizes(shape)],
        rows_grid(1, shape.row_count),
        threads,
        {**constants, **_block_constants(threads, items)},
    )


def _tile_shape(key: Key, shape: RowShape) -> tuple[int, int]:
    """Threads of a block that sorts a short row, and elements per thread."""
    for threads, items in _BLOCK_SHAPES:
        if threads * items >= shape.length:
            return threads, items
    return _THREADS, MAX_TILE[key.storage_bits] // _THREADS


def _add_keys_alone(
    sequence: LaunchSequence,
    key: Key,
    out: ArrayLocation,
    shape: RowShape,
    constants: dict[str, int],
) -> None:
    """Add the launches that sort values directly, without an order.

    Args:
        sequence: receives the launches.
        key: the only operand, which has one component.
        out: location of the sorted values.
        shape: shape of the operand and of the output.
        constants: ``DESCENDING`` and ``TOTAL_ORDER``.
    """
    constants = {**_key_constants(key), "ORDERED": 0, **constants}
    if shape.length <= MAX_TILE[key.storage_bits]:
        threads, items = _tile_shape(key, shape)
        sequence.launch(
            kernels.sort_tile_of_keys,
            [(key.pointer, key.location), (key.pointer, out), *_sizes(shape)],
            rows_grid(1, shape.row_count),
            threads,
            {**constants, **_block_constants(threads, items)},
        )
        return
    passes = _Passes(sequence, key, shape, constants)
    shifts = range(0, key.bits, _DIGIT_BITS)
    itemsize = int(key.pointer.removeprefix("*uint")) // 8
    size = itemsize * shape.row_count * shape.length
    # Passes alternate between two buffers, of which the result is one if its rows are contiguous.
    # Otherwise there are two spare buffers, and only the last pass writes the result.
    spare = [sequence.memory(size) for _ in range(min(len(shifts) - 1, 1 + (shape.inner > 1)))]
    if shape.inner == 1:
        spare.append(out)
    source, inner = key.location, shape.inner
    for index, shift in enumerate(shifts):
        is_last = index == len(shifts) - 1
        target = out if is_last else spare[(len(shifts) - 2 - index) % len(spare)]
        target_inner = shape.inner if is_last else 1
        arguments = [
            (key.pointer, source),
            *passes.buffers(index),
            (key.pointer, target),
            (_INDEX, shape.row_count),
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
            resident=_RESIDENT_BLOCKS,
        )
        source, inner = target, 1


class _Passes:
    """Buffers of the passes over long rows; the constructor adds launches that count all digits.

    Attributes:
        grid: grid of each pass, with a block for each tile.
        constants: constants of each pass's kernel.
    """

    def __init__(
        self, sequence: LaunchSequence, key: Key, shape: RowShape, constants: dict[str, int]
    ) -> None:
        items = MAX_TILE[key.storage_bits] // _THREADS
        pass_count = -(-key.bits // _DIGIT_BITS)
        self.constants = {
            **constants,
            **_block_constants(_THREADS, items),
            "DIGITS": _DIGIT_VALUES * pass_count,
        }
        tiles = -(-shape.length // (_THREADS * items))
        self.grid = (shape.row_count * tiles, 1, 1)
        # uint32 buffers: digit totals of each row and pass, tile sums of a pass, and a ticket for
        # each pass. Passes alternate between two buffers of sums, and clear that of the next pass.
        total_count = _DIGIT_VALUES * shape.row_count
        sum_count = total_count * tiles
        cleared_count = pass_count * total_count + sum_count + pass_count
        self._pass_totals_bytes = 4 * total_count
        self._totals = sequence.memory(4 * cleared_count)
        first_sums = self._totals.plus(pass_count * self._pass_totals_bytes)
        self._sums = (first_sums, sequence.memory(4 * sum_count))
        self._tickets = first_sums.plus(4 * sum_count)
        cleared = [(_ORDER, self._totals), (_INDEX, cleared_count)]
        sequence.for_each(clear, cleared, cleared_count, {})
        chunk = -(-tiles // _MAX_CHUNKS)
        arguments = [(key.pointer, key.location), (_ORDER, self._totals), *_sizes(shape)]
        sequence.launch(
            kernels.count_digits,
            [*arguments, (_INDEX, chunk)],
            rows_grid(-(-tiles // chunk), shape.row_count),
            _THREADS,
            self.constants,
        )

    def buffers(self, index: int) -> list[tuple[str, ArrayLocation]]:
        """Arguments of pass ``index``: digit totals, tile sums, sums to clear, and its ticket."""
        buffers = [
            self._totals.plus(index * self._pass_totals_bytes),
            self._sums[index % 2],
            self._sums[(index + 1) % 2],
            self._tickets.plus(4 * index),
        ]
        return [(_ORDER, location) for location in buffers]


def _add_passes(
    sequence: LaunchSequence,
    key: Key,
    orders: tuple[ArrayLocation, ArrayLocation],
    shape: RowShape,
    constants: dict[str, int],
) -> tuple[ArrayLocation, ArrayLocation]:
    """Add the launches that sort long rows: digit counts, then a pass per digit.

    Args:
        sequence: receives the launches.
        key: the sort key.
        orders: locations of the initial order and of a spare buffer of the same size.
        shape: shape of the keys.
        constants: constants of radix_sort.py for the key.

    Returns:
        The locations of the final order and of the spare buffer: the same two, maybe swapped.
    """
    storage_bits = key.storage_bits
    size = storage_bits // 8 * shape.row_count * shape.length
    key_buffers = [sequence.memory(size), sequence.memory(size)]
    passes = _Passes(sequence, key, shape, constants)
    source, source_type = key.location, key.pointer
    order, target = orders
    pass_constants = passes.constants
    for index, shift in enumerate(range(0, key.bits, _DIGIT_BITS)):
        is_last = shift + _DIGIT_BITS >= key.bits
        arguments = [
            (source_type, source),
            (_ORDER, order),
            *passes.buffers(index),
            (f"*uint{storage_bits}", key_buffers[0]),
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
            resident=_RESIDENT_BLOCKS if index else 1,  # preparing keys takes more registers
        )
        source, source_type = key_buffers[0], f"*uint{storage_bits}"
        order, target = target, order
        key_buffers.reverse()
        pass_constants = {**prepared_key_constants(pass_constants), "BITS": storage_bits}
    return order, target


def _sizes(shape: RowShape) -> list[tuple[str, int]]:
    return [(_INDEX, shape.row_count), (_INDEX, shape.length), (_INDEX, shape.inner)]


def _block_constants(threads: int, items: int) -> dict[str, int]:
    """Constants of a block of ``threads`` threads with ``items`` elements each."""
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
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
    operand_dtypes: Sequence[Any],
) -> bool:
    """Add the launches of a sort; False, and no launch, if kernels do not support its keys.

    Args:
        sequence: receives the launches.
        sort: the operation.
        sources: locations of row-major operands, of which the first ``sort.keys`` are keys.
        outs: locations of the sorted operands, and optionally of int32 positions.
        operand_dtypes: dtypes of the operands.
    """
    keys: list[Key] = []
    for location, dtype in list(zip(sources, operand_dtypes, strict=True))[: sort.keys]:
        key_of_dtype = key_format(dtype)
        if key_of_dtype is None or sort.length >= MAX_ROW_LENGTH:
            return False
        kind, bits, nan_above, components = key_of_dtype
        pointer = uint_pointer(storage_dtype(dtype).itemsize // components)
        keys += [
            Key(location, pointer, kind, bits, nan_above, components, component)
            for component in range(components)
        ]
    constants = {"DESCENDING": int(sort.descending), "TOTAL_ORDER": int(sort.total_order)}
    shape = RowShape(sort.outer, sort.length, sort.inner)
    is_alone = len(sources) == len(outs) == len(keys) == 1 and sort.out_length == sort.length
    if is_alone and keys[0].components == 1:
        _add_keys_alone(sequence, keys[0], outs[0], shape, constants)
        return True
    is_selected = len(keys) == 1 and _is_selected(sort, keys[0])
    if is_selected:
        order = _add_selected_order(sequence, keys[0], shape, sort.out_length, constants)
    else:
        order = add_order(sequence, keys, shape, constants)
    count = sort.outer * sort.out_length * sort.inner
    index_type, is_long = index_reaching(sort.outer * sort.length * sort.inner)
    scalars = TakeScalars(count, sort.length, sort.inner, taken=sort.out_length)
    sizes = scalar_arguments(copying.take, index_type, scalars)
    has_positions = len(outs) > len(sources)
    for index, (source, out, dtype) in enumerate(zip(sources, outs, operand_dtypes, strict=False)):
        pointer = uint_pointer(storage_dtype(dtype).itemsize)
        stores_positions = has_positions and index == 0
        positions = outs[-1] if stores_positions else order
        arguments = [(pointer, source), (_ORDER, order), (pointer, out), ("*int32", positions)]
        take_constants = {
            "SIZE": storage_dtype(dtype).itemsize,
            "POSITIONS": int(stores_positions),
            "SELECTED": int(is_selected),
            "LONG": is_long,
        }
        sequence.for_each(copying.take, [*arguments, *sizes], count, take_constants)
    return True


def _is_selected(sort: Sort, key: Key) -> bool:
    """Whether to select before sorting: rows are too long for one block, the selection is not."""
    tile = MAX_TILE[key.storage_bits]
    return key.bits >= MIN_BITS and sort.out_length <= tile < sort.length and key.components == 1


def _add_selected_order(
    sequence: LaunchSequence,
    key: Key,
    shape: RowShape,
    k: int,
    constants: dict[str, int],
) -> ArrayLocation:
    """Add a selection and the sort of its result; location of the order (rows, k)."""
    items = MAX_TILE[key.storage_bits] // _THREADS
    key_constants = {
        **_key_constants(key),
        "ORDERED": 0,
        **constants,
        **_block_constants(_THREADS, items),
    }
    least_keys, order = add_selected(sequence, (key.pointer, key.location), shape, k, key_constants)
    selected_key = Key(least_keys, uint_pointer(key.storage_bits // 8), kernels.CODES, key.bits)
    selected_shape = RowShape(shape.row_count, k, 1)
    _add_tile(sequence, selected_key, order, selected_shape, prepared_key_constants(key_constants))
    return order


PROVIDER = on_rows("kernels of ours", add_sort)
