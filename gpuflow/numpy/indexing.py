"""Indexing: ``x[...]``.

Static indices (ints, slices, None, Ellipsis) become slice, rev, squeeze and broadcast_in_dim.
One index array becomes a gather of rows, several become a general gather.

Out-of-bounds indices read the nearest element. As in JAX, elements read out of bounds by an index
array of rank 1 or more get no gradient; a window at scalar indices does.

Tests: tests/numpy/test_numpy_indexing.py, tests/numpy/test_placed_slices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuflow import lax
from gpuflow.base.caches import lru_cache
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.aval import aval_of
from gpuflow.core.primitive import Primitive
from gpuflow.core.types import Array, IndexLike
from gpuflow.numpy.bounds import note_index
from gpuflow.numpy.index_plan import (
    Plan,
    axes_used,
    is_index_array,
    plan_index,
    without_bools,
    wrap_negative,
)
from gpuflow.numpy.placed_slices import has_slices, in_window, window_of
from gpuflow.numpy.scatter_plan import scatter_plan
from gpuflow.numpy.shaping import moveaxis
from gpuflow.ops.layout.axes import broadcast_in_dim_p, squeeze_p
from gpuflow.ops.layout.rev import rev_p
from gpuflow.ops.layout.slicing import slice_p


def getitem(x: Any, index: IndexLike) -> Array:
    """``x[index]``; out-of-bounds indices read the nearest element."""
    if config.may_check:
        note_index(aval_of(x).shape, index)
    key = _static_key(index)
    if key is not None:
        for primitive, params in _static_steps(key, aval_of(x).shape):
            x = primitive.bind(x, **params)
        return x
    if has_slices(index):
        starts, sizes = window_of(index, aval_of(x).shape, axes_used)
        return getitem(lax.dynamic_slice(x, starts, sizes), in_window(index))
    index, bool_axes = without_bools(index, aval_of(x).ndim)
    x = lax.expand_dims(x, bool_axes) if bool_axes else x
    plan = plan_index(index, aval_of(x).shape)
    arrays = [d for d, entry in enumerate(plan.axes) if is_index_array(entry)]
    mode = "clip" if _is_window(plan) else "promise_in_bounds"
    if len(arrays) > 1 or (arrays and _has_out_of_bounds_int(plan, aval_of(x).shape)):
        return gathered(x, plan, True, mode)
    cut = _cut(plan, aval_of(x).shape)
    for primitive, params in _cutting_steps(cut, aval_of(x).shape):
        x = primitive.bind(x, **params)
    if arrays:
        return _new_axes_after_gather(_rows(x, plan, arrays[0], cut.dropped, mode), plan)
    return _insert_new_axes(lax.squeeze(x, cut.dropped), plan)


# --- static indices ------------------------------------------------------------------------

Step = tuple[Primitive, dict[str, Any]]
_INDEX_LIMIT = 2**31


def _static_key(index: Any) -> tuple[Any, ...] | None:
    """A hashable form of an index of ints, slices of ints, None and Ellipsis; None for others."""
    entries = index if type(index) is tuple else (index,)
    key = []
    for entry in entries:
        if type(entry) is slice:
            entry = (entry.start, entry.stop, entry.step)
            for bound in entry:
                if type(bound) is not int and bound is not None:
                    return None
        elif type(entry) is not int and entry is not None and entry is not Ellipsis:
            return None
        key.append(entry)
    return tuple(key)


@lru_cache(4096)
def _static_steps(key: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Step, ...]:
    """The ops of a static index, for an array of ``shape``."""
    index = tuple(slice(*entry) if type(entry) is tuple else entry for entry in key)
    plan = plan_index(index, shape)
    cut = _cut(plan, shape)
    steps = _cutting_steps(cut, shape)
    if cut.dropped:
        steps.append((squeeze_p, {"dimensions": tuple(cut.dropped)}))
    if plan.new_axes:
        steps.append((broadcast_in_dim_p, _new_axes(plan, cut.remaining_shape())))
    return tuple(steps)


@record
class _Cut:
    """The slices and ints of each axis.

    Attributes:
        bounds: start, limit and step, which is positive.
        reversed: axes that are then reversed.
        dropped: axes indexed by ints, which have one element.
    """

    bounds: tuple[tuple[int, int, int], ...]
    reversed: tuple[int, ...]
    dropped: tuple[int, ...]

    def remaining_shape(self) -> list[int]:
        """Sizes of the remaining axes."""
        return [
            len(range(*bounds)) for d, bounds in enumerate(self.bounds) if d not in self.dropped
        ]


def _cut(plan: Plan, shape: tuple[int, ...]) -> _Cut:
    bounds, reversed_axes, dropped = [], [], []
    for d, (entry, size) in enumerate(zip(plan.axes, shape, strict=True)):
        start, limit, step = 0, size, 1
        if isinstance(entry, slice):
            start, limit, step = slice_range(entry, size)
            if step < 0:
                reversed_axes.append(d)
                step = -step
        elif isinstance(entry, int):
            start = _clipped_position(entry, size)
            limit = start + 1
            dropped.append(d)
        bounds.append((start, limit, step))
    return _Cut(tuple(bounds), tuple(reversed_axes), tuple(dropped))


def _cutting_steps(cut: _Cut, shape: tuple[int, ...]) -> list[Step]:
    """Slices and reversals."""
    steps: list[Step] = []
    if any(bounds != (0, size, 1) for bounds, size in zip(cut.bounds, shape, strict=True)):
        starts, limits, strides = zip(*cut.bounds, strict=True)
        params = {
            "start_indices": starts,
            "limit_indices": limits,
            "strides": None if set(strides) == {1} else strides,
        }
        steps.append((slice_p, params))
    if cut.reversed:
        steps.append((rev_p, {"dimensions": cut.reversed}))
    return steps


def slice_range(entry: slice, size: int) -> tuple[int, int, int]:
    """Start, limit and step of a slice; for a negative step, those of the reversed range."""
    check(
        entry.step != 0,
        lambda: f"[index] the step of a slice must not be 0; got {entry}. Fix: x[::1].",
        ValueError,
    )
    start, stop, step = entry.indices(size)
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1
    if step > 0:
        return start, min(stop, size), step
    last = start + (count - 1) * step
    return last, start + 1, step


def _clipped_position(entry: int, size: int) -> int:
    check(
        size > 0,
        lambda: f"[index] an empty axis has no elements; got index {entry}. Fix: check the shape.",
        IndexError,
    )
    check(
        -_INDEX_LIMIT <= entry < _INDEX_LIMIT or -size <= entry < size,
        lambda: (
            f"[index] an index must fit into int32, or into the axis; got {entry} for size "
            f"{size}. Fix: x[-1] for the last element."
        ),
        OverflowError,
    )
    return min(max(entry + size if entry < 0 else entry, 0), size - 1)


def _is_window(plan: Plan) -> bool:
    """Whether the index is one window: only scalars and slices without steps."""
    return all(
        entry.step in (None, 1, -1) if isinstance(entry, slice) else aval_of(entry).ndim == 0
        for entry in plan.axes
    )


def _has_out_of_bounds_int(plan: Plan, shape: tuple[int, ...]) -> bool:
    return any(
        isinstance(entry, int) and not -size <= entry < size
        for entry, size in zip(plan.axes, shape, strict=True)
    )


def _insert_new_axes(x: Any, plan: Plan) -> Any:
    if not plan.new_axes:
        return x
    return broadcast_in_dim_p.bind(x, **_new_axes(plan, aval_of(x).shape))


def _new_axes(plan: Plan, shape: Sequence[int]) -> dict[str, Any]:
    """The params of broadcast_in_dim that inserts the axes of None into the remaining ones."""
    sliced = [d for d, entry in enumerate(plan.axes) if isinstance(entry, slice)]
    order: list[tuple[int, int, bool]] = [(d, 1, False) for d in sliced]
    order += [(position, 0, True) for position in plan.new_axes]
    order.sort()
    sizes = iter(shape)
    full = tuple(1 if is_new else next(sizes) for _, _, is_new in order)
    old = tuple(k for k, (_, _, is_new) in enumerate(order) if not is_new)
    return {"shape": full, "broadcast_dimensions": old}


def _rows(x: Any, plan: Plan, axis: int, dropped: Sequence[int], mode: str) -> Any:
    """Row gather for the only index array, at ``axis``; ints are already sliced."""
    index = wrap_negative(plan.axes[axis], aval_of(x).shape[axis])
    advanced = sorted([axis, *dropped])
    others = [d for d in range(aval_of(x).ndim) if d not in advanced]
    x = lax.transpose(x, [axis, *dropped, *others])
    x = lax.squeeze(x, tuple(range(1, len(advanced))))
    out = lax.row_gather(x, index, mode)
    rank = aval_of(index).ndim
    return moveaxis(out, tuple(range(rank)), _destination(plan, advanced, rank))


def gathered(
    x: Any,
    plan: Plan,
    wrap: bool,
    mode: Any,
    fill_value: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Any:
    """``x`` at any index, by one gather of all index arrays and ints; slices are applied before.

    Args:
        wrap: whether negative ints and elements of index arrays count from the end.
        mode, fill_value, indices_are_sorted, unique_indices: as for ``lax.gather``.
    """
    slices = [entry if isinstance(entry, slice) else slice(None) for entry in plan.axes]
    cut = _cut(replace(plan, axes=tuple(slices)), aval_of(x).shape)
    for primitive, params in _cutting_steps(cut, aval_of(x).shape):
        x = primitive.bind(x, **params)
    axes = [slice(None) if isinstance(entry, slice) else entry for entry in plan.axes]
    shape = aval_of(x).shape
    layout = scatter_plan(replace(plan, axes=tuple(axes)), shape, wrap)
    dimension_numbers = lax.GatherDimensionNumbers(layout.offsets, layout.indexed, layout.indexed)
    sizes = [shape[d] if d in layout.windows else min(shape[d], 1) for d in range(len(shape))]
    out = lax.gather(
        x,
        layout.indices,
        dimension_numbers,
        sizes,
        mode=mode,
        fill_value=fill_value,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
    )
    remaining = [k for k in range(len(layout.full_shape)) if k not in layout.new_axes]
    return lax.broadcast_in_dim(out, layout.full_shape, remaining)


def _destination(plan: Plan, advanced: Sequence[int], rank: int) -> tuple[int, ...]:
    """Output position of the index arrays' axes: their own if adjacent, else 0."""
    start = plan.anchor(advanced) or 0
    return tuple(range(start, start + rank))


def _new_axes_after_gather(x: Any, plan: Plan) -> Any:
    if not plan.new_axes:
        return x
    advanced = [d for d, e in enumerate(plan.axes) if not isinstance(e, slice)]
    first = plan.anchor(advanced)
    slices = [d for d, e in enumerate(plan.axes) if isinstance(e, slice)]
    added = aval_of(x).ndim - len(slices)
    # Each output axis: (position among the entries, is it new).
    order: list[tuple[float, bool]] = [(float(d), False) for d in slices]
    anchor = -1.0 if first is None else float(first)
    order += [(anchor + k / (added + 1), False) for k in range(added)]
    order += [(position - 0.5, True) for position in plan.new_axes]
    order.sort()
    sizes = iter(aval_of(x).shape)
    shape = [1 if is_new else next(sizes) for _, is_new in order]
    return lax.broadcast_in_dim(x, shape, [k for k, (_, is_new) in enumerate(order) if not is_new])
