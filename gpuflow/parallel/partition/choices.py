"""Choices of the partitioner: how products are split, and how values are wanted by readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import corresponding
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.sharding import NamedSharding
from gpuflow.parallel.partition.resharding import DimAxes, dim_axes_in
from gpuflow.runtime.memories import Memories

# A dimension of a product: that of the left operand, of the right one and of the result, or None.
_Dim = tuple[int | None, int | None, int | None]


@record
class ProductSplit:
    """The mesh axes of a product's operands and result.

    Attributes:
        left, right, out: of their dimensions.
        summed: the axes that contracted dimensions are split over.
    """

    left: DimAxes
    right: DimAxes
    out: DimAxes
    summed: tuple[Any, ...]


def choose(
    eqn: Eqn, product: Product, left: DimAxes, right: DimAxes, memories: Memories
) -> ProductSplit:
    """Split a product over the mesh axes of its operands, so that few bytes are moved.

    An axis stays where one of the operands has it, if the other operand can follow: it is moved
    there by an exchange, or gathered if it has no such dimension. Contracted dimensions give terms
    of a sum, which has to be added up.

    Args:
        eqn: the product.
        product: its dimensions.
        left, right: the mesh axes of its operands.
        memories: over which they are split.
    """
    dims = list(_dims(product))
    avals = [atom.aval for atom in (*eqn.inputs[:2], eqn.outputs[0])]
    have = (left, right)
    axes: dict[_Dim, list[Any]] = {dim: [] for dim in dims}
    for name in memories.names:
        current = [_dim_of(dims, side, have[side], name) for side in (0, 1)]
        candidates = [dim for dim in dict.fromkeys(current) if dim is not None]
        fitting = [dim for dim in candidates if _fits(dim, (*axes[dim], name), avals, memories)]
        if fitting:
            costs = [_cost(dim, current, name, avals, have, axes, memories) for dim in fitting]
            axes[fitting[costs.index(min(costs))]].append(name)
    chosen = [[()] * aval.ndim for aval in avals]
    for dim, names in axes.items():
        for side, position in enumerate(dim):
            if position is not None:
                chosen[side][position] = _in_order(names, have, dim)
    summed = tuple(name for dim, names in axes.items() if dim[2] is None for name in names)
    return ProductSplit(*map(tuple, chosen), summed)


def _dims(product: Product) -> Iterator[_Dim]:
    """The dimensions of a product; those of its result are the stack's, rows and columns."""
    (batch, rows, depth), (right_batch, right_depth, columns) = product.left, product.right
    count = len(batch)
    yield from ((a, b, k) for k, (a, b) in enumerate(safe_zip(batch, right_batch)))
    yield from ((a, None, count + k) for k, a in enumerate(rows))
    yield from ((None, b, count + len(rows) + k) for k, b in enumerate(columns))
    yield from ((a, b, None) for a, b in safe_zip(depth, right_depth))


def _dim_of(dims: Sequence[_Dim], side: int, have: DimAxes, name: Any) -> _Dim | None:
    """The dimension that an operand splits over an axis."""
    return next((d for d in dims if d[side] is not None and name in have[d[side]]), None)


def _fits(dim: _Dim, names: Sequence[Any], avals: Sequence[Any], memories: Memories) -> bool:
    count = prod(memories.between[name] for name in names)
    return all(p is None or avals[side].shape[p] % count == 0 for side, p in enumerate(dim))


def _cost(
    dim: _Dim,
    current: Sequence[_Dim | None],
    name: Any,
    avals: Sequence[Any],
    have: Sequence[DimAxes],
    axes: dict[_Dim, list[Any]],
    memories: Memories,
) -> tuple[float, int]:
    """The bytes that a memory sends if an axis splits a dimension; a sum if they are equal."""
    count = memories.between[name]
    sent = 0.0
    for side in (0, 1):
        if current[side] in (None, dim):
            continue
        shards = prod(memories.between[name] for names in have[side] for name in names)
        shard = avals[side].nbytes / shards
        sent += shard * (count - 1) * (1 / count if dim[side] is not None else 1)
    is_sum = dim[2] is None
    if is_sum:
        others = [memories.between[n] for d, ns in axes.items() if d[2] is not None for n in ns]
        sent += avals[2].nbytes / prod(others) * 2 * (count - 1) / count
    return sent, is_sum


def _in_order(names: Sequence[Any], have: Sequence[DimAxes], dim: _Dim) -> tuple[Any, ...]:
    """Axes in the order in which an operand has them, so that it need not move."""
    for side in (0, 1):
        position = dim[side]
        if position is not None and {*have[side][position]} == {*names}:
            return have[side][position]
    return tuple(names)


# --- readers -------------------------------------------------------------------------------


def wanted_axes(
    program: Jaxpr, out_axes: Sequence[DimAxes], memories: Memories
) -> dict[Var, DimAxes]:
    """The mesh axes with which values are read, from outputs and constraints backwards.

    A value that several equations read has those of the last one.
    """
    wanted: dict[Var, DimAxes] = {}

    def want(atom: Any, dim_axes: DimAxes) -> None:
        if type(atom) is Var and any(dim_axes):
            wanted.setdefault(atom, dim_axes)

    for atom, dim_axes in safe_zip(program.outvars, out_axes):
        want(atom, dim_axes)
    for eqn in reversed(program.eqns):
        if eqn.primitive.placement.sharding is not None:
            sharding = eqn.primitive.placement.sharding(eqn.params)
            if isinstance(sharding, NamedSharding) and sharding.mesh == memories.mesh:
                want(eqn.inputs[0], dim_axes_in(sharding, eqn.inputs[0].aval.ndim, memories))
            continue
        goals = [(k, wanted[var]) for k, var in enumerate(eqn.outputs) if var in wanted]
        correspondence = corresponding(eqn) if goals else None
        if correspondence is None:
            continue
        split: dict[int, tuple[Any, ...]] = {}
        for k, dim_axes in goals:
            for axis, names in safe_zip(correspondence.outs[k], dim_axes):
                if axis is not None and names:
                    split.setdefault(axis, names)
        for atom, links in safe_zip(eqn.inputs, correspondence.reads):
            dims: list[tuple[Any, ...]] = [()] * atom.aval.ndim
            for dim, axis in links:
                names = split.get(axis, ())
                count = prod(memories.between[name] for name in names)
                if correspondence.can_split(atom.aval.shape[dim], axis, count):
                    dims[dim] = names
            want(atom, tuple(dims))
    return wanted
