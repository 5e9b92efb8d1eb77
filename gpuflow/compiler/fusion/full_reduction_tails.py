"""Split the tails of full reductions into a separate kernel, so that reductions share a launch.

A norm over many arrays adds up one scalar of each array. Fusion puts each addition into the kernel
of a reduction, which then has to wait for the others:

    full a       full b, +       full c, +  ->  ...

With the additions in a separate kernel, the reductions are equal and independent, and run as one
segmented step (``planning/segments.py``):

    full a, b, c, ...       +, +, ...

Tests: tests/compiler/test_segments.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import FusionProgram, IterationSpace, KernelKind
from gpuflow.core.jaxpr import Eqn, Literal, Var

# Two reductions are two steps in either case: one segmented step and their tail.
MIN_REDUCTIONS = 3


@record
class _FullReduction:
    """A full reduction: a group in three parts.

    Equations are positions in the program. Sets of groups are bit masks: bit k is the k-th full
    reduction in the order of ``separate_tails``'s spaces.

    Attributes:
        epilogue: scalar equations after the reduction that depend on no group that the reduction
            does not depend on.
        tail: the other scalar equations after the reduction; these may be split off.
        dependences: mask of the other groups that the reduction itself depends on.
        tail_dependences: mask of the groups that only the tail depends on.
        head_signature: signature of the reduction; equal ones can run as one step, None never can.
        epilogue_signature: signature of the epilogue.
    """

    epilogue: tuple[int, ...]
    tail: tuple[int, ...]
    dependences: int
    tail_dependences: int
    head_signature: Hashable | None
    epilogue_signature: Hashable | None


def separate_tails(program: FusionProgram, spaces: Iterable[IterationSpace]) -> frozenset[int]:
    """The equations to split off from the kernels of full reductions.

    Args:
        program: the program.
        spaces: iteration spaces of some of its groups; those that are not full reductions are
            ignored.

    Returns:
        Positions of scalar equations. Empty unless at least MIN_REDUCTIONS reductions can run as
        one step only without them.
    """
    spaces = [space for space in spaces if space.kind is KernelKind.FULL and space.loop_order]
    if len(spaces) < MIN_REDUCTIONS:
        return frozenset()
    dependences_of = _reduction_dependences(program, spaces)
    reductions = [
        _analyze_reduction(program, space, dependences_of, 1 << k) for k, space in enumerate(spaces)
    ]
    selected = [
        [reductions[k] for k in indices]
        for indices in _mergeable_sets(reductions)
        if len(indices) >= MIN_REDUCTIONS
        and any(reductions[k].tail_dependences & _bit_mask(indices) for k in indices)
    ]
    split_eqns = {e for mergeable in selected for reduction in mergeable for e in reduction.tail}
    split_eqns = _with_neighbors(program, split_eqns, [reduction.tail for reduction in reductions])
    for mergeable in selected:
        split_eqns |= _differing_epilogues(program, split_eqns, mergeable)
    return frozenset(split_eqns)


def _bit_mask(indices: Iterable[int]) -> int:
    return sum(1 << k for k in indices)


def _reduction_dependences(program: FusionProgram, spaces: Sequence[IterationSpace]) -> list[int]:
    """For each equation the mask of groups whose reductions it depends on, transitively."""
    bit_of = {}
    for k, space in enumerate(spaces):
        for e in space.members:
            if not _has_array_output(program, space, e):
                bit_of[e] = 1 << k
    dependences_of: list[int] = []
    for e, eqn in enumerate(program.jaxpr.eqns):
        groups = bit_of.get(e, 0)
        for producer in _producers(program, eqn):
            groups |= dependences_of[producer]
        dependences_of.append(groups)
    return dependences_of


def _has_array_output(program: FusionProgram, space: IterationSpace, position: int) -> bool:
    """Whether an equation of the group has more than one element, so that it is no scalar."""
    keys = space.axes_of_output(program, position)
    return any(key not in space.unit_axes for key in keys)


def _producers(program: FusionProgram, eqn: Eqn) -> list[int]:
    producers = [program.producer.get(atom) for atom in eqn.inputs if type(atom) is Var]
    return [producer for producer in producers if producer is not None]


def _analyze_reduction(
    program: FusionProgram, space: IterationSpace, dependences_of: Sequence[int], own_bit: int
) -> _FullReduction:
    """Analyze a full reduction.

    Args:
        program, space: the program, and the iteration space of the reduction.
        dependences_of: the result of ``_reduction_dependences``.
        own_bit: the mask of the reduction itself.
    """
    scalar_eqns = [e for e in space.members if e in space.dependent and not space.domains[e]]
    reduction_eqns = [e for e in space.members if e not in scalar_eqns]
    dependences = 0
    for e in reduction_eqns:
        dependences |= dependences_of[e] & ~own_bit
    # A tail waits for more than the reduction does: groups in `dependences` are complete before it.
    tail = tuple([e for e in scalar_eqns if dependences_of[e] & ~(own_bit | dependences)])
    epilogue = tuple([e for e in scalar_eqns if e not in tail])
    tail_dependences = 0
    for e in tail:
        tail_dependences |= dependences_of[e] & ~(own_bit | dependences)
    return _FullReduction(
        epilogue,
        tail,
        dependences,
        tail_dependences,
        head_signature=_signature(program, space, reduction_eqns),
        epilogue_signature=_signature(program, space, epilogue),
    )


def _signature(
    program: FusionProgram, space: IterationSpace, positions: Iterable[int]
) -> Hashable | None:
    """Signature of equations: equal if their kernels are equal, whatever their ranks and sizes.

    None if they read arrays that are not contiguous. Equal signatures are an estimate only: params
    are not compared. ``planning/segments.py`` merges steps only if their kernels are equal.
    """
    ids: dict[Var, int] = {}
    signatures = []
    for e in positions:
        eqn = program.jaxpr.eqns[e]
        operand_codes = []
        for atom in eqn.inputs:
            if type(atom) is Literal:
                operand_codes.append(str(atom.aval.dtype))
                continue
            view = program.views.get(atom)
            if view is not None and not view[1].is_contiguous:
                return None
            operand_codes.append((ids.setdefault(atom, len(ids)), atom.aval.dtype))
        for out in eqn.outputs:
            ids[out] = len(ids)
        has_array_output = _has_array_output(program, space, e)
        is_stored = has_array_output and any(out in space.escaping for out in eqn.outputs)
        signatures.append((eqn.primitive.name, tuple(operand_codes), is_stored))
    return tuple(signatures)


def _mergeable_sets(reductions: Sequence[_FullReduction]) -> list[list[int]]:
    """Sets of reductions, by index, that are alike and, except for tails, independent."""
    same: dict[Hashable, list[int]] = defaultdict(list)
    for k, reduction in enumerate(reductions):
        if reduction.head_signature is not None:
            same[reduction.head_signature].append(k)
    mergeable: dict[Hashable, list[int]] = defaultdict(list)
    for head_signature, indices in same.items():
        all_bits = _bit_mask(indices)
        for k in indices:
            mergeable[head_signature, reductions[k].dependences & all_bits].append(k)
    return list(mergeable.values())


def _with_neighbors(
    program: FusionProgram, split_eqns: set[int], tails: Iterable[Sequence[int]]
) -> set[int]:
    """Add the tails of other reductions that exchange values with split equations."""
    tail_of = {e: tail for tail in tails for e in tail}
    worklist, split_eqns = list(split_eqns), set(split_eqns)
    while worklist:
        eqn = program.jaxpr.eqns[worklist.pop()]
        readers = [r for out in eqn.outputs for r in program.readers.get(out, ())]
        for neighbor in (*_producers(program, eqn), *readers):
            new = set(tail_of.get(neighbor, ())) - split_eqns
            split_eqns |= new
            worklist += new
    return split_eqns


def _differing_epilogues(
    program: FusionProgram, split_eqns: set[int], mergeable: Sequence[_FullReduction]
) -> set[int]:
    """Epilogues to split off as well, because they differ between the reductions.

    For example, a sum that starts from 0 adds 0 only to the first result.
    """
    feeders = []
    for reduction in mergeable:
        outs = [out for e in reduction.epilogue for out in program.jaxpr.eqns[e].outputs]
        if not outs or any(r in split_eqns for out in outs for r in program.readers.get(out, ())):
            feeders.append(reduction)
    if len({reduction.epilogue_signature for reduction in feeders}) < 2:
        return set()
    return {e for reduction in feeders for e in reduction.epilogue}
