"""Grouping equations into kernels: greedy merging along producer-consumer edges, then siblings.

See docs/architecture.md. Nothing here compares sizes: edges are ordered by rank, item size and
position, and groups merge when one kernel kind covers the union and no path leads outside and back.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.group_graph import GroupGraph
from gpuflow.compiler.program import uses
from gpuflow.compiler.recompute import compute_again
from gpuflow.compiler.space import (
    Iteration,
    Program,
    Space,
    analyse,
    is_fusible,
    iteration_of,
    operands_in_memory,
)
from gpuflow.compiler.tails import tails_apart
from gpuflow.compiler.updates import Given, UpdateRule
from gpuflow.core import views as view_rules
from gpuflow.core.jaxpr import Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Barrier, Elementwise, Indexed, Layout, Update
from gpuflow.core.views import View


@record
class Group:
    """Equations of one plan step; ``space`` is None for a step that is one library or host call."""

    members: tuple[int, ...]
    space: Space | None


def describe_program(
    jaxpr: Jaxpr, given: Given, unrounded: frozenset[Var] = frozenset()
) -> Program:
    """Iterations, producers, readers and aliases of a program.

    Args:
        jaxpr: the program.
        given: inputs whose memory was given away, see ``UpdateRule``.
        unrounded: see ``Program``.
    """
    producer = {var: k for k, eqn in enumerate(jaxpr.eqns) for var in eqn.outputs}
    iterations: list[Iteration | None] = []
    aliases: dict[Var, tuple[Var, View]] = {}
    fusible_outputs: set[Var] = set()
    readers = uses(jaxpr)
    rule = UpdateRule(jaxpr, readers, given)
    before: dict[int, tuple[int, ...]] = {}
    for position, eqn in enumerate(jaxpr.eqns):
        if isinstance(eqn.primitive.lower, Barrier):
            for atom, var in safe_zip(eqn.inputs, eqn.outputs):
                assert type(atom) is not Literal, "a barrier's simplify rule drops literals"
                aliases[var] = aliases.get(atom, _whole(atom))
                rule.add_alias(var, atom)
            iterations.append(None)
            continue
        view = _alias(eqn, aliases, fusible_outputs)
        if view is not None:
            aliases[eqn.outputs[0]] = view
            rule.add_alias(eqn.outputs[0], eqn.inputs[0])
            iterations.append(None)
            continue
        iteration = iteration_of(eqn)
        iterations.append(iteration)
        if iteration is None:
            continue
        if not isinstance(eqn.primitive.lower, Update):
            fusible_outputs.update(eqn.outputs)
            continue
        earlier = rule.earlier_readers(position)
        if earlier is not None:
            before[position] = earlier
            operand = eqn.inputs[0]
            assert type(operand) is Var  # earlier_readers says so
            aliases[eqn.outputs[0]] = aliases.get(operand, _whole(operand))
    outputs = frozenset(atom for atom in jaxpr.outvars if type(atom) is not Literal)
    described = tuple(iterations), producer, readers, outputs, aliases, before
    return Program(jaxpr, *described, unrounded)


def _whole(var: Var) -> tuple[Var, View]:
    return var, view_rules.contiguous(var.aval.shape)


def _alias(
    eqn: Eqn, aliases: dict[Var, tuple[Var, View]], fusible_outputs: set[Var]
) -> tuple[Var, View] | None:
    """The buffer and view of a layout op, if its operand lies in memory anyway."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Layout) or type(eqn.inputs[0]) is Literal:
        return None
    operand = eqn.inputs[0]
    links = rule.links(operand.aval, eqn.outputs[0].aval, **eqn.params)
    if operand in fusible_outputs and links is not None:
        return None
    buffer, view = aliases.get(operand, (operand, view_rules.contiguous(operand.aval.shape)))
    result = rule.view(view, eqn.outputs[0].aval, **eqn.params)
    return None if result is None else (buffer, result)


