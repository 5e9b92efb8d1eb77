"""Cache of symbolic programs: the groups of each program key, and its symbolic plans.

Fusion does not depend on sizes, so all programs of one key share a symbolic program. It has a
symbolic plan for each class of sizes, whose guard admits exactly these.

Threads may call ``bound_plan`` at the same time. Two that compile the same new program may both
lower it; one of the results is cached.

Tests: tests/compiler/test_symbolic_plans.py, tests/compiler/test_program_keys.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field, replace
from threading import Lock
from typing import Any, NamedTuple

from gpuflow.base.caches import register_table
from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.compiler.fusion.fuse import Group, describe_program, fuse
from gpuflow.compiler.fusion.space import BufferView, FusionProgram, whole_buffer
from gpuflow.compiler.lowering.excess_precision import all_rounded, unrounded_values
from gpuflow.compiler.lowering.size_table import AliasViews, ConcreteProgram, ErasedSizes, SizeTable
from gpuflow.compiler.passes.updates_in_place import Donations, InPlaceUpdates
from gpuflow.compiler.planning.key import erase_sizes
from gpuflow.compiler.planning.plan import (
    CallStep,
    InnerPrograms,
    KernelStep,
    Plan,
    Step,
    inner_aliases_of,
)
from gpuflow.compiler.planning.specialize import specialize
from gpuflow.compiler.planning.symbolic_plan import SymbolicPlan
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Jaxpr, Var
from gpuflow.core.lowering import Layout
from gpuflow.core.views import View

# Symbolic plans of one program, whose guards are tried in order. Two short sizes, each of 15 values
# that kernels may contain as text, make 225 classes.
MAX_PLANS = 256
_MAX_PROGRAMS = 1024  # all are dropped if there are as many
_programs: dict[Hashable, SymbolicProgram] = {}
register_table("symbolic programs", _programs, _MAX_PROGRAMS)


class _CachedView(NamedTuple):
    """The view of an alias in one program of a key, and the inputs of the rule that gave it.

    Attributes:
        operand: the view of the operand in its buffer.
        out: the aval of the alias.
        params: the parameters of the equation.
        view: the view of the alias; None if it is none.
    """

    operand: View
    out: ShapedArray
    params: dict[str, Any]
    view: View | None


@record(eq=False)
class SymbolicProgram:
    """A program with its sizes erased.

    Attributes:
        target: the platform.
        into_destinations: whether outputs are written into arrays that a call passes.
        groups: the groups of equations, in execution order.
        aliases: positions of equations whose outputs alias memory.
        updates: see ``FusionProgram.updates``.
        table: the size expressions of all plans.
        plans: the symbolic plans so far, the newest first.
    """

    target: Target
    into_destinations: bool
    groups: tuple[Group, ...]
    aliases: tuple[int, ...]
    updates: dict[int, InPlaceUpdates]
    table: SizeTable = field(default_factory=SizeTable)
    plans: list[SymbolicPlan] = field(default_factory=list)
    _views: dict[int, _CachedView] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def views(self, jaxpr: Jaxpr) -> AliasViews:
        """The aliases of memory in a program of this key, see ``FusionProgram.views``.

        All programs of a key have the same aliases, with other sizes.
        """
        views: dict[Var, BufferView] = {}
        for position in self.aliases:
            eqn = jaxpr.eqns[position]
            lowering = eqn.primitive.lower
            update = self.updates.get(position)
            count = len(eqn.outputs) if lowering.is_barrier else 1
            pairs = [(k, k) for k in range(count)] if update is None else update.pairs
            for operand, out in pairs:
                atom, var = eqn.inputs[operand], eqn.outputs[out]
                assert type(atom) is Var  # or it would be no alias
                buffer, view = views.get(atom) or whole_buffer(atom)
                if lowering.view is not None:
                    view = self._view(position, lowering, view, var.aval, eqn.params)
                    assert view is not None, f"[bind] the key does not make {eqn} a view"
                views[var] = BufferView(buffer, view)
        return views

    def _view(
        self,
        position: int,
        lowering: Layout,
        operand: View,
        out: ShapedArray,
        params: dict[str, Any],
    ) -> View | None:
        """The layout of an alias, cached for the last program."""
        cached = self._views.get(position)
        is_same = cached is not None and cached.operand is operand and cached.out is out
        if cached is not None and is_same and cached.params == params:
            return cached.view
        view = lowering.view(operand, out, **params)
        self._views[position] = _CachedView(operand, out, params, view)
        return view

    def add(self, plan: SymbolicPlan) -> None:
        """Add a symbolic plan; drop the oldest if there are more than MAX_PLANS."""
        with self._lock:
            self.plans[:] = (plan, *self.plans[: MAX_PLANS - 1])


def bound_plan(
    jaxpr: Jaxpr,
    programs: InnerPrograms,
    donations: Donations,
    into_destinations: bool,
    target: Target,
) -> Plan:
    """Fuse, lower and bind a program; reuses a symbolic plan whose guard admits its sizes.

    Args:
        jaxpr: the program after all passes.
        programs: the compiled programs of loops and branches.
        donations: donated inputs, each with the one output that may reuse its memory, or None for
            any output.
        into_destinations: whether outputs are written into arrays that a call passes.
        target: the platform.
    """
    return _Binding(jaxpr, programs, donations, into_destinations, target).plan()


class _Binding:
    """The work of ``bound_plan`` for one program."""

    def __init__(
        self,
        jaxpr: Jaxpr,
        programs: InnerPrograms,
        donations: Donations,
        into_destinations: bool,
        target: Target,
    ) -> None:
        self.jaxpr, self.programs, self.donations = jaxpr, programs, donations
        self.inner_aliases = inner_aliases_of(programs)
        self.into_destinations, self.target = into_destinations, target

    def plan(self) -> Plan:
        """The plan, bound from a cached symbolic plan if the guard of one holds."""
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
                if len(_programs) >= _MAX_PROGRAMS:
                    _programs.clear()
                _programs[key] = symbolic
            return self._specialized(symbolic, described, erased)
        # Copy the plans before evaluating the table: other threads may add plans whose expressions
        # are not in `values`.
        plans = tuple(symbolic.plans)
        program = ConcreteProgram(self.jaxpr, erased, symbolic.views(self.jaxpr))
        values = symbolic.table.evaluate(program)
        for symbolic_plan in plans:
            if symbolic_plan.guard.holds(values):
                plan = symbolic_plan.bind(program, values, self.donations, self.programs)
                if config.environment.check:
                    fresh_plan = self._specialized(
                        symbolic, self._described(), erased, add_to_cache=False
                    )
                    is_equal = _comparable(plan) == _comparable(fresh_plan)
                    assert is_equal, "[bind] the guard of a symbolic plan admits sizes of another"
                return plan
        return self._specialized(symbolic, self._described(), erased)

    def _described(self) -> FusionProgram:
        unrounded = unrounded_values if self.target.excess_precision else all_rounded
        return describe_program(
            self.jaxpr, self.donations, self.inner_aliases, unrounded(self.jaxpr)
        )

    def _specialized(
        self,
        symbolic: SymbolicProgram,
        described: FusionProgram,
        erased: ErasedSizes,
        add_to_cache: bool = True,
    ) -> Plan:
        """The plan, bound from a new symbolic plan, which is cached if ``add_to_cache``."""
        has_same_aliases = _alias_positions(described) == symbolic.aliases
        assert has_same_aliases, "[bind] the key does not determine the views"
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
        if add_to_cache:
            symbolic.add(symbolic_plan)
        program = ConcreteProgram(self.jaxpr, erased, described.views)
        values = symbolic.table.evaluate(program)
        return symbolic_plan.bind(program, values, self.donations, self.programs)


def forget_symbolic_programs() -> None:
    """Drop all symbolic programs."""
    _programs.clear()


def _alias_positions(program: FusionProgram) -> tuple[int, ...]:
    """The equations whose outputs alias memory, in order."""
    positions = {program.producer[var] for var in program.views}
    return tuple(sorted(positions))


def _comparable(plan: Plan) -> Plan:
    """The plan for comparison: without fields that are compared by identity."""

    def comparable(step: Step) -> Step:
        if isinstance(step, CallStep):
            return step._replace(implementation=None)
        if isinstance(step, KernelStep):
            return step._replace(symbolic=step.symbolic._replace(calls=()))
        return step

    return replace(plan, steps=tuple(map(comparable, plan.steps)))
