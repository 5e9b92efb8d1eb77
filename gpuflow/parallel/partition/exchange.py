"""Exchange of rows: each memory gets a range of the rows of a dimension that is split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.core.aval import aval_of
from gpuflow.core.halo import Halo
from gpuflow.ops.collectives.ppermute import ppermute_p
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.comparison import bitwise_and, ge, lt
from gpuflow.ops.elementwise.select import select_n
from gpuflow.ops.indexing.dynamic_slices import dynamic_slice, dynamic_update_slice
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.zeros import full
from gpuflow.runtime.memories import Memories


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

    def __call__(
        self,
        x: Any,
        dim: int,
        is_split: bool,
        number: Any,
        names: Sequence[Any],
        fill: Any,
        memories: Memories,
    ) -> Any:
        """The range of a memory.

        Args:
            x: its shard, or the whole array.
            dim: the dimension of rows.
            is_split: whether ``x`` is a shard.
            number: of the memory along the mesh axis ``names``.
            names: one mesh axis.
            fill: a scalar for rows out of bounds; None: zero.
            memories: the memories of the mesh.
        """
        start = _at(self.starts, number)
        rows = (
            self._received(x, dim, number, names, memories)
            if is_split
            else self._local(x, dim, start)
        )
        if all(first >= 0 and first + self.length <= self.size for first in self.starts):
            return rows
        return where_rows(rows, dim, start, self.size, 0 if fill is None else fill)

    def _local(self, x: Any, dim: int, start: Any) -> Any:
        """The range of an array that each memory has whole; arbitrary rows out of bounds."""
        before = max(0, -min(self.starts))
        after = max(0, max(self.starts) + self.length - self.size)
        padded = concatenate([_zeros(x, dim, before), x, _zeros(x, dim, after)], dim)
        return _rows(padded, dim, add(start, np.int32(before)), self.length)

    def _received(
        self, x: Any, dim: int, number: Any, names: Sequence[Any], memories: Memories
    ) -> Any:
        """The range of an array that is split; arbitrary rows out of bounds."""
        received = []
        for one in self.rounds:
            rows = x
            if one.count < self.chunk:
                rows = _rows(x, dim, _at(one.firsts, number), one.count)
            if not one.is_local:
                rows = ppermute_p.bind(
                    rows,
                    perm=one.pairs,
                    axis_name=(memories.across(names[0]),),
                    sizes=(len(self.starts),),
                )
            received.append(rows)
        fixed = [{p for p in one.positions if p is not None} for one in self.rounds]
        if all(len(positions) == 1 for positions in fixed):
            firsts = [min(positions) for positions in fixed]
            ends = [first + one.count for first, one in zip(firsts, self.rounds, strict=True)]
            order = sorted(range(len(firsts)), key=lambda k: firsts[k])
            if all(ends[a] <= firsts[b] for a, b in pairwise(order)):
                return self._joined(dim, [(firsts[k], received[k]) for k in order], x)
        return self._placed(dim, received, number, x)

    def _joined(self, dim: int, ranges: Sequence[tuple[int, Any]], x: Any) -> Any:
        """Rows at positions that are the same in all memories, in order.

        A memory that does not receive some of them has no row in bounds there.
        """
        arrays, end = [], 0
        for first, rows in ranges:
            skipped = max(0, end - first)
            stop = min(aval_of(rows).shape[dim], self.length - first)
            if stop <= skipped:
                continue
            arrays.append(_zeros(x, dim, first + skipped - end))
            arrays.append(slice_in_dim(rows, skipped, stop, axis=dim))
            end = first + stop
        arrays.append(_zeros(x, dim, self.length - end))
        return concatenate([a for a in arrays if aval_of(a).shape[dim]], dim)

    def _placed(self, dim: int, received: Sequence[Any], number: Any, x: Any) -> Any:
        """Rows at other positions in each memory, written to a buffer with margins for excess."""
        margin = self.chunk
        buffer = _zeros(x, dim, self.length + 2 * margin)
        for one, rows in zip(self.rounds, received, strict=True):
            positions = tuple(-one.count if p is None else p for p in one.positions)
            starts: list[Any] = [np.int32(0)] * aval_of(x).ndim
            starts[dim] = add(_at(positions, number), np.int32(margin))
            buffer = dynamic_update_slice(buffer, rows, starts)
        return slice_in_dim(buffer, margin, margin + self.length, axis=dim)


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


def where_rows(x: Any, dim: int, start: Any, size: int, fill: Any) -> Any:
    """Replace the rows of ``x`` that are not rows 0 to ``size`` of the whole array.

    Args:
        x: rows from ``start`` on.
        dim: the dimension of rows.
        start: int32 number of the first row; it may be negative.
        size: rows of the whole array.
        fill: a scalar.
    """
    aval = aval_of(x)
    index = add(iota(np.int32, (aval.shape[dim],), 0), start)
    is_inside = bitwise_and(ge(index, np.int32(0)), lt(index, np.int32(size)))
    which = broadcast_in_dim(is_inside, aval.shape, (dim,))
    filling = fill if hasattr(fill, "aval") else np.asarray(fill, aval.dtype)
    return select_n(which, broadcast_in_dim(filling, aval.shape, ()), x)


def _at(table: Sequence[int], number: Any) -> Any:
    """The entry of a table for a memory, as int32."""
    steps = {b - a for a, b in pairwise(table)}
    if len(steps) <= 1:
        step = next(iter(steps), 0)
        return (
            np.int32(table[0])
            if step == 0
            else add(mul(number, np.int32(step)), np.int32(table[0]))
        )
    entry = dynamic_slice(np.array(table, np.int32), (number,), (1,))
    return slice_in_dim(entry, 0, 1, axis=0).reshape(())


def _rows(x: Any, dim: int, start: Any, count: int) -> Any:
    if isinstance(start, np.integer):
        return slice_in_dim(x, int(start), int(start) + count, axis=dim)
    sizes = list(aval_of(x).shape)
    starts: list[Any] = [np.int32(0)] * len(sizes)
    starts[dim], sizes[dim] = start, count
    return dynamic_slice(x, starts, sizes)


def _zeros(x: Any, dim: int, count: int) -> Any:
    aval = aval_of(x)
    return full((*aval.shape[:dim], count, *aval.shape[dim + 1 :]), 0, aval.dtype)
