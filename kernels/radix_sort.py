"""Stable radix sort of rows by keys, as a permutation: least significant digits first.

An array is (outer, length, inner), row-major; row ``o * inner + c`` has the elements
``(o, :, c)``. A key is mapped to an unsigned integer (its code) in the requested order; then each
pass sorts by 8 more bits of it, and preserves the order of equal ones. Several keys: the last one
first, each starting from the order of the previous one.

    sort_tile      rows of at most TILE elements: all passes in one block
    count_digits   longer ones: a histogram of the digits of each row, for all passes at once
    move_digits    for each pass: a tile sorted within its block, then written in runs of equal
                   digits, after those of the tiles before it

A block counts the elements with its digits in the tiles before it by decoupled look-back. It
publishes a status for each digit, first its own count, then the sum up to its tile's end, and adds
the statuses of the tiles before it until one is such a sum. It waits only for tiles of smaller
tickets, whose blocks run already: each publishes its own count before it waits itself.

If a sort has one operand, no permutation is needed: its elements are moved themselves, and each
pass recomputes their codes. Equal keys of different bits (zeros, nan) so keep their order too.

    sort_tile_of_keys, move_keys     as sort_tile and move_digits; count_digits serves both

Contract: rows of less than 2**31 elements; orders are uint32 (row, position). Any alignment.
Launch: a block of THREADS threads for each row of at most TILE elements, ``(1, y, z)`` with
y * z >= rows; for each ``chunk`` tiles to count, ``(chunks, y, z)``; and for each tile to move.
Shared memory: THREADS * (ITEMS * (4 + STORAGE_BITS / 8) + 32) + 4112 bytes, at most 48 KiB.
Reads and writes, without keys: 4 bytes for counting, then 8 + 8 for moving, for each element of 32
bits and pass; of keys alone 4 bytes for counting, then 4 + 4 for each pass.
Source: Satish, Harris and Garland 2009, "Designing efficient sorting algorithms for manycore GPUs";
Adinets and Merrill 2022, "Onesweep: A faster least significant digit radix sort for GPUs", with
look-back as in Merrill and Garland 2016; ranks within a warp by votes as in Merrill's CUB.

Tests: tests/kernels/test_kernel_sort.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import (
    atomic_add,
    atomic_increment,
    barrier,
    count_ones,
    cuda,
    int32,
    int64,
    load_relaxed,
    shared_array,
    store_relaxed,
    uint32,
    uint64,
    unrolled,
)
from gpuflow.kernels.scan import row_of_block

# KIND of keys
UNSIGNED, SIGNED, FLOAT, CODES = range(4)

# Given for each build.
KIND = UNSIGNED
BITS = 32  # of a key
STORAGE_BITS = 32  # of a code: 32 or 64
NAN_ABOVE = 0x7F800000  # magnitudes above it are nan
TOTAL_ORDER = 0  # of floats: by sign and magnitude alone, else all nan and all zeros are equal
DESCENDING = 0
COMPONENTS = 1  # scalars of one element: complex ones have two
COMPONENT = 0  # index of the one that is the key
ORDERED = 0  # an initial order is given
STORE_CODES = 0  # the next pass reads the codes too
THREADS = 256
ITEMS = 16
TILE = 4096  # THREADS * ITEMS
TALLIES = 2048  # THREADS * 8
DIGITS = 1024  # 256 for each pass

# Statuses of tiles and digits: 0 at first, then a tile's own count plus 1, then SUM plus the sum.
SUM = 1 << 31


def code(number):
    """An unsigned integer of STORAGE_BITS."""
    if STORAGE_BITS == 64:
        return uint64(number)
    else:
        return uint32(number)


def key_code(element):
    """The code of a key: BITS bits in the order of the keys."""
    bits = code(element) & code((1 << BITS) - 1)
    sign = code(1 << (BITS - 1))
    if KIND == CODES:
        return bits
    if KIND == FLOAT:
        magnitude = code(bits & code((1 << (BITS - 1)) - 1))
        if not TOTAL_ORDER:
            if magnitude > code(NAN_ABOVE):
                bits = code((1 << (BITS - 1)) - 1)
            if magnitude == code(0):
                bits = code(0)
        if bits & sign:
            bits = code(~bits)
        else:
            bits = code(bits | sign)
    if KIND == SIGNED:
        bits = code(bits ^ sign)
    if DESCENDING:
        bits = code(~bits)
    return code(bits & code((1 << BITS) - 1))


def digit_of(bits, shift):
    """The digit of one pass."""
    return int32(code(bits >> code(shift)) & code(255))


def same_digit(digit):
    """The lanes of the warp that have the same digit, as bits."""
    lanes = uint32(0xFFFFFFFF)
    for bit in unrolled(8):
        is_set = (digit >> bit) & 1
        votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_set))
        lanes = uint32(lanes & (votes if is_set else uint32(~votes)))
    return lanes


def count_digit(counts, cell, lanes, lane):
    """Count the lanes of one digit; returns the count before this lane, in its warp."""
    before = int32(count_ones(uint32(lanes & uint32((uint32(1) << uint32(lane)) - uint32(1)))))
    earlier = counts[cell]
    cuda.syncwarp()
    if before == 0:
        counts[cell] = earlier + int32(count_ones(lanes))
    cuda.syncwarp()
    return int32(earlier + before)


def clear_counts(counts, thread):
    """Set the counts of all warps to 0."""
    for cell in range(thread, THREADS * 8, THREADS):
        counts[cell] = int32(0)
    barrier()


def counts_to_offsets(counts, firsts, thread):
    """Turn counts (warp, digit) into the offsets of the warp's digits, relative to ``firsts``.

    ``firsts``: set to the start of each digit in the tile.
    """
    barrier()
    for digit in range(thread, 256, THREADS):
        total = int32(0)
        for warp in range(THREADS // 32):
            count = counts[256 * warp + digit]
            counts[256 * warp + digit] = total
            total = int32(total + count)
        firsts[digit] = total
    digits_to_offsets(firsts, thread)


def digits_to_offsets(firsts, thread):
    """Turn the counts of all digits into their starts, by an exclusive scan."""
    barrier()
    if thread < 32:
        total = int32(0)
        for k in range(8):
            total = int32(total + firsts[8 * thread + k])
        sums = total
        for step in unrolled(5):
            before = cuda.shfl_up_sync(0xFFFFFFFF, sums, 1 << step)
            if thread >= (1 << step):
                sums = int32(sums + before)
        start = int32(sums - total)
        for k in range(8):
            count = firsts[8 * thread + k]
            firsts[8 * thread + k] = start
            start = int32(start + count)
    barrier()


def tile_of_block(tickets, rows, length):
    """The row and the tile of this block, in the order in which blocks start.

    Args:
        tickets: a uint32, 0 before the launch.
        rows, length: of the array.
    """
    ticket = shared_array(uint32, 1)
    if cuda.threadIdx.x == 0:
        ticket[0] = atomic_increment(tickets, 0)
    barrier()
    tiles = uint32((length + TILE - 1) // TILE)
    row = uint32(ticket[0] // tiles)
    return int32(row), int32(ticket[0] - row * tiles)


def count_before(sums, slot):
    """Count the elements with a digit in the tiles before one, whose status is at ``slot``."""
    before = uint32(0)
    while True:
        seen = load_relaxed(sums, slot - 256)
        if seen >= uint32(SUM):
            return uint32(before + seen - uint32(SUM))
        if seen > uint32(0):
            before = uint32(before + seen - uint32(1))
            slot -= 256


def shifts_to_targets(firsts, totals, sums, cleared, row, tile, length):
    """The shift of each digit from its start in the tile to its target in the row.

    Args:
        firsts: shared, the start of each digit in the tile.
        totals: uint32 (rows, 256), the histogram of a row's digits.
        sums: uint32 (rows, tiles, 256), the statuses of tiles, all 0 before the launch.
        cleared: as ``sums``, of the next pass.
        row, tile: of the block. length: of a row.
    """
    starts, shifts = shared_array(int32, 256), shared_array(int32, 256)
    thread = int32(cuda.threadIdx.x)
    if tile == 0:
        for digit in range(thread, 256, THREADS):
            starts[digit] = int32(totals[row * 256 + digit])
        digits_to_offsets(starts, thread)
    count = min(length - tile * TILE, int64(TILE))
    first = (row * ((length + TILE - 1) // TILE) + tile) * 256
    for digit in range(thread, 256, THREADS):
        end = count
        if digit < 255:
            end = int64(firsts[digit + 1])
        own, before = uint32(end - firsts[digit]), uint32(0)
        if tile == 0:
            before = uint32(starts[digit])
        else:
            store_relaxed(sums, first + digit, uint32(own + uint32(1)))
            before = count_before(sums, first + digit)
        store_relaxed(sums, first + digit, uint32(before + own + uint32(SUM)))
        cleared[first + digit] = uint32(0)
        shifts[digit] = int32(int64(before) - firsts[digit])
    barrier()
    return shifts


def element_of_row(row, position, length, inner):
    """The index of an element of a row, in scalars."""
    outer = row // inner
    return ((outer * length + position) * inner + row - outer * inner) * COMPONENTS + COMPONENT


def load_element(source, row, position, length, inner):
    """The code of an element of a row."""
    if KIND == CODES:
        return code(source[row * length + position])
    else:
        return key_code(source[element_of_row(row, position, length, inner)])


def load_code(source, order, row, position, length, inner):
    """The code of the element at a position of a row in the current order."""
    source_position = int64(position)
    if KIND != CODES and ORDERED:
        source_position = int64(order[row * length + position])
    return load_element(source, row, source_position, length, inner)


def load_order(order, row, position, length):
    """The element at a position of a row in the current order."""
    if KIND == CODES or ORDERED:
        return uint32(order[row * length + position])
    else:
        return uint32(position)


def thread_ids():
    """This thread's id in its block, its lane and its warp."""
    thread = int32(cuda.threadIdx.x)
    return thread, int32(thread & 31), int32(thread >> 5)


