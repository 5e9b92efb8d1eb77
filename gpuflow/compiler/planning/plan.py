"""Plans: the steps of a compiled program for given sizes, over numbered buffers.

A symbolic plan serves many sizes; bound to the sizes of one program, it is a plan. A plan has
kernels with their arguments, library calls, and the offset of each temporary in one arena.

A buffer's id is the index of its variable (``ErasedSizes.variables``): input k is buffer k. Copies
and scratch memory have later ids.

A plan does not change after binding, so threads may share it.

Tests: tests/compiler/test_symbolic_plans.py, tests/runtime/test_memory_analysis.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.records import record
from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.fusion.space import FusionProgram
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.passes.updates_in_place import AliasPairs, Donations, InnerAliases
from gpuflow.compiler.planning.symbolic_steps import SymbolicKernelStep
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.views import View, contiguous
from gpuflow.kir.nodes import Kernel

ALIGNMENT = 64  # bytes; alignment of temporaries in an arena, see also ``runtime/memory.py``
_BYTE = np.dtype(np.uint8)


class StepOperand(NamedTuple):
    """An operand of a library call.

    Attributes:
        buffer: id of the buffer; NO_BUFFER for a literal.
        aval: shape and dtype.
        view: layout in the buffer; None if it is the whole buffer, row-major.
        value: the value of a literal; else None.
    """

    buffer: int
    aval: ShapedArray
    view: View | None = None
    value: Any = None

    @property
    def layout(self) -> View:
        """Layout: strides and offset; row-major for a literal."""
        return contiguous(self.aval.shape) if self.view is None else self.view


class KernelStep(NamedTuple):
    """One call of a kernel, or several calls of a segmented kernel.

    Attributes:
        symbolic: the step without sizes.
        jaxpr: the program.
        calls: the calls as lowering made them, before schedules.
        launches: the launches of the platform, in order. Each is one kernel for one or more calls.
        scratch: buffers that only the launches use.
    """

    symbolic: SymbolicKernelStep
    jaxpr: Jaxpr
    calls: tuple[KernelCall, ...]
    launches: tuple[tuple[KernelCall, ...], ...]
    scratch: tuple[int, ...]

    kind = "kernel"

    @property
    def kernel(self) -> Kernel:
        """The kernel as lowering made it, before schedules."""
        return self.symbolic.kernel

    @property
    def eqns(self) -> tuple[Eqn, ...]:
        """The equations of the step."""
        return tuple([self.jaxpr.eqns[position] for position in self.symbolic.members])

    @property
    def name(self) -> str:
        """A one-word name of the step."""
        return self.kernel.name


class CallImplementation(Protocol):
    """A provider's implementation of a call; each target has its own classes of these.

    It is chosen for the sizes and layouts of one step, and valid for these only.
    """

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory that the call needs; 0 if none."""
        ...


class CallStep(NamedTuple):
    """A call of a provider's library function, of an op's ``impl``, or of the host.

    Attributes:
        eqn: the equation to compute.
        operands: its operands.
        outputs: buffers of the results.
        kind: "library" or "host".
        workspace: a buffer of scratch memory, if the implementation needs one.
        implementation: the result of ``Target.implementation_of``, a ``CallImplementation``; None
            if ``impl`` must run.
    """

    eqn: Eqn
    operands: tuple[StepOperand, ...]
    outputs: tuple[int, ...]
    kind: str = "library"
    workspace: int | None = None
    implementation: Any = None

    @property
    def name(self) -> str:
        """A one-word name of the step."""
        return self.eqn.primitive.name


class CopyStep(NamedTuple):
    """A copy of a view into a row-major buffer.

    Attributes:
        source: the view, or a literal.
        target: id of the buffer; it has the shape and dtype of the source.
    """

    source: StepOperand
    target: int

    kind = "copy"

    @property
    def name(self) -> str:
        """A one-word name of the step."""
        return "copy"


@record
class InnerProgram:
    """A compiled program of a loop or branch.

    Attributes:
        plan: the plan of the program.
        values: constants of the program, which are its trailing inputs.
        is_speculative: whether it is a while_loop's body that may run one iteration too many. It
            then takes, after the carries, the flag whether the iteration counts.
    """

    plan: Plan
    values: tuple[Any, ...]
    is_speculative: bool = False


class ProgramStep(NamedTuple):
    """A loop or branch: runs compiled programs, which write into buffers of this plan.

    Attributes:
        eqn: the equation; its ``lower`` defines how the programs run.
        operands: row-major operands. An operand that the programs update in place is already in the
            buffer of its output, see ``alias_pairs``.
        outputs: buffers of the results.
        programs: the compiled programs.
        workspace: a buffer for the arena of the programs and for the second carries.
    """

    eqn: Eqn
    operands: tuple[StepOperand, ...]
    outputs: tuple[int, ...]
    programs: tuple[InnerProgram, ...]
    workspace: int

    kind = "program"

    @property
    def name(self) -> str:
        """A one-word name of the step."""
        return self.eqn.primitive.name


