"""Symbolic programs: programs with their sizes erased, and their symbolic plans so far.

The fusion of a program does not depend on its sizes, so all programs of one key have one symbolic
program. For each class of sizes it has a symbolic plan, whose guard admits them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace
from threading import Lock
from typing import Any

from gpuflow.base.caches import register_table
from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.compiler.fusion.fuse import Group, describe_program, fuse
from gpuflow.compiler.fusion.space import Program
from gpuflow.compiler.lowering.excess_precision import all_rounded, unrounded_values
from gpuflow.compiler.lowering.size_table import Concrete, ErasedSizes, SizeTable, Views
from gpuflow.compiler.passes.updates_in_place import Donations, InMemory
from gpuflow.compiler.planning.key import erase_sizes
from gpuflow.compiler.planning.plan import (
    CallStep,
    KernelStep,
    Plan,
    Programs,
    Step,
    inner_aliases_of,
)
from gpuflow.compiler.planning.specialize import specialize
from gpuflow.compiler.planning.symbolic_plan import SymbolicPlan
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Jaxpr, Var
from gpuflow.core.lowering import Layout
from gpuflow.core.views import View, contiguous

# Of one program: two short sizes make 225 classes. Their guards are tried in order.
MOST_PLANS = 256
_MOST_PROGRAMS = 1024
_programs: dict[Hashable, SymbolicProgram] = {}
register_table("symbolic programs", _programs, _MOST_PROGRAMS)


@record(eq=False)
class SymbolicProgram:
    """A program with its sizes erased.

    Attributes:
        target: the platform.
        into_destinations: outputs are written into arrays that a call passes.
        groups: groups of equation positions, in order.
        aliases: positions of equations with outputs that alias values in memory.
        updates: see ``Program``.
        table: the size expressions of all plans.
        plans: the symbolic plans so far, the newest first.
    """

    target: Target
    into_destinations: bool
    groups: tuple[Group, ...]
    aliases: tuple[int, ...]
    updates: dict[int, InMemory]
    table: SizeTable = field(default_factory=SizeTable)
    plans: list[SymbolicPlan] = field(default_factory=list)
    _views: dict[int, tuple[View, ShapedArray, dict[str, Any], View | None]] = field(
        default_factory=dict
    )
    _lock: Lock = field(default_factory=Lock)

    def views(self, jaxpr: Jaxpr) -> Views:
        """The aliases of a program of this key."""
        views: dict[Var, tuple[Var, View]] = {}
        for position in self.aliases:
            eqn = jaxpr.eqns[position]
            rule = eqn.primitive.lower
            done = self.updates.get(position)
            count = len(eqn.outputs) if rule.is_barrier else 1
            pairs = [(k, k) for k in range(count)] if done is None else done.pairs
            for operand, out in pairs:
                atom, var = eqn.inputs[operand], eqn.outputs[out]
                assert type(atom) is Var  # or it would be no alias
                buffer, view = views.get(atom) or (atom, contiguous(atom.aval.shape))
                if rule.view is not None:
                    view = self._view(position, rule, view, var.aval, eqn.params)
                    assert view is not None, f"[bind] the key does not make {eqn} a view"
                views[var] = buffer, view
        return views

    def _view(
        self, position: int, rule: Layout, operand: View, out: ShapedArray, params: dict[str, Any]
    ) -> View | None:
        """The view of an alias, cached for the last program."""
        cached = self._views.get(position)
        if cached is not None and cached[0] is operand and cached[1] is out and cached[2] == params:
            return cached[3]
        view = rule.view(operand, out, **params)
        self._views[position] = operand, out, params, view
        return view

    def add(self, plan: SymbolicPlan) -> None:
        """Add a plan; if there are too many, drop the oldest."""
        with self._lock:
            self.plans[:] = (plan, *self.plans[: MOST_PLANS - 1])


def bound_plan(
    jaxpr: Jaxpr, programs: Programs, donations: Donations, into_destinations: bool, target: Target
) -> Plan:
    """The plan of a program after all passes.

    Args:
        jaxpr: the program.
        programs: the compiled programs of loops and branches.
        donations: inputs that may be overwritten; each with the one output that may take its
            memory, or None for any.
        into_destinations: outputs are written into arrays that a call passes.
        target: the platform.
    """
    return _Binding(jaxpr, programs, donations, into_destinations, target).plan()


class _Binding:
    """One program on its way from a symbolic program to a plan."""

    def __init__(
        self,
        jaxpr: Jaxpr,
        programs: Programs,
        donations: Donations,
        into_destinations: bool,
        target: Target,
    ) -> None:
        self.jaxpr, self.programs, self.donations = jaxpr, programs, donations
        self.inner_aliases = inner_aliases_of(programs)
        self.into_destinations, self.target = into_destinations, target

    def plan(self) -> Plan:
        """The plan, by an earlier symbolic plan if the guard of one holds."""
        key, erased = erase_sizes(self.jaxpr, self.donations, self.inner_aliases)
        if key is not None:
            key = (self.target, self.into_destinations, key)
        symbolic = _programs.get(key) if key is not None else None
        if symbolic is None:
            described = self._described()
            symbolic = SymbolicProgram(
                self.target,
                self.into_destinations,
                tuple(fuse(described)),
                _alias_positions(described),
                dict(described.updates),
            )
            if key is not None:
                if len(_programs) >= _MOST_PROGRAMS:
                    _programs.clear()
                _programs[key] = symbolic
            return self._specialized(symbolic, described, erased)
        # Other threads may add plans with new expressions, so the current ones are copied first.
        plans = tuple(symbolic.plans)
        program = Concrete(self.jaxpr, erased, symbolic.views(self.jaxpr))
        values = symbolic.table.evaluate(program)
        for found in plans:
            if found.guard.holds(values):
                plan = found.bind(program, values, self.donations, self.programs)
                if config.environment.check:
                    other = self._specialized(symbolic, self._described(), erased, added=False)
                    same = _comparable(plan) == _comparable(other)
                    assert same, "[bind] the guard of a symbolic plan admits sizes of another"
                return plan
        return self._specialized(symbolic, self._described(), erased)

    def _described(self) -> Program:
        unrounded = unrounded_values if self.target.excess_precision else all_rounded
        return describe_program(
            self.jaxpr, self.donations, self.inner_aliases, unrounded(self.jaxpr)
        )

    def _specialized(
        self,
        symbolic: SymbolicProgram,
        described: Program,
        erased: ErasedSizes,
        added: bool = True,
    ) -> Plan:
        """The plan by a new symbolic plan."""
        same = _alias_positions(described) == symbolic.aliases
        assert same, "[bind] the key does not determine the views"
        symbolic_plan = specialize(
            described,
            erased,
            self.donations,
            self.inner_aliases,
            symbolic.groups,
            symbolic.table,
            self.target,
            self.into_destinations,
        )
        if added:
            symbolic.add(symbolic_plan)
        program = Concrete(self.jaxpr, erased, described.views)
        values = symbolic.table.evaluate(program)
        return symbolic_plan.bind(program, values, self.donations, self.programs)


def forget_symbolic_programs() -> None:
    """Drop all symbolic programs."""
    _programs.clear()


def _alias_positions(program: Program) -> tuple[int, ...]:
    """The equations with outputs that alias values in memory, in order."""
    positions = {program.producer[var] for var in program.views}
    return tuple(sorted(positions))


def _comparable(plan: Plan) -> Plan:
    """The plan without what follows from its other parts, and is compared by identity."""

    def comparable(step: Step) -> Step:
        if isinstance(step, CallStep):
            return step._replace(choice=None)
        if isinstance(step, KernelStep):
            return step._replace(symbolic=step.symbolic._replace(calls=()))
        return step

    return replace(plan, steps=tuple(map(comparable, plan.steps)))
