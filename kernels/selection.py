"""Select the k least codes of rows, in the order of the row: a radix select.

Codes, rows and blocks are those of radix_sort.py: with DESCENDING the k greatest keys have the
least codes. A row's k-th least code is found digit by digit, most significant first:

    count_candidates   histogram of the next digit of the codes that match the prefix found so far;
                       each block first finds the previous digit from the last launch's counts
    count_selected     how many codes of a tile are less than the k-th least one, and equal to it
    gather_selected    with those counts scanned: codes and their positions, in the row's order

Of equal codes the first ones are taken. Blocks add integers to common counts, which give the same
in any order; positions come from scans. So results do not depend on when blocks run.

Contract: as radix_sort.py; k at least 1 and less than the row's length.
Launch: a block of THREADS = 256 threads for each tile of each row: ``(tiles, y, z)``.
Shared memory: 10 KiB.
Reads each element once for each 8 bits of the key, and twice more; writes k codes and positions.
Source: Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units".

Tests: tests/kernels/test_kernel_top_k.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import (
    atomic_add,
    barrier,
    count_ones,
    cuda,
    int32,
    int64,
    shared_array,
    uint32,
    uint64,
)
from gpuflow.kernels.radix_sort import (
    ITEMS,
    STORAGE_BITS,
    TALLIES,
    THREADS,
    TILE,
    clear_counts,
    code,
    digit_of,
    digits_to_offsets,
    load_code,
    same_digit,
)
from gpuflow.kernels.scan import row_of_block

# Given for each build, with those of radix_sort.
FIRST = 0  # there is no prefix yet


def clear(counts, count):
    """Set counts to 0; a thread for each."""
    thread = cuda.grid(1)
    if thread < count:
        counts[thread] = uint32(0)


def shared_code():
    """A code that all threads of the block share."""
    if STORAGE_BITS == 64:
        return shared_array(uint64, 1)
    else:
        return shared_array(uint32, 1)


def find_digit(counts, prefixes, remaining, row, rows, shift):
    """The prefix and the remaining rank of codes that match it, after one more digit.

    Args:
        counts: uint32 (rows, 256), of the digit.
        prefixes, remaining: (2, rows): before it, and set by the first block, after it.
        row, rows: of the block. shift: the digit's lowest bit.
    """
    firsts, new_prefix, counted = shared_array(int32, 256), shared_code(), shared_array(uint32, 1)
    thread = int32(cuda.threadIdx.x)
    count = int32(counts[row * 256 + thread])
    firsts[thread] = count
    digits_to_offsets(firsts, thread)
    before, rank = prefixes[row], int32(remaining[row])
    if firsts[thread] < rank and rank <= firsts[thread] + count:
        new_prefix[0] = code(before | code(code(thread) << code(shift)))
        counted[0] = uint32(rank - firsts[thread])
        if cuda.blockIdx.x == 0:
            prefixes[rows + row] = new_prefix[0]
            remaining[rows + row] = counted[0]
    barrier()
    return new_prefix[0], int32(counted[0])


def count_candidates(source, counts, prefixes, remaining, rows, length, inner, selected, shift):
    """Count each next digit of the codes that match the prefix found so far.

    Args:
        source: (outer, length, inner) keys, as unsigned integers.
        counts: uint32 (2, rows, 256): of the digit before, and of this one, zeros.
        prefixes, remaining: (2, rows), before the previous digit, and after it, which this sets;
            with FIRST the initial values.
        rows, length, inner: of the array. selected: k. shift: the digit's lowest bit.
    """
    tallies = shared_array(int32, TALLIES)
    thread = int32(cuda.threadIdx.x)
    lane, warp = int32(thread & 31), int32(thread >> 5)
    row = row_of_block()
    if row >= rows:
        return
    prefix = code(0)
    if FIRST:
        if cuda.blockIdx.x == 0 and thread == 0:
            prefixes[rows + row] = code(0)
            remaining[rows + row] = uint32(selected)
    else:
        prefix, _ = find_digit(counts, prefixes, remaining, row, rows, shift + 8)
        prefix = code(prefix >> code(shift + 8))
    clear_counts(tallies, thread)
    first = int64(cuda.blockIdx.x) * TILE + warp * (32 * ITEMS) + lane
    order = counts  # which is unused: no key has one
    for k in range(ITEMS):
        digit, is_candidate = int32(0), False
        if first + 32 * k < length:
            key = load_code(source, order, row, first + 32 * k, length, inner)
            digit = digit_of(key, shift)
            if FIRST:
                is_candidate = True
            else:
                is_candidate = code(key >> code(shift + 8)) == prefix
        votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_candidate))
        if votes != uint32(0):  # the same for the whole warp, and mostly not so
            lanes = uint32(same_digit(digit) & votes)
            below = uint32((uint32(1) << uint32(lane)) - uint32(1))
            if is_candidate and uint32(lanes & below) == uint32(0):
                cell = 256 * warp + digit
                tallies[cell] = int32(tallies[cell] + int32(count_ones(lanes)))
            cuda.syncwarp()
    barrier()
    total = int32(0)
    for other in range(THREADS // 32):
        total = int32(total + tallies[256 * other + thread])
    if total != int32(0):
        atomic_add(counts, (rows + row) * 256 + thread, uint32(total))


def count_selected(source, counts, prefixes, remaining, sums, rows, length, inner):
    """Count the codes of each tile that are less than the row's k-th least one, and equal to it.

    Args:
        source, rows, length, inner: as for ``count_candidates``.
        counts: uint32 (rows, 256), of the last digit. prefixes, remaining: (2, rows), before it
            and after it, which this sets.
        sums: uint32 (rows, 2, tiles), of which this sets one column.
    """
    tallies = shared_array(int32, 16)
    thread = int32(cuda.threadIdx.x)
    lane, warp = int32(thread & 31), int32(thread >> 5)
    row = row_of_block()
    if row >= rows:
        return
    limit, _ = find_digit(counts, prefixes, remaining, row, rows, 0)
    first = int64(cuda.blockIdx.x) * TILE + warp * (32 * ITEMS) + lane
    less, equal = int32(0), int32(0)
    for k in range(ITEMS):
        is_less, is_equal = False, False
        if first + 32 * k < length:
            key = load_code(source, counts, row, first + 32 * k, length, inner)
            is_less, is_equal = key < limit, key == limit
        less = int32(less + int32(count_ones(uint32(cuda.ballot_sync(0xFFFFFFFF, is_less)))))
        equal = int32(equal + int32(count_ones(uint32(cuda.ballot_sync(0xFFFFFFFF, is_equal)))))
    if lane == 0:
        tallies[warp], tallies[8 + warp] = less, equal
    barrier()
    if thread < 2:
        total = int32(0)
        for other in range(THREADS // 32):
            total = int32(total + tallies[8 * thread + other])
        tiles = int64(cuda.gridDim.x)
        sums[(2 * row + thread) * tiles + cuda.blockIdx.x] = uint32(total)


def gather_selected(
    source, prefixes, remaining, sums, target, positions, rows, length, inner, selected
):  # fmt: skip
    """Store the selected codes of a row and their positions consecutively.

    Args:
        source, rows, length, inner: as for ``count_candidates``.
        prefixes, remaining: (rows,): the k-th least code, and how many equal ones are taken.
        sums: from ``count_selected``, scanned over each row.
        target: codes (rows, selected). positions: uint32 (rows, selected).
        selected: k.
    """
    tallies = shared_array(int32, 16)
    thread = int32(cuda.threadIdx.x)
    lane, warp = int32(thread & 31), int32(thread >> 5)
    row = row_of_block()
    if row >= rows:
        return
    limit, most = prefixes[row], int64(remaining[row])
    first = int64(cuda.blockIdx.x) * TILE + warp * (32 * ITEMS) + lane
    less, equal = int32(0), int32(0)
    below = uint32((uint32(1) << uint32(lane)) - uint32(1))
    for sweep in range(2):
        if sweep == 1:
            # The warp's counts become those before it, in the row.
            if lane == 0:
                tallies[warp], tallies[8 + warp] = less, equal
            barrier()
            less, equal = int32(0), int32(0)
            for other in range(warp):
                less = int32(less + tallies[other])
                equal = int32(equal + tallies[8 + other])
            tiles, tile = int64(cuda.gridDim.x), int64(cuda.blockIdx.x)
            begin = 2 * row * tiles
            if tile > 0:
                less = int32(less + sums[begin + tile - 1])
            equal = int32(equal + sums[begin + tiles + tile - 1] - sums[begin + tiles - 1])
        for k in range(ITEMS):
            position = first + 32 * k
            is_less, is_equal, key = False, False, code(0)
            if position < length:
                key = load_code(source, positions, row, position, length, inner)
                is_less, is_equal = key < limit, key == limit
            votes_less = uint32(cuda.ballot_sync(0xFFFFFFFF, is_less))
            votes_equal = uint32(cuda.ballot_sync(0xFFFFFFFF, is_equal))
            if sweep == 1:
                before = int64(less) + int64(count_ones(uint32(votes_less & below)))
                twins = int64(equal) + int64(count_ones(uint32(votes_equal & below)))
                if is_less or (is_equal and twins < most):
                    at = row * selected + before + min(twins, most)
                    target[at] = key
                    positions[at] = uint32(position)
            less = int32(less + int32(count_ones(votes_less)))
            equal = int32(equal + int32(count_ones(votes_equal)))
