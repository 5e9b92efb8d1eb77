"""Named axes of collectives: scope, sizes, and groups of indices.

A collective over several names treats them as one axis with a row-major index: the last name varies
fastest. Under vmap each name is removed separately, so sizes are in the params. The names that
remain when a collective runs must be axes that communicators serve (core/communicator.py).

Tests: tests/ops/test_collectives.py, tests/parallel/test_varying.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers, as_items
from gpuflow.base.config import config, expand_names
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.communicator import Across, Communicator, Within, communicator_of
from gpuflow.core.effects import COMMUNICATION, AxisUse, Effect
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import define, is_number
from gpuflow.ops.indexing.rows import row_gather
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape, squeeze
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.layout.transpose import move_axis

Names = tuple[Any, ...]
Groups = tuple[tuple[int, ...], ...]


def as_names(axis_name: Any) -> Names:
    """One name or a sequence of names, as a tuple; an alias is expanded."""
    return expand_names(axis_name if isinstance(axis_name, tuple | list) else (axis_name,))


def sizes_of(op: str, names: Names) -> tuple[int, ...]:
    """The sizes of axes in scope.

    Raises:
        NameError: if no enclosing transformation binds a name.
        ValueError: if a name is given twice.
    """
    bound = dict(config.axis_env)
    for name in names:
        if not isinstance(name, Hashable) or name not in bound:
            raise unbound(op, name)
    check(
        len(set(names)) == len(names),
        lambda: f"[{op}] axis names must differ; got {names}. Fix: name each axis once.",
        ValueError,
    )
    return tuple(bound[name] for name in names)


def check_bound(op: str, name: Any) -> None:
    """Raise NameError for an unbound axis name."""
    if name not in dict(config.axis_env):
        raise unbound(op, name)


def unbound(op: str, name: Any) -> NameError:
    """The error for an unbound axis name."""
    in_scope = ", ".join(repr(name) for name, _ in config.axis_env) or "no named axes"
    return NameError(
        f"[{op}] the axis name {name!r} must be bound; got {in_scope} in scope. "
        f"Fix: vmap(..., axis_name={name!r})."
    )


def uses_of(names: Names) -> frozenset[Effect]:
    """The effects of a collective over ``names``.

    Operations that wait for other memories are ordered: a plan preserves the order of tracing.
    """
    uses = frozenset(AxisUse(name) for name in names)
    return uses | {COMMUNICATION} if has_neighbors(names) else uses


def manual_axes(names: Names) -> frozenset[Any]:
    """The axes that belong to a shard_map with varying-axis types, by user name.

    Its parts within and across memories have the name of the axis.
    """
    manual = (name for name in names if name in config.varying_axes)
    return frozenset(name.name if isinstance(name, Within | Across) else name for name in manual)


def reduces(varying: Sequence[frozenset[Any]], params: dict[str, Any]) -> list[frozenset[Any]]:
    """The ``varies`` rule of a result that is equal along the collective's axes, see Primitive."""
    names = params.get("axes", params.get("axis_name", ()))
    if params.get("axis_index_groups") is not None:
        return spreads(varying, params)
    return [frozenset().union(*varying) - manual_axes(names)]


def spreads(varying: Sequence[frozenset[Any]], params: dict[str, Any]) -> list[frozenset[Any]]:
    """The ``varies`` rule of a result that varies along the collective's axes, see Primitive."""
    names = params.get("axes", params.get("axis_name", ()))
    return [frozenset().union(*varying, manual_axes(names))]


def has_neighbors(names: Names) -> bool:
    """Whether some axes span memories."""
    return any(isinstance(name, Across) for name in names)


def communicator_for(op: str, names: Names, groups: Groups | None = None) -> Communicator:
    """The communicator of a collective over ``names``, those that vmap has not removed.

    Raises:
        NameError: if no communicator serves a name, as on a single device.
        CommunicationError: if an axis across memories has no communicator.
    """
    communicator = communicator_of(op, names)
    if communicator is None:
        raise unbound(op, next(name for name in names if not isinstance(name, Across)))
    return communicator if groups is None else communicator.split(groups)


def linear_collective(
    name: str, exchange: Callable[..., Any], batch: Callable[..., Any], **fields: Any
) -> Primitive:
    """Define a collective of one operand that is linear in it.

    Its params ``axis_name`` and ``sizes`` hold the names and sizes of its axes.

    Args:
        name: of the primitive.
        exchange: ``(communicator, xp, x, **params) -> array`` with the other params; the
            communicator is that of the group, if there are groups.
        batch: the batch rule. It is not asked about one of several axes that has one element, as
            devices with memories of their own have within each: that axis is dropped.
        fields: those of ``Primitive``.
    """

    def batch_rule(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
    ) -> tuple[Any, int | None]:
        names, (x,), (dim,) = params["axis_name"], operands, dims
        if axis.size > 1 or len(names) == 1 or not is_over(axis, names):
            return batch(axis, operands, dims, **params)
        remaining = [k for k, name in enumerate(names) if name != axis.name]
        kept = {key: tuple(params[key][k] for k in remaining) for key in ("axis_name", "sizes")}
        x = x if dim is None else squeeze(x, (dim,))
        return primitive.bind(x, **{**params, **kept}), None

    def impl(
        xp: Any,
        x: Any,
        *,
        axis_name: Names,
        sizes: Any,
        axis_index_groups: Any = None,
        **params: Any,
    ) -> Any:
        del sizes
        return exchange(communicator_for(name, axis_name, axis_index_groups), xp, x, **params)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return primitive.bind(primals[0], **params), primitive.bind(tangents[0], **params)

    def effects(params: dict[str, Any]) -> frozenset[Any]:
        return uses_of(params["axis_name"])

    primitive = define(name, impl=impl, jvp=jvp, effects=effects, batch=batch_rule, **fields)
    return primitive


