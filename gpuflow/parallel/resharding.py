"""Values of a program of one memory: how they are split between memories, and otherwise.

What a memory has of a dimension that is split over axes a and b is row-major over its elements of
a, its elements of b, and the elements of one piece. A later axis that lies in one memory changes
nothing, so that it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.sharding import NamedSharding, names_of
from gpuflow.ops.axes import reshape, squeeze
from gpuflow.ops.axis_index import axis_index_p
from gpuflow.ops.dynamic import dynamic_slice
from gpuflow.ops.gathering import all_gather_p
from gpuflow.runtime.memories import Memories

# For each dimension the mesh axes that it is split over.
Parts = tuple[tuple[Any, ...], ...]


def needed(names: Iterable[Any], memories: Memories) -> tuple[Any, ...]:
    """Axes without the last ones that lie in one memory."""
    kept = list(names)
    while kept and memories.between[kept[-1]] == 1:
        kept.pop()
    return tuple(kept)


def parts_in(sharding: NamedSharding, rank: int, memories: Memories) -> Parts:
    """How an array of a sharding over the memories' mesh is split."""
    own = [needed(names_of(part), memories) for part in sharding.spec]
    return (*own, *[()] * (rank - len(own)))


def local_shape(aval: ShapedArray, parts: Parts, memories: Memories) -> tuple[int, ...]:
    """The shape of what a memory has."""
    return tuple(
        size // prod(memories.between[name] for name in names)
        for size, names in zip(aval.shape, parts, strict=True)
    )


def local_params(eqn: Eqn, parts: Parts, local: tuple[int, ...]) -> dict[str, Any]:
    """The params of an equation whose sizes are those of what a memory has."""
    params, whole = dict(eqn.params), eqn.outputs[0].aval.shape
    for name in eqn.primitive.size_params & params.keys():
        sizes = params[name]
        if not isinstance(sizes, tuple) or len(sizes) != len(whole):
            continue
        params[name] = tuple(
            local[dim] if parts[dim] and size == whole[dim] else size
            for dim, size in enumerate(sizes)
        )
    return params


def resharded(x: Any, have: Parts, want: Parts, memories: Memories) -> Any:
    """A value that is split otherwise: gathered where it has to be, and then cut."""
    for dim, (old, new) in enumerate(zip(have, want, strict=True)):
        for count in range(len(old), _common(old, new), -1):
            x = _gathered(x, dim, old[:count], memories)
    for dim, (old, new) in enumerate(zip(have, want, strict=True)):
        for count in range(_common(old, new), len(new)):
            x = _cut(x, dim, new[: count + 1], memories)
    return x


def _common(old: Sequence[Any], new: Sequence[Any]) -> int:
    """How many axes are the same."""
    pairs = zip(old, new, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _outer(names: Sequence[Any], memories: Memories) -> int:
    """How many rows a memory has of the axes before the last one."""
    return prod(memories.within[name] for name in names[:-1])


def _gathered(x: Any, dim: int, names: Sequence[Any], memories: Memories) -> Any:
    """A dimension that is no longer split over the last of its axes."""
    count = memories.between[names[-1]]
    if count == 1:
        return x
    shape, outer = aval_of(x).shape, _outer(names, memories)
    rows = reshape(x, (*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :]))
    whole = all_gather_p.bind(
        rows, all_gather_dimension=dim + 1, axis_name=(memories.across(names[-1]),),
        axis_index_groups=None, sizes=(count,), tiled=False,
    )  # fmt: skip
    return reshape(whole, (*shape[:dim], shape[dim] * count, *shape[dim + 1 :]))


def _cut(x: Any, dim: int, names: Sequence[Any], memories: Memories) -> Any:
    """A dimension that is split over one more axis."""
    count = memories.between[names[-1]]
    if count == 1:
        return x
    shape, outer = aval_of(x).shape, _outer(names, memories)
    inner = shape[dim] // outer // count
    rows = reshape(x, (*shape[:dim], outer, count, inner, *shape[dim + 1 :]))
    starts: list[Any] = [np.int32(0)] * len(aval_of(rows).shape)
    starts[dim + 1] = axis_index_p.bind(axis_name=memories.across(names[-1]))
    sizes = list(aval_of(rows).shape)
    sizes[dim + 1] = 1
    own = squeeze(dynamic_slice(rows, starts, sizes), (dim + 1,))
    return reshape(own, (*shape[:dim], shape[dim] // count, *shape[dim + 1 :]))
