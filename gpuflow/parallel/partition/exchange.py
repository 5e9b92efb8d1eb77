"""Exchange of rows in a program of one memory; compiler/row_exchange.py has the plans.

Tests: tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpuflow.compiler.row_exchange import Exchange
from gpuflow.core.aval import aval_of
from gpuflow.core.communicator import Across
from gpuflow.ops.collectives.ppermute import ppermute_p
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.comparison import bitwise_and, ge, lt
from gpuflow.ops.elementwise.select import select_n
from gpuflow.ops.indexing.dynamic_slices import dynamic_slice, dynamic_update_slice
from gpuflow.ops.layout.axes import broadcast_in_dim, squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.zeros import full
from gpuflow.parallel.partition.resharding import padded


def rows_of_memory(
    x: Any, dim: int, exchange: Exchange, number: Any, across: Across | None, fill: Any
) -> Any:
    """The range of rows of a memory.

    Args:
        x: its shard, or the whole array.
        dim: the dimension of rows.
        exchange: the ranges of all memories.
        number: int32 number of the memory along the mesh axis that splits them.
        across: that axis; None: ``x`` is whole, and nothing is sent.
        fill: a scalar for rows out of bounds.
    """
    start = _at(exchange.starts, number)
    if across is None:
        rows = _cut(x, dim, exchange, start)
    else:
        rows = _received(x, dim, exchange, number, across)
    if all(first >= 0 and first + exchange.length <= exchange.size for first in exchange.starts):
        return rows
    return where_rows(rows, dim, start, exchange.size, fill)


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
    in_bounds = bitwise_and(ge(index, np.int32(0)), lt(index, np.int32(size)))
    which = broadcast_in_dim(in_bounds, aval.shape, (dim,))
    filling = fill if hasattr(fill, "aval") else np.asarray(fill, aval.dtype)
    return select_n(which, broadcast_in_dim(filling, aval.shape, ()), x)


def _cut(x: Any, dim: int, exchange: Exchange, start: Any) -> Any:
    """The range of an array that each memory has whole; zeros out of bounds."""
    before = max(0, -min(exchange.starts))
    after = max(0, max(exchange.starts) + exchange.length - exchange.size)
    start = add(start, np.int32(before))
    return _slice(padded(x, dim, before, after), dim, start, exchange.length)


def _received(x: Any, dim: int, exchange: Exchange, number: Any, across: Across) -> Any:
    """The range of an array that is split; arbitrary rows out of bounds."""
    received = []
    for one in exchange.rounds:
        rows = x
        if one.count < exchange.chunk:
            rows = _slice(x, dim, _at(one.firsts, number), one.count)
        if not one.is_local:
            size = len(exchange.starts)
            rows = ppermute_p.bind(rows, perm=one.pairs, axis_name=(across,), sizes=(size,))
        received.append(rows)
    positions = exchange.fixed_positions
    if positions is None:
        return _written(x, dim, exchange, received, number)
    order = sorted(range(len(positions)), key=lambda k: positions[k])
    ranges = [(positions[k], received[k]) for k in order]
    return _joined(x, dim, exchange.length, ranges)


def _joined(x: Any, dim: int, length: int, ranges: Sequence[tuple[int, Any]]) -> Any:
    """Rows at positions that are the same in all memories, in order; zeros elsewhere.

    A memory that does not receive some of them has no row in bounds there.
    """
    arrays, end = [], 0
    for first, rows in ranges:
        begin, stop = max(0, -first), min(aval_of(rows).shape[dim], length - first)
        if begin < stop:
            arrays.append(_zeros(x, dim, first + begin - end))
            arrays.append(slice_in_dim(rows, begin, stop, axis=dim))
            end = first + stop
    arrays.append(_zeros(x, dim, length - end))
    return concatenate([array for array in arrays if aval_of(array).shape[dim]], dim)


def _written(x: Any, dim: int, exchange: Exchange, received: Sequence[Any], number: Any) -> Any:
    """Rows at other positions in each memory, written to a buffer with margins for excess."""
    margin = exchange.chunk
    buffer = _zeros(x, dim, exchange.length + 2 * margin)
    for one, rows in zip(exchange.rounds, received, strict=True):
        positions = tuple(-one.count if p is None else p for p in one.positions)
        starts: list[Any] = [np.int32(0)] * aval_of(x).ndim
        starts[dim] = add(_at(positions, number), np.int32(margin))
        buffer = dynamic_update_slice(buffer, rows, starts)
    return slice_in_dim(buffer, margin, margin + exchange.length, axis=dim)


def _at(table: Sequence[int], number: Any) -> Any:
    """The entry of a table for a memory, as int32."""
    first, steps = np.int32(table[0]), {b - a for a, b in pairwise(table)}
    if steps <= {0}:
        return first
    if len(steps) == 1:
        return add(mul(number, np.int32(steps.pop())), first)
    entry = dynamic_slice(np.array(table, np.int32), (number,), (1,))
    return squeeze(entry, (0,))


def _slice(x: Any, dim: int, start: Any, count: int) -> Any:
    if isinstance(start, np.integer):
        return slice_in_dim(x, int(start), int(start) + count, axis=dim)
    sizes = list(aval_of(x).shape)
    starts: list[Any] = [np.int32(0)] * len(sizes)
    starts[dim], sizes[dim] = start, count
    return dynamic_slice(x, starts, sizes)


def _zeros(x: Any, dim: int, count: int) -> Any:
    aval = aval_of(x)
    return full((*aval.shape[:dim], count, *aval.shape[dim + 1 :]), 0, aval.dtype)
