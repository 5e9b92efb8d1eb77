"""Loop nest of a kernel: which axes of a group are collapsed to a loop, and the role of each loop.

Adjacent axes that are contiguous in every access are collapsed. A short innermost loop has its
exact extent in the kernel's text. Schedules and targets map the loops to vectors and grids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from gpuflow.compiler.fusion.space import Key, Kind, Space
from gpuflow.compiler.lowering.access import (
    Access,
    index_access,
    lane_reads,
    memory_reads,
    window_access,
    write_access,
)
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs, SizeQueries, may_be_equal
from gpuflow.kir.nodes import Axis, Role

Axes = tuple[tuple[Key, ...], ...]


def schedule(exprs: SizeExprs, space: Space, queries: SizeQueries) -> tuple[Axes, tuple[Axis, ...]]:
    """The axes of the group in each loop, from the outermost; and the kernel's axes."""
    axes = tuple(_collapse(exprs, space, _all_accesses(exprs, space), queries))
    return axes, _kernel_axes(exprs, space, axes, queries)


def extent(exprs: SizeExprs, space: Space, keys: Sequence[Key]) -> SizeExpr:
    """The product of the sizes of some axes."""
    return exprs.product([exprs.size(space.sizes[key]) for key in keys])


def is_written_short(
    exprs: SizeExprs, shape: Sequence[int], dim: int, queries: SizeQueries
) -> bool:
    """Whether the size of a dimension may be in the kernel's text: it is short and innermost."""
    # Whether a size is 0 or 1 is part of the key.
    is_innermost = prod(shape[dim + 1 :]) == 1 and prod(shape[:dim]) > 1
    return is_innermost and queries.if_short(exprs.size(shape[dim])) is not None


def _all_accesses(exprs: SizeExprs, space: Space) -> list[Access]:
    """Every access and index of a group: their strides decide which axes collapse."""
    result = [write_access(exprs, space, var) for var in space.escaping]
    result += [access for _, access in memory_reads(exprs, space)]
    for e in space.members:
        eqn = exprs.program.jaxpr.eqns[e]
        rule = eqn.primitive.lower
        if rule.is_lane_program:
            result += lane_reads(exprs, space, e)
        if rule.is_update:
            result.append(window_access(exprs, space, e))
        elif rule.linear:
            result.append(_linear_index(exprs, space, e))
        elif rule.uses_indices(eqn):
            result += _each_index(exprs, space, e)
    return result


def _linear_index(exprs: SizeExprs, space: Space, position: int) -> Access:
    """The linear index of an op's output: the layout of a contiguous array."""
    keys = space.axes_of_output(exprs.program, position)
    strides = exprs.strides(exprs.program.jaxpr.eqns[position].outputs[0].aval.shape)
    return index_access(exprs, space, zip(keys, strides, strict=True))


def _each_index(exprs: SizeExprs, space: Space, position: int) -> list[Access]:
    """Indices along the dimensions of an op's output.

    Each varies along one axis alone, and so keeps that axis from collapsing with any other.
    """
    keys = space.axes_of_output(exprs.program, position)
    looped = [key for key in keys if key not in space.units]
    return [index_access(exprs, space, [(key, exprs.one)]) for key in looped]


def _collapse(
    exprs: SizeExprs, space: Space, accesses: Sequence[Access], queries: SizeQueries
) -> list[tuple[Key, ...]]:
    """The loops: maximal runs of adjacent axes that are contiguous in every access."""
    tables = [dict(access.strides) for access in accesses]
    axes: list[tuple[Key, ...]] = []
    for key in space.order:
        pairs = _equalities(exprs, space, tables, axes[-1][-1], key) if axes else None
        if pairs is not None and all(queries.are_equal(*pair) for pair in pairs):
            axes[-1] = (*axes[-1], key)
        else:
            axes.append((key,))
    return axes


def _equalities(
    exprs: SizeExprs, space: Space, tables: Sequence[Mapping[Key, SizeExpr]], outer: Key, inner: Key
) -> list[tuple[SizeExpr, SizeExpr]] | None:
    """Pairs of expressions that must be equal to collapse two axes; None if they never can be."""
    if (outer in space.reduced) != (inner in space.reduced):
        return None
    if (outer in space.serial) != (inner in space.serial):
        return None
    step, pairs = exprs.size(max(space.sizes[inner], 1)), []
    for table in tables:
        if (outer in table) != (inner in table):
            return None
        if outer not in table:
            continue
        expected = exprs.product([table[inner], step])
        if table[outer] != expected:
            if not may_be_equal(table[outer], expected):
                return None
            pairs.append((table[outer], expected))
    return pairs


def _kernel_axes(
    exprs: SizeExprs, space: Space, axes: Sequence[tuple[Key, ...]], queries: SizeQueries
) -> tuple[Axis, ...]:
    """The axis of each loop: its name, role, and exact extent if it is short and innermost."""
    inner_role = {Kind.ROW: Role.ROW}.get(space.kind, Role.REDUCE)
    point_role = Role.VECTOR if space.serial else Role.PARALLEL
    result = []
    for index, keys in enumerate(axes):
        role = inner_role if keys[0] in space.reduced else point_role
        role = Role.SERIAL if keys[0] in space.serial else role
        is_inner = index == len(axes) - 1 and index > 0
        exact = queries.if_short(extent(exprs, space, keys)) if is_inner else None
        result.append(Axis(f"i{index}", role, exact or None))  # an empty loop is not exact
    return tuple(result)