Step = KernelStep | CallStep | CopyStep | ProgramStep
InnerPrograms = Mapping[Eqn, tuple[InnerProgram, ...]]


@record
class Plan:
    """A compiled program, bound to sizes.

    Invariant: each buffer that a step uses is an input, in ``in_place``, in ``owned``, in
    ``destinations``, or a temporary with an offset. Temporaries that are alive at the same time do
    not overlap in the arena.

    Attributes:
        jaxpr: the program after all passes.
        donated: inputs that may be overwritten, see ``passes/updates_in_place.py``.
        groups: positions of the equations of each group.
        steps: the steps in execution order.
        outputs: for each output its buffer, which may be that of an input, or a Literal.
        in_place: output buffers that reuse memory of donated inputs: output -> input.
        variables: the variable of each of the first buffers, by id.
        added_avals: shape and dtype of later buffers, by id.
        offsets: the offset of each temporary in the arena, in bytes.
        arena_bytes: size of the arena.
        owned: output buffers that are allocated for each call.
        destinations: output buffers that are arrays which a call passes after the inputs.
    """

    jaxpr: Jaxpr
    donated: Donations
    groups: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int | Literal, ...]
    in_place: Mapping[int, int]
    variables: tuple[Var, ...]
    added_avals: Mapping[int, ShapedArray]
    offsets: Mapping[int, int]
    arena_bytes: int
    owned: tuple[int, ...]
    destinations: tuple[int, ...]

    @cached_property
    def program(self) -> FusionProgram:
        """The program described for fusion."""
        programs = {s.eqn: s.programs for s in self.steps if isinstance(s, ProgramStep)}
        return describe_program(self.jaxpr, self.donated, inner_aliases_of(programs))

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """The inputs whose memory the steps write."""
        written = {buffer for step in self.steps for buffer in writes_of(step)}
        written.update(self.in_place.values())
        return frozenset(buffer for buffer in written if buffer < len(self.jaxpr.invars))

    def aval(self, buffer: int) -> ShapedArray:
        """Shape and dtype of a buffer."""
        is_variable = buffer < len(self.variables)
        return self.variables[buffer].aval if is_variable else self.added_avals[buffer]

    def is_input(self, out: int | Literal) -> bool:
        """Whether an entry of ``outputs`` is an unmodified input."""
        return not isinstance(out, Literal) and out < len(self.jaxpr.invars)


def byte_buffer_aval(count: int) -> ShapedArray:
    """The aval of a buffer of ``count`` bytes."""
    return ShapedArray((count,), _BYTE)


def nbytes(aval: ShapedArray) -> int:
    """Bytes that an array takes in memory."""
    return aval.size * storage_dtype(aval.dtype).itemsize


def aliased_outputs(plan: Plan) -> list[Atom]:
    """The outputs in memory of inputs: donated ones, and unmodified inputs."""
    pairs = zip(plan.outputs, plan.jaxpr.outvars, strict=True)
    return [atom for out, atom in pairs if plan.is_input(out) or out in plan.in_place]


def carry_count(eqn: Eqn) -> int:
    """The count of a loop's carries, which are its first outputs; 0 for a branch."""
    lowering = eqn.primitive.lower
    return 0 if lowering.form is None else lowering.form(eqn.params).num_carry


def alias_pairs(eqn: Eqn, programs: Sequence[InnerProgram]) -> AliasPairs:
    """The operands that a loop or branch updates in place, with the outputs in their memory.

    In a branch all programs must do so, in a loop each iteration does.
    """
    plan = programs[-1].plan
    first = 1 if eqn.primitive.lower.branches is not None else 0
    return tuple(
        (first + plan.in_place[out], k)
        for k, out in enumerate(plan.outputs)
        if isinstance(out, int) and out in plan.in_place
    )


def inner_aliases_of(programs: InnerPrograms) -> InnerAliases:
    """``alias_pairs`` of all loops and branches of a program."""
    return {eqn: alias_pairs(eqn, inner) for eqn, inner in programs.items()}


def output_alias_flags(eqn: Eqn, programs: Sequence[InnerProgram]) -> list[bool]:
    """For each output whether it has the memory of an operand. Other carries need two arrays."""
    aliased = {out for _, out in alias_pairs(eqn, programs)}
    return [k in aliased for k in range(len(eqn.outputs))]


def double_buffered_carries(eqn: Eqn, programs: Sequence[InnerProgram]) -> list[int]:
    """The double-buffered carries: each iteration reads one array and writes the other."""
    aliased = output_alias_flags(eqn, programs)
    return [k for k in range(carry_count(eqn)) if not aliased[k]]