def clone_cheap(jaxpr: Jaxpr) -> Jaxpr:
    """Give each reader its own copy of what costs less to compute than to store.

    These are layout ops, equations without array operands (iota, filled arrays) and cheap
    elementwise ops on program inputs.
    """
    readers = uses(jaxpr)
    outputs = set(jaxpr.outvars)
    in_memory = {*jaxpr.invars}
    clonable: dict[Var, Eqn] = {}
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        eqn = _with_clones(eqn, clonable, eqns)
        eqns.append(eqn)
        if not is_fusible(eqn):
            in_memory.update(eqn.outputs)
            continue
        if len(eqn.outputs) != 1:
            continue
        out = eqn.outputs[0]
        if len(readers.get(out, ())) > 1 and out not in outputs and _is_clonable(eqn, in_memory):
            clonable[out] = eqn
    return jaxpr.replace(eqns=tuple(eqns))


def _with_clones(eqn: Eqn, clonable: dict[Var, Eqn], eqns: list[Eqn]) -> Eqn:
    if not any(type(atom) is Var and atom in clonable for atom in eqn.inputs):
        return eqn
    inputs = []
    for atom in eqn.inputs:
        if type(atom) is not Literal and atom in clonable:
            inputs.append(_clone(clonable[atom], clonable, eqns))
        else:
            inputs.append(atom)
    return eqn.replace(inputs=tuple(inputs))


def _clone(eqn: Eqn, clonable: dict[Var, Eqn], eqns: list[Eqn]) -> Var:
    fresh = Var(eqn.outputs[0].aval)
    eqns.append(_with_clones(eqn, clonable, eqns).replace(outputs=(fresh,)))
    return fresh


def _is_clonable(eqn: Eqn, in_memory: set[Var]) -> bool:
    rule = eqn.primitive.lower
    arrays = [atom for atom in eqn.inputs if type(atom) is not Literal]
    if isinstance(rule, Layout):
        return True
    if isinstance(rule, Indexed):
        return rule.cheap and not arrays
    return isinstance(rule, Elementwise) and rule.cheap and all(a in in_memory for a in arrays)


# --- merging -------------------------------------------------------------------------------


class _Grouping:
    """The groups so far: a group number for each equation, and edges between groups."""

    def __init__(self, program: Program) -> None:
        self.program = program
        count = len(program.jaxpr.eqns)
        self.group_of = list(range(count))
        self.members: dict[int, tuple[int, ...]] = {k: (k,) for k in range(count)}
        self.graph = GroupGraph(count)
        for reader, eqn in enumerate(program.jaxpr.eqns):
            for atom in eqn.inputs:
                source = None if type(atom) is Literal else program.producer.get(atom)
                if source is not None:
                    self.graph.add_edge(source, reader)
        self._keep_effects_in_order()
        for update, earlier in program.before.items():
            for reader in earlier:
                self.graph.add_edge(reader, update)
        self.spaces: dict[int, Space | None] = {}

    def begin(self, positions: Iterable[int]) -> None:
        """Let equations be groups of their own, where a kernel can compute them."""
        for k in positions:
            if self.program.iterations[k] is not None:
                self.spaces[k] = analyse(self.program, (k,))

    def _keep_effects_in_order(self) -> None:
        """Ordered effects of one name happen in program order: each waits for the one before."""
        last: dict[str, int] = {}
        for k, eqn in enumerate(self.program.jaxpr.eqns):
            for effect in eqn.effects:
                if not effect.ordered:
                    continue
                if effect.name in last:
                    self.graph.add_edge(last[effect.name], k)
                last[effect.name] = k

    def try_merge(self, first: int, second: int) -> bool:
        """Merge the groups of two equations if one kernel can compute both."""
        a, b = self.group_of[first], self.group_of[second]
        if a == b or self.spaces.get(a) is None or self.spaces.get(b) is None:
            return False
        a, b = sorted((a, b))
        if not self.graph.can_merge(a, b):
            return False
        members = tuple(sorted(self.members[a] + self.members[b]))
        space = analyse(self.program, members)
        if space is None:
            return False
        self.members[a], self.spaces[a] = members, space
        for e in self.members.pop(b):
            self.group_of[e] = a
        self.graph.merge(a, b)
        del self.spaces[b]
        return True

    def take(self, members: tuple[int, ...], space: Space | None) -> None:
        """Make one group of equations, none of which is in one yet."""
        first, *others = members
        for e in others:
            self.graph.merge(first, e)
            del self.members[e]
            self.group_of[e] = first
        self.members[first] = members
        if space is not None:
            self.spaces[first] = space


