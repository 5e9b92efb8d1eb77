"""Scatter-add of rows by atomic additions: one launch, in no fixed order.

Contract: float32, float64, or integers of 32 or 64 bits; complex arrays are pairs of floats.
Windows have at most three dimensions, after merging contiguous ones. Offsets are in bounds.
Sums of floats differ in their last bits from run to run, and float32 numbers that are subnormal may
count as zeros; sums of integers are exact.
Launch: a thread for each element of ``rows``; neighboring threads have neighbors.
Reads each row once; adds are made where the memory is cached.

Tests: tests/kernels/test_kernel_atomic_sums.py.
"""

from __future__ import annotations

from gpuflow.kernels.language import atomic_add, cuda

# Given for each build.
COMPONENTS = 1  # scalars of an element


def add_rows(
    rows, offsets, inside, out, threads, width, size1, size2, step0, step1, step2
):  # fmt: skip
    """out[offset of row + offset in window] += row, for rows that are in bounds.

    Args:
        rows: (count, width). offsets: int64 (count,), elements. inside: uint8 (count,).
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
    offset = offsets[row] + (column - above * size2) * step2
    offset += (above - first * size1) * step1 + first * step0
    for component in range(COMPONENTS):
        atomic_add(out, COMPONENTS * offset + component, rows[COMPONENTS * thread + component])


def clear(out, threads):
    """Set an array to zeros; a thread for each scalar."""
    thread = cuda.grid(1)
    if thread < threads:
        out[thread] = 0
