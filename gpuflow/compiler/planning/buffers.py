"""Arena planner: lifetimes of temporaries to offsets, by first fit of the largest first.

Tests: tests/runtime/test_memory_analysis.py, tests/compiler/test_symbolic_plans.py.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import ALIGNMENT
from gpuflow.core.aval import ShapedArray, storage_dtype


@record
class InterferenceGraph:
    """Which temporaries are alive at the same time. It has no sizes, so plans of a key share it.

    Attributes:
        buffers: ids of the temporaries, in order of first use.
        itemsizes: item size of each, in bytes.
        overlaps: for each a bit mask of the temporaries that are alive with it, itself included:
            bit k is ``buffers[k]``.
    """

    buffers: tuple[int, ...]
    itemsizes: tuple[int, ...]
    overlaps: tuple[int, ...]

    def offsets(self, shapes: Iterable[tuple[int, ...]]) -> tuple[Mapping[int, int], int]:
        """First-fit offsets, the largest buffers first, and the size of the arena.

        Args:
            shapes: the shape of each buffer, in the order of ``buffers``.

        Returns:
            The offset of each buffer, a multiple of ALIGNMENT, and the size of the arena; in bytes.
        """
        aligned_sizes = [
            -(-(prod(shape) * itemsize or 1) // ALIGNMENT) * ALIGNMENT
            for shape, itemsize in zip(shapes, self.itemsizes, strict=True)
        ]
        starts, arena_bytes = [0] * len(aligned_sizes), 0
        assigned: list[tuple[int, int, int]] = []  # (start, end, bit) of assigned buffers, by start
        largest_first = sorted(
            range(len(aligned_sizes)), key=aligned_sizes.__getitem__, reverse=True
        )
        for k in largest_first:
            size, overlapping = aligned_sizes[k], self.overlaps[k]
            start, end = 0, size
            for other_start, other_end, bit in assigned:
                if other_start >= end:
                    break
                if overlapping & bit and other_end > start:
                    start, end = other_end, other_end + size
            starts[k] = start
            insort(assigned, (start, end, 1 << k))
            if end > arena_bytes:
                arena_bytes = end
        return dict(zip(self.buffers, starts, strict=True)), arena_bytes


def interference_graph(
    steps: Sequence[Sequence[int]], aval_of: Callable[[int], ShapedArray]
) -> InterferenceGraph:
    """Liveness analysis of temporaries.

    Args:
        steps: for each step the temporaries that it uses.
        aval_of: the aval of a buffer.
    """
    lifetimes: dict[int, list[int]] = {}
    for position, temporaries in enumerate(steps):
        for buffer in temporaries:
            lifetimes.setdefault(buffer, [position, position])[1] = position
    # Bit masks: temporaries first used at or before a step, and those last used before it.
    started, ended = [0] * len(steps), [0] * (len(steps) + 1)
    for k, (first, last) in enumerate(lifetimes.values()):
        started[first] |= 1 << k
        ended[last + 1] |= 1 << k
    for position in range(1, len(steps)):
        started[position] |= started[position - 1]
        ended[position] |= ended[position - 1]
    overlaps = [started[last] & ~ended[first] for first, last in lifetimes.values()]
    itemsizes = tuple([storage_dtype(aval_of(buffer).dtype).itemsize for buffer in lifetimes])
    return InterferenceGraph(tuple(lifetimes), itemsizes, tuple(overlaps))
