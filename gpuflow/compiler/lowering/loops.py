"""Scheduling: the loops of one kernel.

Axes of a group that every access walks through as if they were one become one; each gets a role,
and a short innermost one its exact extent. How loops are spread over a GPU is for the CUDA target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from gpuflow.compiler.fusion.space import Key, Kind, Program, Space
from gpuflow.compiler.lowering.access import Access, memory_reads, window_access, write_access
from gpuflow.core import views
from gpuflow.core.lowering import Indexed, Update
from gpuflow.kir.nodes import Axis, Mode, Role

LONGEST_EXACT = 16

Axes = tuple[tuple[Key, ...], ...]


def schedule(program: Program, space: Space) -> tuple[Axes, tuple[Axis, ...]]:
    """The axis keys that each loop runs over, from the outermost, and the kernel's axes."""
    axes = tuple(_collapse(space, _all_accesses(program, space)))
    return axes, _kernel_axes(space, axes)


def is_written_short(shape: Sequence[int], dim: int) -> bool:
    """Whether a dimension is a short innermost one, whose size may stand in a kernel's text."""
    return shape[dim] <= LONGEST_EXACT and prod(shape[dim + 1 :]) == 1 and prod(shape[:dim]) > 1


def _all_accesses(program: Program, space: Space) -> list[Access]:
    """Every access whose strides decide which axes collapse."""
    result = [write_access(program, space, var) for var in space.escaping]
    result += [access for _, access in memory_reads(program, space)]
    for e in space.members:
        rule = program.jaxpr.eqns[e].primitive.lower
        if isinstance(rule, Indexed):
            result += _index_patterns(program, space, e)
        elif isinstance(rule, Update):
            result.append(window_access(program, space, e))
    return result


def _index_patterns(program: Program, space: Space, position: int) -> list[Access]:
    """What an ``Indexed`` op may ask for: the linear index, or the index of each dimension.

    The linear index lies like a contiguous array; an index varies along one axis alone, and so
    keeps that axis from collapsing with any other.
    """
    keys = space.axes_of_output(program, position)
    aval = program.jaxpr.eqns[position].outputs[0].aval
    strides = views.contiguous(aval.shape).strides
    pairs = [(k, s) for k, s in zip(keys, strides, strict=True) if k not in space.units]
    if program.jaxpr.eqns[position].primitive.lower.linear:
        return [Access(None, 0, tuple(sorted(pairs)), "int64", Mode.INDEX)]
    return [Access(None, 0, ((key, 1),), "int64", Mode.INDEX) for key, _ in pairs]


def _collapse(space: Space, accesses: Sequence[Access]) -> list[tuple[Key, ...]]:
    """Neighbouring axes that every access walks through as if they were one."""
    tables = [dict(access.strides) for access in accesses]
    axes: list[tuple[Key, ...]] = []
    for key in space.order:
        if axes and _joins(space, tables, axes[-1][-1], key):
            axes[-1] = (*axes[-1], key)
        else:
            axes.append((key,))
    return axes


def _joins(space: Space, tables: Sequence[Mapping[Key, int]], outer: Key, inner: Key) -> bool:
    if (outer in space.reduced) != (inner in space.reduced):
        return False
    if (outer in space.serial) != (inner in space.serial):
        return False
    step = max(space.sizes[inner], 1)
    for table in tables:
        if (outer in table) != (inner in table):
            return False
        if outer in table and table[outer] != table[inner] * step:
            return False
    return True


def _kernel_axes(space: Space, axes: Sequence[tuple[Key, ...]]) -> tuple[Axis, ...]:
    inner_role = {Kind.ROW: Role.ROW}.get(space.kind, Role.REDUCE)
    point_role = Role.VECTOR if space.serial else Role.PARALLEL
    result = []
    for number, keys in enumerate(axes):
        role = inner_role if keys[0] in space.reduced else point_role
        role = Role.SERIAL if keys[0] in space.serial else role
        size = prod(space.sizes[key] for key in keys)
        is_inner = number == len(axes) - 1 and number > 0
        exact = size if is_inner and 0 < size <= LONGEST_EXACT else None
        result.append(Axis(f"i{number}", role, exact))
    return tuple(result)