def rounded_bytes(aval: ShapedArray) -> int:
    """Bytes of an array in an arena, rounded up to ALIGNMENT."""
    return -(-max(nbytes(aval), 1) // ALIGNMENT) * ALIGNMENT


def workspace_layout(step: ProgramStep, start: int) -> tuple[tuple[int, int], list[int]]:
    """Layout of a step's workspace: the arena of its programs, then second arrays of carries.

    Args:
        step: the loop or branch.
        start: offset of the workspace in the arena of the plan, in bytes; a multiple of ALIGNMENT.

    Returns:
        (offset, bytes) of the programs' arena, and the offsets of the second arrays of
        ``double_buffered_carries``, in their order. Offsets are in the arena of the plan, in bytes.
    """
    count = max(inner.plan.arena_bytes for inner in step.programs)
    offset, offsets = start + -(-count // ALIGNMENT) * ALIGNMENT, []
    for k in double_buffered_carries(step.eqn, step.programs):
        offsets.append(offset)
        offset += rounded_bytes(step.eqn.outputs[k].aval)
    return (start, count), offsets


def workspace_bytes(eqn: Eqn, programs: Sequence[InnerProgram]) -> int:
    """Bytes of a step's workspace. Its programs share an arena, because one runs at a time."""
    arena = max(inner.plan.arena_bytes for inner in programs)
    aligned = -(-arena // ALIGNMENT) * ALIGNMENT
    second = [eqn.outputs[k].aval for k in double_buffered_carries(eqn, programs)]
    return aligned + sum(map(rounded_bytes, second))


def reads_of(step: Step) -> tuple[int, ...]:
    """The buffers that a step reads."""
    if isinstance(step, KernelStep):
        return step.symbolic.reads
    operands = (step.source,) if isinstance(step, CopyStep) else step.operands
    return tuple(operand.buffer for operand in operands if operand.buffer != NO_BUFFER)


def writes_of(step: Step) -> tuple[int, ...]:
    """The buffers that a step writes."""
    if isinstance(step, KernelStep):
        return step.symbolic.writes
    if isinstance(step, ProgramStep):
        return (*step.outputs, step.workspace)
    return step.outputs if isinstance(step, CallStep) else (step.target,)


def scratch_of(step: Step) -> tuple[int, ...]:
    """The scratch buffers of a step, which are needed only while it runs."""
    if isinstance(step, KernelStep):
        return step.scratch
    workspace = step.workspace if isinstance(step, CallStep) else None
    return () if workspace is None else (workspace,)


def argument_positions(plan: Plan) -> dict[int, int]:
    """The position of each buffer among the arrays of a call: inputs, then destinations."""
    inputs = len(plan.jaxpr.invars)
    positions = {k: k for k in range(inputs)}
    positions.update(plan.in_place)
    positions.update({out: k for k, out in enumerate(plan.destinations, inputs)})
    return positions


def kernels_of(step: KernelStep) -> list[Kernel]:
    """The kernels that a step launches."""
    return [calls[0].kernel for calls in step.launches]


def all_steps(plan: Plan) -> Iterator[Step]:
    """The steps of a plan, and of the programs of its loops and branches."""
    for step in plan.steps:
        yield step
        if isinstance(step, ProgramStep):
            for inner in step.programs:
                yield from all_steps(inner.plan)


def all_kernels(plan: Plan) -> list[Kernel]:
    """The kernels of a plan, and of the programs of its loops and branches."""
    steps = (step for step in all_steps(plan) if isinstance(step, KernelStep))
    return [kernel for step in steps for kernel in kernels_of(step)]


def calls_python(plan: Plan) -> bool:
    """Whether the plan, or a loop or branch in it, calls an ``impl``, which is Python code."""
    return any(
        isinstance(step, CallStep) and step.implementation is None for step in all_steps(plan)
    )


def flops_of(step: Step) -> int:
    """Floating-point operations of a step, an estimate: one for each equation and point.

    Calls count those of the op's ``flops`` rule, or 0.
    """
    if isinstance(step, KernelStep):
        per_point = max(1, len(step.symbolic.members) // len(step.calls))
        return per_point * sum(call.points for call in step.calls)
    if isinstance(step, ProgramStep):
        inner = [
            sum(flops_of(s) for s in inner_program.plan.steps) for inner_program in step.programs
        ]
        return step.eqn.primitive.lower.inner(step.eqn).total(inner)
    if not isinstance(step, CallStep):
        return 0
    lowering = step.eqn.primitive.lower
    if lowering.flops is not None:
        avals = [operand.aval for operand in step.operands]
        return lowering.flops(avals, [var.aval for var in step.eqn.outputs], step.eqn.params)
    return 0


def traffic_bytes(plan: Plan, step: Step) -> int:
    """Bytes that a step of a plan reads and writes, each buffer once."""
    return sum(nbytes(plan.aval(buffer)) for buffer in {*reads_of(step), *writes_of(step)})