def shared_codes():
    """TILE codes in shared memory; the same ones in each call."""
    if STORAGE_BITS == 64:
        return shared_array(uint64, TILE)
    else:
        return shared_array(uint32, TILE)


def put_in_order(tile, shared_elements, codes, elements, ranks, counts, firsts, shift):
    """Permute the codes of a tile, and their elements, by one digit and ``ranks``."""
    thread = int32(cuda.threadIdx.x)
    counts_to_offsets(counts, firsts, thread)
    for k in range(ITEMS):
        digit = digit_of(codes[k], shift)
        target = firsts[digit] + counts[256 * (thread >> 5) + digit] + ranks[k]
        tile[target] = codes[k]
        shared_elements[target] = elements[k]
    barrier()


def sort_tile(source, order, sorted_order, rows, length, inner):
    """Sort rows of at most TILE elements, by all bits of a key.

    Args:
        source: (outer, length, inner) keys, as unsigned integers.
        order: with ORDERED, the current order, uint32 (rows, length).
        sorted_order: the result, which may be ``order``.
        rows, length, inner: of the array.
    """
    if STORAGE_BITS == 64:
        codes = cuda.local.array(ITEMS, uint64)
    else:
        codes = cuda.local.array(ITEMS, uint32)
    tile, shared_elements = shared_codes(), shared_array(uint32, TILE)
    counts, firsts = shared_array(int32, TALLIES), shared_array(int32, 256)
    elements, ranks = cuda.local.array(ITEMS, uint32), cuda.local.array(ITEMS, int32)
    thread, lane, warp = thread_ids()
    row = row_of_block()
    if row >= rows:
        return
    first = int32(warp * (32 * ITEMS) + lane)
    for k in range(ITEMS):
        codes[k] = code((1 << BITS) - 1)
        elements[k] = uint32(0)
        if first + 32 * k < length:
            codes[k] = load_code(source, order, row, first + 32 * k, length, inner)
            elements[k] = load_order(order, row, first + 32 * k, length)
    for shift in range(0, BITS, 8):
        clear_counts(counts, thread)
        for k in range(ITEMS):
            digit = digit_of(codes[k], shift)
            ranks[k] = count_digit(counts, 256 * warp + digit, same_digit(digit), lane)
        put_in_order(tile, shared_elements, codes, elements, ranks, counts, firsts, shift)
        for k in range(ITEMS):
            codes[k] = tile[first + 32 * k]
            elements[k] = shared_elements[first + 32 * k]
    for k in range(ITEMS):
        if first + 32 * k < length:
            sorted_order[row * length + first + 32 * k] = elements[k]


