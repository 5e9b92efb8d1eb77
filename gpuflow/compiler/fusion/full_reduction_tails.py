"""Split the tails of full reductions into a separate kernel, so that reductions share a launch.

A norm over many arrays adds up one scalar of each array. Fusion puts each addition into the kernel
of a reduction, which then has to wait for the others:

    full a       full b, +       full c, +  ->  ...

With the additions in a separate kernel, the reductions are equal and independent, and run as one
segmented step (``planning/segments.py``):

    full a, b, c, ...       +, +, ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import Kind, Program, Space
from gpuflow.core.jaxpr import Eqn, Literal, Var

FEWEST = 3  # two reductions are two steps in either case: one segmented step and their tail


@record
class _Full:
    """A full reduction: a group in three parts. Sets of groups are bit masks.

    Attributes:
        epilogue: scalar equations after the reduction that need no additional group.
        tail: scalar equations after the reduction that do; these may be split off.
        needs: the other groups that the reduction itself depends on.
        awaits: the groups that only the tail depends on.
        head: signature of the reduction; equal ones can run as one step, None never can.
        finish: signature of the epilogue.
    """

    epilogue: tuple[int, ...]
    tail: tuple[int, ...]
    needs: int
    awaits: int
    head: Hashable | None
    finish: Hashable | None


def separate_tails(program: Program, spaces: Iterable[Space]) -> frozenset[int]:
    """The equations to split off from the kernels of full reductions.

    Args:
        program: the program.
        spaces: the iteration spaces of its groups.

    Returns:
        Positions of scalar equations. Empty unless at least FEWEST reductions can run as one step
        only without them.
    """
    spaces = [space for space in spaces if space.kind is Kind.FULL and space.order]
    if len(spaces) < FEWEST:
        return frozenset()
    needed = _needed_groups(program, spaces)
    fulls = [_full(program, space, needed, 1 << k) for k, space in enumerate(spaces)]
    selected = [
        [fulls[k] for k in similar]
        for similar in _similar(fulls)
        if len(similar) >= FEWEST and any(fulls[k].awaits & _bit_mask(similar) for k in similar)
    ]
    separate = {e for similar in selected for full in similar for e in full.tail}
    separate = _with_neighbors(program, separate, [full.tail for full in fulls])
    for similar in selected:
        separate |= _unlike_finishes(program, separate, similar)
    return frozenset(separate)


def _bit_mask(indices: Iterable[int]) -> int:
    return sum(1 << k for k in indices)


def _needed_groups(program: Program, spaces: Sequence[Space]) -> list[int]:
    """For each equation the mask of groups whose reductions it depends on, transitively."""
    bit_of = {}
    for k, space in enumerate(spaces):
        for e in space.members:
            if not _is_array(program, space, e):
                bit_of[e] = 1 << k
    needed: list[int] = []
    for e, eqn in enumerate(program.jaxpr.eqns):
        groups = bit_of.get(e, 0)
        for source in _sources(program, eqn):
            groups |= needed[source]
        needed.append(groups)
    return needed


def _is_array(program: Program, space: Space, position: int) -> bool:
    keys = space.axes_of_output(program, position)
    return any(key not in space.units for key in keys)


def _sources(program: Program, eqn: Eqn) -> list[int]:
    producers = [program.producer.get(atom) for atom in eqn.inputs if type(atom) is Var]
    return [source for source in producers if source is not None]


def _full(program: Program, space: Space, needed: Sequence[int], bit: int) -> _Full:
    """Analyze a full reduction whose mask is ``bit``, given the result of ``_needed_groups``."""
    later = [e for e in space.members if e in space.dependent and not space.domains[e]]
    head = [e for e in space.members if e not in later]
    needs = 0
    for e in head:
        needs |= needed[e] & ~bit
    # A tail waits for more than the reduction does: groups in `needs` are complete before it.
    tail = tuple([e for e in later if needed[e] & ~(bit | needs)])
    epilogue = tuple([e for e in later if e not in tail])
    awaits = 0
    for e in tail:
        awaits |= needed[e] & ~(bit | needs)
    signatures = _signature(program, space, head), _signature(program, space, epilogue)
    return _Full(epilogue, tail, needs, awaits, *signatures)


def _signature(program: Program, space: Space, positions: Iterable[int]) -> Hashable | None:
    """Signature of equations: equal if their kernels are equal, whatever their ranks and sizes.

    None if they read arrays that are not contiguous.
    """
    ids: dict[Var, int] = {}
    signatures = []
    for e in positions:
        eqn = program.jaxpr.eqns[e]
        codes = []
        for atom in eqn.inputs:
            if type(atom) is Literal:
                codes.append(str(atom.aval.dtype))
                continue
            view = program.views.get(atom)
            if view is not None and not view[1].is_contiguous:
                return None
            codes.append((ids.setdefault(atom, len(ids)), atom.aval.dtype))
        for out in eqn.outputs:
            ids[out] = len(ids)
        is_array = _is_array(program, space, e)
        stored = is_array and any(out in space.escaping for out in eqn.outputs)
        signatures.append((eqn.primitive.name, tuple(codes), stored))
    return tuple(signatures)


def _similar(fulls: Sequence[_Full]) -> list[list[int]]:
    """Sets of groups that reduce in the same way and, except for tails, are independent."""
    same: dict[Hashable, list[int]] = defaultdict(list)
    for k, full in enumerate(fulls):
        if full.head is not None:
            same[full.head].append(k)
    similar: dict[Hashable, list[int]] = defaultdict(list)
    for head, indices in same.items():
        every = _bit_mask(indices)
        for k in indices:
            similar[head, fulls[k].needs & every].append(k)
    return list(similar.values())


def _with_neighbors(
    program: Program, separate: set[int], tails: Iterable[Sequence[int]]
) -> set[int]:
    """Add the tails of other reductions that exchange values with split equations."""
    tail_of = {e: tail for tail in tails for e in tail}
    todo, separate = list(separate), set(separate)
    while todo:
        eqn = program.jaxpr.eqns[todo.pop()]
        readers = [r for out in eqn.outputs for r in program.readers.get(out, ())]
        for other in (*_sources(program, eqn), *readers):
            new = set(tail_of.get(other, ())) - separate
            separate |= new
            todo += new
    return separate


def _unlike_finishes(program: Program, separate: set[int], similar: Sequence[_Full]) -> set[int]:
    """Epilogues to split off as well, because they differ between the reductions.

    For example, a sum that starts from 0 adds 0 only to the first result.
    """
    feeding = []
    for full in similar:
        outs = [out for e in full.epilogue for out in program.jaxpr.eqns[e].outputs]
        if not outs or any(r in separate for out in outs for r in program.readers.get(out, ())):
            feeding.append(full)
    if len({full.finish for full in feeding}) < 2:
        return set()
    return {e for full in feeding for e in full.epilogue}
