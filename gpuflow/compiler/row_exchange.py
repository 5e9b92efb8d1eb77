"""Plans for the exchange of rows: each device gets a range of the rows of a split dimension.

Tests: tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from itertools import pairwise

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.core.halo import Halo


@record
class Round:
    """A permutation of memories in which some send rows to others, each at most once.

    Attributes:
        pairs: (sender, receiver). Equal in all of them: no rows are sent.
        count: rows that each sender sends.
        firsts: for each memory the first row of its shard that it sends.
        positions: for each memory the position of the received rows in its range; None: it
            receives none.
    """

    pairs: tuple[tuple[int, int], ...]
    count: int
    firsts: tuple[int, ...]
    positions: tuple[int | None, ...]

    @property
    def is_local(self) -> bool:
        """Whether the rows are in the shard of the memory that needs them."""
        return all(sender == receiver for sender, receiver in self.pairs)


@record
class Exchange:
    """How memories get ranges of rows.

    Attributes:
        starts: for each memory the first row of its range; it may be out of bounds.
        length: of all ranges.
        size: rows of the whole array.
        chunk: rows of a shard, the last ones of the array excepted.
        rounds: the permutations, together all rows in bounds.
    """

    starts: tuple[int, ...]
    length: int
    size: int
    chunk: int
    rounds: tuple[Round, ...]

    @property
    def sent(self) -> int:
        """Rows that a memory sends, at most."""
        return sum(one.count for one in self.rounds if not one.is_local)

    @property
    def fixed_positions(self) -> list[int] | None:
        """For each round the position of its rows; None if memories differ, or rows overlap."""
        fixed = [{p for p in one.positions if p is not None} for one in self.rounds]
        if any(len(positions) != 1 for positions in fixed):
            return None
        positions = [min(positions) for positions in fixed]
        ranges = sorted(
            (first, first + one.count) for first, one in zip(positions, self.rounds, strict=True)
        )
        overlap = any(end > first for (_, end), (first, _) in pairwise(ranges))
        return None if overlap else positions


def rows_of(
    halo: Halo, operand: int, dim: int, size: int, count: int
) -> tuple[tuple[int, ...], int]:
    """For each of ``count`` blocks the first row that it needs of an operand; their number."""
    blocks = [halo.rows(dim, k * size, size) for k in range(count)]
    rows = [block[operand] for block in blocks if block is not None]
    assert len(rows) == count and all(row is not None for row in rows), "the halo has the rows"
    return tuple(row[1] for row in rows), rows[0][2]  # type: ignore[index]


@lru_cache(1024)
def plan_exchange(starts: tuple[int, ...], length: int, size: int) -> Exchange:
    """Plan the exchange of ranges of rows of an array that is split evenly, or nearly.

    Args:
        starts: for each memory the first row of its range.
        length: of all ranges.
        size: rows of the array.
    """
    count = len(starts)
    chunk = -(-size // count)
    edges = []  # (receiver - sender, receiver, sender, first row, end)
    for receiver, start in enumerate(starts):
        first, end = max(start, 0), min(start + length, size)
        for sender in range(first // chunk, -(-end // chunk)) if first < end else ():
            bounds = max(first, sender * chunk), min(end, (sender + 1) * chunk)
            edges.append((receiver - sender, receiver, sender, *bounds))
    groups: list[list[tuple[int, int, int, int, int]]] = []
    for edge in sorted(edges, key=lambda edge: (edge[0] != 0, *edge)):
        for group in groups:
            is_free = all(edge[1] != e[1] and edge[2] != e[2] for e in group)
            if is_free and (edge[0] == 0) == (group[0][0] == 0):
                group.append(edge)
                break
        else:
            groups.append([edge])
    rounds = []
    for group in groups:
        rows = max(end - first for *_, first, end in group)
        firsts, positions = [0] * count, [None] * count
        for _, receiver, sender, first, _ in group:
            firsts[sender] = min(first - sender * chunk, chunk - rows)
            positions[receiver] = sender * chunk + firsts[sender] - starts[receiver]  # type: ignore[call-overload]
        pairs = tuple((sender, receiver) for _, receiver, sender, _, _ in group)
        rounds.append(Round(pairs, rows, tuple(firsts), tuple(positions)))
    return Exchange(starts, length, size, chunk, tuple(rounds))
