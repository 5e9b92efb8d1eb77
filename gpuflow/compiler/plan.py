"""Plans: what a compiled program does, step by step, over buffers with known lifetimes.

A Template holds what does not depend on sizes: the groups in order. ``bind`` lowers it for one set
of sizes: kernels with their arguments, buffers, and offsets in one arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuflow.compiler.donation import choose_in_place, last_readers
from gpuflow.compiler.emit import is_written_in
from gpuflow.compiler.fuse import Group, describe_program, fuse
from gpuflow.compiler.lower import KernelCall, can_be_segmented, lower_group, segmented
from gpuflow.compiler.space import Program, Space
from gpuflow.compiler.updates import Given
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Branch, HostCall, Layout, Library, Loop, ScanForm, Update
from gpuflow.core.views import View, contiguous
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.text import kernel_text

ALIGNMENT = 64


@dataclass(frozen=True)
class Operand:
    """An operand of a library call: a view of a buffer, or a literal."""

    buffer: Var | None
    view: View | None
    aval: ShapedArray
    value: Any = None


@dataclass(frozen=True)
class KernelStep:
    """One launch of a kernel; several calls of a segmented one."""

    kernel: Kernel
    calls: tuple[KernelCall, ...]
    eqns: tuple[Eqn, ...]
    kind: str = "kernel"

    @property
    def name(self) -> str:
        """What the step does, in a word."""
        return self.kernel.name


@dataclass(frozen=True)
class CallStep:
    """One call of an op's ``impl`` or library function, or of the host (kind "host")."""

    eqn: Eqn
    operands: tuple[Operand, ...]
    kind: str = "library"

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
class Template:
    """The size-free part of a plan: groups of equation positions, in order."""

    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Plan:
    """A program bound to sizes.

    Attributes:
        steps: in execution order.
        outputs: for each output an input position, a buffer variable, or a Literal.
        offsets: of temporaries in the arena, in bytes.
        arena_bytes: size of the arena.
        owned: variables whose buffers are allocated for each call.
        in_place: outputs that take the memory of donated inputs.
        given: outputs that are written into arrays passed behind the inputs.
        program: what fusion knew of the program.
        groups: the positions of the equations that it put into one step.
    """

    program: Program
    groups: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int | Var | Literal, ...]
    offsets: dict[Var, int]
    arena_bytes: int
    owned: tuple[Var, ...]
    in_place: dict[Var, Var]
    given: tuple[Var, ...] = ()

    @property
    def jaxpr(self) -> Jaxpr:
        """The program after all passes."""
        return self.program.jaxpr


def nbytes(var: Var) -> int:
    """Bytes that a variable takes in memory."""
    return var.aval.size * storage_dtype(var.aval.dtype).itemsize


def make_template(jaxpr: Jaxpr, given: Given) -> Template:
    """Group the equations of a program."""
    return Template(tuple(fuse(describe_program(jaxpr, given))))


