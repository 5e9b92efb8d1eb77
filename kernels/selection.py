"""The k least words of rows, in the order in which they stand: a radix select.

Words, rows and blocks are those of radix_sort.py: with DESCENDING the k greatest keys have the
least words. A row's k-th least word is found digit by digit, most significant first:

    count_candidates   how many words that agree with the digits found so far have each next digit;
                       each block first finds the digit before from what the last launch counted
    count_selected     how many words of a tile are less than the k-th least one, and equal to it
    gather_selected    with those counts scanned: words, and where they were, in the row's order

Of equal words the first ones are taken. Blocks add integers to common counts, which give the same
in any order; places come from scans. So results do not depend on when blocks run.

Contract: as radix_sort.py; k at least 1 and less than the row's length.
Launch: a block of THREADS = 256 threads for each tile of each row: ``(tiles, y, z)``.
Shared memory: 10 KiB.
Reads each element once for each 8 bits of the key, and twice more; writes k words and numbers.
Source: Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units".
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
    TALLIES,
    THREADS,
    TILE,
    WORD_BITS,
    clear_counts,
    digit_of,
    digits_to_places,
    load_word,
    same_digit,
    word,
)
from gpuflow.kernels.scan import row_of_block

# Given for each build, with those of radix_sort.
FIRST = 0  # no digit is known yet


def clear(counts, count):
    """Set counts to 0; a thread for each."""
    thread = cuda.grid(1)
    if thread < count:
        counts[thread] = uint32(0)


def shared_word():
    """A word that all threads of the block have in common."""
    if WORD_BITS == 64:
        return shared_array(uint64, 1)
    else:
        return shared_array(uint32, 1)


def find_digit(counts, words, wanted, row, rows, shift):
    """The word so far and what is wanted of those that agree with it, after one more digit.

    Args:
        counts: uint32 (rows, 256), of the digit.
        words, wanted: (2, rows): before it, and set by the first block, after it.
        row, rows: of the block. shift: the digit's lowest bit.
    """
    firsts, prefix_words, counted = shared_array(int32, 256), shared_word(), shared_array(uint32, 1)
    thread = int32(cuda.threadIdx.x)
    count = int32(counts[row * 256 + thread])
    firsts[thread] = count
    digits_to_places(firsts, thread)
    before, left = words[row], int32(wanted[row])
    if firsts[thread] < left and left <= firsts[thread] + count:
        prefix_words[0] = word(before | word(word(thread) << word(shift)))
        counted[0] = uint32(left - firsts[thread])
        if cuda.blockIdx.x == 0:
            words[rows + row] = prefix_words[0]
            wanted[rows + row] = counted[0]
    barrier()
    return prefix_words[0], int32(counted[0])


def count_candidates(source, counts, words, wanted, rows, length, inner, kept, shift):
    """How many words that agree with the digits found so far have each digit.

    Args:
        source: (outer, length, inner) keys, as unsigned integers.
        counts: uint32 (2, rows, 256): of the digit before, and of this one, zeros.
        words, wanted: (2, rows), before the digit before, and after it, which this sets; with FIRST
            what holds at first.
        rows, length, inner: of the array. kept: k. shift: the digit's lowest bit.
    """
    tallies = shared_array(int32, TALLIES)
    thread = int32(cuda.threadIdx.x)
    lane, warp = int32(thread & 31), int32(thread >> 5)
    row = row_of_block()
    if row >= rows:
        return
    prefix = word(0)
    if FIRST:
        if cuda.blockIdx.x == 0 and thread == 0:
            words[rows + row] = word(0)
            wanted[rows + row] = uint32(kept)
    else:
        prefix, _ = find_digit(counts, words, wanted, row, rows, shift + 8)
        prefix = word(prefix >> word(shift + 8))
    clear_counts(tallies, thread)
    first = int64(cuda.blockIdx.x) * TILE + warp * (32 * ITEMS) + lane
    order = counts  # which no key has here
    for k in range(ITEMS):
        digit, is_candidate = int32(0), False
        if first + 32 * k < length:
            key = load_word(source, order, row, first + 32 * k, length, inner)
            digit = digit_of(key, shift)
            if FIRST:
                is_candidate = True
            else:
                is_candidate = word(key >> word(shift + 8)) == prefix
        votes = uint32(cuda.ballot_sync(0xFFFFFFFF, is_candidate))
        if votes != uint32(0):  # the same for the whole warp, and mostly not so
            lanes = uint32(same_digit(digit) & votes)
            below = uint32((uint32(1) << uint32(lane)) - uint32(1))
            if is_candidate and uint32(lanes & below) == uint32(0):
                place = 256 * warp + digit
                tallies[place] = int32(tallies[place] + int32(count_ones(lanes)))
            cuda.syncwarp()
    barrier()
    total = int32(0)
    for other in range(THREADS // 32):
        total = int32(total + tallies[256 * other + thread])
    if total != int32(0):
        atomic_add(counts, (rows + row) * 256 + thread, uint32(total))


def count_selected(source, counts, words, wanted, sums, rows, length, inner):
    """How many words of each tile are less than the k-th least one of the row, and equal to it.

    Args:
        source, rows, length, inner: as for ``count_candidates``.
        counts: uint32 (rows, 256), of the last digit. words, wanted: (2, rows), before it and
            after it, which this sets.
        sums: uint32 (rows, 2, tiles), of which this sets one column.
    """
    tallies = shared_array(int32, 16)
    thread = int32(cuda.threadIdx.x)
    lane, warp = int32(thread & 31), int32(thread >> 5)
    row = row_of_block()
    if row >= rows:
        return
    limit, _ = find_digit(counts, words, wanted, row, rows, 0)
    first = int64(cuda.blockIdx.x) * TILE + warp * (32 * ITEMS) + lane
    less, equal = int32(0), int32(0)
    for k in range(ITEMS):
        is_less, is_equal = False, False
        if first + 32 * k < length:
            key = load_word(source, counts, row, first + 32 * k, length, inner)
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


def gather_selected(source, words, wanted, sums, target, chosen, rows, length, inner, kept):
    """The selected words of a row and where they stand, one behind the other.

    Args:
        source, rows, length, inner: as for ``count_candidates``.
        words, wanted: (rows,): the k-th least word, and how many that are equal to it are taken.
        sums: from ``count_selected``, scanned over each row.
        target: words (rows, kept). chosen: uint32 (rows, kept).
        kept: k.
    """
    tallies = shared_array(int32, 16)
    thread = int32(cuda.threadIdx.x)
    lane, warp = int32(thread & 31), int32(thread >> 5)
    row = row_of_block()
    if row >= rows:
        return
    limit, most = words[row], int64(wanted[row])
    first = int64(cuda.blockIdx.x) * TILE + warp * (32 * ITEMS) + lane
    less, equal = int32(0), int32(0)
    below = uint32((uint32(1) << uint32(lane)) - uint32(1))
    for turn in range(2):
        if turn == 1:
            # The warp's counts become what stands before it, in the row.
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
            place = first + 32 * k
            is_less, is_equal, key = False, False, word(0)
            if place < length:
                key = load_word(source, chosen, row, place, length, inner)
                is_less, is_equal = key < limit, key == limit
            votes_less = uint32(cuda.ballot_sync(0xFFFFFFFF, is_less))
            votes_equal = uint32(cuda.ballot_sync(0xFFFFFFFF, is_equal))
            if turn == 1:
                before = int64(less) + int64(count_ones(uint32(votes_less & below)))
                twins = int64(equal) + int64(count_ones(uint32(votes_equal & below)))
                if is_less or (is_equal and twins < most):
                    at = row * kept + before + min(twins, most)
                    target[at] = key
                    chosen[at] = uint32(place)
            less = int32(less + int32(count_ones(votes_less)))
            equal = int32(equal + int32(count_ones(votes_equal)))
