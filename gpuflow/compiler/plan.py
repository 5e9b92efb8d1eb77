"""Plans: what a compiled program does, step by step, over buffers with known lifetimes.

A template holds what does not depend on sizes. ``bind.bind`` gives it the sizes of one program:
kernels with their arguments, buffers, and offsets in one arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gpuflow.compiler.fuse import describe_program
from gpuflow.compiler.lower import KernelCall
from gpuflow.compiler.space import Program
from gpuflow.compiler.updates import Given
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Library, Loop, ScanForm
from gpuflow.core.views import View, contiguous
from gpuflow.kir.nodes import Kernel

ALIGNMENT = 64
_BYTE = np.dtype(np.uint8)


class Operand(NamedTuple):
    """An operand of a library call: a view of a buffer, or a literal."""

    buffer: Var | None
    view: View | None
    aval: ShapedArray
    value: Any = None

    @property
    def lies(self) -> View:
        """How the elements lie; a literal's in memory of its own."""
        return contiguous(self.aval.shape) if self.view is None else self.view


@dataclass(frozen=True)
class KernelStep:
    """One use of a kernel; several calls of a segmented one.

    Attributes:
        kernel: as lowering made it.
        calls: its arguments.
        eqns: what it computes.
        launches: what the platform runs, in order: each is one kernel for one call or several.
        scratch: buffers that only the launches know.
    """

    kernel: Kernel
    calls: tuple[KernelCall, ...]
    eqns: tuple[Eqn, ...]
    launches: tuple[tuple[KernelCall, ...], ...] = ()
    scratch: tuple[Var, ...] = ()
    kind: str = "kernel"

    @property
    def name(self) -> str:
        """What the step does, in a word."""
        return self.kernel.name


@dataclass(frozen=True)
class CallStep:
    """One call of an op's ``impl`` or library function, or of the host (kind "host").

    Attributes:
        eqn: what to compute.
        operands: from what.
        kind: "library" or "host".
        workspace: a buffer for what the platform needs besides, if it needs any.
    """

    eqn: Eqn
    operands: tuple[Operand, ...]
    kind: str = "library"
    workspace: Var | None = None

    @property
    def name(self) -> str:
        """What the step does, in a word."""
        return self.eqn.primitive.name


@dataclass(frozen=True)
class CopyStep:
    """A copy of a view into an output buffer."""

    source: Operand
    target: Var
    kind: str = "copy"

    @property
    def name(self) -> str:
        """What the step does, in a word."""
        return "copy"


@dataclass(frozen=True)
class Inner:
    """A compiled program that a step runs: its plan and the constants that are inputs besides."""

    plan: Plan
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ProgramStep:
    """A loop or branch: it runs compiled programs, which write into the buffers they are given.

    Attributes:
        eqn: the equation; its ``lower`` says how the programs are run.
        operands: as for a library call; row-major.
        programs: the compiled programs.
        workspace: a buffer for what the programs need while they run.
    """

    eqn: Eqn
    operands: tuple[Operand, ...]
    programs: tuple[Inner, ...]
    workspace: Var
    kind: str = "program"

    @property
    def name(self) -> str:
        """What the step does, in a word."""
        return self.eqn.primitive.name


Step = KernelStep | CallStep | CopyStep | ProgramStep
Programs = dict[Eqn, tuple[Inner, ...]]


@dataclass(frozen=True)
class Plan:
    """A program bound to sizes.

    Attributes:
        steps: in execution order.
        outputs: for each output an input position, a buffer variable, or a Literal.
        in_place: outputs that take the memory of donated inputs.
        offsets: of temporaries in the arena, in bytes.
        arena_bytes: size of the arena.
        owned: variables whose buffers are allocated for each call.
        given: outputs that are written into arrays passed behind the inputs.
        jaxpr: the program after all passes.
        donated: inputs that could be overwritten, see ``updates``.
        groups: the positions of the equations that it put into one step.
    """

    jaxpr: Jaxpr
    donated: Given
    groups: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int | Var | Literal, ...]
    in_place: dict[Var, Var]
    offsets: dict[Var, int] = field(default_factory=dict)
    arena_bytes: int = 0
    owned: tuple[Var, ...] = ()
    given: tuple[Var, ...] = ()

    @cached_property
    def program(self) -> Program:
        """What fusion knew of the program."""
        return describe_program(self.jaxpr, self.donated)


def memory(count: int) -> Var:
    """A buffer of so many bytes."""
    return Var(ShapedArray((count,), _BYTE))


def nbytes(atom: Atom) -> int:
    """Bytes that a variable or literal takes in memory."""
    return atom.aval.size * storage_dtype(atom.aval.dtype).itemsize


def aliased_outputs(plan: Plan) -> list[Atom]:
    """The outputs that lie in the memory of inputs: donated ones, and inputs as they are."""
    pairs = zip(plan.outputs, plan.jaxpr.outvars, strict=True)
    return [atom for out, atom in pairs if isinstance(out, int) or out in plan.in_place]


