"""all_gather and psum_scatter over named axes; each is the other's transpose.

Their params hold the sizes of the axes, so that rules need no lookup. The rules for several names
remove one name at a time.

Tests: tests/ops/test_collectives.py, tests/ops/test_between_memories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

from gpuflow.base import tree
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.communication import communicates
from gpuflow.core.communicator import Communicator
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData
from gpuflow.ops.collectives.axis_index import index_of
from gpuflow.ops.collectives.named_axes import (
    Groups,
    Names,
    as_groups,
    as_names,
    bind_checked,
    checked_dim,
    chunks_in_front,
    fold_dims,
    group_size,
    inserted,
    into_groups,
    is_over,
    is_summable,
    linear_collective,
    mapped_in_front,
    out_of_groups,
    reduces,
    repeat_in_front,
    sizes_of,
    split_dim,
    split_names,
    spreads,
    without,
)
from gpuflow.ops.define import check_kind, unary_transpose
from gpuflow.ops.indexing.rows import row_gather
from gpuflow.ops.layout.axes import insert_axis, reduce_sum, reshape, squeeze
from gpuflow.ops.layout.transpose import move_axis

_T = TypeVar("_T")

Sizes = tuple[int, ...]


# --- all_gather ----------------------------------------------------------------------------


def _gather_shape(
    x: ShapedArray,
    *,
    all_gather_dimension: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
    tiled: bool,
) -> ShapedArray:
    del axis_name
    dim, count = all_gather_dimension, group_size(prod(sizes), axis_index_groups)
    if not tiled:
        return ShapedArray(inserted(x.shape, dim, count), x.dtype)
    checked_dim("all_gather", x, dim)
    return ShapedArray(inserted(without(x.shape, dim), dim, x.shape[dim] * count), x.dtype)


def gather_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    rebind: Callable[..., Any] | None = None,
    all_gather_dimension: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
    tiled: bool,
) -> tuple[Any, int | None]:
    """The batch rule of gathering into one value for all elements; ``rebind`` binds the op."""
    (x,), (dim,), target = operands, dims, all_gather_dimension
    bind = all_gather_p.bind if rebind is None else rebind
    if not is_over(axis, axis_name):
        if dim is not None:
            x, dim, target = move_axis(x, dim, 0), 0, target + 1
        params = {"axis_index_groups": axis_index_groups, "sizes": sizes, "tiled": tiled}
        return bind(x, all_gather_dimension=target, axis_name=axis_name, **params), dim
    rows = mapped_in_front(x, dim, axis.size)
    if axis_index_groups is not None:
        grouped = into_groups(rows, axis_index_groups)  # [groups, members, ...]
        # Each member gets its whole group: [groups, members, members, ...].
        repeated = move_axis(repeat_in_front(grouped, len(axis_index_groups[0])), 0, 1)
        return _placed(out_of_groups(repeated, axis_index_groups), 1, target + 1, tiled), 0
    major, minor = split_names(axis, axis_name, sizes)
    rows = _gather_rows(bind, _gather_rows(bind, rows, *minor, after=1), *major, after=0)
    gathered = fold_dims(rows, 0, 3)  # [major, own, minor, ...]
    return _placed(gathered, 0, target, tiled), None


def _gather_rows(bind: Callable[..., Any], x: Any, names: Names, sizes: Sizes, after: int) -> Any:
    """Gather over the other axes into a new dimension, of size 1 if there are none."""
    if not names:
        return insert_axis(x, after)
    return bind(
        x,
        all_gather_dimension=after,
        axis_name=names,
        axis_index_groups=None,
        sizes=sizes,
        tiled=False,
    )


def _copies_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int | None]:
    """Each device of shard_map has a separate copy: it varies, and so do its cotangents."""
    gathered, dim = gather_batch(axis, operands, dims, **params)
    is_shared = dim is None and axis.varies is not None and is_over(axis, params["axis_name"])
    return (repeat_in_front(gathered, axis.size), 0) if is_shared else (gathered, dim)


def _one_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int | None]:
    return gather_batch(axis, operands, dims, rebind=all_gather_invariant_p.bind, **params)


def _placed(x: Any, source: int, target: int, tiled: bool) -> Any:
    out = move_axis(x, source, target)
    return fold_dims(out, target, 2) if tiled else out


def _gather_transpose(
    cotangent: Any, x: ShapedArray, *, all_gather_dimension: int, **params: Any
) -> Any:
    del x
    return reduce_scatter_p.bind(cotangent, scatter_dimension=all_gather_dimension, **params)


def _own_shard(
    cotangent: Any,
    x: ShapedArray,
    *,
    all_gather_dimension: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
    tiled: bool,
) -> Any:
    """The element's own shard of the cotangent of a value that all elements share."""
    del x, axis_index_groups  # there are none
    dim, index = all_gather_dimension, index_of(axis_name, sizes)
    shards = split_dim(cotangent, dim, (prod(sizes),)) if tiled else cotangent
    return row_gather(move_axis(shards, dim, 0), index, "clip")


