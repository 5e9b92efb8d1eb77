"""Fusion: group equations into kernels, greedily along producer-consumer edges, then siblings.

Two groups merge if one kernel can compute both (``kinds.form_of``), and if no path leaves the union
and returns to it. The order of edges depends on ranks, item sizes and positions, never on sizes,
because the groups serve all sizes of a program key. See docs/design/0024-fusion.md.

Tests: tests/compiler/test_fuse.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.fusion.full_reduction_tails import separate_tails
from gpuflow.compiler.fusion.group_graph import GroupGraph
from gpuflow.compiler.fusion.legality import LoopStructure, loop_structure_of, space_of_region
from gpuflow.compiler.fusion.recompute import FusedKernel, rematerialize
from gpuflow.compiler.fusion.regions import MergedRegion, Region, region_of
from gpuflow.compiler.fusion.space import (
    BufferView,
    FusionProgram,
    Iteration,
    IterationSpace,
    KernelKind,
    NotOneKernelError,
    is_fusible,
    iteration_of,
    whole_buffer,
)
from gpuflow.compiler.passes.program import reader_positions
from gpuflow.compiler.passes.updates_in_place import (
    NO_INNER_ALIASES,
    Donations,
    InnerAliases,
    InPlaceAnalysis,
    InPlaceUpdates,
    updated_pairs,
)
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var


@record
class Group:
    """Equations of one plan step.

    Attributes:
        members: positions of the equations, in program order.
        space: the iteration space of their kernel; None for one library or host call, which has one
            member.
    """

    members: tuple[int, ...]
    space: IterationSpace | None


def describe_program(
    jaxpr: Jaxpr,
    donations: Donations,
    inner_aliases: InnerAliases = NO_INNER_ALIASES,
    unrounded: frozenset[Var] = frozenset(),
) -> FusionProgram:
    """Analyze a program for fusion: iterations, producers, readers, aliases, in-place updates.

    Args:
        jaxpr: the program after all passes.
        donations, inner_aliases: see ``InPlaceAnalysis``.
        unrounded: see ``FusionProgram``.
    """
    producer = {var: k for k, eqn in enumerate(jaxpr.eqns) for var in eqn.outputs}
    iterations: list[Iteration | None] = []
    aliases: dict[Var, BufferView] = {}
    fusible_outputs: set[Var] = set()
    readers = reader_positions(jaxpr)
    analysis = InPlaceAnalysis(jaxpr, readers, donations, inner_aliases)
    stored_views = _stored_slices(jaxpr, readers, inner_aliases) | _stored_broadcasts(jaxpr)
    read_transposed = _transposed_in_memory(jaxpr, readers)
    updates: dict[int, InPlaceUpdates] = {}
    for position, eqn in enumerate(jaxpr.eqns):
        if eqn.primitive.lower.is_barrier:
            for atom, var in safe_zip(eqn.inputs, eqn.outputs):
                assert type(atom) is not Literal, "a barrier's simplify rule drops literals"
                aliases[var] = aliases.get(atom, whole_buffer(atom))
                analysis.add_alias(var, atom)
            iterations.append(None)
            continue
        view = _alias(eqn, aliases, fusible_outputs, stored_views)
        if view is not None:
            aliases[eqn.outputs[0]] = view
            analysis.add_alias(eqn.outputs[0], eqn.inputs[0])
            iterations.append(None)
            continue
        iteration = iteration_of(eqn)
        iterations.append(iteration)
        if iteration is not None and not eqn.primitive.lower.is_update:
            fusible_outputs.update(out for out in eqn.outputs if out not in read_transposed)
            continue
        in_place = analysis.in_place_updates(position)
        if in_place is not None:
            updates[position] = in_place
            for index, out in in_place.pairs:
                operand = eqn.inputs[index]
                assert type(operand) is Var  # checked by in_place_updates
                aliases[eqn.outputs[out]] = aliases.get(operand, whole_buffer(operand))
    outputs = frozenset(atom for atom in jaxpr.outvars if type(atom) is not Literal)
    return FusionProgram(
        jaxpr, tuple(iterations), producer, readers, outputs, aliases, updates, unrounded
    )


def _stored_slices(
    jaxpr: Jaxpr, readers: dict[Var, list[int]], inner_aliases: InnerAliases
) -> set[Var]:
    """Slices that are outputs, or are read after their array is updated.

    A kernel stores such a slice before the update. An alias would force a copy of the array.
    """
    # The position of the first update of an array, also for its slices.
    first_update: dict[Atom, int] = {}
    for k, eqn in enumerate(jaxpr.eqns):
        for operand, _ in updated_pairs(eqn, inner_aliases):
            first_update.setdefault(eqn.inputs[operand], k)
    slices: set[Var] = set()
    for eqn in jaxpr.eqns if first_update else ():
        if eqn.primitive.lower.view is None or eqn.inputs[0] not in first_update:
            continue
        (out,), update = eqn.outputs, first_update[eqn.inputs[0]]
        first_update.setdefault(out, update)
        later = [jaxpr.eqns[k].primitive.lower for k in readers.get(out, ()) if k >= update]
        if out in jaxpr.outvars or any(rule.view is None for rule in later):
            slices.add(out)
    return slices


def _stored_broadcasts(jaxpr: Jaxpr) -> set[Var]:
    """Broadcasts that are results of the program, possibly after reshapes.

    A kernel stores them. The alternative, a copy step of a broadcast view, iterates over rows,
    which may have few elements.
    """
    results = {atom for atom in jaxpr.outvars if type(atom) is Var}
    broadcasts: set[Var] = set()
    for eqn in reversed(jaxpr.eqns):
        rule = eqn.primitive.lower
        if rule.view is None or rule.steps is not None:
            continue
        out = eqn.outputs[0]
        if out not in results:
            continue
        links = rule.links(eqn.inputs[0].aval, out.aval, **eqn.params)
        if links is None:  # a reshape: the same elements in the same order
            results.update(atom for atom in eqn.inputs if type(atom) is Var)
            continue
        added = {*range(out.aval.ndim)} - {d for _, d in links}
        if is_fusible(eqn) and any(out.aval.shape[d] != 1 for d in added):
            broadcasts.add(out)
    return broadcasts


def _transposed_in_memory(jaxpr: Jaxpr, readers: dict[Var, list[int]]) -> set[Var]:
    """Arrays that libraries read both directly and transposed, as ``x`` in ``x.T @ x``.

    Kernels store them once; the transposed operand is then a view instead of a second array.
    """

    def is_read_by_library(var: Var, by_all_readers: bool) -> bool:
        eqns = [jaxpr.eqns[k] for k in readers.get(var, ())]
        reads_by_library = [eqn.primitive.lower.is_library for eqn in eqns]
        return (
            var not in jaxpr.outvars
            and bool(reads_by_library)
            and (all if by_all_readers else any)(reads_by_library)
        )

    transposes: dict[Var, list[bool]] = {}
    for eqn in jaxpr.eqns:
        rule = eqn.primitive.lower
        if rule.view is not None and type(eqn.inputs[0]) is Var:
            operand, out = eqn.inputs[0], eqn.outputs[0]
            links = rule.links(operand.aval, out.aval, **eqn.params)
            is_transpose = links is not None and len(links) == operand.aval.ndim == out.aval.ndim
            is_same_size = operand.aval.size == out.aval.size
            is_transpose = is_transpose and is_same_size and rule.steps is None
            transposes.setdefault(operand, []).append(
                is_transpose and is_read_by_library(out, True)
            )
    return {
        var
        for var, are_transposes in transposes.items()
        if all(are_transposes) and is_read_by_library(var, False)
    }


def _alias(
    eqn: Eqn, aliases: dict[Var, BufferView], fusible_outputs: set[Var], stored_views: set[Var]
) -> BufferView | None:
    """The buffer and layout of a layout op's output as an alias; None if it is computed.

    It is computed if a kernel computes its operand, or if it is in ``stored_views``.
    """
    rule = eqn.primitive.lower
    if rule.view is None or type(eqn.inputs[0]) is Literal:
        return None
    operand = eqn.inputs[0]
    links = rule.links(operand.aval, eqn.outputs[0].aval, **eqn.params)
    if links is not None and (operand in fusible_outputs or eqn.outputs[0] in stored_views):
        return None
    buffer, layout = aliases.get(operand) or whole_buffer(operand)
    out_layout = rule.view(layout, eqn.outputs[0].aval, **eqn.params)
    return None if out_layout is None else BufferView(buffer, out_layout)


# --- merging -------------------------------------------------------------------------------


class _Grouping:
    """The groups so far (union-find of equations), and the DAG of groups.

    A group is named by its first equation, which merges of other groups into it keep.

    Attributes:
        program: the program.
        graph: the order of groups; acyclic after each merge.
        regions: the region of each group that a kernel can compute; the others are calls.
        loops_of: the loop structure of each of these regions.
    """

    def __init__(self, program: FusionProgram) -> None:
        self.program = program
        count = len(program.jaxpr.eqns)
        self._parent = list(range(count))
        self.graph = GroupGraph(count)
        for reader, eqn in enumerate(program.jaxpr.eqns):
            for atom in eqn.inputs:
                source = None if type(atom) is Literal else program.producer.get(atom)
                if source is not None:
                    self.graph.add_edge(source, reader)
        self._keep_effects_in_order()
        for update, in_place in program.updates.items():
            for reader in in_place.earlier_readers:
                self.graph.add_edge(reader, update)
        self.regions: dict[int, Region] = {}
        self.loops_of: dict[int, LoopStructure] = {}
        # Pairs of groups that could not be merged, with their count of equations at that time.
        self._refused: dict[tuple[int, int], int] = {}

    def add_singletons(self, positions: Iterable[int]) -> None:
        """Make each equation that a kernel can compute a group."""
        for k in positions:
            if self.program.iterations[k] is not None:
                self._try_register(k, Region(self.program, k))

    def _try_register(self, group: int, region: Region) -> None:
        """Set the region of a group, unless no kernel can compute it."""
        try:
            self.loops_of[group] = loop_structure_of(region)
        except NotOneKernelError:
            return
        self.regions[group] = region

    def _keep_effects_in_order(self) -> None:
        """Add edges that keep ordered effects of one name in program order."""
        last_effect: dict[str, int] = {}
        for k, eqn in enumerate(self.program.jaxpr.eqns):
            for effect in eqn.effects:
                if not effect.ordered:
                    continue
                if effect.name in last_effect:
                    self.graph.add_edge(last_effect[effect.name], k)
                last_effect[effect.name] = k

    def group_of(self, position: int) -> int:
        """The group of an equation."""
        parent = self._parent
        while parent[position] != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    def try_merge(self, first: int, second: int) -> None:
        """Merge the groups of two equations if one kernel can compute both."""
        a, b = sorted((self.group_of(first), self.group_of(second)))
        if a == b or a not in self.regions or b not in self.regions:
            return
        count = len(self.regions[a].members) + len(self.regions[b].members)
        if self._refused.get((a, b)) == count:
            return  # neither has grown
        try:
            if not self.graph.can_merge(a, b):
                return
            merged = MergedRegion(self.program, self.regions[a], self.regions[b])
            loops = loop_structure_of(merged)
        except NotOneKernelError:
            self._refused[a, b] = count
            return
        self.regions[a], self.loops_of[a] = merged.commit(), loops
        del self.regions[b], self.loops_of[b]
        self.graph.merge(a, b)
        self._parent[b] = a

    def add_region(self, region: Region) -> None:
        """Make a region one group, named by its first equation.

        None of its equations may be in a group yet, and no path may leave it and return.

        Raises:
            NotOneKernelError: if no kernel can compute it.
        """
        first, *others = sorted(region.members)
        for e in others:
            self.graph.merge(first, e)
            self._parent[e] = first
        self.regions[first], self.loops_of[first] = region, loop_structure_of(region)

    def full_reduction_spaces(self) -> list[IterationSpace]:
        """The iteration spaces of the full reductions."""
        groups = [k for k in sorted(self.loops_of) if self.loops_of[k].reduced]
        groups = [k for k in groups if self.loops_of[k].kind is KernelKind.FULL]
        return [space_of_region(self.regions[k], self.loops_of[k]) for k in groups]

    def kernel(self, group: int) -> FusedKernel | None:
        """The kernel of a group; None if it is a call."""
        region = self.regions.get(group)
        return None if region is None else FusedKernel(region, self.loops_of[group])

    def groups(self) -> list[int]:
        """The groups in execution order, without equations that only alias memory."""
        program, regions = self.program, self.regions
        return [k for k in self.graph.order() if k in regions or not _is_alias(program, k)]


def fuse(program: FusionProgram) -> list[Group]:
    """Fuse a program: its groups, in execution order.

    Equations that only alias memory are in no group. An equation that readers recompute may be in
    several groups.
    """
    grouping = _Grouping(program)
    grouping.add_singletons(range(len(program.jaxpr.eqns)))
    for first, second in _edges(program):
        grouping.try_merge(first, second)
    for first, second in (*_sibling_pairs(program, grouping), *_scalar_group_pairs(grouping)):
        grouping.try_merge(first, second)
    split_eqns = separate_tails(program, grouping.full_reduction_spaces())
    if split_eqns:
        grouping = _split_off(grouping, split_eqns)
    group_ids = grouping.groups()
    kernels = rematerialize(program, [grouping.kernel(k) for k in group_ids])
    groups = []
    for k, kernel in zip(group_ids, kernels, strict=True):
        if kernel is None:
            groups.append(Group((k,), None))
        elif kernel.region.escaping:
            space = space_of_region(kernel.region, kernel.loops)
            groups.append(Group(space.members, space))
    return groups


def _split_off(grouping: _Grouping, split_eqns: frozenset[int]) -> _Grouping:
    """The same groups without the equations ``split_eqns``, which merge only with each other."""
    program, regrouped = grouping.program, _Grouping(grouping.program)
    for region in grouping.regions.values():
        remaining = sorted(region.members - split_eqns)
        if remaining:
            changed = len(remaining) < len(region.members)
            regrouped.add_region(region_of(program, remaining) if changed else region)
    regrouped.add_singletons(split_eqns)
    for first, second in _edges(program):
        if first in split_eqns and second in split_eqns:
            regrouped.try_merge(first, second)
    for first, second in _scalar_group_pairs(regrouped):
        regrouped.try_merge(first, second)
    return regrouped


def _is_alias(program: FusionProgram, position: int) -> bool:
    """Whether an equation computes nothing, because its outputs are aliases of memory."""
    if position in program.updates:
        return False  # it aliases its operand, but computes
    outputs = program.jaxpr.eqns[position].outputs
    return bool(outputs) and all(var in program.views for var in outputs)


def _edges(program: FusionProgram) -> list[tuple[int, int]]:
    """Fusible producer-consumer edges in the order of merging: largest ranks first.

    Edges to reductions of outer axes come last. A column reduction can compute its producers in any
    case, but producers that it takes from a row kernel cannot be merged with that again.
    """
    edges = []
    for reader, eqn in enumerate(program.jaxpr.eqns):
        if program.iterations[reader] is None:
            continue
        for atom in eqn.inputs[eqn.primitive.lower.operands_in_memory(eqn) :]:
            source = None if type(atom) is Literal else program.producer.get(atom)
            if source is None or program.iterations[source] is None:
                continue
            neg_size = (-atom.aval.ndim, -atom.aval.dtype.itemsize)
            priority = (_reduces_outer_axes(program.iterations[reader]), *neg_size, reader, source)
            edges.append((priority, (source, reader)))
    return [edge for _, edge in sorted(edges)]


def _reduces_outer_axes(iteration: Iteration | None) -> bool:
    """Whether a reduction reduces an axis outside of one that it retains."""
    if iteration is None or not iteration.reduced:
        return False
    retained = set(range(len(iteration.sizes))) - set(iteration.reduced)
    return bool(retained) and max(retained) > min(iteration.reduced)


def _gathers(eqn: Eqn) -> bool:
    """Whether the equation gathers: it reads operands in memory at computed indices."""
    return eqn.primitive.lower.is_indexed and bool(eqn.inputs)


def _scalar_group_pairs(grouping: _Grouping) -> list[tuple[int, int]]:
    """Pairs of groups that compute only scalars, so that one launch computes many of them."""
    scalars = sorted(group for group, loops in grouping.loops_of.items() if not loops.domain)
    return [(scalars[0], other) for other in scalars[1:]]


def _sibling_pairs(program: FusionProgram, grouping: _Grouping) -> Iterable[tuple[int, int]]:
    """Pairs of equations in loops that read the same array."""
    for readers in program.readers.values():
        first_reader = None
        for reader in readers:
            if program.iterations[reader] is None or _gathers(program.jaxpr.eqns[reader]):
                continue
            loops = grouping.loops_of.get(grouping.group_of(reader))
            if loops is None or not loops.domain:
                continue
            if first_reader is not None:
                yield first_reader, reader
            else:
                first_reader = reader
