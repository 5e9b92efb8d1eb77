"""Resharding inside an SPMD program: slices, all-gathers and all-to-all exchanges.

Layout: let a dimension be split over mesh axes a and b. A memory's shard of it is row-major over
the memory's indices of a, its indices of b, and the elements of one chunk. Trailing axes that are
within one memory change nothing, so they are omitted.

Tests: tests/parallel/test_partitioner.py, tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.compiler.splits import MeshAxes, chunk_size
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.sharding import NamedSharding, names_of
from gpuflow.ops.collectives.all_gather import all_gather_p, reduce_scatter_p
from gpuflow.ops.collectives.all_to_all import all_to_all_p
from gpuflow.ops.collectives.axis_index import axis_index_p
from gpuflow.ops.indexing.dynamic_slices import dynamic_slice
from gpuflow.ops.layout.axes import reshape, squeeze
from gpuflow.ops.layout.slicing import pad, slice_in_dim
from gpuflow.runtime.memories import Memories


def needed(names: Iterable[Any], memories: Memories) -> tuple[Any, ...]:
    """Drop trailing axes that are within one memory."""
    retained = list(names)
    while retained and memories.between[retained[-1]] == 1:
        retained.pop()
    return tuple(retained)


def dim_axes_in(sharding: NamedSharding, rank: int, memories: Memories) -> MeshAxes:
    """The mesh axes of each dimension, for a sharding over the mesh of ``memories``."""
    dim_axes = [needed(names_of(entry), memories) for entry in sharding.spec]
    return (*dim_axes, *[()] * (rank - len(dim_axes)))


def is_even(size: int, names: Iterable[Any], memories: Memories) -> bool:
    """Whether a dimension of ``size`` has equal chunks over mesh axes."""
    return size % prod(memories.between[name] for name in names) == 0


def local_shape(aval: ShapedArray, dim_axes: MeshAxes, memories: Memories) -> tuple[int, ...]:
    """The shape of a memory's shard."""
    return tuple(
        chunk_size(size, prod(memories.between[name] for name in names))
        for size, names in zip(aval.shape, dim_axes, strict=True)
    )


def local_params(eqn: Eqn, dim_axes: MeshAxes, local: tuple[int, ...]) -> dict[str, Any]:
    """The params of an equation with the sizes of a memory's shard."""
    params, whole = dict(eqn.params), eqn.outputs[0].aval.shape
    for name in eqn.primitive.size_params & params.keys():
        sizes = params[name]
        if not isinstance(sizes, tuple) or len(sizes) != len(whole):
            continue
        params[name] = tuple(
            local[dim] if dim_axes[dim] and size == whole[dim] else size
            for dim, size in enumerate(sizes)
        )
    return params


def resharded(
    x: Any, shape: Sequence[int], have: MeshAxes, want: MeshAxes, memories: Memories
) -> Any:
    """Reshard a value, one mesh axis at a time.

    An axis that splits the wrong dimension is moved by an all-to-all, which sends each memory's
    shard once. If no such step exists, a dimension is sliced; slices come before gathers, so that
    less is gathered. A dimension with unequal chunks is gathered first or sliced last.

    Args:
        x: the shard of the memory.
        shape: of the whole array.
        have, want: current and requested mesh axes of each dimension.
        memories: the memories of the mesh.
    """
    now = list(have)
    for dim, size in enumerate(shape):
        if now[dim] != want[dim] and not is_even(size, now[dim], memories):
            while now[dim]:
                x = _gathered(x, dim, now[dim], memories)
                now[dim] = now[dim][:-1]
            x = slice_in_dim(x, 0, size, axis=dim)
    goal = tuple(
        new if old == new or is_even(size, new, memories) else ()
        for size, old, new in zip(shape, now, want, strict=True)
    )
    x = _evenly_resharded(x, now, goal, memories)
    for dim, size in enumerate(shape):
        if now[dim] == want[dim]:
            continue
        count = prod(memories.between[name] for name in want[dim])
        x = padded(x, dim, 0, chunk_size(size, count) * count - size)
        for k in range(len(want[dim])):
            x = _sliced(x, dim, want[dim][: k + 1], memories)
    return x


