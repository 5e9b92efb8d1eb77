"""Reductions of rows by sorted keys: one total for each run of equal keys, in a fixed order.

    keys       3    3    3    5    7    7        sorted; ``order`` says where rows lie
    rows       a    b    c    d    e    f
    totals               abc  d         ef       where a run ends

Rows are cut into chunks, and a thread combines one column of a chunk, in order. What a run has in
earlier chunks comes from a scan of the chunks' last totals, made in the same way:

    chunk_totals     rows of each chunk   ->  the total of its last run; whether that begins there
    pair_totals      the same for pairs of totals and beginnings, until there are few of them
    scan_pairs       totals of all runs up to each pair, in place
    combine_runs     rows again, beginning with what the chunks before gave  ->  totals of runs

The order in which numbers are combined depends on the keys and sizes only, never on the device.

Contract: keys uint32 or uint64; pointers of any alignment; rows of ``width`` elements, row-major.
Launch: a thread for each chunk and column, in blocks of any size.
Reads each row twice, and writes it once.
Source: segmented scans, Blelloch 1990, "Prefix sums and their applications".
"""

from __future__ import annotations

from gpuflow.kernels.language import cuda, int64, uint8
from gpuflow.kernels.scan import combined, narrowed, neutral, widened

# Given for each build, with scan.KIND and scan.COMBINE.
LAST = 0  # combine nothing: the last row of a run is its total
CONTINUED = 1  # there are earlier chunks


def chunk_of(thread, count, width, chunk):
    """The number of a thread's chunk, its column, and the chunk's rows."""
    number = thread // width
    start = number * chunk
    return number, thread - number * width, start, min(start + chunk, count)


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
    number, column, start, stop = chunk_of(thread, count, width, chunk)
    carry, begin = neutral(), uint8(0)
    for place in range(start, stop):
        if place == 0 or keys[place] != keys[place - 1]:
            carry, begin = neutral(), uint8(1)
        carry = combined(carry, widened(rows[int64(order[place]) * width + column]))
    totals[thread] = carry
    if column == 0:
        begins[number] = begin


def pair_totals(values, begins, totals, more_begins, threads, count, width, chunk):
    """``chunk_totals`` of pairs: ``values`` (count, width) and ``begins`` (count,)."""
    thread = cuda.grid(1)
    if thread >= threads:
        return
    number, column, start, stop = chunk_of(thread, count, width, chunk)
    carry, begin = neutral(), uint8(0)
    for place in range(start, stop):
        if begins[place]:
            carry, begin = neutral(), uint8(1)
        carry = combined(carry, values[place * width + column])
    totals[thread] = carry
    if column == 0:
        more_begins[number] = begin


def scan_pairs(values, begins, totals, threads, count, width, chunk):
    """The total of the run at the end of each pair, in place of ``values``.

    ``totals`` are those of earlier chunks, scanned; without CONTINUED there is one chunk.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    _, column, start, stop = chunk_of(thread, count, width, chunk)
    carry = neutral()
    if CONTINUED and start > 0:
        carry = totals[thread - width]
    for place in range(start, stop):
        if begins[place]:
            carry = neutral()
        carry = combined(carry, values[place * width + column])
        values[place * width + column] = carry


def combine_runs(
    rows, keys, order, totals, results, places, ends, threads, count, width, chunk, limit
):  # fmt: skip
    """The total of each run where it ends.

    Args:
        rows, keys, order, threads, count, width, chunk: as for ``chunk_totals``.
        totals: of earlier chunks, scanned; without CONTINUED there is one chunk.
        results: elements (count, width): what rows of a run give up to each. Those at its end
            count; whoever reads them reads the others too, so they are set.
        places: int64 (count,): the keys. ends: uint8 (count,): where a run of a key below ``limit``
            ends.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    _, column, start, stop = chunk_of(thread, count, width, chunk)
    carry = neutral()
    if CONTINUED and start > 0 and keys[start] == keys[start - 1]:
        carry = totals[thread - width]
    for place in range(start, stop):
        key = int64(keys[place])
        is_end = place == count - 1 or keys[place] != keys[place + 1]
        if LAST:
            row = int64(order[place])
            results[place * width + column] = rows[row * width + column]
        else:
            carry = combined(carry, widened(rows[int64(order[place]) * width + column]))
            results[place * width + column] = narrowed(carry)
            if is_end:
                carry = neutral()
        if column == 0:
            places[place] = key
            ends[place] = uint8(is_end and key < limit)


def keep_inside(places, inside, keys, count, limit):
    """The key of each place: ``limit`` where it is not inside. A thread for each of ``count``."""
    thread = cuda.grid(1)
    if thread < count:
        keys[thread] = places[thread] if inside[thread] else limit
