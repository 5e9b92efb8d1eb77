"""Loop nest of a kernel: which axes of a group are collapsed to a loop, and the role of each loop.

Adjacent axes that are contiguous in every access are collapsed. A short innermost loop has its
exact extent in the kernel's text. Schedules and targets map the loops to vectors and grids.

Axes of a group are compared as size expressions. Two axes collapse only if ``SizeQueries`` records
why, so that the guard admits no sizes for which they must stay separate.

Tests: tests/compiler/test_program_keys.py, tests/compiler/test_fuse.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from gpuflow.compiler.fusion.space import DimKey, IterationSpace, KernelKind
from gpuflow.compiler.lowering.access import (
    Access,
    index_access,
    lane_reads,
    memory_reads,
    window_access,
    write_access,
)
from gpuflow.compiler.lowering.size_exprs import (
    SizeExpr,
    SizeExprs,
    SizeQueries,
    may_be_equal_products,
)
from gpuflow.kir.nodes import Axis, Role


class LoopNest(NamedTuple):
    """The loops of a kernel, from the outermost.

    Attributes:
        collapsed: for each loop the axes of the group that it iterates over, outer axes first.
        axes: for each loop the axis of the kernel.
    """

    collapsed: tuple[tuple[DimKey, ...], ...]
    axes: tuple[Axis, ...]


def loop_nest(exprs: SizeExprs, space: IterationSpace, queries: SizeQueries) -> LoopNest:
    """The loop nest of a group. Its loops are in the order of ``space.loop_order``."""
    collapsed = tuple(_collapse(exprs, space, _all_accesses(exprs, space), queries))
    return LoopNest(collapsed, _kernel_axes(exprs, space, collapsed, queries))


def extent(exprs: SizeExprs, space: IterationSpace, keys: Sequence[DimKey]) -> SizeExpr:
    """The product of the sizes of some axes."""
    return exprs.product([exprs.size(space.sizes[key]) for key in keys])


def has_exact_size(exprs: SizeExprs, shape: Sequence[int], dim: int, queries: SizeQueries) -> bool:
    """Whether the size of a dimension may be in the kernel's text: it is short and innermost.

    Only values of ``shape`` that are 0 or 1 may decide it without a query: they are in the key.
    """
    is_innermost = prod(shape[dim + 1 :]) == 1 and prod(shape[:dim]) > 1
    return is_innermost and queries.value_if_short(exprs.size(shape[dim])) is not None


def _all_accesses(exprs: SizeExprs, space: IterationSpace) -> list[Access]:
    """Every access and index of a group: their strides decide which axes collapse."""
    result = [write_access(exprs, space, var) for var in space.escaping]
    result += [access for _, access in memory_reads(exprs, space)]
    for e in space.members:
        eqn = exprs.program.jaxpr.eqns[e]
        lowering = eqn.primitive.lower
        if lowering.is_lane_program:
            result += lane_reads(exprs, space, e)
        if lowering.is_update:
            result.append(window_access(exprs, space, e))
        elif lowering.linear:
            result.append(_linear_index(exprs, space, e))
        elif lowering.uses_indices(eqn):
            result += _each_index(exprs, space, e)
    return result


def _linear_index(exprs: SizeExprs, space: IterationSpace, position: int) -> Access:
    """The linear index of an op's output: the layout of a contiguous array."""
    keys = space.axes_of_output(exprs.program, position)
    strides = exprs.strides(exprs.program.jaxpr.eqns[position].outputs[0].aval.shape)
    return index_access(exprs, space, zip(keys, strides, strict=True))


def _each_index(exprs: SizeExprs, space: IterationSpace, position: int) -> list[Access]:
    """Indices along the dimensions of an op's output.

    Each varies along one axis alone, and so keeps that axis from collapsing with any other.
    """
    keys = space.axes_of_output(exprs.program, position)
    looped = [key for key in keys if key not in space.unit_axes]
    return [index_access(exprs, space, [(key, exprs.one)]) for key in looped]


def _collapse(
    exprs: SizeExprs, space: IterationSpace, accesses: Sequence[Access], queries: SizeQueries
) -> list[tuple[DimKey, ...]]:
    """The loops: maximal runs of adjacent axes that are contiguous in every access."""
    stride_maps = [dict(access.strides) for access in accesses]
    loops: list[tuple[DimKey, ...]] = []
    for key in space.loop_order:
        pairs = _equalities(exprs, space, stride_maps, loops[-1][-1], key) if loops else None
        if pairs is not None and all(queries.are_equal(*pair) for pair in pairs):
            loops[-1] = (*loops[-1], key)
        else:
            loops.append((key,))
    return loops


def _equalities(
    exprs: SizeExprs,
    space: IterationSpace,
    stride_maps: Sequence[Mapping[DimKey, SizeExpr]],
    outer: DimKey,
    inner: DimKey,
) -> list[tuple[SizeExpr, SizeExpr]] | None:
    """Pairs of expressions that must be equal to collapse two axes; None if they never can be.

    Args:
        exprs: the size expressions of the program.
        space: the iteration space of the group.
        stride_maps: for each access of the group its stride along each axis that has one.
        outer, inner: the two axes; ``inner`` follows ``outer`` in ``space.loop_order``.
    """
    if (outer in space.reduced) != (inner in space.reduced):
        return None
    if (outer in space.serial_axes) != (inner in space.serial_axes):
        return None
    inner_size, pairs = exprs.size(max(space.sizes[inner], 1)), []
    for stride_of in stride_maps:
        if (outer in stride_of) != (inner in stride_of):
            return None
        if outer not in stride_of:
            continue
        contiguous_stride = exprs.product([stride_of[inner], inner_size])
        if stride_of[outer] != contiguous_stride:
            if not may_be_equal_products(stride_of[outer], contiguous_stride):
                return None
            pairs.append((stride_of[outer], contiguous_stride))
    return pairs


def _kernel_axes(
    exprs: SizeExprs,
    space: IterationSpace,
    loops: Sequence[tuple[DimKey, ...]],
    queries: SizeQueries,
) -> tuple[Axis, ...]:
    """The axis of each loop: its name, role, and exact extent if it is short and innermost.

    The axes of one loop agree on whether they are reduced and serial, see ``_equalities``.
    """
    reduced_role = {KernelKind.ROW: Role.ROW}.get(space.kind, Role.REDUCE)
    point_role = Role.VECTOR if space.serial_axes else Role.PARALLEL
    result = []
    for index, keys in enumerate(loops):
        role = reduced_role if keys[0] in space.reduced else point_role
        role = Role.SERIAL if keys[0] in space.serial_axes else role
        is_inner = index == len(loops) - 1 and index > 0
        exact = queries.value_if_short(extent(exprs, space, keys)) if is_inner else None
        result.append(Axis(f"i{index}", role, exact or None))  # an empty loop is not exact
    return tuple(result)
