"""all_to_all: exchange a dimension for a named axis.

The params hold the sizes of the axes, so that rules need no lookup. The rule for several names
removes one name at a time.

Tests: tests/ops/test_collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

from gpuflow.base import tree
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.communication import communicates
from gpuflow.core.communicator import Communicator
from gpuflow.core.rules import AxisData
from gpuflow.ops.collectives.all_gather import bind_in_groups
from gpuflow.ops.collectives.named_axes import (
    Groups,
    Names,
    as_groups,
    as_names,
    checked_dim,
    chunks_in_front,
    fold_dims,
    group_size,
    into_groups,
    is_over,
    linear_collective,
    mapped_in_front,
    out_of_groups,
    sizes_of,
    split_dim,
    split_names,
    spreads,
)
from gpuflow.ops.define import unary_transpose
from gpuflow.ops.layout.axes import insert_axis, squeeze
from gpuflow.ops.layout.transpose import move_axis, transpose

_T = TypeVar("_T")

Sizes = tuple[int, ...]


def _swap_shape(
    x: ShapedArray,
    *,
    split_axis: int,
    concat_axis: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
) -> ShapedArray:
    count = group_size(prod(sizes), axis_index_groups)
    checked_dim("all_to_all", x, split_axis)
    checked_dim("all_to_all", x, concat_axis)
    check(
        count > 0 and x.shape[split_axis] % count == 0,
        lambda: (
            f"[all_to_all] the size of split_axis {split_axis} must be a multiple of the size "
            f"{count} of {axis_name}; got {x}. Fix: pad it."
        ),
        ValueError,
    )
    shape = list(x.shape)
    shape[split_axis] //= count
    shape[concat_axis] *= count
    return ShapedArray(shape, x.dtype)


def _swap_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    split_axis: int,
    concat_axis: int,
    axis_name: Names,
    axis_index_groups: Groups | None,
    sizes: Sizes,
) -> tuple[Any, int | None]:
    (x,), (dim,), split, concat = operands, dims, split_axis, concat_axis
    if not is_over(axis, axis_name):
        if dim is not None:
            x, dim, split, concat = move_axis(x, dim, 0), 0, split + 1, concat + 1
        params = {"axis_index_groups": axis_index_groups, "sizes": sizes}
        out = all_to_all_p.bind(
            x, split_axis=split, concat_axis=concat, axis_name=axis_name, **params
        )
        return out, dim
    rows = mapped_in_front(x, dim, axis.size)
    grouped = into_groups(rows, axis_index_groups)  # [groups, senders, ...]
    major, minor = split_names(axis, axis_name, sizes)
    members = group_size(axis.size, axis_index_groups)
    at = split + 2
    chunks = split_dim(grouped, at, (prod(major[1]), members, prod(minor[1])))
    # Receivers are [major, members, minor] at ``at``; each is swapped with its senders.
    chunks = _swap_dim(_swap_dim(chunks, *major, at), *minor, at + 2)
    order = list(range(aval_of(chunks).ndim))
    order[1], order[at + 1] = at + 1, 1
    senders, others, position = order[at : at + 3], order[:at] + order[at + 3 :], concat + 2
    chunks = transpose(chunks, [*others[:position], *senders, *others[position:]])
    return out_of_groups(fold_dims(chunks, position, 4), axis_index_groups), 0


def _swap_dim(x: Any, names: Names, sizes: Sizes, dim: int) -> Any:
    """Swap dimension ``dim`` with the other axes, if there are any."""
    if not names:
        return x
    return all_to_all_p.bind(
        x, split_axis=dim, concat_axis=dim, axis_name=names, axis_index_groups=None, sizes=sizes
    )


def _swap_transpose(
    cotangent: Any, x: ShapedArray, *, split_axis: int, concat_axis: int, **params: Any
) -> Any:
    del x
    return all_to_all_p.bind(cotangent, split_axis=concat_axis, concat_axis=split_axis, **params)


@explained
def all_to_all(
    x: _T,
    axis_name: Any,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> _T:
    """Convert the named axis to dimension ``concat_axis``, and ``split_axis`` to the named axis.

    Args:
        x: array of any dtype, or a tree of them.
        axis_name: an axis name, or several names that form one row-major axis.
        split_axis: the dimension to split: its element k is sent to index k of the axis.
        concat_axis: position of the dimension of received values.
        axis_index_groups: groups of equal size; the collective runs within each group.
        tiled: whether to exchange chunks instead of single elements: no dimension is added or
            removed.

    Returns:
        An array of the same size: ``split_axis`` is removed, and ``concat_axis`` is added.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if groups, dimensions or sizes are inconsistent.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> gf.vmap(lambda row: lax.all_to_all(row, "i", 0, 0), axis_name="i")(x)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    names = as_names(axis_name)
    sizes = sizes_of("all_to_all", names)
    groups = as_groups("all_to_all", axis_index_groups, prod(sizes), even=True)
    count = group_size(prod(sizes), groups)

    def bind(leaf: Any, split: int, concat: int) -> Any:
        return bind_in_groups(
            all_to_all_p, leaf, names, sizes, groups, split_axis=split, concat_axis=concat
        )

    def one(leaf: Any) -> Any:
        aval = aval_of(leaf)
        split = canonicalize_axis(split_axis, aval.ndim, "all_to_all")
        concat = canonicalize_axis(concat_axis, aval.ndim, "all_to_all")
        if tiled:
            return bind(leaf, split, concat)
        check(
            aval.shape[split] == count,
            lambda: (
                f"[all_to_all] the size of split_axis {split} must be the size {count} of "
                f"{axis_name!r}; got {aval}. Fix: use tiled=True for chunks."
            ),
            ValueError,
        )
        # The position does not count the removed dimension.
        if split == concat:
            return bind(leaf, split, concat)
        if split < concat:
            return squeeze(bind(insert_axis(leaf, concat + 1), split, concat + 1), (split,))
        return squeeze(bind(insert_axis(leaf, concat), split + 1, concat), (split + 1,))

    return tree.tree_map(one, x) if names else x


@explained
def pswapaxes(x: _T, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> _T:
    """Swap the named axis with a dimension of the same size.

    Args:
        x: array of any dtype, or a tree of them.
        axis_name: an axis name, or several names that form one row-major axis.
        axis: the dimension.
        axis_index_groups: groups of equal size; the collective runs within each group; None means
            one group.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if groups, dimensions or sizes are inconsistent.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> gf.vmap(lambda row: lax.pswapaxes(row, "i", 0), axis_name="i")(x)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def _swap(communicator: Communicator, xp: Any, x: Any, *, split_axis: int, concat_axis: int) -> Any:
    received = communicator.all_to_all(chunks_in_front(xp, x, split_axis, communicator.size))
    received_last = xp.moveaxis(received, 0, concat_axis)
    sizes = received_last.shape
    folded = sizes[concat_axis] * sizes[concat_axis + 1]
    return received_last.reshape((*sizes[:concat_axis], folded, *sizes[concat_axis + 2 :]))


all_to_all_p = linear_collective(
    "all_to_all",
    _swap,
    shape=_swap_shape,
    transpose=unary_transpose(_swap_transpose),
    batch=_swap_batch,
    varies=spreads,
    communication=communicates("all_to_all"),
)
