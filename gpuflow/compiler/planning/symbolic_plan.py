"""Symbolic plans: plans whose sizes, offsets and kernel arguments are size expressions.

A symbolic plan is valid for all sizes that its guard admits. ``bind`` evaluates it for the sizes of
one program: arguments and launches of kernels, views of operands, offsets of buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.lowering.size_table import Concrete, Guard, Values
from gpuflow.compiler.passes.updates_in_place import Donations
from gpuflow.compiler.planning.buffers import Arrangement, arrange
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Operand,
    Plan,
    Programs,
    ProgramStep,
    Step,
    memory,
    scratch_of,
    workspace_bytes,
)
from gpuflow.compiler.planning.segments import by_kernel
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

# Cached arrangements of one symbolic plan, which differ in scratch buffers: sizes decide which
# reductions are split.
_MOST_ARRANGEMENTS = 64


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
        owners: count of groups and outputs that may add buffers, see ``added_buffer``.
        arrangements: liveness of temporaries, by the ids of the scratch buffers of all steps.
    """

    guard: Guard
    target: Target
    steps: tuple[SymbolicStep, ...]
    groups: tuple[tuple[int, ...], ...]
    outputs: tuple[int | None, ...]
    in_place: Mapping[int, int]
    owned: tuple[int, ...]
    destinations: tuple[int, ...]
    owners: int
    arrangements: dict[tuple[int, ...], Arrangement] = field(default_factory=dict)

    def bind(
        self, program: Concrete, values: Values, donations: Donations, programs: Programs
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
        offsets, total = binder.offsets(steps)
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
            binder.added,
            offsets,
            total,
            self.owned,
            self.destinations,
        )


def added_buffer(variables: int, owners: int, owner: int, k: int) -> int:
    """The id of the ``k``-th buffer that a group or an output adds.

    Owners are the groups, followed by the outputs. The id does not depend on how many buffers
    other owners add, so it is the same for all sizes.
    """
    return variables + owner + owners * k


class _Binder:
    """Builder of a plan's steps, in order; ``allocate`` adds scratch memory to the current step."""

    def __init__(
        self, plan: SymbolicPlan, program: Concrete, values: Values, programs: Programs
    ) -> None:
        self.plan, self.program, self.values = plan, program, values
        self.variables, self.programs = program.erased.variables, programs
        self.added: dict[int, ShapedArray] = {}
        self.eqns = program.jaxpr.eqns
        self.scratch: list[int] = []  # of the current step
        self.all_scratch: list[int] = []
        self.group, self.count = 0, 0  # the current group, and its count of scratch buffers

    def step(self, symbolic: SymbolicStep) -> Step:
        """The step for the sizes of the program."""
        if isinstance(symbolic, SymbolicKernelStep):
            return self._kernel_step(symbolic)
        if isinstance(symbolic, SymbolicCallStep):
            return self._call_step(symbolic)
        source = self._operand(symbolic.source)
        if symbolic.target >= len(self.variables):
            self.added[symbolic.target] = source.aval
        return CopyStep(source, symbolic.target)

    def _kernel_step(self, symbolic: SymbolicKernelStep) -> KernelStep:
        jaxpr, values = self.program.jaxpr, self.values
        calls = tuple([call.bind(values) for call in symbolic.calls])
        if symbolic.is_plain:
            return KernelStep(symbolic, jaxpr, calls, (calls,), ())
        self.scratch = []
        pairs = zip(symbolic.calls, calls, strict=True)
        launches = [one for own, call in pairs for one in self._launches(own.group, call)]
        if len(calls) > 1:
            merged_launches = by_kernel(launches)
        else:
            merged_launches = tuple([(one,) for one in launches])
        return KernelStep(symbolic, jaxpr, calls, merged_launches, tuple(self.scratch))

    def _launches(self, group: int, call: KernelCall) -> tuple[KernelCall, ...]:
        self.group, self.count = group, 0
        return scheduled(call, self.allocate, self.plan.target.schedules)

    def allocate(self, count: int) -> int:
        """A scratch buffer of ``count`` bytes, for the launches of the current group."""
        buffer = added_buffer(len(self.variables), self.plan.owners, self.group, self.count)
        self.added[buffer] = memory(count)
        self.scratch.append(buffer)
        self.all_scratch.append(buffer)
        self.count += 1
        return buffer

    def _call_step(self, symbolic: SymbolicCallStep) -> CallStep | ProgramStep:
        """The step of a call, with a provider chosen for its sizes."""
        eqn = self.eqns[symbolic.position]
        operands = tuple([self._operand(operand) for operand in symbolic.operands])
        if symbolic.kind == "program":
            *outputs, workspace = symbolic.writes
            inner = self.programs[eqn]
            self.added[workspace] = memory(workspace_bytes(eqn, inner))
            return ProgramStep(eqn, operands, tuple(outputs), inner, workspace)
        step = CallStep(eqn, operands, symbolic.writes, symbolic.kind)
        choice = self.plan.target.choice_of(step)
        if choice is None:
            return step
        workspace, count = None, choice.workspace_bytes
        if count:
            self.group, self.count = symbolic.group, 0
            workspace = self.allocate(count)
        return step._replace(workspace=workspace, choice=choice)

    def _operand(self, operand: SymbolicOperand) -> Operand:
        position, index, buffer, is_view = operand
        atoms = self.program.jaxpr.outvars if position is None else self.eqns[position].inputs
        atom = atoms[index]
        if type(atom) is not Literal:
            return Operand(buffer, atom.aval, self.program.views[atom][1] if is_view else None)
        # An update of a literal reads a buffer with a copy of the literal.
        value = atom.value if buffer == NO_BUFFER else None
        return Operand(buffer, atom.aval, None, value)

    def offsets(self, steps: Sequence[Step]) -> tuple[Mapping[int, int], int]:
        """The offsets of the temporaries, and the size of the arena."""
        cached = self.plan.arrangements
        scratch = tuple(self.all_scratch)
        arrangement = cached.get(scratch)
        if arrangement is None:
            if len(cached) >= _MOST_ARRANGEMENTS:
                cached.clear()
            arrangement = cached[scratch] = self._arranged(steps)
        return arrangement.offsets([self._aval(buffer).shape for buffer in arrangement.buffers])

    def _aval(self, buffer: int) -> ShapedArray:
        is_variable = buffer < len(self.variables)
        return self.variables[buffer].aval if is_variable else self.added[buffer]

    def _arranged(self, steps: Sequence[Step]) -> Arrangement:
        inputs, outputs = len(self.program.jaxpr.invars), set(self.plan.outputs)
        needed = []
        for symbolic, step in zip(self.plan.steps, steps, strict=True):
            buffers = (*symbolic.reads, *symbolic.writes, *scratch_of(step))
            needed.append([b for b in buffers if b >= inputs and b not in outputs])
        return arrange(needed, self._aval)
