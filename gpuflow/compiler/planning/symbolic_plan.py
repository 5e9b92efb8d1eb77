"""Symbolic plans: plans whose sizes, offsets and kernel arguments are size expressions.

A symbolic plan is valid for all sizes that its guard admits. ``bind`` evaluates it for the sizes of
one program: arguments and launches of kernels, views of operands, offsets of buffers.

Threads may bind one symbolic plan at the same time.

Tests: tests/compiler/test_symbolic_plans.py, tests/compiler/test_new_sizes.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.lowering.size_table import ConcreteProgram, Guard, SizeValues
from gpuflow.compiler.passes.updates_in_place import Donations
from gpuflow.compiler.planning.buffers import InterferenceGraph, interference_graph
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    InnerPrograms,
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    StepOperand,
    byte_buffer_aval,
    scratch_of,
    workspace_bytes,
)
from gpuflow.compiler.planning.segments import group_by_kernel
from gpuflow.compiler.planning.symbolic_steps import (
    SymbolicCallStep,
    SymbolicKernelStep,
    SymbolicOperand,
    SymbolicStep,
)
from gpuflow.compiler.schedules.schedule import scheduled
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Literal

# Cached interference graphs of one symbolic plan, which differ in scratch buffers: sizes decide
# which reductions are split.
_MAX_GRAPHS = 64


@record(eq=False)
class SymbolicPlan:
    """A plan for all sizes that a guard admits.

    Attributes:
        guard: the condition on sizes under which the plan is valid.
        target: the platform.
        steps: the steps in execution order.
        groups: positions of the equations of each group.
        outputs: for each output its buffer; None for a literal.
        in_place: output buffers that reuse memory of inputs: output -> input.
        owned, destinations: output buffers with separate memory, see ``Plan``.
        owner_count: count of groups and outputs that may add buffers, see ``added_buffer``.
        interference_graphs: cache of ``bind``: liveness of temporaries, by the ids of the scratch
            buffers of all steps.
    """

    guard: Guard
    target: Target
    steps: tuple[SymbolicStep, ...]
    groups: tuple[tuple[int, ...], ...]
    outputs: tuple[int | None, ...]
    in_place: Mapping[int, int]
    owned: tuple[int, ...]
    destinations: tuple[int, ...]
    owner_count: int
    interference_graphs: dict[tuple[int, ...], InterferenceGraph] = field(default_factory=dict)

    def bind(
        self,
        program: ConcreteProgram,
        values: SizeValues,
        donations: Donations,
        programs: InnerPrograms,
    ) -> Plan:
        """The plan of a program.

        Args:
            program: a program whose sizes the guard admits.
            values: the value of each size expression.
            donations: donated inputs, for ``Plan.donated``.
            programs: the compiled programs of loops and branches.
        """
        binder = _Binder(self, program, values, programs)
        steps = tuple([binder.step(step) for step in self.steps])
        offsets, arena_bytes = binder.offsets(steps)
        outputs: list[int | Literal] = []
        for out, atom in zip(self.outputs, program.jaxpr.outvars, strict=True):
            if out is None:
                assert type(atom) is Literal  # as in every program of the key
                outputs.append(atom)
            else:
                outputs.append(out)
        return Plan(
            program.jaxpr,
            donations,
            self.groups,
            steps,
            tuple(outputs),
            self.in_place,
            program.erased.variables,
            binder.added_avals,
            offsets,
            arena_bytes,
            self.owned,
            self.destinations,
        )


def added_buffer(variables: int, owner_count: int, owner: int, k: int) -> int:
    """The id of the ``k``-th buffer that a group or an output adds.

    Owners are the groups, followed by the outputs. The id does not depend on how many buffers
    other owners add, so it is the same for all sizes.

    Args:
        variables: count of variables, whose buffers have the ids below it.
        owner_count: count of owners.
        owner: index of the group; for output k of the program the count of groups plus k.
        k: index of the buffer among those of this owner.
    """
    return variables + owner + owner_count * k


class _Binder:
    """Builder of a plan's steps; ``allocate`` adds scratch memory to the current step.

    Call ``step`` for each step in order, then ``offsets`` once.
    """

    def __init__(
        self,
        plan: SymbolicPlan,
        program: ConcreteProgram,
        values: SizeValues,
        programs: InnerPrograms,
    ) -> None:
        self.plan, self.program, self.values = plan, program, values
        self.variables, self.programs = program.erased.variables, programs
        self.added_avals: dict[int, ShapedArray] = {}
        self.eqns = program.jaxpr.eqns
        self.scratch: list[int] = []  # of the current step
        self.all_scratch: list[int] = []
        # The group whose launches are bound, and the count of scratch buffers that it has so far.
        self.scratch_group, self.scratch_count = 0, 0

    def step(self, symbolic: SymbolicStep) -> Step:
        """The step for the sizes of the program."""
        if isinstance(symbolic, SymbolicKernelStep):
            return self._kernel_step(symbolic)
        if isinstance(symbolic, SymbolicCallStep):
            return self._call_step(symbolic)
        source = self._operand(symbolic.source)
        if symbolic.target >= len(self.variables):
            self.added_avals[symbolic.target] = source.aval
        return CopyStep(source, symbolic.target)

    def _kernel_step(self, symbolic: SymbolicKernelStep) -> KernelStep:
        jaxpr, values = self.program.jaxpr, self.values
        calls = tuple([call.bind(values) for call in symbolic.calls])
        if symbolic.is_plain:
            return KernelStep(symbolic, jaxpr, calls, (calls,), ())
        self.scratch = []
        pairs = zip(symbolic.calls, calls, strict=True)
        launches = [
            launch
            for symbolic_call, call in pairs
            for launch in self._launches(symbolic_call.group, call)
        ]
        if len(calls) > 1:
            merged_launches = group_by_kernel(launches)
        else:
            merged_launches = tuple([(launch,) for launch in launches])
        return KernelStep(symbolic, jaxpr, calls, merged_launches, tuple(self.scratch))

    def _launches(self, group: int, call: KernelCall) -> tuple[KernelCall, ...]:
        self.scratch_group, self.scratch_count = group, 0
        return scheduled(call, self.allocate, self.plan.target.schedules)

    def allocate(self, count: int) -> int:
        """A scratch buffer of ``count`` bytes, for the launches of the current group."""
        variables, owner_count = len(self.variables), self.plan.owner_count
        buffer = added_buffer(variables, owner_count, self.scratch_group, self.scratch_count)
        self.added_avals[buffer] = byte_buffer_aval(count)
        self.scratch.append(buffer)
        self.all_scratch.append(buffer)
        self.scratch_count += 1
        return buffer

    def _call_step(self, symbolic: SymbolicCallStep) -> CallStep | ProgramStep:
        """The step of a call, with a provider chosen for its sizes."""
        eqn = self.eqns[symbolic.position]
        operands = tuple([self._operand(operand) for operand in symbolic.operands])
        if symbolic.kind == "program":
            *outputs, workspace = symbolic.writes
            inner = self.programs[eqn]
            self.added_avals[workspace] = byte_buffer_aval(workspace_bytes(eqn, inner))
            return ProgramStep(eqn, operands, tuple(outputs), inner, workspace)
        step = CallStep(eqn, operands, symbolic.writes, symbolic.kind)
        implementation = self.plan.target.implementation_of(step)
        if implementation is None:
            return step
        workspace, count = None, implementation.workspace_bytes
        if count:
            self.scratch_group, self.scratch_count = symbolic.group, 0
            workspace = self.allocate(count)
        return step._replace(workspace=workspace, implementation=implementation)

    def _operand(self, operand: SymbolicOperand) -> StepOperand:
        position, index, buffer, is_view = operand
        atoms = self.program.jaxpr.outvars if position is None else self.eqns[position].inputs
        atom = atoms[index]
        if type(atom) is not Literal:
            return StepOperand(
                buffer, atom.aval, self.program.views[atom].layout if is_view else None
            )
        # An update of a literal reads a buffer with a copy of the literal.
        value = atom.value if buffer == NO_BUFFER else None
        return StepOperand(buffer, atom.aval, None, value)

    def offsets(self, steps: Sequence[Step]) -> tuple[Mapping[int, int], int]:
        """The offset of each temporary, and the size of the arena, in bytes."""
        cached = self.plan.interference_graphs
        scratch = tuple(self.all_scratch)
        graph = cached.get(scratch)
        if graph is None:
            if len(cached) >= _MAX_GRAPHS:
                cached.clear()
            graph = cached[scratch] = self._interference_graph(steps)
        return graph.offsets([self._aval(buffer).shape for buffer in graph.buffers])

    def _aval(self, buffer: int) -> ShapedArray:
        is_variable = buffer < len(self.variables)
        return self.variables[buffer].aval if is_variable else self.added_avals[buffer]

    def _interference_graph(self, steps: Sequence[Step]) -> InterferenceGraph:
        inputs, outputs = len(self.program.jaxpr.invars), set(self.plan.outputs)
        temporaries = []
        for symbolic, step in zip(self.plan.steps, steps, strict=True):
            buffers = (*symbolic.reads, *symbolic.writes, *scratch_of(step))
            temporaries.append([b for b in buffers if b >= inputs and b not in outputs])
        return interference_graph(temporaries, self._aval)
