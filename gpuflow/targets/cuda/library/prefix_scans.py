"""Provider of cumulative reductions (prefix scans); the shape alone determines the chunks.

A long row takes three steps: totals of chunks, a (recursive) scan of these totals, and a scan of
each chunk. The latter starts with the total before the chunk.

Tests: tests/kernels/test_kernel_scan.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import gpuflow.kernels.scan as kernels
from gpuflow.base import dtypes
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Scan
from gpuflow.targets.cuda.library.copy_launches import rows_grid
from gpuflow.targets.cuda.library.launch_sequence import (
    WIDE,
    ArrayLocation,
    LaunchSequence,
    on_rows,
    scalar_format,
)

COMBINES = {
    "add": kernels.ADD,
    "mul": kernels.MULTIPLY,
    "max": kernels.MAXIMUM,
    "min": kernels.MINIMUM,
    "logaddexp": kernels.LOG_ADD_EXP,
}

_INDEX = "int64"
_MAX_ROW_PER_THREAD = 32  # longer rows are scanned by a block each
_MAX_THREADS = 256  # of a block
_ITEMS = 8  # elements of a thread in one iteration
_FEW_ITEMS = 2  # the same for logaddexp, whose code is too long for more unrolled iterations
ENOUGH_ROWS = 512  # rows, with a block each, that keep a GPU busy without chunks
MAX_CHUNK = 1 << 14  # longest row that one block scans in iterations
ROW_CHUNK = 1 << 13  # least length of a chunk of a row
_MAX_CHUNKS = 1 << 10  # of a row
MAX_COLUMN = 64  # longest column that one thread scans
ENOUGH_THREADS = 1 << 17  # threads that keep a GPU busy
_WIDE_KINDS = {kernels.BFLOAT16: kernels.FLOAT32, kernels.FLOAT16: kernels.FLOAT32}


def add_cumulative(
    sequence: LaunchSequence,
    scan: Scan,
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
    operand_dtypes: Sequence[Any],
) -> bool:
    """Add the launches of a cumulative op; False if kernels do not support the dtype.

    Args:
        sequence: receives the launches.
        scan: the operation.
        sources, outs: locations of the operand and the output, row-major.
        operand_dtypes: dtype of the operand.
    """
    stored = storage_dtype(operand_dtypes[0])
    if dtypes.is_complex(stored):
        if scan.combine != "add":
            return False
        # Real and imaginary components are two interleaved scans.
        stored = np.dtype(f"f{stored.itemsize // 2}")
        scan = Scan("add", scan.outer, scan.length, 2 * scan.inner, scan.reverse)
    element_format = scalar_format(stored)
    if element_format is not None:
        add_scan(sequence, scan, *element_format, sources[0], outs[0])
    return element_format is not None


def add_scan(
    sequence: LaunchSequence,
    scan: Scan,
    kind: int,
    pointer: str,
    x: ArrayLocation,
    y: ArrayLocation,
) -> None:
    """Add the launches of a scan.

    Args:
        sequence: receives the launches.
        scan: the operation, which must not be empty.
        kind, pointer: KIND and pointer type of the elements, see ``scalar_format``.
        x, y: locations of the elements and of the results, which may be equal.
    """
    in_rows = scan.inner == 1 and scan.length > _MAX_ROW_PER_THREAD
    chunk = _row_chunk(scan) if in_rows else _column_chunk(scan)
    chunks = -(-scan.length // chunk)
    add = _add_rows if in_rows else _add_columns
    if chunks == 1:
        add(sequence, scan, kind, (pointer, x), (pointer, y), None, chunk, {})
        return
    wide = f"*{WIDE[kind]}"
    totals = sequence.memory(8 * scan.outer * chunks * scan.inner)
    add(sequence, scan, kind, (pointer, x), (pointer, x), totals, chunk, {"ONLY_TOTALS": 1})
    scan_of_totals = Scan(scan.combine, scan.outer, chunks, scan.inner, False)
    add_scan(sequence, scan_of_totals, _WIDE_KINDS.get(kind, kind), wide, totals, totals)
    add(sequence, scan, kind, (pointer, x), (pointer, y), totals, chunk, {"CONTINUED": 1})


def _row_chunk(scan: Scan) -> int:
    """The length of a chunk of a row, which a block scans: full iterations of 256 threads."""
    if scan.outer >= ENOUGH_ROWS or scan.length <= MAX_CHUNK:
        return scan.length
    chunks = min(-(-scan.length // ROW_CHUNK), _MAX_CHUNKS)
    iteration = _MAX_THREADS * _ITEMS
    return -(-scan.length // (chunks * iteration)) * iteration


def _column_chunk(scan: Scan) -> int:
    """The length of a chunk of a column, which a thread scans."""
    columns = scan.outer * scan.inner
    if columns >= ENOUGH_THREADS // 4 or scan.length <= MAX_COLUMN:
        return scan.length
    chunks = min(-(-scan.length // (MAX_COLUMN // 2)), -(-ENOUGH_THREADS // columns))
    return -(-scan.length // chunks)


def _constants(scan: Scan, kind: int, extra: dict[str, int]) -> dict[str, int]:
    return {
        "KIND": kind,
        "COMBINE": COMBINES[scan.combine],
        "REVERSE": int(scan.reverse),
        "ONLY_TOTALS": 0,
        "CONTINUED": 0,
        **extra,
    }


def _add_rows(
    sequence: LaunchSequence,
    scan: Scan,
    kind: int,
    x: tuple[str, ArrayLocation],
    y: tuple[str, ArrayLocation],
    totals: ArrayLocation | None,
    chunk: int,
    extra_constants: dict[str, int],
) -> None:
    """Add a pass over chunks of rows, with a block for each chunk; see ``_add_columns``."""
    items = _FEW_ITEMS if scan.combine == "logaddexp" else _ITEMS
    threads = min(_MAX_THREADS, 32 * -(-chunk // (32 * items)))
    sizes = [(_INDEX, scan.outer), (_INDEX, scan.length), (_INDEX, chunk)]
    sums = (f"*{WIDE[kind]}", 0 if totals is None else totals)
    sequence.launch(
        kernels.scan_rows,
        [x, y, sums, *sizes],
        rows_grid(-(-scan.length // chunk), scan.outer),
        threads,
        {**_constants(scan, kind, extra_constants), "ITEMS": items},
    )


def _add_columns(
    sequence: LaunchSequence,
    scan: Scan,
    kind: int,
    x: tuple[str, ArrayLocation],
    y: tuple[str, ArrayLocation],
    totals: ArrayLocation | None,
    chunk: int,
    extra_constants: dict[str, int],
) -> None:
    """Add a pass over chunks of columns, with a thread for each chunk of a column.

    Args:
        sequence: receives the launch.
        scan: the operation.
        kind: KIND of the elements.
        x, y: pointer type and location of the elements, and of the results.
        totals: location of the totals of chunks, which the pass writes or starts from; None: there
            is one chunk.
        chunk: elements of a chunk.
        extra_constants: ``ONLY_TOTALS`` or ``CONTINUED``, whichever is 1.
    """
    chunks = -(-scan.length // chunk)
    threads = scan.outer * chunks * scan.inner
    sizes = [threads, scan.length, scan.inner, chunk, chunks]
    sums = (f"*{WIDE[kind]}", 0 if totals is None else totals)
    sequence.for_each(
        kernels.scan_columns,
        [x, y, sums, *[(_INDEX, size) for size in sizes]],
        threads,
        _constants(scan, kind, extra_constants),
    )


PROVIDER = on_rows("kernels of ours", add_cumulative)
