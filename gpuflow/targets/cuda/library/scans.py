"""Provider of cumulative reductions (prefix scans); the shape alone determines the chunks.

A long row takes three steps: totals of chunks, a (recursive) scan of these totals, and a scan of
each chunk. The latter starts with the total before the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import gpuflow.kernels.scan as kernels
from gpuflow.base import dtypes
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Scan
from gpuflow.targets.cuda.library.copy_forms import rows_grid
from gpuflow.targets.cuda.library.launch_sequence import (
    WIDE,
    At,
    LaunchSequence,
    number_kind,
    on_rows,
)

COMBINES = {
    "add": kernels.ADD,
    "mul": kernels.MULTIPLY,
    "max": kernels.MAXIMUM,
    "min": kernels.MINIMUM,
    "logaddexp": kernels.LOG_ADD_EXP,
}

_INDEX = "int64"
_LONG = 32  # rows up to this length are scanned by a thread each, longer ones by a block
_ITEMS = 8  # elements of a thread in one iteration
_FEW_ITEMS = 2  # the same for logaddexp, whose code is too long for more unrolled iterations
ENOUGH_ROWS = 512  # rows, with a block each, that keep a GPU busy without chunks
LONGEST_CHUNK = 1 << 14  # longest row that one block scans in iterations
ROW_CHUNK = 1 << 13  # least length of a chunk of a row
_MOST_CHUNKS = 1 << 10  # of a row
LONGEST_COLUMN = 64  # longest column that one thread scans
ENOUGH_THREADS = 1 << 17  # threads that keep a GPU busy
_WIDE_KINDS = {kernels.BFLOAT16: kernels.FLOAT32, kernels.FLOAT16: kernels.FLOAT32}


def add_running(
    sequence: LaunchSequence,
    scan: Scan,
    sources: Sequence[At],
    outs: Sequence[At],
    kinds: Sequence[Any],
) -> bool:
    """Add the launches of a cumulative op; False if kernels do not support the dtype.

    Args:
        sequence: receives the launches.
        scan: the operation.
        sources, outs: locations of the operand and the output, row-major.
        kinds: dtype of the operand.
    """
    stored = storage_dtype(kinds[0])
    if dtypes.is_complex(stored):
        if scan.combine != "add":
            return False
        # Real and imaginary components are two interleaved scans.
        stored = np.dtype(f"f{stored.itemsize // 2}")
        scan = Scan("add", scan.outer, scan.length, 2 * scan.inner, scan.reverse)
    scalar_kind = number_kind(stored)
    if scalar_kind is not None:
        add_scan(sequence, scan, *scalar_kind, sources[0], outs[0])
    return scalar_kind is not None


def add_scan(sequence: LaunchSequence, scan: Scan, kind: int, pointer: str, x: At, y: At) -> None:
    """Add the launches of a scan.

    Args:
        sequence: receives the launches.
        scan: the operation.
        kind, pointer: KIND and pointer type of the elements, see ``number_kind``.
        x, y: locations of the elements and of the results, which may be equal.
    """
    in_rows = scan.inner == 1 and scan.length > _LONG
    chunk = _row_chunk(scan) if in_rows else _column_chunk(scan)
    chunks = -(-scan.length // chunk)
    add = _add_rows if in_rows else _add_columns
    if chunks == 1:
        add(sequence, scan, kind, (pointer, x), (pointer, y), None, chunk, {})
        return
    wide = f"*{WIDE[kind]}"
    totals = sequence.memory(8 * scan.outer * chunks * scan.inner)
    add(sequence, scan, kind, (pointer, x), (pointer, x), totals, chunk, {"ONLY_TOTALS": 1})
    above = Scan(scan.combine, scan.outer, chunks, scan.inner, False)
    add_scan(sequence, above, _WIDE_KINDS.get(kind, kind), wide, totals, totals)
    add(sequence, scan, kind, (pointer, x), (pointer, y), totals, chunk, {"CONTINUED": 1})


def _row_chunk(scan: Scan) -> int:
    if scan.outer >= ENOUGH_ROWS or scan.length <= LONGEST_CHUNK:
        return scan.length
    chunks = min(-(-scan.length // ROW_CHUNK), _MOST_CHUNKS)
    iteration = 32 * _ITEMS * 8
    return -(-scan.length // (chunks * iteration)) * iteration


def _column_chunk(scan: Scan) -> int:
    columns = scan.outer * scan.inner
    if columns >= ENOUGH_THREADS // 4 or scan.length <= LONGEST_COLUMN:
        return scan.length
    chunks = min(-(-scan.length // (LONGEST_COLUMN // 2)), -(-ENOUGH_THREADS // columns))
    return -(-scan.length // chunks)


def _constants(scan: Scan, kind: int, more: dict[str, int]) -> dict[str, int]:
    return {
        "KIND": kind,
        "COMBINE": COMBINES[scan.combine],
        "REVERSE": int(scan.reverse),
        "ONLY_TOTALS": 0,
        "CONTINUED": 0,
        **more,
    }


def _add_rows(
    sequence: LaunchSequence,
    scan: Scan,
    kind: int,
    x: tuple[str, At],
    y: tuple[str, At],
    totals: At | None,
    chunk: int,
    more: dict[str, int],
) -> None:
    items = _FEW_ITEMS if scan.combine == "logaddexp" else _ITEMS
    threads = min(256, 32 * -(-chunk // (32 * items)))
    sizes = [(_INDEX, scan.outer), (_INDEX, scan.length), (_INDEX, chunk)]
    sums = (f"*{WIDE[kind]}", 0 if totals is None else totals)
    sequence.launch(
        kernels.scan_rows,
        [x, y, sums, *sizes],
        rows_grid(-(-scan.length // chunk), scan.outer),
        threads,
        {**_constants(scan, kind, more), "ITEMS": items},
    )


def _add_columns(
    sequence: LaunchSequence,
    scan: Scan,
    kind: int,
    x: tuple[str, At],
    y: tuple[str, At],
    totals: At | None,
    chunk: int,
    more: dict[str, int],
) -> None:
    chunks = -(-scan.length // chunk)
    threads = scan.outer * chunks * scan.inner
    sizes = [threads, scan.length, scan.inner, chunk, chunks]
    sums = (f"*{WIDE[kind]}", 0 if totals is None else totals)
    sequence.for_each(
        kernels.scan_columns,
        [x, y, sums, *[(_INDEX, number) for number in sizes]],
        threads,
        _constants(scan, kind, more),
    )


PROVIDER = on_rows("kernels of ours", add_running)
