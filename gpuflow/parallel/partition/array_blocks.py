"""Conversion of arrays to blocks by a PartitionSpec, and back; layout operations only.

Tests: tests/parallel/test_shard_map.py, tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.sharding import PartitionSpec, names_of
from gpuflow.ops.layout.axes import reshape
from gpuflow.ops.layout.transpose import transpose


def all_names(spec: PartitionSpec) -> list[Any]:
    """The mesh axes of a spec, in order."""
    return [name for entry in spec for name in names_of(entry)]


def specs_of(what: str, prefix: Any, value: Any, name: str) -> list[PartitionSpec]:
    """The spec of each leaf; None means an empty spec.

    Args:
        what: "in_specs" or "out_specs", for messages.
        prefix: a tree prefix of specs.
        value: the pytree.
        name: name of the function, for messages.

    Raises:
        TypeError: if an entry is not a PartitionSpec.
        ValueError: if ``prefix`` is not a tree prefix of ``value``.
    """
    specs = tree.broadcast_prefix(prefix, value, f"shard_map {what}")
    for spec in specs:
        check(
            spec is None or isinstance(spec, PartitionSpec),
            lambda spec=spec: (
                f"[shard_map] {what} must hold PartitionSpecs; got {spec!r} for {name}. "
                "Fix: PartitionSpec('x', None)."
            ),
            TypeError,
        )
    return [PartitionSpec() if spec is None else spec for spec in specs]


def into_blocks(x: Any, spec: PartitionSpec, axes: Sequence[Any], sizes: Mapping[Any, int]) -> Any:
    """Split an array into blocks: dimensions of mesh axes first, then those of a block.

    Args:
        x: the array.
        spec: for each dimension the mesh axes that it is split over.
        axes: all mesh axes, in order.
        sizes: the size of each mesh axis.
    """
    names = all_names(spec)
    if not names:
        return x
    shape, split, position = aval_of(x).shape, [], {}
    inner = []
    for dim, size in enumerate(shape):
        dim_names = names_of(spec[dim]) if dim < len(spec) else ()
        for name in dim_names:
            position[name] = len(split)
            split.append(sizes[name])
        inner.append(len(split))
        split.append(size // prod(sizes[name] for name in dim_names))
    front = [position[name] for name in axes if name in position]
    return transpose(reshape(x, tuple(split)), (*front, *inner))


def out_of_blocks(x: Any, spec: PartitionSpec, axes: Sequence[Any]) -> Any:
    """The inverse of ``into_blocks``."""
    names = all_names(spec)
    if not names:
        return x
    position = {name: k for k, name in enumerate(name for name in axes if name in names)}
    full = aval_of(x).shape
    order, shape = [], []
    for dim, size in enumerate(full[len(names) :]):
        dim_names = names_of(spec[dim]) if dim < len(spec) else ()
        order += [position[name] for name in dim_names] + [len(names) + dim]
        shape.append(size * prod(full[position[name]] for name in dim_names))
    return reshape(transpose(x, tuple(order)), tuple(shape))
