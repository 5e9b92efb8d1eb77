"""``x.at[index].set(...)`` and its relatives: new arrays with some elements changed.

The values are padded to the array's place and chosen by a mask, so an update is elementwise and
fuses. Index arrays are supported along one axis for ``add``, and as scalars for all methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.numpy.index_plan import Plan, is_index_array, is_mask, plan_index
from gpuflow.numpy.indexing import getitem, slice_range, wrap_negative
from gpuflow.numpy.promotion import check_arraylike, convert, promote_args
from gpuflow.numpy.shaping import broadcast_to
from gpuflow.numpy.ufuncs import power
from gpuflow.ops.selection import where as select_where


class At:
    """``x.at``: index it, then call ``set``, ``add``, ``multiply``, ``min`` and so on."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: Any) -> IndexedUpdate:
        return IndexedUpdate(self.array, index)

    def __repr__(self) -> str:
        return f"At({self.array!r})"


@dataclass(frozen=True, eq=False)
class IndexedUpdate:
    """``x.at[index]``: every method returns a new array."""

    array: Any
    index: Any

    def set(self, values: Any) -> Any:
        """The array with ``values`` at the index."""
        return _update("set", self, values, lambda old, new: new)

    def add(self, values: Any) -> Any:
        """The array with ``values`` added at the index; repeated positions add up."""
        place = _single_index_array(self)
        if place is not None:
            return _scatter_add(self, values, *place)
        return _update("add", self, values, lax.add)

    def subtract(self, values: Any) -> Any:
        """The array with ``values`` subtracted at the index."""
        return self.add(lax.neg(values) if hasattr(values, "aval") else -values)

    def multiply(self, values: Any) -> Any:
        """The array with the elements at the index multiplied by ``values``."""
        return _update("multiply", self, values, lax.mul)

    mul = multiply

    def divide(self, values: Any) -> Any:
        """The array with the elements at the index divided by ``values``."""
        return _update("divide", self, values, lax.div)

    def power(self, values: Any) -> Any:
        """The array with the elements at the index raised to ``values``."""
        return _update("power", self, values, power)

    def min(self, values: Any) -> Any:
        """The array with the smaller of element and value at the index."""
        return _update("min", self, values, lax.min)

    def max(self, values: Any) -> Any:
        """The array with the larger of element and value at the index."""
        return _update("max", self, values, lax.max)

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """The array with ``function`` applied to the elements at the index."""
        return _update("apply", self, 0, lambda old, new: function(old))

    def get(self) -> Any:
        """The elements at the index, as ``x[index]``."""
        return getitem(self.array, self.index)


def _update(name: str, target: IndexedUpdate, values: Any, combine: Callable[..., Any]) -> Any:
    x = target.array
    check_arraylike(f"at.{name}", values)
    aval = aval_of(x)
    if is_mask(target.index) and not aval_of(values).ndim:
        return _update_mask(name, target, convert(values, aval.dtype), combine)
    plan = plan_index(target.index, aval.shape)
    _check_supported(name, plan)
    placed = _placed(plan, aval, _in_index_shape(target, plan, convert(values, aval.dtype)))
    mask = _mask(plan, aval.shape)
    changed = combine(x, placed) if mask is None else select_where(mask, combine(x, placed), x)
    return broadcast_to(convert(changed, aval.dtype), aval.shape)


def _update_mask(
    name: str, target: IndexedUpdate, value: Any, combine: Callable[..., Any]
) -> Any:
    """One value where a mask over the leading axes holds; the mask may be traced."""
    x, mask = target.array, target.index
    shape, own = aval_of(x).shape, aval_of(mask).shape
    check(
        shape[: len(own)] == own,
        lambda: (
            f"[at] the mask of .{name} must have the leading sizes of the array; got mask shape "
            f"{own} for shape {shape}. Fix: broadcast the mask."
        ),
        IndexError,
    )
    mask = lax.broadcast_in_dim(mask, own + (1,) * (len(shape) - len(own)), range(len(own)))
    return convert(select_where(mask, combine(x, value), x), aval_of(x).dtype)


def _check_supported(name: str, plan: Plan) -> None:
    arrays = [entry for entry in plan.axes if is_index_array(entry) and aval_of(entry).ndim]
    if arrays:
        raise NotImplementedError(
            f"[at] .{name} supports ints, slices and scalar index arrays; got an index array "
            f"{aval_of(arrays[0])}. Fix: jnp.where with a mask; .add takes one index array."
        )


