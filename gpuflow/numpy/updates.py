"""``x.at[...]``: functional updates, which return new arrays.

Ints, slices and masks become a select for each element, which fuses with its neighbors; index
arrays become a scatter. Out-of-bounds indices are dropped.

Tests: tests/numpy/test_numpy_indexing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import NonConcreteBooleanIndexError, check
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike, IndexLike, ModeLike, ShardingLike
from gpuflow.numpy.bounds import note_index
from gpuflow.numpy.filled import ones_like
from gpuflow.numpy.index_plan import (
    Plan,
    axes_used,
    is_index_array,
    is_mask,
    plan_index,
    without_bools,
    wrap_negative,
)
from gpuflow.numpy.indexing import gathered, getitem, slice_range
from gpuflow.numpy.placed_slices import has_slices, in_window, window_of
from gpuflow.numpy.promotion import check_arraylike, common_type, convert
from gpuflow.numpy.scatter_plan import scatter_plan
from gpuflow.numpy.shaping import broadcast_to
from gpuflow.numpy.ufuncs import power, true_divide
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.select import where as select_where

Scatter = Callable[..., Any]


class At:
    """``x.at``: index it, then call ``set``, ``add``, ``multiply``, ``min`` and so on."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: IndexLike) -> IndexedUpdate:
        return IndexedUpdate(self.array, index)

    def __repr__(self) -> str:
        return f"At({self.array!r})"


@record
class Promises:
    """Keyword arguments of every update.

    Attributes:
        indices_are_sorted: index vectors increase.
        unique_indices: no element is updated twice.
        mode: ``"drop"`` (or ``"fill"``, None) drops out-of-bounds indices; ``"clip"`` clamps them;
            ``"promise_in_bounds"``: there are none.
        wrap_negative_indices: whether negative indices count from the end.
        out_sharding: a NamedSharding or PartitionSpec of the result.
    """

    indices_are_sorted: bool = False
    unique_indices: bool = False
    mode: Any = None
    wrap_negative_indices: bool = True
    out_sharding: Any = None

    @property
    def drops(self) -> bool:
        return lax.GatherScatterMode.from_any(self.mode) is lax.GatherScatterMode.FILL_OR_DROP

    @property
    def params(self) -> dict[str, Any]:
        return {
            "indices_are_sorted": self.indices_are_sorted,
            "unique_indices": self.unique_indices,
            "mode": self.mode,
        }


