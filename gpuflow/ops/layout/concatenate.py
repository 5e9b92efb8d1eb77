"""concatenate: arrays combined along a dimension.

Tests: tests/ops/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gpuflow.base.arguments import are_dimensions, as_items
from gpuflow.base.dtypes import is_extended
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.halo import Halo
from gpuflow.core.lowering import Indexed
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_same_dtype, define, types_text
from gpuflow.ops.elementwise.arithmetic import add
from gpuflow.ops.elementwise.comparison import lt
from gpuflow.ops.elementwise.select import select_n
from gpuflow.ops.indexing.updating import store_concatenated
from gpuflow.ops.layout.axes import squeeze_p
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import merged_slices, slice_, slice_p
from gpuflow.ops.zeros import instantiate

_MAX_COLUMNS = 8


def _concatenate_shape(*arrays: ShapedArray, dimension: int) -> ShapedArray:
    check(
        len(arrays) > 0,
        lambda: "[concatenate] at least one array is needed; got none. Fix: pass a list of arrays.",
        ValueError,
    )
    check_same_dtype("concatenate", arrays)
    rank = arrays[0].ndim
    check(
        are_dimensions([dimension], rank),
        lambda: (
            f"[concatenate] dimension must be in [0, {rank}); got {brief(dimension)} for "
            f"{types_text(arrays)}. Fix: choose an existing dimension, as in lax.concatenate([x, "
            "y], 0), or reshape scalars to (1,)."
        ),
    )

    def others(aval: ShapedArray) -> tuple[int, ...]:
        return aval.shape[:dimension] + aval.shape[dimension + 1 :]

    check(
        all(p.ndim == rank and others(p) == others(arrays[0]) for p in arrays),
        lambda: (
            f"[concatenate] shapes must agree except along dimension {dimension}; got "
            f"{types_text(arrays)}. Fix: pad, slice or reshape the odd one."
        ),
    )
    total = sum(array.shape[dimension] for array in arrays)
    shape = (*arrays[0].shape[:dimension], total, *arrays[0].shape[dimension + 1 :])
    return ShapedArray(shape, arrays[0].dtype, all(array.weak_type for array in arrays))


def _concatenate_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int
) -> tuple[Any, Any]:
    out = concatenate(primals, dimension)
    return out, concatenate([instantiate(tangent) for tangent in tangents], dimension)


def _concatenate_transpose(cotangent: Any, *operands: Any, dimension: int) -> list[Any]:
    if type(cotangent) is Zero:
        return [Zero(p.aval.tangent()) if is_undefined(p) else None for p in operands]
    shape = aval_of(cotangent).shape
    results, start = [], 0
    for operand in operands:
        is_linear = is_undefined(operand)
        size = (operand.aval if is_linear else aval_of(operand)).shape[dimension]
        if is_linear:
            first, last = [0] * len(shape), list(shape)
            first[dimension], last[dimension] = start, start + size
            results.append(slice_(cotangent, first, last))
        else:
            results.append(None)
        start += size
    return results


def _concatenate_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], *, dimension: int
) -> tuple[Any, int]:
    shared = {dim for dim in dims if dim is not None}
    target = shared.pop() if len(shared) == 1 else 0
    batched = [batch_to_dim(x, d, target, axis.size) for x, d in zip(operands, dims)]
    return concatenate(batched, dimension + (dimension >= target)), target


def _concatenate_scalars(in_avals: Any, params: Any) -> list[int]:
    """End of each operand along the dimension."""
    return list(accumulate([aval.shape[params["dimension"]] for aval in in_avals]))


def _concatenate_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    """The element of one operand, found by binary search with branches."""
    dimension = params["dimension"]
    builder = context.builder
    position = context.index(dimension)
    others = [context.index(d) for d in range(out.ndim)]
    sizes = [aval.shape[dimension] for aval in in_avals]
    ends = [context.bound(dimension, k) for k in range(len(sizes) - 1)]
    filled = [index for index, size in enumerate(sizes) if size]

    def element(first: int, last: int) -> Any:
        """The element among the operands ``filled[first:last]``."""
        index = filled[first]
        if last - first == 1:
            indices = list(others)
            if index != filled[0]:
                indices[dimension] = builder.apply("sub", position, ends[index - 1])
            return context.load(index, indices)
        middle = (first + last) // 2
        is_before = builder.apply("lt", position, ends[filled[middle] - 1])
        return builder.lazy_select(
            is_before, lambda: element(first, middle), lambda: element(middle, last)
        )

    return element(0, len(filled)) if filled else context.load(0, others)


def _concatenate_sliced(
    eqn: Any, bounds: Any, cut: Any, definition: DefinitionLookup, build: EqnBuilder
) -> Any:
    """A slice of one operand; or, if only slices read the result, slices of several."""
    dimension = eqn.params["dimension"]
    start, limit, step = bounds[dimension]
    ranges, begin = [], 0
    for operand in eqn.inputs:
        end = begin + operand.aval.shape[dimension]
        # The first index of start, start + step, ... in this operand.
        first = start + max(0, -(-(begin - start) // step)) * step
        last = min(limit, end)
        if first < last:
            operand_bounds = [*bounds]
            operand_bounds[dimension] = (first - begin, last - begin, step)
            ranges.append((operand, operand_bounds))
        begin = end
    if len(ranges) > 1 and not definition.is_read_only_by(slice_p, eqn.outputs[0]):
        return None
    slices = [cut(*entry) for entry in ranges]
    if len(slices) == 1:
        return slices[0]
    return build.apply(concatenate_p, *slices, dimension=dimension)


def _concatenate_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """Simplify single operands, nested concatenations, and adjacent slices of one array."""
    dimension = eqn.params["dimension"]
    operands: list[Any] = []
    for operand in eqn.inputs:
        source = definition(operand)
        if (
            source is not None
            and source.primitive is concatenate_p
            and source.params["dimension"] == dimension
            and definition.is_read_once(operand)
        ):
            operands += source.inputs
        else:
            operands.append(operand)
    merged = operands[:1]
    for operand in operands[1:]:
        one = merged_slices(definition(merged[-1]), definition(operand), dimension, build)
        merged[-1:] = [merged[-1], operand] if one is None else [one]
    if len(merged) == len(eqn.inputs):
        return None
    if len(merged) == 1:
        return merged
    return [build.apply(concatenate_p, *merged, dimension=dimension)]


def _concatenate_stores(eqn: Any, build: EqnBuilder) -> Any:
    """Store operands one by one if each is one range; by rows they would be many short loops.

    A few columns are stored in one kernel, row by row.
    """
    out, dimension = eqn.outputs[0].aval, eqn.params["dimension"]
    are_columns = all(one.aval.shape[dimension] == 1 for one in eqn.inputs)
    is_last = dimension == out.ndim - 1 and not is_extended(out.dtype)
    if are_columns and is_last and len(eqn.inputs) <= _MAX_COLUMNS:
        columns = [build.apply(squeeze_p, one, dimensions=(dimension,)) for one in eqn.inputs]
        return build.apply(columns_p, *columns)
    if any(size != 1 for size in out.shape[:dimension]):
        return None
    return store_concatenated(build, out, dimension, eqn.inputs)


def _columns_shape(*columns: ShapedArray) -> ShapedArray:
    return ShapedArray((*columns[0].shape, len(columns)), columns[0].dtype)


def _columns_impl(xp: Any, *columns: Any) -> Any:
    return xp.stack(columns, -1)


def _columns_body(context: Any, in_avals: Any, out: Any, params: Any) -> Any:
    """The column of this index; all of them are computed before the branches."""
    del params
    builder, last = context.builder, out.ndim - 1
    index = context.index(last)
    columns = [context.element(k, range(last)) for k in range(len(in_avals))]

    def column(first: int) -> Any:
        if first == len(columns) - 1:
            return columns[first]
        is_before = builder.apply("lt", index, context.bound(last, first))
        return builder.lazy_select(is_before, lambda: columns[first], lambda: column(first + 1))

    return column(0)


# Compiled form of concatenated columns; programs of users have none.
columns_p = define(
    "columns",
    shape=_columns_shape,
    impl=_columns_impl,
    jvp=None,
    transpose=None,
    batch=None,
    lower=Indexed(
        _columns_body, lambda in_avals, params: range(1, len(in_avals)), in_memory=0, selects=True
    ),
)


def _concatenate_partitionable(ins: Sequence[Any], out: Any, params: Any) -> Any:
    shared_dims = [(d, d) for d in range(out.ndim) if d != params["dimension"]]
    return [shared_dims] * len(ins)


def _concatenate_halo(ins: Sequence[Any], out: Any, params: Any) -> Halo:
    del out
    dimension = params["dimension"]
    offsets = [0, *accumulate(x.shape[dimension] for x in ins)][:-1]

    def rows(dim: int, start: int, size: int) -> Sequence[Any]:
        return [(dim, start - offset, size) for offset in offsets]

    def apply(bind: Any, starts: Any, shape: Any, *arrays: Any) -> Any:
        del bind
        index = add(iota(np.int32, shape, dimension), starts[dimension])
        result = arrays[0]
        for offset, array in zip(offsets[1:], arrays[1:]):
            result = select_n(lt(index, np.int32(offset)), array, result)
        return result

    return Halo(rows, apply)


@explained
def concatenate(operands: Sequence[ArrayLike] | Array, dimension: int) -> Array:
    """Concatenate arrays along an existing dimension.

    Args:
        operands: arrays of one dtype, with equal shapes except along ``dimension``.
        dimension: the dimension along which to concatenate.

    Returns:
        An array of that dtype.

    Raises:
        ValueError: if no arrays are given.
        TypeError: if dtypes or shapes differ, or the dimension does not exist.

    Example:
        >>> lax.concatenate([jnp.array([1, 2]), jnp.array([3])], 0)
        Array([1, 2, 3], dtype=int32)
    """
    arrays = as_items("concatenate", "operands", operands)
    if len(arrays) == 1 and hasattr(arrays[0], "aval"):
        return arrays[0]
    return concatenate_p.bind(*arrays, dimension=dimension)


concatenate_p = define(
    "concatenate",
    shape=_concatenate_shape,
    impl=lambda xp, *arrays, dimension: xp.concatenate(arrays, dimension),
    jvp=_concatenate_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    lower=Indexed(
        _concatenate_body,
        _concatenate_scalars,
        selects=True,
        sliced=_concatenate_sliced,
        as_updates=_concatenate_stores,
        partitionable=_concatenate_partitionable,
    ),
    simplify=_concatenate_simplify,
    halo=_concatenate_halo,
)