def carry_count(eqn: Eqn) -> int:
    """How many of a step's first outputs a loop carries from one iteration to the next."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Loop):
        return 0
    form = rule.form(eqn.params)
    return form.num_carry if isinstance(form, ScanForm) else len(eqn.outputs)


def kept_carries(eqn: Eqn, programs: Sequence[Inner]) -> list[bool]:
    """For each carry of a loop whether iterations work on one array; others need two, in turn."""
    plan = programs[-1].plan
    return [out in plan.in_place for out in plan.outputs[: carry_count(eqn)]]


def _alternating(eqn: Eqn, programs: Sequence[Inner]) -> list[ShapedArray]:
    kept = kept_carries(eqn, programs)
    return [var.aval for var, keeps in zip(eqn.outputs, kept, strict=False) if not keeps]


def rounded_bytes(aval: ShapedArray) -> int:
    """Bytes of an array in an arena, where addresses are aligned."""
    return -(-max(aval.size * storage_dtype(aval.dtype).itemsize, 1) // ALIGNMENT) * ALIGNMENT


def carried_places(step: ProgramStep, start: int) -> tuple[tuple[int, int], list[int]]:
    """What lies in a step's workspace: where its programs' memory is, and its second carries.

    Args:
        start: where the workspace is in the arena.

    Returns:
        (offset, bytes) of the programs' memory, and the offsets of the carries that alternate.
    """
    count = max(inner.plan.arena_bytes for inner in step.programs)
    at, offsets = start + -(-count // ALIGNMENT) * ALIGNMENT, []
    for aval in _alternating(step.eqn, step.programs):
        offsets.append(at)
        at += rounded_bytes(aval)
    return (start, count), offsets


def workspace_bytes(eqn: Eqn, programs: Sequence[Inner]) -> int:
    """Memory for the temporaries of a step's programs, of which one runs at a time, and carries."""
    arena = max(inner.plan.arena_bytes for inner in programs)
    own = -(-arena // ALIGNMENT) * ALIGNMENT
    return own + sum(rounded_bytes(aval) for aval in _alternating(eqn, programs))


def reads_of(step: Step) -> tuple[Var, ...]:
    """The buffers that a step reads."""
    if isinstance(step, KernelStep):
        return tuple(var for call in step.calls for var in call.reads)
    operands = (step.source,) if isinstance(step, CopyStep) else step.operands
    return tuple(operand.buffer for operand in operands if operand.buffer is not None)


def writes_of(step: Step) -> tuple[Var, ...]:
    """The buffers that a step writes."""
    if isinstance(step, KernelStep):
        return tuple(var for call in step.calls for var in call.writes)
    if isinstance(step, ProgramStep):
        return (*step.eqn.outputs, step.workspace)
    return step.eqn.outputs if isinstance(step, CallStep) else (step.target,)


def scratch_of(step: Step) -> tuple[Var, ...]:
    """The buffers besides that a step needs while it runs."""
    if isinstance(step, KernelStep):
        return step.scratch
    workspace = step.workspace if isinstance(step, CallStep) else None
    return () if workspace is None else (workspace,)


def kernels_of(step: KernelStep) -> list[Kernel]:
    """The kernels that a step launches."""
    return [calls[0].kernel for calls in step.launches]


def all_kernels(plan: Plan) -> list[Kernel]:
    """The kernels of a plan and of the programs inside it."""
    found: list[Kernel] = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            found += kernels_of(step)
        elif isinstance(step, ProgramStep):
            for inner in step.programs:
                found += all_kernels(inner.plan)
    return found


def calls_python(plan: Plan) -> bool:
    """Whether the plan, or a program inside it, calls a library or the host."""
    return any(
        isinstance(step, CallStep)
        or (isinstance(step, ProgramStep) and any(calls_python(p.plan) for p in step.programs))
        for step in plan.steps
    )


def overwrites_of(step: Step) -> tuple[Var, ...]:
    """The donated inputs that a step overwrites."""
    calls = step.calls if isinstance(step, KernelStep) else ()
    return tuple(var for call in calls for var in call.overwrites)


def flops_of(step: Step) -> int:
    """Floating-point operations of a step: one for each scalar function and element."""
    if isinstance(step, KernelStep):
        return sum(call.points * max(1, len(step.eqns) // len(step.calls)) for call in step.calls)
    if isinstance(step, ProgramStep):
        inner = [sum(flops_of(s) for s in program.plan.steps) for program in step.programs]
        rule = step.eqn.primitive.lower
        form = rule.form(step.eqn.params) if isinstance(rule, Loop) else None
        return inner[0] * form.length if isinstance(form, ScanForm) else max(inner)
    if not isinstance(step, CallStep):
        return 0
    rule = step.eqn.primitive.lower
    if isinstance(rule, Library) and rule.flops is not None:
        avals = [operand.aval for operand in step.operands]
        return rule.flops(avals, [var.aval for var in step.eqn.outputs], step.eqn.params)
    return 0


def bytes_of(step: Step) -> int:
    """Bytes that a step reads and writes, each buffer once."""
    return sum(nbytes(var) for var in {*reads_of(step), *writes_of(step)})
