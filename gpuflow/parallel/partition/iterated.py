"""Ops whose dimensions correspond, and matrix products: how each is computed on shards.

Tests: tests/parallel/test_partitioner.py, tests/parallel/test_partitioned_products.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.util import because, safe_zip
from gpuflow.compiler.correspondence import Correspondence, corresponding
from gpuflow.compiler.row_exchange import plan_exchange, rows_of
from gpuflow.compiler.splits import (
    Factor,
    MeshAxes,
    choose,
    collective_of,
    factors_of,
    factors_of_product,
    operand_axes,
    without_axes,
)
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.halo import Halo
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.trace import made_at, source_location
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.ops.collectives.reduce import pmax_p, pmin_p
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.ops.reductions.reduce import highest, lowest
from gpuflow.parallel.partition.exchange import rows_of_memory, where_rows
from gpuflow.parallel.partition.readers import Readers
from gpuflow.parallel.partition.resharding import is_even, local_params, local_shape
from gpuflow.parallel.partition.shards import Shards, Split, splits_of
from gpuflow.runtime.memories import Memories

_COLLECTIVES = {"sum": psum_p, "max": pmax_p, "min": pmin_p}
# From a collective to the element, by dtype, that changes no result.
_NEUTRAL: dict[Any, Callable[[Any], Any]] = {
    "sum": lambda dtype: 0,
    "max": lambda dtype: False if dtypes.is_bool(dtype) else lowest(dtype),
    "min": lambda dtype: True if dtypes.is_bool(dtype) else highest(dtype),
}

# Called with an equation, the mesh axes that its operands lose, and the bytes that are gathered.
Lost = Callable[[Eqn, Sequence[Any], int], None]


def iterated(
    shards: Shards, eqn: Eqn, operands: Sequence[Split], readers: Readers, lost: Lost
) -> list[Split] | None:
    """Ops with corresponding dimensions: elementwise ops, layouts, reductions and others.

    ``choose`` gives each axis of iteration its mesh axes, to which operands are resharded. Along
    axes with a halo, memories exchange the rows that their blocks need.

    Returns:
        The results; None if nothing can be split.
    """
    correspondence = corresponding(eqn)
    if correspondence is None:
        return None
    memories, axes = shards.memories, len(correspondence.sizes)
    factors = factors_of(
        eqn, correspondence, lambda axis: readers.exchange_rows(eqn.outputs[0], axis)
    )
    if any(factor.is_chunk for factor in factors):
        shards.add_up(operands[0], operands[0].dim_axes)
    sizes = [atom.aval.nbytes for atom in (*eqn.inputs, eqn.outputs[0])]
    have = [x.dim_axes for x in operands]
    chosen = choose(factors, have, sizes, memories.counts)
    chunk = _chunk(factors[axes:], chosen[axes:])
    if chunk is not None and not _are_blocks(chunk[1], memories):
        factors, chunk = factors[:axes], None
        chosen = choose(factors, have, sizes, memories.counts)
    split = {axis: names for axis, names in enumerate(chosen[:axes]) if names}
    goals = operand_axes(eqn, correspondence, split, memories.counts)
    slides = {axis: dims for axis, dims in correspondence.slides if axis in split}
    for axis, dims in slides.items():
        for k, dim in enumerate(dims):
            if dim is not None and operands[k].dim_axes[dim] == split[axis]:
                goals[k] = _with(goals[k], dim, split[axis])
    if chunk is not None:
        goals[0] = _with(goals[0], *chunk)
    if not split and chunk is None:
        return None  # every memory would compute the whole op: gather with a warning
    _report_lost(eqn, operands, chosen, memories, lost)
    values = [shards.reshard(*pair) for pair in safe_zip(operands, goals)]
    dim_axes = [
        tuple(() if k is None else split.get(k, ()) for k in out) for out in correspondence.outs
    ]
    if chunk is not None:
        terms = _chunk_terms(shards, eqn, values, dim_axes[0], *chunk)
        # The sum may be split where the other operands are.
        others = [without_axes(x.dim_axes, chunk[1]) for x in operands[:1]]
        natural = choose(factors[:axes], [*others, *have[1:]], sizes, memories.counts)
        terms.sum_axes = tuple(() if k is None else natural[k] for k in correspondence.outs[0])
        return [terms]
    if slides:
        return _block_of_rows(shards, eqn, correspondence.halo, values, goals, dim_axes[0], slides)
    reduced = {axis: split[axis] for axis in correspondence.reduced if axis in split}
    if not reduced:
        return applied(eqn, values, dim_axes, memories)
    values = _with_neutral_rows(shards, eqn, correspondence, reduced, values)
    names = [name for axis_names in reduced.values() for name in axis_names]
    return _combined(eqn, values, dim_axes, names, memories)


def _with(dim_axes: MeshAxes, dim: int, names: tuple[Any, ...]) -> MeshAxes:
    return (*dim_axes[:dim], names, *dim_axes[dim + 1 :])


def _report_lost(
    eqn: Eqn,
    operands: Sequence[Split],
    chosen: Sequence[tuple[Any, ...]],
    memories: Memories,
    lost: Lost,
) -> None:
    """Report mesh axes that operands have, and that the op is not split over.

    Each memory along such an axis gathers the operand and computes the same elements.
    """
    for name in memories.names:
        if not any(name in names for names in chosen):
            gathered = [x.aval.nbytes for x in operands if any(name in n for n in x.dim_axes)]
            if gathered:
                lost(eqn, [name], sum(gathered))


# --- chunks of operands ----------------------------------------------------------------------


def _chunk(
    factors: Sequence[Factor], chosen: Sequence[tuple[Any, ...]]
) -> tuple[int, tuple[Any, ...]] | None:
    """The dimension of the first operand that is read in chunks, and its mesh axes; or None."""
    for factor, names in safe_zip(factors, chosen):
        if names:
            assert factor.operands[0] is not None, "chunks are of the first operand"
            return factor.operands[0], names
    return None


def _are_blocks(names: Sequence[Any], memories: Memories) -> bool:
    """Whether the shards of a dimension that is split over mesh axes are contiguous."""
    return len(names) == 1 or all(memories.within[name] == 1 for name in names)


def _chunk_terms(
    shards: Shards, eqn: Eqn, values: Sequence[Any], out: MeshAxes, dim: int, names: Sequence[Any]
) -> Split:
    """The term of the output that a chunk of the first operand gives."""
    assert eqn.primitive.placement.chunk is not None
    apply = eqn.primitive.placement.chunk(dim, eqn.params)
    assert apply is not None, "the dimension was selected by this rule"
    length = aval_of(values[0]).shape[dim]
    start = mul(shards.number(names), np.int32(length))
    value = apply(eqn.primitive.bind, start, eqn.inputs[0].aval.shape[dim], *values)
    partial = tuple(name for name in shards.memories.names if name in names)
    return Split(value, eqn.outputs[0].aval, out, partial)


# --- halos -----------------------------------------------------------------------------------


def _block_of_rows(
    shards: Shards,
    eqn: Eqn,
    halo: Halo,
    values: Sequence[Any],
    have: Sequence[MeshAxes],
    out: MeshAxes,
    slides: Mapping[int, Sequence[int | None]],
) -> list[Split]:
    """The block of a memory, from rows of operands that memories exchange.

    Args:
        shards: of the program.
        eqn, halo: an equation with a halo.
        values, have: the shards of its operands, and their mesh axes.
        out: the mesh axes of its result.
        slides: for axes of iteration with a halo, the dimension of each operand that has its rows.
    """
    var, memories = eqn.outputs[0], shards.memories
    shape, starts, rows = local_shape(var.aval, out, memories), {}, list(values)
    for axis, dims in slides.items():
        count, number = shards.count(out[axis]), shards.number(out[axis])
        starts[axis] = mul(number, np.int32(shape[axis]))
        for k, dim in enumerate(dims):
            if dim is None:
                continue
            first, length = rows_of(halo, k, axis, shape[axis], count)
            size = eqn.inputs[k].aval.shape[dim]
            exchange = plan_exchange(first, length, size)
            fill = 0 if halo.fill is None else halo.fill(k, values)
            across = memories.across(out[axis][0]) if have[k][dim] == out[axis] else None
            with made_at(because(eqn.source, f"rows of {eqn.primitive.name} from other chunks")):
                rows[k] = rows_of_memory(rows[k], dim, exchange, number, across, fill)
    block = halo.apply(eqn.primitive.bind, starts, tuple(shape), *rows)
    return [Split(block, var.aval, out)]


# --- reductions --------------------------------------------------------------------------------


def _with_neutral_rows(
    shards: Shards,
    eqn: Eqn,
    correspondence: Correspondence,
    reduced: Mapping[int, tuple[Any, ...]],
    values: Sequence[Any],
) -> list[Any]:
    """Operands whose elements beyond the whole array are neutral, where a dimension is uneven."""
    collective, results = collective_of(eqn), list(values)
    for axis, names in reduced.items():
        for k, links in enumerate(correspondence.reads):
            for dim in [d for d, a in links if a == axis]:
                aval = eqn.inputs[k].aval
                if not is_even(aval.shape[dim], names, shards.memories):
                    neutral = _NEUTRAL[collective](aval.dtype)
                    results[k] = _masked(shards, results[k], dim, aval.shape[dim], names, neutral)
    return results


def _masked(shards: Shards, x: Any, dim: int, size: int, names: Sequence[Any], neutral: Any) -> Any:
    """A shard whose rows beyond ``size`` rows of the whole array have a neutral element."""
    chunk = aval_of(x).shape[dim]
    return where_rows(x, dim, mul(shards.number(names), np.int32(chunk)), size, neutral)


def _combined(
    eqn: Eqn,
    values: Sequence[Any],
    dim_axes: Sequence[MeshAxes],
    names: Sequence[Any],
    memories: Memories,
) -> list[Split] | None:
    """The equation on shards, with results combined over the mesh axes that it reduces.

    Sums are left as terms, see ``Shards.add_up``. Those of 16-bit floats are rounded once, after
    all memories' are added, where the call has a result in float32.
    """
    # In the order of the mesh, so that reductions over the same axes share a communicator.
    partial = tuple(name for name in memories.names if name in names)
    if not partial:
        return applied(eqn, values, dim_axes, memories)
    outs = applied(_with_float32_result(eqn), values, dim_axes, memories)
    collective = collective_of(eqn)
    if outs is None or collective is None:
        return None
    results = []
    for out, var in safe_zip(outs, eqn.outputs):
        if collective == "sum":
            dtype = None if aval_of(out.value).dtype == var.aval.dtype else var.aval.dtype
            results.append(Split(out.value, var.aval, out.dim_axes, partial, dtype))
            continue
        across = tuple(map(memories.across, partial))
        with made_at(because(eqn.source, f"{collective} over terms of {eqn.primitive.name}")):
            value = _COLLECTIVES[collective].bind(out.value, axes=across, axis_index_groups=None)
        results.append(Split(value, var.aval, out.dim_axes))
    return results


def applied(
    eqn: Eqn, values: Sequence[Any], dim_axes: Sequence[MeshAxes], memories: Memories
) -> list[Split] | None:
    """The equation on shards; None if this does not give the expected shape of the result."""
    pairs = safe_zip(eqn.outputs, dim_axes)
    expected = [local_shape(var.aval, axes, memories) for var, axes in pairs]
    params = local_params(eqn, dim_axes[0], expected[0])
    try:
        out = eqn.primitive.shape(*map(aval_of, values), **params)
    except (TypeError, ValueError):
        return None
    avals: Sequence[ShapedArray] = out if eqn.primitive.multiple_results else [out]
    if [aval.shape for aval in avals] != expected:
        return None
    with made_at(eqn.source or source_location()):
        outs = eqn.primitive.bind(*values, **params)
    outs = outs if eqn.primitive.multiple_results else [outs]
    return splits_of(eqn, outs, dim_axes)


def _with_float32_result(eqn: Eqn) -> Eqn:
    """The equation with a float32 result instead of 16-bit floats or narrower, if possible."""
    rule, dtype = eqn.primitive.lower, eqn.outputs[0].aval.dtype
    if rule.dtype_param is None:
        return eqn
    if not dtypes.is_floating(dtype) or dtype.itemsize > 2:
        return eqn
    return eqn.replace(params={**eqn.params, rule.dtype_param: dtypes.float32})


# --- products ----------------------------------------------------------------------------------


def multiplied(
    shards: Shards, eqn: Eqn, product: Product, operands: Sequence[Split]
) -> list[Split] | None:
    """A batched matrix product; contracted dimensions may be sharded too."""
    left, right = operands[:2]
    for operand in operands:
        shards.add_up(operand, operand.dim_axes)
    factors = factors_of_product(eqn, product)
    have = [left.dim_axes, right.dim_axes]
    sizes = [atom.aval.nbytes for atom in (*eqn.inputs[:2], eqn.outputs[0])]
    chosen = choose(factors, have, sizes, shards.memories.counts, moves=True)
    dims = [[()] * atom.aval.ndim for atom in (*eqn.inputs[:2], eqn.outputs[0])]
    for factor, names in safe_zip(factors, chosen):
        for side, dim in enumerate((*factor.operands, factor.out)):
            if dim is not None:
                dims[side][dim] = names
    one, two, out = map(tuple, dims)
    values = [shards.reshard(left, one), shards.reshard(right, two)]
    values += [shards.reshard(x, ((),) * len(x.dim_axes)) for x in operands[2:]]
    summed = []
    for factor, names in safe_zip(factors, chosen):
        if factor.out is not None:
            continue
        summed += names
        for side, dim in enumerate(factor.operands):
            size = factor.sizes[0]
            if dim is not None and not is_even(size, names, shards.memories):
                values[side] = _masked(shards, values[side], dim, size, names, 0)
    if summed:
        return _combined(eqn, values, [out], summed, shards.memories)
    return applied(eqn, values, [out], shards.memories)
