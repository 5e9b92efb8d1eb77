"""Reductions of rows by sorted keys: one total for each run of equal keys, in a fixed order.

    keys       3    3    3    5    7    7        sorted; ``order`` has the index of each row
    rows       a    b    c    d    e    f
    totals               abc  d         ef       at the end of each run

Rows are cut into chunks, and a thread combines one column of a chunk, in order. The total of a run
in earlier chunks comes from a scan of the chunks' last totals, computed in the same way:

    chunk_totals     rows of each chunk   ->  the total of its last run; whether that begins there
    pair_totals      the same for pairs of totals and beginnings, until there are few of them
    scan_pairs       totals of all runs up to each pair, in place
    combine_runs     rows again, starting from the totals of earlier chunks  ->  totals of runs

The order in which values are combined depends on the keys and sizes only, never on the device.

Contract: keys uint32 or uint64; pointers of any alignment; rows of ``width`` elements, row-major.
Launch: a thread for each chunk and column, in blocks of any size.
Reads each row twice, and writes it once.
Source: segmented scans, Blelloch 1990, "Prefix sums and their applications".

Tests: tests/kernels/test_kernel_runs.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import cuda, int64, uint8
from gpuflow.kernels.scan import combined, narrowed, neutral, widened

# Given for each build, with scan.KIND and scan.COMBINE.
LAST = 0  # combine nothing: the last row of a run is its total
CONTINUED = 1  # there are earlier chunks


def chunk_of(thread, count, width, chunk):
    """The index of a thread's chunk, its column, and the chunk's rows."""
    chunk_id = thread // width
    start = chunk_id * chunk
    return chunk_id, thread - chunk_id * width, start, min(start + chunk, count)


def chunk_totals(rows, keys, order, totals, begins, threads, count, width, chunk):
    """The total of the last run in each chunk.

    Args:
        rows: elements (count, width). keys: sorted. order: uint32, the row of each key.
        totals: (chunks, width), float32, float64, int64 or uint64. begins: uint8 (chunks,): whether
            that run begins in the chunk.
        threads: chunks * width. count, width: sizes. chunk: rows of a chunk.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    chunk_id, column, start, stop = chunk_of(thread, count, width, chunk)
    carry, begin = neutral(), uint8(0)
    for position in range(start, stop):
        if position == 0 or keys[position] != keys[position - 1]:
            carry, begin = neutral(), uint8(1)
        carry = combined(carry, widened(rows[int64(order[position]) * width + column]))
    totals[thread] = carry
    if column == 0:
        begins[chunk_id] = begin


def pair_totals(values, begins, totals, more_begins, threads, count, width, chunk):
    """``chunk_totals`` of pairs: ``values`` (count, width) and ``begins`` (count,)."""
    thread = cuda.grid(1)
    if thread >= threads:
        return
    chunk_id, column, start, stop = chunk_of(thread, count, width, chunk)
    carry, begin = neutral(), uint8(0)
    for position in range(start, stop):
        if begins[position]:
            carry, begin = neutral(), uint8(1)
        carry = combined(carry, values[position * width + column])
    totals[thread] = carry
    if column == 0:
        more_begins[chunk_id] = begin


def scan_pairs(values, begins, totals, threads, count, width, chunk):
    """The total of the run at the end of each pair, stored in ``values``.

    ``totals`` are those of earlier chunks, scanned; without CONTINUED there is one chunk.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    _, column, start, stop = chunk_of(thread, count, width, chunk)
    carry = neutral()
    if CONTINUED and start > 0:
        carry = totals[thread - width]
    for position in range(start, stop):
        if begins[position]:
            carry = neutral()
        carry = combined(carry, values[position * width + column])
        values[position * width + column] = carry


def combine_runs(
    rows, keys, order, totals, results, run_keys, ends, threads, count, width, chunk, limit
):  # fmt: skip
    """The total of each run, at its end.

    Args:
        rows, keys, order, threads, count, width, chunk: as for ``chunk_totals``.
        totals: of earlier chunks, scanned; without CONTINUED there is one chunk.
        results: elements (count, width): the running totals of each run. Those at its end are the
            results; readers also read the others, so they are set.
        run_keys: int64 (count,): the keys. ends: uint8 (count,): whether a run of a key below
            ``limit`` ends there.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    _, column, start, stop = chunk_of(thread, count, width, chunk)
    carry = neutral()
    if CONTINUED and start > 0 and keys[start] == keys[start - 1]:
        carry = totals[thread - width]
    for position in range(start, stop):
        key = int64(keys[position])
        is_end = position == count - 1 or keys[position] != keys[position + 1]
        if LAST:
            row = int64(order[position])
            results[position * width + column] = rows[row * width + column]
        else:
            carry = combined(carry, widened(rows[int64(order[position]) * width + column]))
            results[position * width + column] = narrowed(carry)
            if is_end:
                carry = neutral()
        if column == 0:
            run_keys[position] = key
            ends[position] = uint8(is_end and key < limit)


def keep_inside(positions, inside, keys, count, limit):
    """The key of each position: ``limit`` if out of bounds. A thread for each of ``count``."""
    thread = cuda.grid(1)
    if thread < count:
        keys[thread] = positions[thread] if inside[thread] else limit