def padded(x: Any, dim: int, before: int, after: int) -> Any:
    """A value with rows of zeros before and after its own."""
    aval = aval_of(x)
    config = [(before, after, 0) if d == dim else (0, 0, 0) for d in range(aval.ndim)]
    return pad(x, np.zeros((), aval.dtype), config)


def _evenly_resharded(
    x: Any, now: list[tuple[Any, ...]], want: MeshAxes, memories: Memories
) -> Any:
    """Reshard a value whose dimensions have equal chunks; ``now`` is updated to ``want``."""
    while True:
        step = _exchange_step(now, want) or _slice_step(now, want) or _gather_step(now, want)
        if step is None:
            return x
        source, target = step
        if target is None:
            names = _gathered_at_once(source, now, want, memories)
            if len(names) > 1:
                x = _gathered(x, source, names, memories, len(names))
                now[source] = now[source][: -len(names)]
                continue
        before: tuple[Any, ...] = () if source is None else now[source]
        name = before[-1] if before else want[target][len(now[target])]
        if source is not None:
            now[source] = now[source][:-1]
        if target is not None:
            now[target] = (*now[target], name)
        if memories.between[name] == 1:
            continue  # the axis is within one memory: no elements move
        if source is None:
            assert target is not None, "a step has one of both"
            x = _sliced(x, target, now[target], memories)
        elif target is None:
            x = _gathered(x, source, before, memories)
        else:
            x = _exchanged(x, source, target, before, now[target], memories)


# A step of resharding: (the dimension that loses its last axis, the dimension that gets an axis);
# None if there is no such dimension.
_Step = tuple[Any, Any]


def _exchange_step(now: Sequence[tuple[Any, ...]], want: MeshAxes) -> _Step | None:
    """A step that moves the last axis of a dimension to the end of another's axes."""
    for source in _excessive(now, want):
        for target in _incomplete(now, want):
            if now[source][-1] == want[target][len(now[target])]:
                return source, target
    return None


def _slice_step(now: Sequence[tuple[Any, ...]], want: MeshAxes) -> _Step | None:
    """A step that adds an axis that splits no dimension yet."""
    used = {name for names in now for name in names}
    for target in _incomplete(now, want):
        if want[target][len(now[target])] not in used:
            return None, target
    return None


def _gather_step(now: Sequence[tuple[Any, ...]], want: MeshAxes) -> _Step | None:
    return next(((source, None) for source in _excessive(now, want)), None)


def _gathered_at_once(
    dim: int, now: Sequence[tuple[Any, ...]], want: MeshAxes, memories: Memories
) -> tuple[Any, ...]:
    """The last axes of a dimension that no dimension shall have, for one all-gather.

    One over 8 x 8 devices sends as much as one over 8 and another over 8 do; but across nodes each
    device sends an eighth. () if devices share memories along them: then they are separate steps.
    """
    old, others = now[dim], {name for names in want for name in names}
    names: list[Any] = []
    for name in reversed(old):
        if name in others or memories.within[name] > 1 or memories.between[name] == 1:
            break
        names.insert(0, name)
    return tuple(names)


def _excessive(now: Sequence[tuple[Any, ...]], want: MeshAxes) -> list[int]:
    """The dimensions whose last axis must be removed."""
    pairs = enumerate(zip(now, want, strict=True))
    return [dim for dim, (old, new) in pairs if old != new[: len(old)]]


def _incomplete(now: Sequence[tuple[Any, ...]], want: MeshAxes) -> list[int]:
    """The dimensions that lack axes, and have no axis to remove."""
    pairs = enumerate(zip(now, want, strict=True))
    return [dim for dim, (old, new) in pairs if len(old) < len(new) and old == new[: len(old)]]


def _outer(names: Sequence[Any], memories: Memories) -> int:
    """The number of chunks in a memory along the axes before the last one."""
    return prod(memories.within[name] for name in names[:-1])