@explained
def all_gather(
    x: _T,
    axis_name: Any,
    *,
    axis_index_groups: Any = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> _T:
    """Gather values along a named axis: every index receives the values of all.

    Args:
        x: array of any dtype, or a tree of them.
        axis_name: an axis name, or several, with values in row-major order.
        axis_index_groups: groups of equal size; the gather runs within each group.
        axis: position of the gathered dimension.
        tiled: whether to concatenate along ``axis`` instead of stacking.
        to: type of the result in shard_map: ``"varying"``: each device has its own copy and its own
            cotangent; ``"invarying"``: one value with one cotangent.

    Returns:
        An array with an additional dimension of the size of the axis; with ``tiled`` of the same
        rank.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if groups or an axis are invalid, or ``to`` is unknown.
        NotImplementedError: if ``to`` is ``"reduced"``, or ``"invarying"`` with groups.

    Example:
        >>> gf.vmap(lambda x: lax.all_gather(x, "i"), axis_name="i")(jnp.array([1, 2]))
        Array([[1, 2],
               [1, 2]], dtype=int32)
    """
    check(
        to in ("varying", "reduced", "invarying"),
        lambda: f"[all_gather] to must be 'varying' or 'invarying'; got {to!r}. Fix: leave it out.",
        ValueError,
    )
    check(
        to == "varying" or (to == "invarying" and axis_index_groups is None),
        lambda: (
            f"[all_gather] to must be 'varying', or 'invarying' without groups; got {to!r}. Fix: "
            "to='invarying' for one value."
        ),
        NotImplementedError,
    )
    names = as_names(axis_name)
    sizes = sizes_of("all_gather", names)
    groups = as_groups("all_gather", axis_index_groups, prod(sizes), even=True)
    primitive = all_gather_p if to == "varying" else all_gather_invariant_p

    def one(leaf: Any) -> Any:
        rank = aval_of(leaf).ndim + (not tiled)
        dim = canonicalize_axis(axis, rank, "all_gather")
        return bind_in_groups(
            primitive, leaf, names, sizes, groups, all_gather_dimension=dim, tiled=bool(tiled)
        )

    return tree.tree_map(one, x) if names else x


def _gather(
    communicator: Communicator, xp: Any, x: Any, *, all_gather_dimension: int, tiled: bool
) -> Any:
    dim = all_gather_dimension
    out = xp.moveaxis(communicator.all_gather(x), 0, dim)
    if not tiled:
        return out
    return out.reshape((*x.shape[:dim], x.shape[dim] * communicator.size, *x.shape[dim + 1 :]))


def in_one_axis(
    rule: Callable[..., Any], x: Any, names: Names, sizes: Sizes, /, **params: Any
) -> Any:
    """A collective in groups over several names: gather all, rearrange, and select the own result.

    Args:
        rule: the batch rule of the collective.
        x: an array.
        names: the axes, which form one row-major axis.
        sizes: of the axes.
        params: those of the collective besides its axes.
    """
    gathered = all_gather_p.bind(
        x,
        all_gather_dimension=0,
        axis_name=names,
        axis_index_groups=None,
        sizes=sizes,
        tiled=False,
    )
    results, _ = rule(AxisData(COMBINED_AXES, prod(sizes)), (gathered,), (0,), **params)
    return row_gather(results, index_of(names, sizes), "clip")


COMBINED_AXES = "all of the axes"  # name of several axes as one


def bind_in_groups(
    primitive: Primitive, x: Any, names: Names, sizes: Sizes, groups: Groups | None, **params: Any
) -> Any:
    """Bind a collective after its shape rule; groups over several names are ``in_one_axis``."""
    if groups is None or len(names) == 1:
        return bind_checked(
            primitive, x, axis_name=names, sizes=sizes, axis_index_groups=groups, **params
        )
    combined = {"axis_name": (COMBINED_AXES,), "sizes": (prod(sizes),), "axis_index_groups": groups}
    primitive.shape(aval_of(x), **combined, **params)
    assert primitive.batch is not None
    return in_one_axis(primitive.batch, x, names, sizes, **combined, **params)


all_gather_p = linear_collective(
    "all_gather",
    _gather,
    shape=_gather_shape,
    transpose=unary_transpose(_gather_transpose),
    batch=_copies_batch,
    varies=spreads,
    communication=communicates("all_gather"),
)
all_gather_invariant_p = linear_collective(
    "all_gather_invariant",
    _gather,
    shape=_gather_shape,
    transpose=unary_transpose(_own_shard),
    batch=_one_batch,
    varies=reduces,
    communication=communicates("all_gather"),
)

# --- reduce_scatter ------------------------------------------------------------------------


def _scatter_shape(
    x: ShapedArray,
    *,
    scatter_dimension: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
    tiled: bool,
) -> ShapedArray:
    dim, count = scatter_dimension, group_size(prod(sizes), axis_index_groups)
    check_kind("psum_scatter", x, is_summable, "a number (not bool)")
    checked_dim("psum_scatter", x, dim)
    size = x.shape[dim]
    check(
        size == count if not tiled else count > 0 and size % count == 0,
        lambda: (
            f"[psum_scatter] the size of dimension {dim} must be "
            f"{'a multiple of ' if tiled else ''}the size {count} of {axis_name}; got {x}. "
            f"Fix: {'pad it' if tiled else 'use tiled=True for several rows each'}."
        ),
        ValueError,
    )
    other_sizes = without(x.shape, dim)
    return ShapedArray(inserted(other_sizes, dim, size // count) if tiled else other_sizes, x.dtype)


def _scatter_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    scatter_dimension: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
    tiled: bool,
) -> tuple[Any, int | None]:
    (x,), (dim,), target = operands, dims, scatter_dimension
    if not is_over(axis, axis_name):
        if dim is not None:
            x, dim, target = move_axis(x, dim, 0), 0, target + 1
        params = {"axis_index_groups": axis_index_groups, "sizes": sizes, "tiled": tiled}
        out = reduce_scatter_p.bind(x, scatter_dimension=target, axis_name=axis_name, **params)
        return out, dim
    rows = mapped_in_front(x, dim, axis.size)
    grouped = into_groups(rows, axis_index_groups)  # [groups, members, ...]
    totals = reduce_sum(grouped, (1,))
    if axis_index_groups is not None:
        shards = split_dim(totals, target + 1, (len(axis_index_groups[0]),))
        out = out_of_groups(move_axis(shards, target + 1, 1), axis_index_groups)
        return (out if tiled else squeeze(out, (target + 1,))), 0
    major, minor = split_names(axis, axis_name, sizes)
    outer = (prod(major[1]), axis.size, prod(minor[1]))
    shards = split_dim(reshape(totals, aval_of(totals).shape[1:]), target, outer)
    # [..., major, own, minor, each, ...]: own becomes the mapped dimension, the others scatter.
    shards = move_axis(shards, target + 1, 0)
    shards = _scatter_dim(_scatter_dim(shards, *minor, target + 2), *major, target + 1)
    return (shards if tiled else squeeze(shards, (target + 1,))), 0


def _scatter_dim(x: Any, names: Names, sizes: Sizes, dim: int) -> Any:
    """Scatter dimension ``dim`` over the other axes; it has size 1 if there are none."""
    if not names:
        return squeeze(x, (dim,))
    return reduce_scatter_p.bind(
        x, scatter_dimension=dim, axis_name=names, axis_index_groups=None, sizes=sizes, tiled=False
    )


def _scatter_transpose(
    cotangent: Any, x: ShapedArray, *, scatter_dimension: int, **params: Any
) -> Any:
    del x
    return all_gather_p.bind(cotangent, all_gather_dimension=scatter_dimension, **params)


@explained
def psum_scatter(
    x: _T,
    axis_name: Any,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> _T:
    """Sum over a named axis, and scatter the result: each index receives its shard.

    Args:
        x: array of numbers, or a pytree of them.
        axis_name: an axis name, or several, over which shards are distributed in row-major order.
        scatter_dimension: the dimension to distribute; its size is that of the axis.
        axis_index_groups: groups of equal size; the collective runs within each group.
        tiled: whether the dimension stays, divided by the size of the axis.

    Returns:
        An array without ``scatter_dimension``; with ``tiled`` of the same rank.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if groups, dimensions or sizes are inconsistent.

    Example:
        >>> x = jnp.array([[1, 2], [10, 20]])
        >>> gf.vmap(lambda row: lax.psum_scatter(row, "i"), axis_name="i")(x)
        Array([11, 22], dtype=int32)
    """
    names = as_names(axis_name)
    sizes = sizes_of("psum_scatter", names)
    groups = as_groups("psum_scatter", axis_index_groups, prod(sizes), even=True)

    def one(leaf: Any) -> Any:
        dim = canonicalize_axis(scatter_dimension, aval_of(leaf).ndim, "psum_scatter")
        return bind_in_groups(
            reduce_scatter_p, leaf, names, sizes, groups, scatter_dimension=dim, tiled=bool(tiled)
        )

    return tree.tree_map(one, x) if names else x


def _scatter(
    communicator: Communicator, xp: Any, x: Any, *, scatter_dimension: int, tiled: bool
) -> Any:
    dim = scatter_dimension
    shard = communicator.reduce_scatter(chunks_in_front(xp, x, dim, communicator.size))
    return shard if tiled else shard.reshape(without(shard.shape, dim))


reduce_scatter_p = linear_collective(
    "reduce_scatter",
    _scatter,
    shape=_scatter_shape,
    transpose=unary_transpose(_scatter_transpose),
    batch=_scatter_batch,
    varies=spreads,
    communication=communicates("reduce_scatter"),
)
