"""Launches of radix select (kernels/selection.py); ``sorts`` uses it for the top k of long rows.

Tests: tests/kernels/test_kernel_top_k.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import gpuflow.kernels.radix_sort as sorting
import gpuflow.kernels.selection as kernels
from gpuflow.core.blocks import Scan
from gpuflow.targets.cuda.library.copy_launches import rows_grid
from gpuflow.targets.cuda.library.launch_sequence import (
    ArrayLocation,
    LaunchSequence,
    scalar_format,
)
from gpuflow.targets.cuda.library.prefix_scans import add_scan

_INDEX, _ORDER = "int64", "*uint32"
_DIGIT_BITS = 8
_DIGIT_VALUES = 1 << _DIGIT_BITS
_THREADS = 256
MIN_BITS = 16  # of keys; with a single digit, sorting is as fast


class RowShape(NamedTuple):
    """Shape of a row-major array (outer, length, inner), whose rows are along ``length``."""

    outer: int
    length: int
    inner: int

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return self.outer * self.inner


def add_selected(
    sequence: LaunchSequence,
    key: tuple[str, ArrayLocation],
    shape: RowShape,
    k: int,
    constants: dict[str, int],
) -> tuple[ArrayLocation, ArrayLocation]:
    """Add the launches that find the ``k`` smallest keys of each row.

    Args:
        sequence: receives the launches.
        key: type of a pointer to the keys, and their location.
        shape: shape of the keys.
        k: number of keys to select, from 1 to less than the length.
        constants: constants of radix_sort.py, for blocks of 256 threads.

    Returns:
        Locations of the codes of the keys (rows, k), and of their indices in their rows as uint32,
        both in the order of the rows.
    """
    count = shape.row_count
    bits, size = constants["BITS"], constants["STORAGE_BITS"] // 8
    key_pointer = f"*uint{8 * size}"
    tiles = -(-shape.length // constants["TILE"])
    shifts = range(bits - _DIGIT_BITS, -1, -_DIGIT_BITS)
    counts_of_rows = count * _DIGIT_VALUES  # of one digit
    # State before each digit, and after the last one: the prefix of the k-th least key, and the
    # count still to select.
    prefixes = sequence.memory((len(shifts) + 2) * count * size)
    remaining = sequence.memory((len(shifts) + 2) * count * 4)
    counts = sequence.memory((len(shifts) + 1) * 4 * counts_of_rows)
    sums = sequence.memory(8 * count * tiles)
    target, selected = sequence.memory(size * count * k), sequence.memory(4 * count * k)
    grid = rows_grid(tiles, count)
    sizes = [(_INDEX, count), (_INDEX, shape.length), (_INDEX, shape.inner)]

    def state(digit: int) -> list[tuple[str, ArrayLocation]]:
        return [
            (_ORDER, counts.plus(digit * 4 * counts_of_rows)),
            (key_pointer, prefixes.plus(digit * count * size)),
            (_ORDER, remaining.plus(digit * count * 4)),
        ]

    cleared_count = len(shifts) * counts_of_rows
    cleared = [(_ORDER, counts.plus(4 * counts_of_rows)), (_INDEX, cleared_count)]
    sequence.for_each(kernels.clear, cleared, cleared_count, {})
    for digit, shift in enumerate(shifts):
        digit_arguments = [(_INDEX, k), (_INDEX, shift)]
        sequence.launch(
            kernels.count_candidates,
            [key, *state(digit), *sizes, *digit_arguments],
            grid,
            _THREADS,
            {**constants, "FIRST": int(digit == 0)},
        )
    arguments = [key, *state(len(shifts)), (_ORDER, sums), *sizes]
    sequence.launch(kernels.count_selected, arguments, grid, _THREADS, constants)
    kind, pointer = scalar_format(np.dtype(np.uint32)) or (0, "")
    add_scan(sequence, Scan("add", count, 2 * tiles, 1, False), kind, pointer, sums, sums)
    final_state = state(len(shifts) + 1)[1:]
    outs = [(_ORDER, sums), (key_pointer, target), (_ORDER, selected)]
    sequence.launch(
        kernels.gather_selected,
        [key, *final_state, *outs, *sizes, (_INDEX, k)],
        grid,
        _THREADS,
        constants,
    )
    return target, selected


def prepared_key_constants(constants: dict[str, int]) -> dict[str, int]:
    """Constants of radix_sort.py for keys that are codes: unsigned integers in sorted order."""
    return {
        **constants,
        "KIND": sorting.CODES,
        "NAN_ABOVE": 0,
        "ORDERED": 1,
        "DESCENDING": 0,
        "TOTAL_ORDER": 0,
        "COMPONENTS": 1,
        "COMPONENT": 0,
    }
