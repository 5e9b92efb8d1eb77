"""Plans for the exchange of rows: each device gets a range of the rows of a split dimension.

An array of ``size`` rows is split over k devices (memories, in the words of the partitioner). Each
has a shard of ``chunk = ceil(size / k)`` rows; rows of the last shards beyond ``size`` are
arbitrary. Afterwards each has a range of ``length`` rows of the whole array, in order:

    before: row j of device d is row d * chunk + j of the array
    after:  row p of device d is row starts[d] + p of the array, arbitrary if that is out of bounds

A range is cut at the borders of shards into transfers, and these are grouped into rounds. Each row
in bounds of a range belongs to one transfer, so it is requested once; rows that a device has itself
are in local rounds, which send nothing. All devices of a round send as many rows as its longest
transfer. The excess is harmless: it is also written to its own position, or is out of the range.

Tests: tests/compiler/test_row_exchange.py, tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.core.halo import Halo


@record
class Round:
    """Transfers that one ``ppermute`` does: a partial bijection of devices.

    Invariants: no device is twice a sender, or twice a receiver. Senders are receivers in all pairs
    or in none. ``0 <= firsts[d] <= chunk - count``: the rows that a device sends are in its shard.
    ``-count < positions[d] < length``: some of the received rows are in the range.

    Attributes:
        pairs: (sender, receiver). Equal in all of them: no rows are sent.
        count: rows that each sender sends.
        firsts: for each device the first row of its shard that it sends; 0 if it sends none.
        positions: for each device the position of the received rows in its range; None: it
            receives none.
    """

    pairs: tuple[tuple[int, int], ...]
    count: int
    firsts: tuple[int, ...]
    positions: tuple[int | None, ...]

    @property
    def is_local(self) -> bool:
        """Whether the rows are in the shard of the device that needs them."""
        return all(sender == receiver for sender, receiver in self.pairs)


@record
class Exchange:
    """How devices get ranges of rows.

    Attributes:
        starts: for each device the first row of its range; it may be out of bounds.
        length: rows of each range.
        size: rows of the whole array.
        chunk: rows of a shard, arbitrary ones at the end of the last shards included.
        rounds: together they write all rows in bounds of each range. Local rounds come first.
    """

    starts: tuple[int, ...]
    length: int
    size: int
    chunk: int
    rounds: tuple[Round, ...]

    @property
    def sent(self) -> int:
        """Rows that a device sends, at most."""
        return sum(step.count for step in self.rounds if not step.is_local)

    @property
    def fixed_positions(self) -> list[int] | None:
        """For each round the position of its rows; None if devices differ, or rows overlap."""
        by_round = [{p for p in step.positions if p is not None} for step in self.rounds]
        if any(len(positions) != 1 for positions in by_round):
            return None
        positions = [min(positions) for positions in by_round]
        ranges = sorted(
            (first, first + step.count) for first, step in zip(positions, self.rounds, strict=True)
        )
        overlap = any(end > first for (_, end), (first, _) in pairwise(ranges))
        return None if overlap else positions


def rows_of(
    halo: Halo, operand: int, dim: int, size: int, count: int
) -> tuple[tuple[int, ...], int]:
    """For each of ``count`` blocks the first row that it needs of an operand; rows of each.

    Args:
        halo: an op's; it must have rows of this operand along ``dim``.
        operand: the index of the operand.
        dim: the dimension of the result that is split into blocks.
        size: elements of a block along ``dim``.
        count: blocks.
    """
    blocks = [halo.rows(dim, k * size, size) for k in range(count)]
    rows = [block[operand] for block in blocks if block is not None]
    assert len(rows) == count and all(row is not None for row in rows), "the halo has the rows"
    return tuple(row[1] for row in rows), rows[0][2]  # type: ignore[index]


class _Transfer(NamedTuple):
    """Rows ``first`` to ``end`` of the whole array, all in the sender's shard."""

    shift: int  # receiver - sender; equal shifts fit into one round
    receiver: int
    sender: int
    first: int
    end: int


@lru_cache(1024)
def plan_exchange(starts: tuple[int, ...], length: int, size: int) -> Exchange:
    """Plan the exchange of ranges of rows of an array that is split evenly, or nearly.

    Ranges may overlap, exceed the array at both ends, and be in any order. Cost: quadratic in the
    number of transfers.

    Args:
        starts: for each device the first row of its range; at least one.
        length: rows of each range.
        size: rows of the array.
    """
    count = len(starts)
    chunk = -(-size // count)
    transfers: list[_Transfer] = []
    for receiver, start in enumerate(starts):
        first, end = max(start, 0), min(start + length, size)
        for sender in range(first // chunk, -(-end // chunk)) if first < end else ():
            bounds = max(first, sender * chunk), min(end, (sender + 1) * chunk)
            transfers.append(_Transfer(receiver - sender, receiver, sender, *bounds))
    groups: list[list[_Transfer]] = []
    for transfer in sorted(transfers, key=lambda transfer: (transfer.shift != 0, *transfer)):
        for group in groups:
            if _fits(transfer, group):
                group.append(transfer)
                break
        else:
            groups.append([transfer])
    rounds = tuple(_round(group, starts, chunk) for group in groups)
    return Exchange(starts, length, size, chunk, rounds)


def _fits(transfer: _Transfer, group: list[_Transfer]) -> bool:
    """Whether a group with this transfer remains a partial bijection, all local or none."""
    if (transfer.shift == 0) != (group[0].shift == 0):
        return False
    return all(transfer.receiver != t.receiver and transfer.sender != t.sender for t in group)


def _round(group: list[_Transfer], starts: tuple[int, ...], chunk: int) -> Round:
    """The round of a group: each sends as many rows as the longest transfer, from its shard."""
    rows = max(transfer.end - transfer.first for transfer in group)
    firsts: list[int] = [0] * len(starts)
    positions: list[int | None] = [None] * len(starts)
    for _, receiver, sender, first, _ in group:
        firsts[sender] = min(first - sender * chunk, chunk - rows)
        positions[receiver] = sender * chunk + firsts[sender] - starts[receiver]
    pairs = tuple((transfer.sender, transfer.receiver) for transfer in group)
    return Round(pairs, rows, tuple(firsts), tuple(positions))
