"""Launches of radix select (kernels/selection.py); ``sorts`` uses it for the top k of long rows."""

from __future__ import annotations

import numpy as np

import gpuflow.kernels.radix_sort as sorting
import gpuflow.kernels.selection as kernels
from gpuflow.core.blocks import Scan
from gpuflow.targets.cuda.library.copy_forms import rows_grid
from gpuflow.targets.cuda.library.launch_sequence import At, LaunchSequence, number_kind
from gpuflow.targets.cuda.library.scans import add_scan

_INDEX, _ORDER = "int64", "*uint32"
_DIGIT = 8  # bits
_THREADS = 256
FEWEST_BITS = 16  # of keys; with a single digit, sorting is as fast


def add_selected(
    sequence: LaunchSequence,
    key: tuple[str, At],
    rows: tuple[int, int, int],
    k: int,
    constants: dict[str, int],
) -> tuple[At, At]:
    """Add the launches that find the ``k`` smallest keys of each row.

    Args:
        sequence: receives the launches.
        key: type of a pointer to the keys, and their location.
        rows: (outer, length, inner).
        k: number of keys to select, from 1 to less than the length.
        constants: constants of radix_sort.py, for blocks of 256 threads.

    Returns:
        Locations of the keys (rows, k), and of their indices in their rows as uint32, both in the
        order of the rows.
    """
    count, length, inner = rows[0] * rows[2], rows[1], rows[2]
    bits, size = constants["BITS"], constants["STORAGE_BITS"] // 8
    key_pointer = f"*uint{8 * size}"
    tiles = -(-length // constants["TILE"])
    shifts = range(bits - _DIGIT, -1, -_DIGIT)
    # State before each digit, and after the last one: the prefix of the k-th least key, and the
    # count still to select.
    prefixes = sequence.memory((len(shifts) + 2) * count * size)
    remaining = sequence.memory((len(shifts) + 2) * count * 4)
    counts = sequence.memory((len(shifts) + 1) * count * 1024)
    sums = sequence.memory(8 * count * tiles)
    target, selected = sequence.memory(size * count * k), sequence.memory(4 * count * k)
    grid = rows_grid(tiles, count)
    sizes = [(_INDEX, count), (_INDEX, length), (_INDEX, inner)]

    def state(digit: int) -> list[tuple[str, At]]:
        return [
            (_ORDER, counts.plus(digit * count * 1024)),
            (key_pointer, prefixes.plus(digit * count * size)),
            (_ORDER, remaining.plus(digit * count * 4)),
        ]

    every = len(shifts) * count * 256
    cleared = [(_ORDER, counts.plus(count * 1024)), (_INDEX, every)]
    sequence.for_each(kernels.clear, cleared, every, {})
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
    kind, pointer = number_kind(np.dtype(np.uint32)) or (0, "")
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
