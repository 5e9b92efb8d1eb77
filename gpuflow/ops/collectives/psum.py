"""Common code of psum, pmax and pmin, and the primitive of sums.

Under vmap over an axis of that name they become ordinary reductions; other axes are mapped through
them. The communicator of an axis reduces across memories.

Tests: tests/ops/test_collectives.py, tests/parallel/test_overlap.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import ShapedArray
from gpuflow.core.communication import communicates
from gpuflow.core.lowering import AsyncCall, Library
from gpuflow.core.lowering.rewrite_rules import EqnBuilder
from gpuflow.core.primitive import registry
from gpuflow.core.rules import AxisData
from gpuflow.ops.collectives.named_axes import (
    Groups,
    Names,
    communicator_for,
    into_groups,
    is_over,
    is_summable,
    mapped_in_front,
    out_of_groups,
    reduces,
    repeat_in_front,
    take_rows,
    uses_of,
)
from gpuflow.ops.define import check_kind, define, linear_jvp, unary_transpose
from gpuflow.ops.effects.barrier import optimization_barrier_p
from gpuflow.ops.elementwise.arithmetic import constant, mul
from gpuflow.ops.layout.axes import reduce_sum, reshape_p, squeeze
from gpuflow.ops.layout.concatenate import concatenate, concatenate_p
from gpuflow.ops.layout.slicing import slice_p
from gpuflow.ops.layout.transpose import move_axis


def effects_of(params: dict[str, Any]) -> frozenset[Any]:
    return uses_of(params["axes"])


def reduction_impl(op: str, operation: str) -> Callable[..., Any]:
    def impl(xp: Any, x: Any, *, axes: Names, axis_index_groups: Groups | None) -> Any:
        del xp
        return communicator_for(op, axes, axis_index_groups).all_reduce(x, operation)

    return impl


def reduction_call(op: str, operation: str) -> Callable[..., None]:
    """The same in a plan: the result is written to its buffer, without a copy."""

    def call(
        xp: Any, outs: Sequence[Any], x: Any, *, axes: Names, axis_index_groups: Groups | None
    ) -> None:
        del xp
        communicator_for(op, axes, axis_index_groups).all_reduce(x, operation, outs[0])

    return call


def _reduce_in_groups(
    reduce: Callable[..., Any], x: Any, dim: int | None, size: int, groups: Groups
) -> Any:
    """Give each element of the mapped axis the total of its group; the axis is in front."""
    rows = mapped_in_front(x, dim, size)
    if len({len(group) for group in groups}) == 1:
        totals = reduce(into_groups(rows, groups), (1,))
        repeated = move_axis(repeat_in_front(totals, len(groups[0])), 0, 1)
        return out_of_groups(repeated, groups)
    totals = [repeat_in_front(reduce(take_rows(rows, group), (0,)), len(group)) for group in groups]
    order = np.argsort([index for group in groups for index in group])
    return take_rows(concatenate(totals, 0), order)


def reduction_batch(
    op: str, reduce: Callable[..., Any], of_equal: Callable[..., Any]
) -> Callable[..., tuple[Any, int | None]]:
    """The batch rule: over another axis unchanged, over its own axis a reduction."""

    def batch(
        axis: AxisData,
        operands: Sequence[Any],
        dims: Sequence[int | None],
        *,
        axes: Names,
        axis_index_groups: Groups | None,
    ) -> tuple[Any, int | None]:
        (x,), (dim,) = operands, dims
        rebind = registry()[op].bind
        if not is_over(axis, axes):
            return rebind(x, axes=axes, axis_index_groups=axis_index_groups), dim
        if axis_index_groups is not None:
            return _reduce_in_groups(reduce, x, dim, axis.size, axis_index_groups), 0
        if dim is None:
            total = of_equal(x, axis.size)
        else:  # one device per process has nothing to add, and nothing to copy
            total = squeeze(x, (dim,)) if axis.size == 1 else reduce(x, (dim,))
        remaining = tuple(name for name in axes if name != axis.name)
        return (rebind(total, axes=remaining, axis_index_groups=None) if remaining else total), None

    return batch


def _psum_shape(x: ShapedArray, *, axes: Names, axis_index_groups: Any) -> ShapedArray:
    del axes, axis_index_groups
    check_kind("psum", x, is_summable, "a number (not bool)")
    return ShapedArray(x.shape, x.dtype)


def _psum_transpose(cotangent: Any, x: ShapedArray, **params: Any) -> Any:
    # Each element's total reaches every element, so their cotangents are added up again.
    del x
    return psum_p.bind(cotangent, **params)


def _begin(
    xp: Any, outs: Sequence[Any], x: Any, *, axes: Names, axis_index_groups: Groups | None
) -> None:
    del xp
    communicator_for("psum", axes, axis_index_groups).begin(x, "sum", outs[0])


def _end(
    xp: Any,
    outs: Sequence[Any],
    x: Any,
    total: Any,
    *,
    axes: Names,
    axis_index_groups: Groups | None,
) -> None:
    del xp, x
    communicator_for("psum", axes, axis_index_groups).end(total)
    outs[0][...] = 0


def _merged(build: EqnBuilder, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """The totals of several arrays with one call."""
    sizes = [atom.aval.size for atom in operands]
    flat = [
        build.apply(reshape_p, atom, new_sizes=(size,))
        for atom, size in zip(operands, sizes, strict=True)
    ]
    total = build.apply(psum_p, build.apply(concatenate_p, *flat, dimension=0), **params)
    outs, start = [], 0
    for atom, size in zip(operands, sizes, strict=True):
        bounds = {"start_indices": (start,), "limit_indices": (start + size,), "strides": None}
        total_slice = build.apply(slice_p, total, **bounds)
        outs.append(build.apply(reshape_p, total_slice, new_sizes=atom.aval.shape))
        start += size
    return outs


# Larger arrays have separate calls: copying them would cost more than a call.
SMALL_BYTES = 1 << 16

# An asynchronous psum, which a plan overlaps with other steps; only the compiler uses it.
psum_begin_p = define(
    "psum_begin",
    shape=_psum_shape,
    impl=reduction_impl("psum", "sum"),
    lower=Library(call=_begin),
    effects=effects_of,
    communication=communicates("all_reduce", "begin"),
)
psum_end_p = define(
    "psum_end",
    shape=lambda x, total, **params: ShapedArray((1,), np.dtype(np.uint8)),
    impl=lambda xp, x, total, **params: xp.zeros(1, np.uint8),
    lower=Library(call=_end),
    communication=communicates("all_reduce", "end"),
)

psum_p = define(
    "psum",
    shape=_psum_shape,
    impl=reduction_impl("psum", "sum"),
    lower=Library(
        call=reduction_call("psum", "sum"),
        async_call=AsyncCall(
            psum_begin_p, psum_end_p, optimization_barrier_p, _merged, SMALL_BYTES
        ),
    ),
    jvp=linear_jvp(lambda x, **params: psum_p.bind(x, **params)),
    transpose=unary_transpose(_psum_transpose),
    batch=reduction_batch("psum", reduce_sum, lambda x, size: mul(x, constant(x, size))),
    effects=effects_of,
    communication=communicates("all_reduce"),
    varies=reduces,
)