def count_digits(source, totals, rows, length, inner, chunk):
    """Count the digits of each row, for all passes.

    Args:
        source: keys, or with KIND CODES the codes, (rows, length).
        totals: uint32 (passes, rows, 256), to which this adds.
        rows, length, inner: of the array. chunk: tiles of a block.
    """
    if STORAGE_BITS == 64:
        codes = cuda.local.array(ITEMS, uint64)
    else:
        codes = cuda.local.array(ITEMS, uint32)
    tallies, counts = shared_array(int32, TALLIES), shared_array(int32, DIGITS)
    thread, lane, warp = thread_ids()
    row = row_of_block()
    if row >= rows:
        return
    for cell in range(thread, DIGITS, THREADS):
        counts[cell] = int32(0)
    begin = int64(cuda.blockIdx.x) * chunk * TILE
    stop = min(begin + chunk * TILE, length)
    while begin < stop:
        first = begin + warp * (32 * ITEMS) + lane
        for k in range(ITEMS):
            codes[k] = code((1 << BITS) - 1)
            if first + 32 * k < length:
                codes[k] = load_element(source, row, first + 32 * k, length, inner)
        for shift in range(0, BITS, 8):
            barrier()
            clear_counts(tallies, thread)
            for k in range(ITEMS):
                digit = int32(255)  # of positions past the row's end, too
                if first + 32 * k < length:
                    digit = digit_of(codes[k], shift)
                count_digit(tallies, 256 * warp + digit, same_digit(digit), lane)
            barrier()
            for digit in range(thread, 256, THREADS):
                total = counts[32 * shift + digit]
                for other in range(THREADS // 32):
                    total = int32(total + tallies[256 * other + digit])
                if digit == 255:
                    total = int32(total - max(begin + TILE - length, int64(0)))
                counts[32 * shift + digit] = total
        begin += TILE
    for cell in range(thread, DIGITS, THREADS):
        if counts[cell] > 0:
            target = ((cell >> 8) * rows + row) * 256 + (cell & 255)
            atomic_add(totals, target, uint32(counts[cell]))


def move_digits(
    source, order, totals, sums, cleared, tickets, sorted_codes, sorted_order, rows, length, inner,
    shift,
):  # fmt: skip
    """Move the elements of a tile to their positions by one digit.

    Args:
        source: keys, or with KIND CODES the codes, (rows, length).
        order: the current order, if there is one.
        totals: from ``count_digits``, of this pass.
        sums, cleared, tickets: as for ``shifts_to_targets`` and ``tile_of_block``.
        sorted_codes: the result's codes (rows, length), with STORE_CODES. sorted_order: its order.
            Neither may be an input.
        rows, length, inner: of the array. shift: the digit's lowest bit.
    """
    if STORAGE_BITS == 64:
        codes = cuda.local.array(ITEMS, uint64)
    else:
        codes = cuda.local.array(ITEMS, uint32)
    tile, shared_elements = shared_codes(), shared_array(uint32, TILE)
    tallies, firsts = shared_array(int32, TALLIES), shared_array(int32, 256)
    elements, ranks = cuda.local.array(ITEMS, uint32), cuda.local.array(ITEMS, int32)
    thread, lane, warp = thread_ids()
    row, tile_id = tile_of_block(tickets, rows, length)
    if row >= rows:
        return
    begin = int64(tile_id) * TILE
    first = int32(warp * (32 * ITEMS) + lane)
    clear_counts(tallies, thread)
    for k in range(ITEMS):
        codes[k] = code((1 << STORAGE_BITS) - 1)
        if begin + first + 32 * k < length:
            codes[k] = load_code(source, order, row, begin + first + 32 * k, length, inner)
        digit = digit_of(codes[k], shift)
        ranks[k] = count_digit(tallies, 256 * warp + digit, same_digit(digit), lane)
    # Not before: registers would hold them while digits are counted.
    for k in range(ITEMS):
        elements[k] = uint32(0)
        if begin + first + 32 * k < length:
            elements[k] = load_order(order, row, begin + first + 32 * k, length)
    put_in_order(tile, shared_elements, codes, elements, ranks, tallies, firsts, shift)
    shifts = shifts_to_targets(firsts, totals, sums, cleared, row, tile_id, length)
    count = min(length - begin, int64(TILE))
    for position in range(thread, count, THREADS):
        target = row * length + position + shifts[digit_of(tile[position], shift)]
        if STORE_CODES:
            sorted_codes[target] = tile[position]
        sorted_order[target] = shared_elements[position]


def key_digit(element, is_in_row, shift):
    """The digit of an element; those past the row's end come last."""
    digit = int32(255)
    if is_in_row:
        digit = digit_of(key_code(element), shift)
    return digit


def put_keys_in_order(tile, elements, first, length, counts, shift):
    """Put the elements of a tile in the order of one digit.

    Args:
        tile: shared codes, the result. elements: of this thread, as codes.
        first: the position of the thread's first element in the tile; its stride is 32.
        length: elements of the tile that are in the row.
        counts: shared, (warp, digit), 0 at first; with the result, ``firsts`` has the start of
            each digit in the tile.
    """
    firsts, ranks = shared_array(int32, 256), cuda.local.array(ITEMS, int32)
    thread, lane, warp = thread_ids()
    for k in range(ITEMS):
        digit = key_digit(elements[k], first + 32 * k < length, shift)
        ranks[k] = count_digit(counts, 256 * warp + digit, same_digit(digit), lane)
    counts_to_offsets(counts, firsts, thread)
    for k in range(ITEMS):
        digit = key_digit(elements[k], first + 32 * k < length, shift)
        tile[firsts[digit] + counts[256 * warp + digit] + ranks[k]] = elements[k]
    barrier()
    return firsts


def sort_tile_of_keys(source, target, rows, length, inner):
    """Sort rows of at most TILE elements, by all bits of the elements themselves.

    Args:
        source, target: (outer, length, inner) keys, as unsigned integers, and the result.
        rows, length, inner: of the arrays.
    """
    if STORAGE_BITS == 64:
        elements = cuda.local.array(ITEMS, uint64)
    else:
        elements = cuda.local.array(ITEMS, uint32)
    tile, counts = shared_codes(), shared_array(int32, TALLIES)
    thread, lane, warp = thread_ids()
    row = row_of_block()
    if row >= rows:
        return
    first = int32(warp * (32 * ITEMS) + lane)
    for k in range(ITEMS):
        elements[k] = code(0)
        if first + 32 * k < length:
            elements[k] = code(source[element_of_row(row, first + 32 * k, length, inner)])
    for shift in range(0, BITS, 8):
        clear_counts(counts, thread)
        put_keys_in_order(tile, elements, first, int32(length), counts, shift)
        for k in range(ITEMS):
            elements[k] = tile[first + 32 * k]
    for k in range(ITEMS):
        if first + 32 * k < length:
            target[element_of_row(row, first + 32 * k, length, inner)] = elements[k]


def move_keys(
    source, totals, sums, cleared, tickets, target, rows, length, source_inner, target_inner, shift
):  # fmt: skip
    """Move the elements of a tile to their positions by one digit.

    Args:
        source, target: (outer, length, inner) keys, as unsigned integers, each with an ``inner``
            of its own, and the result, which may not be the source.
        totals: from ``count_digits``, of this pass.
        sums, cleared, tickets: as for ``shifts_to_targets`` and ``tile_of_block``.
        rows, length: of the arrays. shift: the digit's lowest bit.
    """
    if STORAGE_BITS == 64:
        elements = cuda.local.array(ITEMS, uint64)
    else:
        elements = cuda.local.array(ITEMS, uint32)
    tile, tallies = shared_codes(), shared_array(int32, TALLIES)
    thread, lane, warp = thread_ids()
    row, tile_id = tile_of_block(tickets, rows, length)
    if row >= rows:
        return
    begin = int64(tile_id) * TILE
    count = int32(min(length - begin, int64(TILE)))
    first = int32(warp * (32 * ITEMS) + lane)
    clear_counts(tallies, thread)
    index = element_of_row(row, begin + first, length, source_inner)
    for k in range(ITEMS):
        elements[k] = code(0)
        if first + 32 * k < count:
            elements[k] = code(source[index])
        index += 32 * source_inner
    firsts = put_keys_in_order(tile, elements, first, count, tallies, shift)
    shifts = shifts_to_targets(firsts, totals, sums, cleared, row, tile_id, length)
    for number in range(thread, count, THREADS):
        position = int64(number + shifts[digit_of(key_code(tile[number]), shift)])
        target[element_of_row(row, position, length, target_inner)] = tile[number]