def bind_checked(primitive: Primitive, x: Any, **params: Any) -> Any:
    """Bind after the shape rule: under vmap, errors name the user's call instead of the rule's."""
    primitive.shape(aval_of(x), **params)
    return primitive.bind(x, **params)


def is_summable(dtype: Any) -> bool:
    """Whether ``dtype`` is a number, not bool and not a key."""
    return not dtypes.is_extended(dtype) and is_number(dtype)


def is_over(axis: AxisData, names: Names) -> bool:
    """Whether a collective over ``names`` communicates along the mapped axis."""
    return axis.name is not None and axis.name in names


def split_names(
    axis: AxisData, names: Names, sizes: Sequence[int]
) -> tuple[tuple[Names, tuple[int, ...]], tuple[Names, tuple[int, ...]]]:
    """Names and sizes of the axes before the mapped one, and of those after it."""
    k = names.index(axis.name)
    return (names[:k], tuple(sizes[:k])), (names[k + 1 :], tuple(sizes[k + 1 :]))


# --- groups --------------------------------------------------------------------------------


def as_groups(op: str, groups: Any, size: int, even: bool = False) -> Groups | None:
    """``axis_index_groups`` as tuples.

    Raises:
        ValueError: if groups do not hold each index once, or (``even``) have different sizes.
    """
    if groups is None:
        return None
    what = "axis_index_groups"
    result = tuple(as_integers(op, what, group) for group in as_items(op, what, groups))
    check(
        sorted(index for group in result for index in group) == list(range(size)),
        lambda: (
            f"[{op}] axis_index_groups must hold each index of an axis of size {size} once; got "
            f"{result}. Fix: divide range({size}) into groups."
        ),
        ValueError,
    )
    check(
        not even or len({len(group) for group in result}) == 1,
        lambda: (
            f"[{op}] axis_index_groups must have one size; got {result}. "
            "Fix: use groups of equal size."
        ),
        ValueError,
    )
    return result


def group_size(size: int, groups: Groups | None) -> int:
    """Number of elements that communicate with each other."""
    return size if groups is None else len(groups[0])


def into_groups(x: Any, groups: Groups | None) -> Any:
    """Split the leading dimension: ``[n, ...]`` becomes ``[groups, members, ...]``."""
    shape = aval_of(x).shape
    if groups is None:
        return reshape(x, (1, *shape))
    ordered = take_rows(x, [index for group in groups for index in group])
    return reshape(ordered, (len(groups), len(groups[0]), *shape[1:]))


def out_of_groups(x: Any, groups: Groups | None) -> Any:
    """The inverse of ``into_groups``."""
    shape = aval_of(x).shape
    flat = reshape(x, (shape[0] * shape[1], *shape[2:]))
    if groups is None:
        return flat
    return take_rows(flat, np.argsort([index for group in groups for index in group]))


# --- rearrangements ------------------------------------------------------------------------


def take_rows(x: Any, indices: Any) -> Any:
    """Rows of ``x`` at static indices."""
    rows = [int(index) for index in indices]
    if rows == list(range(aval_of(x).shape[0])):
        return x
    return row_gather(x, np.asarray(rows, np.int32), "clip")


def split_dim(x: Any, dim: int, outer: Sequence[int]) -> Any:
    """Split dimension ``dim`` into the dimensions ``outer`` and one for the remainder."""
    shape = aval_of(x).shape
    inner = shape[dim] // prod(outer) if prod(outer) else 0
    return reshape(x, (*shape[:dim], *outer, inner, *shape[dim + 1 :]))


def chunks_in_front(xp: Any, x: Any, dim: int, count: int) -> Any:
    """A concrete array with dimension ``dim`` split into ``count`` chunks along a leading axis."""
    shape = x.shape
    split = x.reshape((*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))
    return xp.moveaxis(split, dim, 0)


def fold_dims(x: Any, dim: int, count: int) -> Any:
    """Merge ``count`` dimensions from ``dim`` on."""
    shape = aval_of(x).shape
    folded = prod(shape[dim : dim + count])
    return reshape(x, (*shape[:dim], folded, *shape[dim + count :]))


def repeat_in_front(x: Any, size: int) -> Any:
    """``x`` repeated along a new leading dimension."""
    shape = aval_of(x).shape
    return broadcast_in_dim(x, (size, *shape), range(1, len(shape) + 1))


def mapped_in_front(x: Any, dim: int | None, size: int) -> Any:
    """``x`` with its mapped dimension in front; an unmapped value is broadcast."""
    return repeat_in_front(x, size) if dim is None else move_axis(x, dim, 0)


def row(x: Any, index: int) -> Any:
    """One row of ``x``."""
    return squeeze(slice_in_dim(x, index, index + 1, axis=0), (0,))


def inserted(shape: Sequence[int], position: int, size: int) -> tuple[int, ...]:
    """``shape`` with one more size."""
    return (*shape[:position], size, *shape[position:])


def without(items: Sequence[Any], position: int) -> tuple[Any, ...]:
    """Sizes or names without one of them."""
    return (*items[:position], *items[position + 1 :])


def checked_dim(op: str, x: ShapedArray, dim: int) -> None:
    """Raise ValueError unless ``dim`` is a dimension of ``x``."""
    check(
        0 <= dim < x.ndim,
        lambda: (
            f"[{op}] the axis must be a dimension of {x}; got {dim}. "
            f"Fix: use an axis in [0, {x.ndim})."
        ),
        ValueError,
    )