def _gathered(x: Any, dim: int, names: Sequence[Any], memories: Memories, last: int = 1) -> Any:
    """All-gather a dimension over the last ``last`` of its axes, which share no memory if many."""
    over = names[-last:]
    sizes = tuple(memories.between[name] for name in over)
    count = prod(sizes)
    shape, outer = aval_of(x).shape, _outer(names, memories)
    rows = reshape(x, (*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :]))
    whole = all_gather_p.bind(
        rows,
        all_gather_dimension=dim + 1,
        axis_name=tuple(map(memories.across, over)),
        axis_index_groups=None,
        sizes=sizes,
        tiled=False,
    )
    return reshape(whole, (*shape[:dim], shape[dim] * count, *shape[dim + 1 :]))


def _sliced(x: Any, dim: int, names: Sequence[Any], memories: Memories) -> Any:
    """Slice a dimension over the last of ``names``, its new axis."""
    count = memories.between[names[-1]]
    shape, outer = aval_of(x).shape, _outer(names, memories)
    inner = shape[dim] // outer // count
    rows = reshape(x, (*shape[:dim], outer, count, inner, *shape[dim + 1 :]))
    starts: list[Any] = [np.int32(0)] * len(aval_of(rows).shape)
    starts[dim + 1] = axis_index_p.bind(axis_name=memories.across(names[-1]))
    sizes = list(aval_of(rows).shape)
    sizes[dim + 1] = 1
    chunk = squeeze(dynamic_slice(rows, starts, sizes), (dim + 1,))
    return reshape(chunk, (*shape[:dim], shape[dim] // count, *shape[dim + 1 :]))


def scattered_sum(
    x: Any, dim: int, old: tuple[Any, ...], new: tuple[Any, ...], memories: Memories
) -> Any:
    """The sum over mesh axes, with a dimension split over them.

    Args:
        x: the terms of this memory.
        dim: the dimension.
        old: the axes that split it already.
        new: the axes of the sum, in the order in which they split it after these.
        memories: the memories of the mesh.
    """
    if all(memories.within[name] == 1 for name in (*old, *new)):
        return _scattered(x, dim, (*old, *new), memories, len(new))
    for k in range(len(new)):
        x = _scattered(x, dim, (*old, *new[: k + 1]), memories, 1)
    return x


def _scattered(x: Any, dim: int, names: Sequence[Any], memories: Memories, last: int) -> Any:
    """The sum over the last ``last`` of a dimension's axes, split over them."""
    over = names[-last:]
    sizes = tuple(memories.between[name] for name in over)
    count = prod(sizes)
    shape, outer = aval_of(x).shape, _outer(names, memories)
    inner = shape[dim] // outer // count
    rows = reshape(x, (*shape[:dim], outer, count, inner, *shape[dim + 1 :]))
    shard = reduce_scatter_p.bind(
        rows,
        scatter_dimension=dim + 1,
        axis_name=tuple(map(memories.across, over)),
        axis_index_groups=None,
        sizes=sizes,
        tiled=False,
    )
    return reshape(shard, (*shape[:dim], shape[dim] // count, *shape[dim + 1 :]))


def _exchanged(
    x: Any, source: int, target: int, old: Sequence[Any], new: Sequence[Any], memories: Memories
) -> Any:
    """All-to-all: move the last axis of dimension ``source`` to dimension ``target``.

    Args:
        x: the shard of the memory.
        source, target: dimensions.
        old: the axes of ``source`` before.
        new: the axes of ``target`` afterwards.
        memories: the memories of the mesh.
    """
    count, sizes = memories.between[old[-1]], aval_of(x).shape
    rows: list[int] = []
    at = {}
    for dim, size in enumerate(sizes):
        names = {source: old, target: new}.get(dim)
        if names is not None:
            outer = _outer(names, memories)
            rows.append(outer)
            size //= outer
            at[dim] = len(rows)
        rows.append(size)
    swapped = all_to_all_p.bind(
        reshape(x, tuple(rows)),
        split_axis=at[target],
        concat_axis=at[source],
        axis_name=(memories.across(old[-1]),),
        axis_index_groups=None,
        sizes=(count,),
    )
    shape = list(sizes)
    shape[source], shape[target] = sizes[source] * count, sizes[target] // count
    return reshape(swapped, tuple(shape))