def template_key(jaxpr: Jaxpr, given: Given) -> Any:
    """The program with its sizes erased: equal keys have equal templates.

    Sizes become numbers of first appearance (1 stays 1), literals keep only what kernels write in
    their text. None where a parameter is not hashable.
    """
    symbols: dict[int, int] = {}
    numbers: dict[Var, int] = {}

    def dims(aval: ShapedArray) -> tuple[Any, ...]:
        return tuple(
            "1" if size == 1 else symbols.setdefault(size, len(symbols)) for size in aval.shape
        )

    def code(atom: Atom) -> Any:
        if type(atom) is Literal:
            fixed = atom.aval.ndim == 0 and is_written_in(atom.value)
            return ("literal", atom.aval.dtype, str(atom.value) if fixed else None)
        return numbers.setdefault(atom, len(numbers))

    parts: list[Any] = [tuple((code(v), v.aval.dtype, dims(v.aval)) for v in jaxpr.invars)]
    for eqn in jaxpr.eqns:
        sizes = eqn.primitive.size_params
        params = tuple((k, v) for k, v in sorted(eqn.params.items()) if k not in sizes)
        outs = tuple((code(v), v.aval.dtype, dims(v.aval)) for v in eqn.outputs)
        parts.append((eqn.primitive, tuple(code(a) for a in eqn.inputs), outs, params, _links(eqn)))
    parts.append(tuple(code(atom) for atom in jaxpr.outvars))
    parts.append(tuple((code(var), out and code(out)) for var, out in given.items()))
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _links(eqn: Eqn) -> tuple[tuple[int, int], ...] | None:
    """Which dimensions a layout op keeps: a slice of a whole dimension keeps it."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Layout):
        return None
    links = rule.links(eqn.inputs[0].aval, eqn.outputs[0].aval, **eqn.params)
    return None if links is None else tuple(links)


# --- binding -------------------------------------------------------------------------------


def bind(
    template: Template, jaxpr: Jaxpr, programs: Programs, given: Given, into_given: bool = False
) -> Plan:  # fmt: skip
    """Lower a template for the sizes of ``jaxpr``.

    Args:
        programs: the compiled programs of loops and branches.
        given: inputs that may be overwritten; each with the one output that may take its memory,
            or None for any.
        into_given: outputs are written into arrays that a call passes.
    """
    program = describe_program(jaxpr, given)
    steps: list[Step] = []
    last = last_readers(program, [group.members for group in template.groups])
    updated = {program.place(jaxpr.eqns[e].outputs[0])[0] for e in program.before}
    free = {var: out for var, out in given.items() if var not in updated}
    taken = _updated_inputs(program)
    for number, group in enumerate(template.groups):
        if group.space is None:
            steps += _call_steps(program, jaxpr.eqns[group.members[0]], programs)
        else:
            space = _with_sizes(program, group.space)
            steps += _copied_operands(program, space)
            in_place = choose_in_place(program, space, number, last, free)
            taken.update(in_place.buffer_of)
            call = lower_group(program, space, in_place)
            eqns = tuple(jaxpr.eqns[e] for e in group.members)
            steps.append(KernelStep(call.kernel, (call,), eqns))
    steps = _merge_equal_maps(steps)
    outputs, copies = _outputs(program, into_given)
    groups = tuple(group.members for group in template.groups)
    return _with_memory(program, groups, (*steps, *copies), outputs, taken, into_given)


def _updated_inputs(program: Program) -> dict[Var, Var]:
    """Outputs that are donated inputs, updated."""
    inputs = set(program.jaxpr.invars)
    taken: dict[Var, Var] = {}
    for position in program.before:
        var = program.jaxpr.eqns[position].outputs[0]
        if var in program.outputs and program.place(var)[0] in inputs:
            taken[var] = program.place(var)[0]
    return taken


def _copied_operands(program: Program, space: Space) -> list[CopyStep]:
    """Copies of what updates of a group may not overwrite, in buffers of their own."""
    copies = []
    for e in space.members:
        eqn = program.jaxpr.eqns[e]
        if isinstance(eqn.primitive.lower, Update) and e not in program.before:
            copies.append(CopyStep(_operand(program, eqn.inputs[0]), eqn.outputs[0]))
    return copies


def _with_sizes(program: Program, space: Space) -> Space:
    """A template's space with the sizes and variables of this program."""
    sizes = {}
    for key in space.sizes:
        iteration = program.iterations[key[0]]
        assert iteration is not None
        sizes[key] = iteration.sizes[key[1]]
    return replace(space, sizes=sizes, escaping=program.escaping(space.members))


def _operand(program: Program, atom: Atom) -> Operand:
    if type(atom) is Literal:
        return Operand(None, None, atom.aval, atom.value)
    return Operand(*program.place(atom), atom.aval)


def _call_steps(program: Program, eqn: Eqn, programs: Programs) -> list[Step]:
    operands = [_operand(program, atom) for atom in eqn.inputs]
    if _is_row_major_copy(eqn):
        return [CopyStep(operands[0], eqn.outputs[0])]
    if not isinstance(eqn.primitive.lower, (Loop, Branch)):
        kind = "host" if isinstance(eqn.primitive.lower, HostCall) else "library"
        return [CallStep(eqn, tuple(operands), kind)]
    copies: list[Step] = []
    for k, operand in enumerate(operands):
        if operand.view is not None and not operand.view.is_contiguous:
            row_major = Var(operand.aval)
            copies.append(CopyStep(operand, row_major))
            operands[k] = Operand(row_major, contiguous(operand.aval.shape), operand.aval)
    workspace = Var(ShapedArray((workspace_bytes(eqn, programs[eqn]),), np.uint8))
    return [*copies, ProgramStep(eqn, tuple(operands), programs[eqn], workspace)]


