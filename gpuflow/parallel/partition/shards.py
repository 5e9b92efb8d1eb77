"""The values in the program of one memory, and how they are resharded for their readers.

Tests: tests/parallel/test_partitioner.py, tests/parallel/test_partitioned_products.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.util import SourceLocation
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.trace import made_at, source_location
from gpuflow.ops.collectives.axis_index import axis_index_p
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.parallel.partition.resharding import MeshAxes, is_even, resharded, scattered_sum
from gpuflow.runtime.memories import Memories

# For so many equations a gathered value stays for other readers: those of a layer and its
# gradient, but not those of the forward and the backward pass of a model.
_NEAR = 256


@record(frozen=False)
class Split:
    """A value of a program of one memory.

    Attributes:
        value: the shard of the memory. Where a dimension does not divide, shards have the same
            size, and the last ones end with arbitrary elements that are not in the whole array.
        aval: of the whole array.
        dim_axes: for each dimension the mesh axes that it is split over.
        partial: the mesh axes over which ``value`` is a term of a sum that is not added up yet.
        dtype: of the sum, if the terms have a wider one.
        origin: the equation that gave the first of these terms.
        sum_axes: the mesh axes with which the sum is added up unless its readers want others.
        copies: the value with other splits, and the number of the equation that read it so.
        make: ``MeshAxes -> shard | None``, of an array that is made where it is read, such as
            random bits; ``value`` is None until it is read whole. None: it cannot be made so.
    """

    value: Any
    aval: ShapedArray
    dim_axes: MeshAxes
    partial: tuple[Any, ...] = ()
    dtype: Any = None
    origin: SourceLocation | None = None
    sum_axes: MeshAxes | None = None
    copies: dict[MeshAxes, tuple[Any, int]] = field(default_factory=dict)
    make: Callable[[MeshAxes], Any] | None = None


class Shards:
    """Reshards the values of a program, and remembers for whom.

    Attributes:
        memories: the memories of the mesh.
        count_of_equations: of those that were partitioned so far.
    """

    def __init__(self, memories: Memories) -> None:
        self.memories = memories
        self.count_of_equations = 0

    def count(self, names: Sequence[Any]) -> int:
        """The number of shards over mesh axes."""
        return prod(self.memories.between[name] for name in names)

    def number(self, names: Sequence[Any]) -> Any:
        """The number of a memory's chunk of a dimension that is split over mesh axes."""
        number: Any = np.int32(0)
        for name in names:
            index = axis_index_p.bind(axis_name=self.memories.across(name))
            number = add(mul(number, np.int32(self.memories.between[name])), index)
        return number

    def of(self, operands: Sequence[Split]) -> list[Any]:
        """The shards of operands as they are split, with sums added up."""
        return [self.reshard(x, x.dim_axes) for x in operands]

    def reshard(self, split: Split, want: MeshAxes) -> Any:
        """The shard of a value after resharding; the terms of a sum are added up before."""
        self.add_up(split, want)
        if split.make is not None and split.value is None and not any(want):
            split.value = split.make(want)
        if split.dim_axes == want:
            return split.value
        copy, last = split.copies.get(want, (None, -_NEAR))
        if self.count_of_equations - last >= _NEAR:
            copy = None if split.make is None else split.make(want)
            if copy is None:
                value = self.reshard(split, split.dim_axes)
                shape = split.aval.shape
                copy = resharded(value, shape, split.dim_axes, want, self.memories)
        split.copies[want] = copy, self.count_of_equations
        return copy

    def add_up(self, split: Split, want: MeshAxes) -> None:
        """Add up the terms of a sum, once for all readers.

        Where ``want`` splits a dimension over the axis of a sum, each memory gets its shard of the
        sum only. Readers that need all of it gather it, which sends as much as a sum for all does.
        """
        if not split.partial:
            return
        with made_at(split.origin or source_location()):
            self._add_up(split, want)

    def _add_up(self, split: Split, want: MeshAxes) -> None:
        value, dim_axes = split.value, list(split.dim_axes)
        remaining = [name for name in self.memories.names if name in split.partial]
        for dim, (size, names) in enumerate(zip(split.aval.shape, want, strict=True)):
            old, new = dim_axes[dim], names[len(dim_axes[dim]) :]
            new = tuple(takewhile(remaining.__contains__, new)) if names[: len(old)] == old else ()
            if not new or not is_even(size, (*old, *new), self.memories):
                continue
            value = scattered_sum(value, dim, old, new, self.memories)
            dim_axes[dim] = (*old, *new)
            remaining = [name for name in remaining if name not in new]
        whole = tuple(map(self.memories.across, remaining))
        if whole:
            value = psum_p.bind(value, axes=whole, axis_index_groups=None)
        if split.dtype is not None:
            value = convert_element_type(value, split.dtype)
        split.value, split.dim_axes, split.partial, split.dtype = value, tuple(dim_axes), (), None

    def bound(self, eqn: Eqn, values: Sequence[Any]) -> list[Split]:
        """Bind an equation on unsharded values."""
        with made_at(eqn.source or source_location()):
            outs = eqn.primitive.bind(*values, **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return splits_of(eqn, outs, [((),) * var.aval.ndim for var in eqn.outputs])


def splits_of(eqn: Eqn, outs: Sequence[Any], dim_axes: Sequence[MeshAxes]) -> list[Split]:
    """The results of an equation, from their shards and mesh axes."""
    triples = zip(outs, eqn.outputs, dim_axes, strict=True)
    return [Split(value, var.aval, axes) for value, var, axes in triples]
