"""Permutations and broadcasts along named axes.

Params hold the sizes of the axes; indices over several names are row-major.

Tests: tests/ops/test_collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communication import communicates
from gpuflow.core.rules import AxisData
from gpuflow.ops.collectives.all_gather import gather_batch
from gpuflow.ops.collectives.axis_index import index_of, select_at_index
from gpuflow.ops.collectives.named_axes import (
    Names,
    as_names,
    is_over,
    linear_collective,
    mapped_in_front,
    reduces,
    row,
    sizes_of,
    spreads,
    without,
)
from gpuflow.ops.collectives.reduce import psum_p
from gpuflow.ops.define import unary_transpose
from gpuflow.ops.indexing.rows import row_gather
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.zeros import zeros_of

_T = TypeVar("_T")

Sizes = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]

# --- ppermute ------------------------------------------------------------------------------


def _sources(pairs: Pairs, size: int) -> np.ndarray:
    """For each index the source index of its value; -1: it gets zeros."""
    sources = np.full(size, -1, np.int32)
    for source, target in pairs:
        sources[target] = source
    return sources


def _permute_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    perm: Pairs,
    axis_name: Names,
    sizes: Sizes,
) -> tuple[Any, int | None]:
    (x,), (dim,) = operands, dims
    if not is_over(axis, axis_name):
        return ppermute_p.bind(x, perm=perm, axis_name=axis_name, sizes=sizes), dim
    sources = _sources(perm, prod(sizes))
    if axis_name == (axis.name,):
        if dim is None and len(perm) == axis.size:
            return x, None
        return row_gather(mapped_in_front(x, dim, axis.size), sources, "zero"), 0
    # Senders may be anywhere on the other axes: gather all, and select by the table.
    gathered, _ = gather_batch(
        axis,
        operands,
        dims,
        all_gather_dimension=0,
        axis_name=axis_name,
        axis_index_groups=None,
        sizes=sizes,
        tiled=False,
    )
    position = axis_name.index(axis.name)
    table = np.moveaxis(sources.reshape(sizes), position, -1).reshape(-1, axis.size)
    other_names, other_sizes = without(axis_name, position), without(sizes, position)
    others = index_of(other_names, other_sizes)
    return row_gather(gathered, row_gather(table, others, "clip"), "zero"), 0


def _permute_transpose(cotangent: Any, x: ShapedArray, *, perm: Pairs, **params: Any) -> Any:
    del x
    inverse = tuple((target, source) for source, target in perm)
    return ppermute_p.bind(cotangent, perm=inverse, **params)


def _checked_pairs(perm: Any, size: int) -> Pairs:
    pairs = tuple((int(source), int(target)) for source, target in perm)
    ends = ([source for source, _ in pairs], [target for _, target in pairs])
    check(
        all(len(set(end)) == len(end) and all(0 <= k < size for k in end) for end in ends),
        lambda: (
            f"[ppermute] perm must hold pairs (source, target) of distinct indices below {size}; "
            f"got {pairs}. Fix: name each source and each target once."
        ),
        ValueError,
    )
    return pairs


@explained
def ppermute(x: _T, axis_name: Any, perm: Sequence[tuple[int, int]]) -> _T:
    """Send values along a named axis; indices that receive nothing get zeros.

    Args:
        x: array of any dtype, or a tree of them.
        axis_name: an axis name, or several names that form one row-major axis.
        perm: pairs of a source index and a target index.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if an index is repeated or too large.

    Example:
        >>> send = lambda x: lax.ppermute(x, "i", [(0, 1), (1, 2)])
        >>> gf.vmap(send, axis_name="i")(jnp.array([1, 2, 3]))
        Array([0, 1, 2], dtype=int32)
    """
    names = as_names(axis_name)
    sizes = sizes_of("ppermute", names)
    pairs = _checked_pairs(perm, prod(sizes))

    def one(leaf: Any) -> Any:
        return ppermute_p.bind(leaf, perm=pairs, axis_name=names, sizes=sizes)

    return tree.tree_map(one, x)


@explained
def pshuffle(x: _T, axis_name: Any, perm: Sequence[int]) -> _T:
    """Shuffle values along a named axis: index k gets the value of index ``perm[k]``.

    Args:
        x: array of any dtype, or a tree of them.
        axis_name: an axis name, or several names that form one row-major axis.
        perm: a permutation of the indices.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if ``perm`` does not hold each index exactly once.

    Example:
        >>> gf.vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([1, 2, 3]))
        Array([3, 1, 2], dtype=int32)
    """
    size = prod(sizes_of("pshuffle", as_names(axis_name)))
    check(
        sorted(perm) == list(range(size)),
        lambda: (
            f"[pshuffle] perm must hold each index below {size} once; got {tuple(perm)}. "
            "Fix: use ppermute for other patterns."
        ),
        ValueError,
    )
    return ppermute(x, axis_name, list(zip(perm, range(size), strict=True)))


def _same_shape(x: ShapedArray, **params: Any) -> ShapedArray:
    del params
    return ShapedArray(x.shape, x.dtype)


ppermute_p = linear_collective(
    "ppermute",
    lambda communicator, xp, x, *, perm: communicator.permute(x, perm),
    shape=_same_shape,
    transpose=unary_transpose(_permute_transpose),
    batch=_permute_batch,
    varies=spreads,
    communication=communicates("permute"),
)

# --- pbroadcast ----------------------------------------------------------------------------


def _broadcast_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    source: int,
    axis_name: Names,
    sizes: Sizes,
) -> tuple[Any, int | None]:
    (x,), (dim,) = operands, dims
    if not is_over(axis, axis_name):
        return pbroadcast_p.bind(x, source=source, axis_name=axis_name, sizes=sizes), dim
    position = axis_name.index(axis.name)
    coordinates = np.unravel_index(source, sizes)
    selected = x if dim is None else row(move_axis(x, dim, 0), int(coordinates[position]))
    others, other_sizes = without(axis_name, position), without(sizes, position)
    if not others:
        return selected, None
    index = int(np.ravel_multi_index(without(coordinates, position), other_sizes))
    return pbroadcast_p.bind(selected, source=index, axis_name=others, sizes=other_sizes), None


def _broadcast_transpose(
    cotangent: Any, x: ShapedArray, *, source: int, axis_name: Names, sizes: Sizes
) -> Any:
    total = psum_p.bind(cotangent, axes=axis_name, axis_index_groups=None)
    return select_at_index(axis_name, sizes, source, total, zeros_of(x.tangent()))


@explained
def pbroadcast(x: _T, axis_name: Any, source: int) -> _T:
    """Broadcast the value of one index of a named axis to all.

    Args:
        x: array of any dtype, or a tree of them.
        axis_name: an axis name, or several names that form one row-major axis.
        source: the index that sends its value.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        NameError: if no enclosing transformation binds the axis name.
        ValueError: if the source is out of range for the axis.

    Example:
        >>> gf.vmap(lambda x: lax.pbroadcast(x, "i", 1), axis_name="i")(jnp.array([1, 2, 3]))
        Array([2, 2, 2], dtype=int32)
    """
    names = as_names(axis_name)
    sizes = sizes_of("pbroadcast", names)
    check(
        0 <= source < prod(sizes),
        lambda: (
            f"[pbroadcast] source must be an index below {prod(sizes)}; got {source}. "
            f"Fix: an index of the axis {axis_name!r}."
        ),
        ValueError,
    )

    def one(leaf: Any) -> Any:
        return pbroadcast_p.bind(leaf, source=int(source), axis_name=names, sizes=sizes)

    return tree.tree_map(one, x)


pbroadcast_p = linear_collective(
    "pbroadcast",
    lambda communicator, xp, x, *, source: communicator.broadcast(x, source),
    shape=_same_shape,
    transpose=unary_transpose(_broadcast_transpose),
    batch=_broadcast_batch,
    varies=reduces,
    communication=communicates("broadcast"),
)