def _is_row_major_copy(eqn: Eqn) -> bool:
    """Whether the output is the operand's elements in row-major order."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Layout) or type(eqn.inputs[0]) is Literal:
        return False
    operand, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    view = rule.view(contiguous(operand.shape), out, **eqn.params)
    return view is not None and view == contiguous(out.shape)


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


def _outputs(
    program: Program, into_given: bool
) -> tuple[tuple[int | Var | Literal, ...], list[CopyStep]]:
    """Where each output comes from; aliases and repeated outputs are copied."""
    jaxpr = program.jaxpr
    positions = {var: k for k, var in enumerate(jaxpr.invars)}
    updated = [jaxpr.eqns[e].outputs[0] for e in program.before]
    updates = {var: program.place(var)[0] for var in updated}
    outputs: list[int | Var | Literal] = []
    copies: list[CopyStep] = []
    taken: set[Var] = set()
    for atom in jaxpr.outvars:
        fixed = type(atom) is Literal or atom in positions
        if fixed and not into_given:
            outputs.append(atom if type(atom) is Literal else positions[atom])
            continue
        if atom in updates and updates[atom] not in taken:
            # The array that was updated is the output, under its own or the input's name.
            buffer = updates[atom]
            taken.add(buffer)
            outputs.append(atom if buffer in positions else buffer)
        elif fixed or atom in program.views or atom in taken:
            target = Var(atom.aval)
            copies.append(CopyStep(_operand(program, atom), target))
            outputs.append(target)
        else:
            assert isinstance(atom, Var)  # literals are fixed
            taken.add(atom)
            outputs.append(atom)
    return tuple(outputs), copies


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


def _merge_equal_maps(steps: Sequence[Step]) -> list[Step]:
    """Run equal one-axis maps that do not depend on each other as one segmented step.

    A step may join an earlier equal one if nothing between them feeds it; the joined step runs
    where the later one stood, if nothing between reads the earlier one's results.
    """
    result: list[Step | None] = list(steps)
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        if not isinstance(step, KernelStep) or not can_be_segmented(step.kernel):
            continue
        text = kernel_text(step.kernel)
        earlier = last.get(text)
        last[text] = position
        if earlier is None:
            continue
        first = result[earlier]
        assert isinstance(first, KernelStep)
        written = set(writes_of(first))
        between = [other for other in result[earlier + 1 : position + 1] if other is not None]
        if any(written & set(reads_of(other)) for other in between):
            continue
        if any(set(reads_of(first)) & set(overwrites_of(other)) for other in between):
            continue
        result[earlier] = None
        merged = KernelStep(step.kernel, (*first.calls, *step.calls), (*first.eqns, *step.eqns))
        result[position] = merged
    return [_as_segmented(step) for step in result if step is not None]


def _as_segmented(step: Step) -> Step:
    if isinstance(step, KernelStep) and len(step.calls) > 1:
        return replace(step, kernel=segmented(step.kernel))
    return step


# --- memory --------------------------------------------------------------------------------


def _with_memory(
    program: Program,
    groups: tuple[tuple[int, ...], ...],
    steps: Sequence[Step],
    outputs: tuple[int | Var | Literal, ...],
    in_place: dict[Var, Var],
    into_given: bool,
) -> Plan:
    made = dict.fromkeys(out for out in outputs if isinstance(out, Var))
    owned = tuple(out for out in made if out not in in_place)
    lifetimes: dict[Var, list[int]] = {}
    fixed = {*made, *program.jaxpr.invars}
    for position, step in enumerate(steps):
        for var in (*reads_of(step), *writes_of(step)):
            if var not in fixed:
                lifetimes.setdefault(var, [position, position])[1] = position
    offsets, total = _place(lifetimes)
    given = owned if into_given else ()
    owned = () if into_given else owned
    return Plan(program, groups, tuple(steps), outputs, offsets, total, owned, in_place, given)


def _place(lifetimes: dict[Var, list[int]]) -> tuple[dict[Var, int], int]:
    """First-fit offsets, the largest buffers first; buffers alive together do not overlap."""
    offsets: dict[Var, int] = {}
    placed: list[tuple[int, int, list[int]]] = []  # (start, end, lifetime)
    total = 0
    for var in sorted(lifetimes, key=lambda v: -nbytes(v)):
        first, last = lifetimes[var]
        size = -(-max(nbytes(var), 1) // ALIGNMENT) * ALIGNMENT
        busy = sorted((s, e) for s, e, life in placed if life[0] <= last and first <= life[1])
        start = 0
        for begin, end in busy:
            if start + size <= begin:
                break
            start = max(start, end)
        offsets[var] = start
        placed.append((start, start + size, lifetimes[var]))
        total = max(total, start + size)
    return offsets, total


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