def _in_index_shape(target: IndexedUpdate, plan: Plan, values: Any) -> Any:
    """The values, one axis for each axis of the array: size 1 where it has a single index."""
    shape, kept = [], []
    for d, (entry, size) in enumerate(zip(plan.axes, aval_of(target.array).shape, strict=True)):
        if isinstance(entry, slice):
            start, limit, step = slice_range(entry, size)
            shape.append(len(range(start, limit, abs(step))))
            kept.append(d)
    own = aval_of(values).shape
    extra = len(own) - len(shape)
    new_axes = len(plan.new_axes)
    if extra > 0 and own[:extra] == (1,) * extra and new_axes >= extra:
        values = lax.squeeze(values, tuple(range(extra)))
    values = broadcast_to(values, shape) if aval_of(values).ndim else values
    if not aval_of(values).ndim:
        return values
    full = [1] * aval_of(target.array).ndim
    for d, size in zip(kept, shape, strict=True):
        full[d] = size
    flipped = [
        k for k, d in enumerate(kept) if plan.axes[d].step is not None and plan.axes[d].step < 0
    ]
    return lax.broadcast_in_dim(lax.rev(values, flipped), full, kept)


def _placed(plan: Plan, aval: Any, values: Any) -> Any:
    """The values at the array's positions; what lies outside the index is never used."""
    if not aval_of(values).ndim:
        return values
    config = []
    for entry, size in zip(plan.axes, aval.shape, strict=True):
        if not isinstance(entry, slice):
            config.append((0, 0, 0))
            continue
        start, limit, step = slice_range(entry, size)
        count = len(range(start, limit, abs(step)))
        spanned = (count - 1) * abs(step) + 1 if count else 0
        config.append((start, size - start - spanned, abs(step) - 1))
    if all(edges == (0, 0, 0) for edges in config):
        return values
    return lax.pad(values, convert(0, aval.dtype), config)


def _mask(plan: Plan, shape: tuple[int, ...]) -> Any:
    """Where the index points: a bool array that broadcasts with the array, None for everywhere."""
    mask: Any = None
    for d, (entry, size) in enumerate(zip(plan.axes, shape, strict=True)):
        part = _axis_mask(entry, size, d, len(shape))
        if part is not None:
            mask = part if mask is None else lax.bitwise_and(mask, part)
    return mask


def _axis_mask(entry: Any, size: int, d: int, rank: int) -> Any:
    positions = lax.iota(np.int32, [size if k == d else 1 for k in range(rank)], d)
    if isinstance(entry, int):
        return lax.eq(positions, np.int32(entry + size if entry < 0 else entry))
    if is_index_array(entry):
        index = convert(wrap_negative(entry, size), np.dtype(np.int32))
        return lax.eq(positions, index)
    start, limit, step = slice_range(entry, size)
    step = abs(step)
    if (start, limit, step) == (0, size, 1):
        return None
    mask = lax.lt(positions, np.int32(limit))
    if start:
        mask = lax.bitwise_and(mask, lax.ge(positions, np.int32(start)))
    if step != 1:
        offset = lax.rem(lax.sub(positions, np.int32(start)), np.int32(step))
        mask = lax.bitwise_and(mask, lax.eq(offset, np.int32(0)))
    return mask


def _single_index_array(target: IndexedUpdate) -> tuple[int, Any] | None:
    """The axis and array of an index with one index array and otherwise whole axes."""
    shape = aval_of(target.array).shape
    plan = plan_index(target.index, shape)
    arrays = [d for d, e in enumerate(plan.axes) if is_index_array(e) and aval_of(e).ndim]
    others = [e for d, e in enumerate(plan.axes) if d not in arrays]
    whole = all(isinstance(e, slice) and e == slice(None) for e in others)
    if len(arrays) != 1 or not whole or plan.new_axes:
        return None
    return arrays[0], plan.axes[arrays[0]]


def _scatter_add(target: IndexedUpdate, values: Any, axis: int, indices: Any) -> Any:
    x = target.array
    check_arraylike("at.add", values)
    shape = aval_of(x).shape
    order = [axis, *[d for d in range(len(shape)) if d != axis]]
    front = lax.transpose(x, order)
    rows_shape = (*aval_of(indices).shape, *[shape[d] for d in order[1:]])
    count = aval_of(indices).ndim
    wanted = (*shape[:axis], *aval_of(indices).shape, *shape[axis + 1 :])
    values = broadcast_to(convert(values, aval_of(x).dtype), wanted)
    lead = list(range(axis, axis + count))
    rows = lax.transpose(values, [*lead, *[d for d in range(len(wanted)) if d not in lead]])
    assert aval_of(rows).shape == rows_shape
    added = lax.row_scatter_add(
        rows, wrap_negative(indices, shape[axis]), aval_of(front).shape, "zero"
    )
    total = lax.add(*promote_args("at.add", front, added))
    return lax.transpose(total, [order.index(d) for d in range(len(shape))])