def fuse(program: Program) -> list[Group]:
    """The groups of a program in execution order."""
    grouping = _Grouping(program)
    grouping.begin(range(len(program.jaxpr.eqns)))
    for first, second in _edges(program):
        grouping.try_merge(first, second)
    for first, second in (*_siblings(program, grouping), *_scalar_pairs(grouping)):
        grouping.try_merge(first, second)
    apart = tails_apart(program, filter(None, grouping.spaces.values()))
    if apart:
        grouping = _without(grouping, apart)
    groups = [
        Group(grouping.members[k], grouping.spaces.get(k))
        for k in grouping.graph.order()
        if not _is_alias(program, grouping.members[k])
    ]
    spaces = compute_again(program, [group.space for group in groups])
    return [
        group if space is group.space or space is None else Group(space.members, space)
        for group, space in zip(groups, spaces, strict=True)
        if space is None or space.escaping
    ]


def _without(grouping: _Grouping, apart: frozenset[int]) -> _Grouping:
    """The same groups without some equations, which join each other instead."""
    program, result = grouping.program, _Grouping(grouping.program)
    for number, members in grouping.members.items():
        rest = tuple([e for e in members if e not in apart])
        if rest:
            changed = len(rest) < len(members)
            space = analyse(program, rest) if changed else grouping.spaces.get(number)
            result.take(rest, space)
    result.begin(apart)
    for first, second in _edges(program):
        if first in apart and second in apart:
            result.try_merge(first, second)
    for first, second in _scalar_pairs(result):
        result.try_merge(first, second)
    return result


def _is_alias(program: Program, members: tuple[int, ...]) -> bool:
    if program.iterations[members[0]] is not None:
        return False  # an update is another name of its operand, and has work to do
    outputs = program.jaxpr.eqns[members[0]].outputs
    return len(members) == 1 and bool(outputs) and all(var in program.views for var in outputs)


def _edges(program: Program) -> list[tuple[int, int]]:
    """Fusible producer-consumer edges, the largest ranks first.

    Edges to reductions of outer axes come last: a column reduction can do what feeds it anyway,
    but rows that it takes apart cannot be put together again.
    """
    edges = []
    for reader, eqn in enumerate(program.jaxpr.eqns):
        if program.iterations[reader] is None:
            continue
        for atom in eqn.inputs[operands_in_memory(eqn) :]:
            source = None if type(atom) is Literal else program.producer.get(atom)
            if source is None or program.iterations[source] is None:
                continue
            size = (-atom.aval.ndim, -atom.aval.dtype.itemsize)
            weight = (_reduces_outer_axes(program.iterations[reader]), *size, reader, source)
            edges.append((weight, (source, reader)))
    return [edge for _, edge in sorted(edges)]


def _reduces_outer_axes(iteration: Iteration | None) -> bool:
    if iteration is None or not iteration.reduced:
        return False
    kept = set(range(len(iteration.sizes))) - set(iteration.reduced)
    return bool(kept) and max(kept) > min(iteration.reduced)


def _reads_memory(eqn: Eqn) -> bool:
    """Whether the equation chooses elements of its operands, which must lie in memory."""
    return isinstance(eqn.primitive.lower, Indexed) and bool(eqn.inputs)


def _scalar_pairs(grouping: _Grouping) -> list[tuple[int, int]]:
    """Equations of groups that compute single numbers: one launch serves many of them."""
    scalars = sorted(
        grouping.members[group][0]
        for group, space in grouping.spaces.items()
        if space is not None and not space.order and not space.reduced
    )
    return [(scalars[0], other) for other in scalars[1:]]


def _siblings(program: Program, grouping: _Grouping) -> Iterable[tuple[int, int]]:
    """Pairs of equations that read one full-rank array."""
    for readers in program.readers.values():
        first = None
        for reader in readers:
            if program.iterations[reader] is None or _reads_memory(program.jaxpr.eqns[reader]):
                continue
            space = grouping.spaces.get(grouping.group_of[reader])
            if space is None or not space.order:
                continue
            if first is not None:
                yield first, reader
            else:
                first = reader
