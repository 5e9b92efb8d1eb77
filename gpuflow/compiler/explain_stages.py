"""Text of a program at each compilation stage; plans are in ``explain``.

Tests: tests/compiler/test_explain.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import numpy as np

from gpuflow.compiler.fusion.legality import space_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.pipeline import run_passes
from gpuflow.compiler.planning.plan import (
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    nbytes,
    reads_of,
    writes_of,
)
from gpuflow.compiler.schedules.schedule import rewritings, scheduled
from gpuflow.compiler.target import Target
from gpuflow.core.aval import storage_dtype
from gpuflow.core.jaxpr import ClosedJaxpr, Jaxpr, Var, format_eqns
from gpuflow.kir.nodes import Argument, Kernel, arguments
from gpuflow.kir.text import kernel_text

# In the order in which a program passes through them.
STAGES = ("jaxpr", "passes", "groups", "schedule", "kernels", "text", "binding", "driver", "plan")


def explain_stage(stage: str, jaxpr: ClosedJaxpr, plan: Plan, target: Target) -> str:
    """A program at one of the stages before it is ready to run.

    Args:
        stage: one of STAGES except "driver" and "plan".
        jaxpr: the traced program.
        plan: its plan.
        target: the target of the plan.
    """
    if stage == "jaxpr":
        return str(jaxpr)
    if stage == "passes":
        return explain_passes(jaxpr, target)
    texts: dict[str, Callable[[Plan], str]] = {
        "groups": explain_groups,
        "schedule": lambda plan: explain_schedule(plan, target),
        "kernels": explain_kernels,
        "text": lambda plan: explain_text(plan, target),
        "binding": explain_binding,
    }
    first, *others = [(name, texts[stage](inner)) for name, inner in _all_plans(plan)]
    return "\n\n".join([first[1], *(f"{name}\n{text}" for name, text in others)])


def _all_plans(plan: Plan, name: str = "") -> Iterator[tuple[str, Plan]]:
    """A plan, and those of the loops and branches in it, with their names."""
    yield name, plan
    for step in plan.steps:
        if isinstance(step, ProgramStep):
            for k, inner in enumerate(step.programs):
                yield from _all_plans(inner.plan, f"program {k + 1} of {step.name}:")


def explain_passes(jaxpr: ClosedJaxpr, target: Target) -> str:
    """The program after each pass that changed it, and the names of the other passes."""
    texts, reports = [str(jaxpr.jaxpr)], []

    def note(name: str, program: Jaxpr) -> None:
        text = str(program)
        reports.append(f"{name}: nothing to do" if text == texts[-1] else f"{name}:\n{text}")
        texts.append(text)

    run_passes(jaxpr, target, note, is_whole=True)
    return "\n".join(reports)


def explain_groups(plan: Plan) -> str:
    """The equations of each group, the iteration space of its kernel, and pure aliases."""
    eqn_texts, _ = format_eqns(plan.jaxpr, source_info=False)
    paragraphs = []
    for members in plan.groups:
        body = "\n".join(eqn_texts[position] for position in members)
        paragraphs.append(f"{_group_title(plan, members)}\n{textwrap.indent(body, '    ')}")
    grouped = {position for members in plan.groups for position in members}
    alias_texts = [text for position, text in enumerate(eqn_texts) if position not in grouped]
    if alias_texts:
        body = "\n".join(alias_texts)
        paragraphs.append(f"other names of arrays that are there\n{textwrap.indent(body, '    ')}")
    return "\n".join(paragraphs)


def _group_title(plan: Plan, members: tuple[int, ...]) -> str:
    if plan.program.iterations[members[0]] is None:
        return f"one call: {plan.jaxpr.eqns[members[0]].primitive.name}"
    space = space_of(plan.program, members)
    sizes = [
        f"{space.sizes[key]}{' (reduced)' if key in space.reduced else ''}"
        for key in space.loop_order
    ]
    return f"one kernel: {space.kind.value} over {' x '.join(sizes) or 'one element'}"


def explain_schedule(plan: Plan, target: Target) -> str:
    """KernelIR of each group before and after each schedule that has rewritten its call."""
    calls = [call for step in _kernel_steps(plan) for call in step.calls]
    return "\n\n".join(text for call in calls for text in _schedule_texts(call, target))


def _schedule_texts(call: KernelCall, target: Target) -> Iterator[str]:
    # No launch runs, so scratch buffers need no memory.
    applications = rewritings(call, lambda size: NO_BUFFER, target.schedules)
    launches = scheduled(call, lambda size: NO_BUFFER, target.schedules)
    launched_kernels = dict.fromkeys([launch.kernel for launch in launches])
    rewrite_texts = [text for kernel in launched_kernels for text in _rewrite_texts(kernel, target)]
    if not applications and not rewrite_texts:
        yield f"{call.kernel.name}: as it is"
    for schedule, before, parameters, after in applications:
        # Of rewritings that differ in scalars only, the first is enough.
        kernels = dict.fromkeys([launch.kernel for launch in after])
        kernel_texts = "\n".join(map(kernel_text, kernels))
        yield (
            f"{before.kernel.name}: {schedule.name}, {parameters}\n"
            f"before:\n{textwrap.indent(kernel_text(before.kernel), '    ')}\n"
            f"after, {len(after)} launch{'es' if len(after) > 1 else ''}:\n"
            f"{textwrap.indent(kernel_texts, '    ')}"
        )
    yield from rewrite_texts


def _rewrite_texts(kernel: Kernel, target: Target) -> Iterator[str]:
    for kernel_rewrite in target.rewrites:
        before, kernel = kernel, kernel_rewrite.rewrite(kernel)
        if kernel is not before:
            yield (
                f"{before.name}: {kernel_rewrite.name}, when its text is made\n"
                f"before:\n{textwrap.indent(kernel_text(before), '    ')}\n"
                f"after:\n{textwrap.indent(kernel_text(kernel), '    ')}"
            )


def explain_kernels(plan: Plan) -> str:
    """KernelIR of each launch."""
    return "\n\n".join(
        kernel_text(calls[0].kernel) for step in _kernel_steps(plan) for calls in step.launches
    )


def explain_text(plan: Plan, target: Target) -> str:
    """The printed text of each launch."""
    return "\n".join(text for step in _kernel_steps(plan) for text in target.texts_of(step))


def _kernel_steps(plan: Plan) -> list[KernelStep]:
    return [step for step in plan.steps if isinstance(step, KernelStep)]


# --- binding ------------------------------------------------------------------------------------


def explain_binding(plan: Plan) -> str:
    """The address of each array, and the arguments of each launch."""
    name_of = _names(plan)
    buffers = dict.fromkeys(b for step in plan.steps for b in (*reads_of(step), *writes_of(step)))
    addresses = [f"  {name_of(buffer)}  {_address(plan, buffer)}" for buffer in buffers]
    launches = [text for step in plan.steps for text in _launch_texts(step, name_of)]
    head = f"arrays, {plan.arena_bytes} bytes of temporaries"
    return "\n".join([head, *addresses, "launches", *launches])


def _names(plan: Plan) -> Callable[[int], str]:
    _, name_of_var = format_eqns(plan.jaxpr, source_info=False)
    added = {buffer: Var(aval) for buffer, aval in plan.added_avals.items()}
    variables = {**dict(enumerate(plan.variables)), **added}
    return lambda buffer: name_of_var(variables[buffer])


def _address(plan: Plan, buffer: int) -> str:
    """The type and the location of a buffer."""
    typed = f"{plan.aval(buffer)}, {nbytes(plan.aval(buffer))} bytes"
    if buffer in plan.in_place:
        return f"{typed}: in the memory of a donated argument"
    if buffer < len(plan.jaxpr.invars):
        return f"{typed}: argument {buffer}"
    if buffer in plan.destinations:
        return f"{typed}: an array that the caller passes"
    if buffer in plan.offsets:
        return f"{typed}: temporary, from byte {plan.offsets[buffer]}"
    return f"{typed}: result, new with each call"


def _launch_texts(step: Step, name_of: Callable[[int], str]) -> list[str]:
    if isinstance(step, KernelStep):
        return [
            text for calls in step.launches for call in calls for text in _call_texts(call, name_of)
        ]
    reads = ", ".join(map(name_of, reads_of(step)))
    writes = ", ".join(map(name_of, writes_of(step)))
    return [f"  {step.name}: {reads} -> {writes}"]


def _call_texts(call: KernelCall, name_of: Callable[[int], str]) -> list[str]:
    head = f"  {call.kernel.name}: {call.points} points, to be split along {call.extent}"
    slots = []
    for k, (argument, slot) in enumerate(zip(arguments(call.kernel), call.slots, strict=False)):
        buffer = call.buffers[k] if k < len(call.buffers) else NO_BUFFER
        if buffer != NO_BUFFER:
            value = name_of(buffer) + (f" + {slot} bytes" if slot else "")
        else:
            value = str(_scalar(call.kernel, argument, slot))
        slots.append(f"{_slot_name(argument)} = {value}")
    return [
        head,
        *textwrap.wrap(", ".join(slots), 96, initial_indent=" " * 6, subsequent_indent=" " * 6),
    ]


def _slot_name(argument: Argument) -> str:
    """The name of an argument slot, as in the text of kernels."""
    match argument.kind:
        case "extent":
            return f"n_{argument.axis}"
        case "stride":
            return f"{argument.operand}_stride_{argument.axis}"
        case "base":
            return f"{argument.operand}_base"
    return argument.operand


def _scalar(kernel: Kernel, argument: Argument, slot: int) -> int | np.generic:
    """The scalar that an argument slot holds.

    A scalar operand is in the low bytes of its slot; other slots hold an int.
    """
    if argument.kind != "scalar":
        return slot
    dtype = next(o.dtype for o in kernel.operands if o.name == argument.operand)
    return np.array([slot], np.int64).view(storage_dtype(np.dtype(dtype)))[0]
