"""Rows added to an array where they belong, by atomic additions: one launch, in no order.

Contract: float32, float64, or integers of 32 or 64 bits; complex arrays are pairs of floats.
Windows have at most three dimensions, once those that lie like one are one. Places are inside.
Sums of floats differ in their last bits from run to run, and float32 numbers that are subnormal may
count as zeros; sums of integers are exact.
Launch: a thread for each element of ``rows``; neighboring threads have neighbors.
Reads each row once; adds are made where the memory is cached.
"""

from __future__ import annotations

from gpuflow.kernels.language import atomic_add, cuda

# Given for each build.
PARTS = 1  # numbers of an element


def add_rows(
    rows, places, inside, out, threads, width, size1, size2, step0, step1, step2
):  # fmt: skip
    """out[place of row + place in window] += row, for rows that are inside.

    Args:
        rows: (count, width). places: int64 (count,), elements. inside: uint8 (count,).
        out: the array. threads: count * width. width: elements of a window.
        size1, size2: the window is (any, size1, size2). step0, step1, step2: elements of the array
            from one of each dimension to the next.
    """
    thread = cuda.grid(1)
    if thread >= threads:
        return
    row = thread // width
    if not inside[row]:
        return
    column = thread - row * width
    above = column // size2
    first = above // size1
    place = places[row] + (column - above * size2) * step2
    place += (above - first * size1) * step1 + first * step0
    for part in range(PARTS):
        atomic_add(out, PARTS * place + part, rows[PARTS * thread + part])


def clear(out, threads):
    """Set an array to zeros; a thread for each number."""
    thread = cuda.grid(1)
    if thread < threads:
        out[thread] = 0
