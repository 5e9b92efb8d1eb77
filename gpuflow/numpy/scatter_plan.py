"""Conversion of an index to dimension numbers of a gather or scatter.

Whole axes are windows. Everything else (index arrays, ints, other slices) becomes components of
index vectors; a slice is an index array along a separate axis.

Tests: tests/numpy/test_numpy_indexing.py, tests/ops/test_scatter_shares.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.core.aval import aval_of
from gpuflow.numpy.index_plan import Plan, is_index_array, wrap_negative
from gpuflow.numpy.promotion import broadcast_shapes, convert
from gpuflow.numpy.shaping import broadcast_to


@record
class ScatterPlan:
    """Index vectors and dimension numbers of ``x[index]``.

    Attributes:
        indices: index vectors, of shape ``batch + (n,)``.
        indexed: the axis of each component of an index vector.
        windows: the axes of ``x`` that are whole.
        offsets: the positions of those in ``x[index]``, without new axes.
        shape: of ``x[index]`` without new axes.
        full_shape: with them.
        new_axes: the positions of the new axes in ``full_shape``.
    """

    indices: Any
    indexed: tuple[int, ...]
    windows: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    full_shape: tuple[int, ...]
    new_axes: tuple[int, ...]


def scatter_plan(plan: Plan, shape: tuple[int, ...], wrap: bool = True) -> ScatterPlan:
    """Parse an index for an array of ``shape``.

    Args:
        wrap: whether negative ints and elements of index arrays count from the end.
    """
    arrays = [d for d, entry in enumerate(plan.axes) if is_index_array(entry)]
    # With index arrays, ints are index arrays too.
    advanced = [d for d, e in enumerate(plan.axes) if not isinstance(e, slice)] if arrays else []
    entries = {d: wrap_negative(plan.axes[d], shape[d]) if wrap else plan.axes[d] for d in arrays}
    common = broadcast_shapes(*[aval_of(e).shape for e in entries.values()], name="index")
    layout, new_axes = _layout(plan, advanced, len(common))
    batch = [item for item in layout if item[0] != "axis" or not _is_whole(plan, item[1], shape)]
    sizes = {item: _size(plan, shape, item, common) for item in layout}
    batch_shape = tuple(sizes[item] for item in batch)
    indexed = [d for d in range(len(shape)) if not _is_whole(plan, d, shape)]
    dtype = _index_dtype(entries, shape)
    columns = []
    for d in indexed:
        entry = plan.axes[d]
        if isinstance(entry, slice):
            dims = [batch.index(("axis", d))]
            values = np.arange(*entry.indices(shape[d])).astype(dtype)
        elif d in entries:
            rank = aval_of(entries[d]).ndim
            first = len(common) - rank
            dims = [batch.index(("array", first + k)) for k in range(rank)]
            values = convert(entries[d], dtype)
        else:
            dims = []
            values = np.asarray(entry + shape[d] if wrap and entry < 0 else entry, dtype)
        columns.append(_column(values, dims, batch_shape))
    if columns:
        indices = lax.concatenate(columns, len(batch_shape))
    else:
        indices = np.zeros((*batch_shape, 0), dtype)
    offsets = tuple(k for k, item in enumerate(layout) if item not in batch)
    inner = tuple(sizes[item] for item in layout)
    full = list(inner)
    for position in new_axes:
        full.insert(position, 1)
    windows = tuple(d for d in range(len(shape)) if d not in indexed)
    return ScatterPlan(
        indices, tuple(indexed), windows, offsets, inner, tuple(full), tuple(new_axes)
    )


Item = tuple[str, int]


def _layout(plan: Plan, advanced: list[int], rank: int) -> tuple[list[Item], list[int]]:
    """Source of each axis of ``x[index]``: an axis of x, of the index arrays, or a new axis."""
    arrays = [("array", k) for k in range(rank)]
    entries: list[tuple[int, bool, Item]] = []
    for d, entry in enumerate(plan.axes):
        if isinstance(entry, slice):
            entries.append((d, False, ("axis", d)))
    first = plan.anchor(advanced) if advanced else None
    anchor = -1 if first is None else first
    order: list[tuple[float, Item]] = [(d, item) for d, _, item in entries]
    order += [(anchor + k / (rank + 1), item) for k, item in enumerate(arrays)]
    order += [(position - 0.5, ("new", k)) for k, position in enumerate(plan.new_axes)]
    order.sort(key=lambda pair: pair[0])
    items = [item for _, item in order]
    new_axes = [k for k, item in enumerate(items) if item[0] == "new"]
    return [item for item in items if item[0] != "new"], new_axes


def _is_whole(plan: Plan, d: int, shape: tuple[int, ...]) -> bool:
    entry = plan.axes[d]
    return isinstance(entry, slice) and entry.indices(shape[d]) == (0, shape[d], 1)


def _size(plan: Plan, shape: tuple[int, ...], item: Item, common: tuple[int, ...]) -> int:
    kind, element = item
    if kind == "array":
        return common[element]
    return len(range(*plan.axes[element].indices(shape[element])))


def _index_dtype(entries: dict[int, Any], shape: tuple[int, ...]) -> Any:
    """int32, unless an index or a size is wider."""
    if any(aval_of(e).dtype.itemsize == 8 for e in entries.values()):
        return dtypes.canonicalize(np.int64)
    return dtypes.index_dtype(max(shape, default=0))


def _column(values: Any, dims: list[int], batch_shape: tuple[int, ...]) -> Any:
    """One component of all index vectors, of shape ``batch + (1,)``."""
    column_shape = [1] * (len(batch_shape) + 1)
    for dim, size in zip(dims, aval_of(values).shape, strict=True):
        column_shape[dim] = size
    return broadcast_to(lax.broadcast_in_dim(values, column_shape, dims), (*batch_shape, 1))
