"""Provider of reductions of rows by index: sorts the indices, then reduces runs of equal ones.

A run is a sequence of equal sorted indices. See kernels/runs.py. The order of reduction depends on
indices and sizes only.

Tests: tests/kernels/test_kernel_runs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpuflow.kernels.copying as copying
import gpuflow.kernels.radix_sort as sorting
import gpuflow.kernels.runs as kernels
import gpuflow.kernels.scan as scan
from gpuflow.base import dtypes
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Runs
from gpuflow.targets.cuda.library.copy_launches import TakeScalars, index_reaching
from gpuflow.targets.cuda.library.launch_sequence import (
    WIDE,
    ArrayLocation,
    LaunchSequence,
    on_rows,
    scalar_arguments,
    scalar_format,
    uint_pointer,
)
from gpuflow.targets.cuda.library.prefix_scans import COMBINES
from gpuflow.targets.cuda.library.selection import RowShape
from gpuflow.targets.cuda.library.sorts import MAX_ROW_LENGTH, Key, add_order

_INDEX, _ORDER, _FLAG = "int64", "*uint32", "*uint8"
CHUNK = 32  # rows, or pairs, that a thread combines
FEW = 128  # most pairs (total, begins) that one thread scans


def add_runs(
    sequence: LaunchSequence,
    runs: Runs,
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
    operand_dtypes: Sequence[Any],
) -> bool:
    """Add the launches; False, and no launch, if kernels do not support the rows.

    Args:
        sequence: receives the launches.
        runs: the operation.
        sources: locations of indices, validity and rows, row-major.
        outs: locations of indices, their validity, and rows.
        operand_dtypes: dtypes of the operands.
    """
    stored = storage_dtype(operand_dtypes[2])
    if runs.combine is None:
        components = max(stored.itemsize // 8, 1)  # of 8 bytes
        kind, pointer = scan.UNSIGNED, uint_pointer(stored.itemsize)
    else:
        components = 2 if dtypes.is_complex(stored) else 1
        element_format = scalar_format(stored.type(0).real.dtype if components == 2 else stored)
        if element_format is None or (components == 2 and runs.combine != "add"):
            return False
        kind, pointer = element_format
    if runs.count >= MAX_ROW_LENGTH:
        return False
    keys, key_pointer, order = _add_sorted_indices(sequence, runs, sources[0], sources[1])
    constants: dict[str, int] = {"KIND": kind, "LAST": 1, "CONTINUED": 0}
    if runs.combine is not None:
        constants = {"KIND": kind, "LAST": 0, "COMBINE": COMBINES[runs.combine]}
    width, chunk = runs.width * components, CHUNK if runs.combine is not None else 1
    chunks = -(-runs.count // chunk)
    sizes = [(_INDEX, n) for n in (chunks * width, runs.count, width, chunk)]
    elements = [(pointer, sources[2]), (key_pointer, keys), (_ORDER, order)]
    wide, totals = f"*{WIDE[kind]}", ArrayLocation(0)
    if runs.combine is not None and chunks > 1:
        totals, begins = sequence.memory(8 * chunks * width), sequence.memory(chunks)
        sequence.for_each(
            kernels.chunk_totals,
            [*elements, (wide, totals), (_FLAG, begins), *sizes],
            chunks * width,
            constants,
        )
        _add_pairs(sequence, totals, begins, (chunks, width), wide, constants)
    if runs.combine is not None:
        constants["CONTINUED"] = int(chunks > 1)
    results = [(pointer, outs[2]), ("*int64", outs[0]), (_FLAG, outs[1])]
    sequence.for_each(
        kernels.combine_runs,
        [*elements, (wide, totals), *results, *sizes, (_INDEX, runs.limit)],
        chunks * width,
        constants,
    )
    return True


def _add_sorted_indices(
    sequence: LaunchSequence, runs: Runs, indices: ArrayLocation, is_valid: ArrayLocation
) -> tuple[ArrayLocation, str, ArrayLocation]:
    """Add the sort of the indices as unsigned keys; invalid ones become the largest key.

    Returns:
        Location of the sorted keys, the type of a pointer to them, and the location of the row
        index of each.
    """
    # Multiples of the 8 bits of a sort's pass.
    bits = next(b for b in (8, 16, 24, 32, 40, 48, 64) if runs.limit < 1 << b)
    size = 4 if bits <= 32 else 8
    key_pointer, count = uint_pointer(size), runs.count
    keys, in_order = sequence.memory(size * count), sequence.memory(size * count)
    limits = [(_INDEX, count), (_INDEX, runs.limit)]
    sequence.for_each(
        kernels.keep_inside,
        [("*int64", indices), (_FLAG, is_valid), (key_pointer, keys), *limits],
        count,
        {},
    )
    key = Key(keys, key_pointer, sorting.UNSIGNED, bits)
    order = add_order(sequence, [key], RowShape(1, count, 1), {"DESCENDING": 0, "TOTAL_ORDER": 0})
    index_type, is_long = index_reaching(count)
    scalars = TakeScalars(count, length=count, inner=1, taken=count)
    sizes = scalar_arguments(copying.take, index_type, scalars)
    sequence.for_each(
        copying.take,
        [(key_pointer, keys), (_ORDER, order), (key_pointer, in_order), ("*int32", order), *sizes],
        count,
        {"SIZE": size, "POSITIONS": 0, "LONG": is_long},
    )
    return in_order, key_pointer, order


def _add_pairs(
    sequence: LaunchSequence,
    values: ArrayLocation,
    begins: ArrayLocation,
    shape: tuple[int, int],
    wide: str,
    constants: dict[str, int],
) -> None:
    """Add the segmented scan of pairs (total, begins) of shape (chunks, width), in place.

    It is recursive if there are more than FEW.

    Args:
        sequence: receives the launches.
        values: location of the totals, in the dtype of the accumulator.
        begins: location of a flag (uint8) for each chunk: whether its last run begins in it.
        shape: number of chunks, and number of columns.
        wide: type of a pointer to totals.
        constants: constants of the build, with ``KIND`` and ``COMBINE`` of kernels/scan.py.
    """
    count, width = shape
    is_last_level = count <= FEW
    chunk = count if is_last_level else CHUNK
    chunks = -(-count // chunk)
    sizes = [(_INDEX, n) for n in (chunks * width, count, width, chunk)]
    pairs = [(wide, values), (_FLAG, begins)]
    totals = values
    if not is_last_level:
        totals, chunk_begins = sequence.memory(8 * chunks * width), sequence.memory(chunks)
        sequence.for_each(
            kernels.pair_totals,
            [*pairs, (wide, totals), (_FLAG, chunk_begins), *sizes],
            chunks * width,
            constants,
        )
        _add_pairs(sequence, totals, chunk_begins, (chunks, width), wide, constants)
    sequence.for_each(
        kernels.scan_pairs,
        [*pairs, (wide, totals), *sizes],
        chunks * width,
        {**constants, "CONTINUED": int(not is_last_level)},
    )


PROVIDER = on_rows("kernels of ours", add_runs)