@record(eq=False)
class IndexedUpdate:
    """``x.at[index]``: every method returns a new array of the shape and dtype of ``x``.

    Values broadcast to the shape of ``x[index]``. The combination with elements is computed in the
    common dtype, and its results are converted. See ``Promises`` for the keyword arguments.
    """

    array: Any
    index: Any

    def set(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with ``values`` at the index; for repeated indices, the last value counts."""
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        return _update("set", self, values, lambda old, new: new, lax.scatter, how)

    def add(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with ``values`` added at the index; repeated indices add up."""
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        return _combine("add", self, values, lax.add, lax.scatter_add, how)

    def subtract(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with ``values`` subtracted at the index; repeated indices add up."""
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        return _combine("subtract", self, values, lax.sub, lax.scatter_sub, how)

    def multiply(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with the elements at the index multiplied by ``values``, repeatedly so."""
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        return _combine("multiply", self, values, lax.mul, lax.scatter_mul, how)

    mul = multiply

    def divide(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with the elements at the index divided by ``values``, repeatedly so.

        Of integers the result holds floats.
        """
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        if _changes_dtype("divide", self, values):
            return true_divide(self.array, _product_at("divide", self, values, how))
        return _update("divide", self, values, lax.div, _by_product(lax.div), how, guarded=True)

    def power(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with the elements at the index raised to ``values``, repeatedly so.

        Of bools the result holds integers.
        """
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        if _changes_dtype("power", self, values):
            return power(self.array, _product_at("power", self, values, how))
        return _update("power", self, values, power, _by_product(power), how, guarded=True)

    def min(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with the smaller of element and value at the index."""
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        return _combine("min", self, values, lax.min, lax.scatter_min, how)

    def max(
        self,
        values: ArrayLike,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with the larger of element and value at the index."""
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        return _combine("max", self, values, lax.max, lax.scatter_max, how)

    def apply(
        self,
        func: Callable[[Array], ArrayLike],
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The array with ``func`` applied to the elements at the index, repeatedly so.

        Reverse-mode derivatives need ``unique_indices`` where an index array is traced.
        """
        how = Promises(
            indices_are_sorted, unique_indices, mode, wrap_negative_indices, out_sharding
        )
        combine, scatter = (lambda old, new: func(old)), _repeated(func)
        return _update("apply", self, 0, combine, scatter, how, guarded=True)

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: ModeLike = None,
        fill_value: ArrayLike | None = None,
        out_sharding: ShardingLike = None,
        wrap_negative_indices: bool = True,
    ) -> Array:
        """The elements at the index.

        Args:
            mode: ``"clip"``: out-of-bounds indices read the nearest element; None and
                ``"promise_in_bounds"``: the same, without a gradient; ``"fill"`` (or ``"drop"``):
                they read ``fill_value``.
            fill_value: None: nan, the least signed or the largest unsigned integer, True.
        """
        if mode is None and wrap_negative_indices:
            return in_sharding("at.get", getitem(self.array, self.index), out_sharding)
        how = Promises(
            indices_are_sorted, unique_indices, mode or "promise_in_bounds", wrap_negative_indices
        )
        return in_sharding("at.get", _get(self, how, fill_value), out_sharding)


def _get(target: IndexedUpdate, how: Promises, fill_value: Any) -> Any:
    x = target.array
    if has_slices(target.index):
        starts, sizes = window_of(target.index, aval_of(x).shape, axes_used)
        window = IndexedUpdate(lax.dynamic_slice(x, starts, sizes), in_window(target.index))
        return _get(window, how, fill_value)
    index, bool_axes = without_bools(target.index, aval_of(x).ndim)
    x = lax.expand_dims(x, bool_axes) if bool_axes else x
    plan = plan_index(index, aval_of(x).shape)
    return gathered(x, plan, how.wrap_negative_indices, fill_value=fill_value, **how.params)


def _wide_dtype(name: str, target: IndexedUpdate, values: Any) -> Any:
    """The common dtype of array and values; None if it is the array's."""
    (values,) = check_arraylike(f"at.{name}", values)
    array_aval = aval_of(target.array)
    wide = common_type([array_aval, aval_of(values)])[0]
    return None if wide == array_aval.dtype else wide


def _changes_dtype(name: str, target: IndexedUpdate, values: Any) -> bool:
    """Whether elements must be converted before they are divided or raised."""
    is_inexact = dtypes.is_inexact(aval_of(target.array).dtype)
    return not is_inexact or _wide_dtype(name, target, values) is not None


def _combine(
    name: str,
    target: IndexedUpdate,
    values: Any,
    combine: Callable[..., Any],
    scatter: Scatter,
    how: Promises,
) -> Any:
    """``_update`` that computes in the common dtype; the result has the array's dtype."""
    wide = _wide_dtype(name, target, values)
    if wide is None:
        return _update(name, target, values, combine, scatter, how)
    aval = aval_of(target.array)
    _warn_of_loss(name, aval, values)
    widened = replace(target, array=lax.convert_element_type(target.array, wide))
    out = _update(name, widened, values, combine, scatter, how)
    return lax.convert_element_type(out, aval.dtype, aval.weak_type)


def _update(
    name: str,
    target: IndexedUpdate,
    values: Any,
    combine: Callable[..., Any],
    scatter: Scatter,
    how: Promises,
    guarded: bool = False,
) -> Any:
    """Combine values with the elements at an index.

    Args:
        name, target, values, how: of the method.
        combine: ``(elements, values) -> elements``, for indices without index arrays.
        scatter: the same for index arrays.
        guarded: ``combine`` gets ones outside of the index, as it may have no derivatives there.
    """
    out = _updated(name, target, values, combine, scatter, how, guarded)
    return in_sharding(f"at.{name}", out, how.out_sharding)


def _updated(
    name: str,
    target: IndexedUpdate,
    values: Any,
    combine: Callable[..., Any],
    scatter: Scatter,
    how: Promises,
    guarded: bool,
) -> Any:
    x = target.array
    if has_slices(target.index):
        starts, sizes = window_of(target.index, aval_of(x).shape, axes_used)
        window = IndexedUpdate(lax.dynamic_slice(x, starts, sizes), in_window(target.index))
        changed = _updated(name, window, values, combine, scatter, how, guarded)
        return lax.dynamic_update_slice(x, changed, starts)
    (values,) = check_arraylike(f"at.{name}", values)
    index, bool_axes = without_bools(target.index, aval_of(x).ndim)
    if bool_axes:
        wide = IndexedUpdate(lax.expand_dims(x, bool_axes), index)
        changed = _updated(name, wide, values, combine, scatter, how, guarded)
        return lax.squeeze(changed, bool_axes)
    aval = aval_of(x)
    _warn_of_loss(name, aval, values)
    values = convert(values, aval.dtype)
    drops = how.drops
    if is_mask(target.index) and _is_free_of_count(target, values):
        return _update_mask(name, target, values, combine, guarded)
    plan = plan_index(target.index, aval.shape)
    is_static = not any(is_index_array(e) for e in plan.axes)
    if is_static and drops and how.wrap_negative_indices:
        note_index(aval.shape, target.index)
        placed = _placed(plan, aval, _in_array_rank(name, aval, plan, values))
        mask = _mask(plan, aval.shape)
        changed = _combined(mask, x, placed, combine, guarded)
        return broadcast_to(convert(changed, aval.dtype), aval.shape)
    if not any(is_index_array(e) and aval_of(e).ndim for e in plan.axes):
        how = replace(how, unique_indices=True)  # one window
    layout = scatter_plan(plan, aval.shape, how.wrap_negative_indices)
    updates = _in_shape_of_index(name, values, layout.full_shape, layout.new_axes)
    dimension_numbers = lax.ScatterDimensionNumbers(layout.offsets, layout.indexed, layout.indexed)
    return convert(scatter(x, layout.indices, updates, dimension_numbers, **how.params), aval.dtype)


def _warn_of_loss(name: str, aval: Any, values: Any) -> None:
    """Warn if values of a wider dtype are converted, as in JAX."""
    if dtypes.is_extended(aval.dtype):
        return
    values_aval = aval_of(values)
    wide = common_type([aval, values_aval])[0]
    is_weak_match = values_aval.weak_type and wide == values_aval.dtype == aval.dtype
    if wide != aval.dtype and not is_weak_match:
        warn(
            f"[at.{name}] values should have a dtype that fits into the array's; got {values_aval} "
            f"for {aval}, and digits may be lost. Fix: values.astype({aval.dtype.name!r}).",
            FutureWarning,
        )


def _in_shape_of_index(
    name: str, values: Any, full_shape: tuple[int, ...], new_axes: tuple[int, ...]
) -> Any:
    """The values in the shape of ``x[index]``, without its new axes."""
    values_shape = aval_of(values).shape
    fits = len(values_shape) <= len(full_shape) and all(
        n in (1, m) for n, m in zip(reversed(values_shape), reversed(full_shape), strict=False)
    )
    check(
        fits,
        lambda: (
            f"[at.{name}] values must broadcast to the shape of x[index], {full_shape}; got "
            f"{aval_of(values)}. Fix: reshape the values."
        ),
        ValueError,
    )
    return lax.squeeze(broadcast_to(values, full_shape), new_axes)


def _product_at(name: str, target: IndexedUpdate, values: Any, how: Promises) -> Any:
    """Product of the values at each element; 1 without values."""
    ones = IndexedUpdate(ones_like(target.array), target.index)
    return _combine(name, ones, values, lax.mul, lax.scatter_mul, how)


def _by_product(combine: Callable[..., Any]) -> Scatter:
    """An operation whose repetitions combine by products: two divisions are one by the product."""

    def scatter(x: Any, indices: Any, updates: Any, numbers: Any, **params: Any) -> Any:
        aval = aval_of(x)
        ones = lax.broadcast_in_dim(convert(1, aval.dtype), aval.shape, ())
        return combine(x, lax.scatter_mul(ones, indices, updates, numbers, **params))

    return scatter


def _repeated(function: Callable[[Any], Any]) -> Scatter:
    """Apply a function once for each occurrence of an element in the index."""

    def scatter(x: Any, indices: Any, updates: Any, numbers: Any, **params: Any) -> Any:
        dtype, shape = aval_of(x).dtype, aval_of(updates).shape

        def converted(value: Any) -> Any:
            return convert(function(value), dtype)

        return lax.scatter_apply(x, indices, converted, numbers, update_shape=shape, **params)

    return scatter


# --- masks ---------------------------------------------------------------------------------


def _is_free_of_count(target: IndexedUpdate, values: Any) -> bool:
    """Whether the values broadcast for any number of True elements.

    Raises:
        NonConcreteBooleanIndexError: if they do not, and the mask is traced.
    """
    rank = aval_of(target.index).ndim
    trailing = aval_of(target.array).ndim - rank
    values_shape = aval_of(values).shape
    lead = values_shape[: max(len(values_shape) - trailing, 0)]
    if lead in ((), (1,)):
        return True
    mask = target.index
    if isinstance(mask, Tracer) and mask.concrete() is None:
        raise NonConcreteBooleanIndexError(
            f"[at] with a traced mask the values must not depend on how many elements it holds; "
            f"got {aval_of(values)} for a mask {aval_of(mask)}. Fix: jnp.where(mask, values, x)."
        )
    return False


def _combined(mask: Any, x: Any, values: Any, combine: Callable[..., Any], guarded: bool) -> Any:
    """``combine`` where a mask holds; None: everywhere. ``guarded``: see ``_update``."""
    if mask is None:
        return combine(x, values)
    if not guarded:
        return select_where(mask, combine(x, values), x)
    one = convert(1, aval_of(x).dtype)
    inputs = [select_where(mask, value, one) for value in (x, values)]
    return select_where(mask, combine(*inputs), x)


def _update_mask(
    name: str, target: IndexedUpdate, values: Any, combine: Callable[..., Any], guarded: bool
) -> Any:
    """The same values wherever a mask over the leading axes holds; the mask may be traced."""
    x, mask = target.array, target.index
    shape, mask_shape = aval_of(x).shape, aval_of(mask).shape
    if 0 in mask_shape:
        return x  # a mask without elements selects nothing, whatever its shape is
    check(
        shape[: len(mask_shape)] == mask_shape,
        lambda: (
            f"[at] the mask of .{name} must have the leading sizes of the array; got mask shape "
            f"{mask_shape} for shape {shape}. Fix: broadcast the mask."
        ),
        IndexError,
    )
    trailing = len(shape) - len(mask_shape)
    lead = max(aval_of(values).ndim - trailing, 0)
    values = lax.squeeze(values, tuple(range(lead)))
    if aval_of(values).ndim:
        values = broadcast_to(values, shape)
    mask = lax.broadcast_in_dim(mask, mask_shape + (1,) * trailing, range(len(mask_shape)))
    return convert(_combined(mask, x, values, combine, guarded), aval_of(x).dtype)


# --- ints and slices -----------------------------------------------------------------------


def _in_array_rank(name: str, aval: Any, plan: Plan, values: Any) -> Any:
    """The values, one axis for each axis of the array: size 1 where it has a single index."""
    if not aval_of(values).ndim:
        return values
    sliced = [d for d, entry in enumerate(plan.axes) if isinstance(entry, slice)]
    shape = [len(range(*plan.axes[d].indices(aval.shape[d]))) for d in sliced]
    full_shape, new_axes = _with_new_axes(plan, sliced, shape)
    values = _in_shape_of_index(name, values, full_shape, new_axes)
    full = [1] * aval.ndim
    for d, size in zip(sliced, shape, strict=True):
        full[d] = size
    flipped = [
        k for k, d in enumerate(sliced) if plan.axes[d].step is not None and plan.axes[d].step < 0
    ]
    return lax.broadcast_in_dim(lax.rev(values, flipped), full, sliced)


def _with_new_axes(
    plan: Plan, sliced: list[int], shape: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of ``x[index]`` if only slices keep their axes, and the positions of new axes."""
    full, new_axes = list(shape), []
    for count, position in enumerate(plan.new_axes):
        new_axes.append(sum(d < position for d in sliced) + count)
        full.insert(new_axes[-1], 1)
    return tuple(full), tuple(new_axes)


def _placed(plan: Plan, aval: Any, values: Any) -> Any:
    """The values in the array's shape, zeros outside of the index."""
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
    """Mask of the indexed elements, which broadcasts with the array; None if all are indexed."""
    mask: Any = None
    for d, (entry, size) in enumerate(zip(plan.axes, shape, strict=True)):
        axis_mask = _axis_mask(entry, size, d, len(shape))
        if axis_mask is not None:
            mask = axis_mask if mask is None else lax.bitwise_and(mask, axis_mask)
    return mask


def _axis_mask(entry: Any, size: int, d: int, rank: int) -> Any:
    dtype = dtypes.index_dtype(size)
    positions = lax.iota(dtype, [size if k == d else 1 for k in range(rank)], d)
    if isinstance(entry, int):
        return lax.eq(positions, dtype.type(entry + size if entry < 0 else entry))
    if is_index_array(entry):
        index = convert(wrap_negative(entry, size), dtype)
        return lax.eq(positions, index)
    start, limit, step = slice_range(entry, size)
    step = abs(step)
    if (start, limit, step) == (0, size, 1):
        return None
    mask = lax.lt(positions, dtype.type(limit))
    if start:
        mask = lax.bitwise_and(mask, lax.ge(positions, dtype.type(start)))
    if step != 1:
        offset = lax.rem(lax.sub(positions, dtype.type(start)), dtype.type(step))
        mask = lax.bitwise_and(mask, lax.eq(offset, dtype.type(0)))
    return mask
