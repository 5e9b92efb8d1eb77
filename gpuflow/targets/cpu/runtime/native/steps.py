"""Translates steps of a plan to instructions of native programs.

``native_step`` returns the emitter of a step, or None if the step needs Python. A loop or branch is
native if all steps of its programs are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import (
    CopyStep,
    Inner,
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    aliasing_outputs,
    all_kernels,
    all_steps,
    argument_positions,
    calls_python,
    carry_count,
    nbytes,
    workspace_layout,
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.memory import Arena, address
from gpuflow.targets.cpu.runtime.native.calls import NativeCall, launch
from gpuflow.targets.cpu.runtime.native.copies import (
    Locations,
    addresses_in,
    code_of_copy,
    copy_bytes,
    copy_view,
    operand_location,
)
from gpuflow.targets.cpu.runtime.native.object_code import native_function
from gpuflow.targets.cpu.runtime.native.program_writer import (
    Code,
    Copy,
    Location,
    LoopRegister,
    Program,
    always,
    fixed,
)
from gpuflow.targets.cpu.runtime.native.services import (
    SMALLEST_PARALLEL,
    Build,
    NativeServices,
    Runs,
    native_services,
)

Emit = Callable[[Code, Locations], None]


class InnerLocations:
    """Locations in a nested program; its registers are its inputs, then the outputs it writes."""

    def __init__(self, plan: Plan, memory: Arena) -> None:
        self.plan, self.memory = plan, memory
        self.registers = argument_positions(plan)
        self.addresses = addresses_in(plan, memory)

    def of(self, buffer: int) -> Location:
        """The location of a buffer."""
        at = self.addresses.get(buffer)
        return (self.registers[buffer], 0) if at is None else fixed(at)


def code_of(plan: Plan, services: NativeServices) -> list[Runs]:
    """Return all code that a plan's native programs run: kernels and functions of the runtime."""
    code: list[Runs] = [*all_kernels(plan)]
    for step in all_steps(plan):
        if isinstance(step, CopyStep):
            itemsize = storage_dtype(step.source.aval.dtype).itemsize
            code += code_of_copy(step.source.layout, itemsize)
        elif isinstance(step, ProgramStep):
            code += [Build(native_function, (name,)) for name in _functions_of(step, services)]
        elif isinstance(step, KernelStep):
            if any(len(calls) > 1 for calls in step.launches):
                code.append(Build(native_function, ("gf_segments",)))
        elif step.choice is not None:
            call: NativeCall = step.choice
            code += call.runs()
    return code


def native_step(step: Step, services: NativeServices) -> Emit | None:
    """Return the emitter of a step's instructions; None if the step needs Python."""
    if isinstance(step, KernelStep):
        return partial(_kernel, step, services)
    if isinstance(step, CopyStep):
        return partial(_copy, step, services)
    if isinstance(step, ProgramStep):
        return _program_step(step, services)
    if step.choice is None:
        return None
    call: NativeCall = step.choice
    return partial(call.emit, step, services)


def _kernel(step: KernelStep, services: NativeServices, code: Code, locations: Locations) -> None:
    # Reductions store their initial values even if there is nothing to reduce.
    if step.kernel.kind == "map" and not any([call.points for call in step.calls]):
        return
    for calls in step.launches:
        launch(calls, services, code, locations)


def _copy(step: CopyStep, services: NativeServices, code: Code, locations: Locations) -> None:
    aval = step.source.aval
    if aval.size == 0:
        return
    source, target = operand_location(step.source, code, locations), locations.of(step.target)
    itemsize = storage_dtype(aval.dtype).itemsize
    copy_view(step.source.layout, itemsize, source, target, services, code)


# --- loops and branches ----------------------------------------------------------------------


# Most bytes for the arenas of all threads that share a loop with independent iterations.
_MOST_PARALLEL_BYTES = 1 << 26


def _program_step(step: ProgramStep, services: NativeServices) -> Emit | None:
    threads = _loop_threads(step, services)
    if threads > 1:
        services = native_services(is_serial=True)
    bodies: list[list[Emit]] = []
    for inner in step.programs:
        emits = [native_step(s, services) for s in inner.plan.steps]
        if any(emit is None for emit in emits):
            return None
        bodies.append([emit for emit in emits if emit is not None])
    return partial(_program, step, bodies, threads, services)


def _functions_of(step: ProgramStep, services: NativeServices) -> list[str]:
    """Functions of the runtime that run a loop or branch; none if Python runs it."""
    if any(calls_python(inner.plan) for inner in step.programs):
        return []
    rule = step.eqn.primitive.lower
    if rule.branches is not None:
        return ["gf_branch"]
    assert rule.form is not None
    if not isinstance(rule.form(step.eqn.params), ScanForm):
        return ["gf_while"]
    return ["gf_scan", "gf_parallel_loop"] if _loop_threads(step, services) > 1 else ["gf_scan"]


def _loop_threads(step: ProgramStep, services: NativeServices) -> int:
    """Return the number of threads that share the iterations of a loop, each with its own arena.

    More than 1 only for a scan without carries, whose iterations are independent. Threads get equal
    shares, so there must be at least two iterations per thread to balance them.
    """
    rule, threads = step.eqn.primitive.lower, services.threads
    if rule.form is None or threads == 1:
        return 1
    form = rule.form(step.eqn.params)
    if not form.is_parallel or form.length < 2 * threads:
        return 1
    is_small = step.programs[0].plan.arena_bytes * threads <= _MOST_PARALLEL_BYTES
    return threads if is_small else 1


def _program(
    step: ProgramStep,
    bodies: list[list[Emit]],
    threads: int,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    """Emit a loop or branch whose programs are native.

    Programs use a section of the arena: temporaries, and spare buffers of alternating carries.
    """
    arena, spare = workspace_layout(step, locations.plan.offsets[step.workspace])
    memory = locations.memory.section(*arena)
    programs = [
        _body(inner, emits, memory) for inner, emits in zip(step.programs, bodies, strict=True)
    ]
    values = [_values(inner, code) for inner in step.programs]
    operands = [operand_location(operand, code, locations) for operand in step.operands]
    outs = [locations.of(buffer) for buffer in step.outputs]
    rule = step.eqn.primitive.lower
    aliasing = aliasing_outputs(step.eqn, step.programs)
    if rule.branches is not None:
        moving = [out for out, keeps in zip(outs, aliasing, strict=True) if not keeps]
        registers = [(*operands[1:], *inner_values, *moving) for inner_values in values]
        code.branch(operands[0], [Program(c, r) for c, r in zip(programs, registers, strict=True)])
        return
    start = address(locations.memory.memory)
    free = (fixed(start + offset) for offset in spare)
    form = rule.form(step.eqn.params)
    first = form.first_carry
    carries = []
    for k in range(carry_count(step.eqn)):
        out, count = outs[k], nbytes(step.eqn.outputs[k].aval)
        second = out if aliasing[k] else next(free)
        carries.append(_Carry(operands[first + k], out, second, count, aliasing[k]))
    if isinstance(form, ScanForm):
        if programs[0].points * form.length < SMALLEST_PARALLEL:
            threads = 1
        copies = [programs[0]]
        for _ in range(threads - 1):
            memory = Arena()
            memory.reserve(arena[1])
            code.keep(memory)
            copies.append(_body(step.programs[0], bodies[0], memory))
        _scan(form, step, services, copies, operands, values[0], outs, carries, code)
    else:
        _while(form, programs, operands, values, carries, code)


@record
class _Carry:
    """A loop carry, which alternates between two buffers unless the body updates it in place.

    Attributes:
        start: location of the initial value.
        out: location of the result.
        spare: the second buffer; the same as ``out`` if the carry is in place.
        count: bytes of the carry.
        keeps: whether the body updates the carry in place.
    """

    start: Location
    out: Location
    spare: Location
    count: int
    keeps: bool


def _body(inner: Inner, emits: Sequence[Emit], memory: Arena) -> Code:
    """Write a nested program for an arena of temporaries."""
    code, locations = Code(), InnerLocations(inner.plan, memory)
    for emit in emits:
        emit(code, locations)
    return code


def _values(inner: Inner, code: Code) -> list[Location]:
    """Locations of a nested program's captured constants, which the outer program owns."""
    arrays = [as_numpy(value, aval_of(value)) for value in inner.values]
    code.keep(*arrays)
    return [fixed(address(array)) for array in arrays]


def _scan(
    form: ScanForm,
    step: ProgramStep,
    services: NativeServices,
    bodies: Sequence[Code],
    operands: Sequence[Location],
    values: Sequence[Location],
    outs: Sequence[Location],
    carries: Sequence[_Carry],
    code: Code,
) -> None:
    """Emit a scan. Its registers are constants, carries, elements, literals, then outputs."""
    if form.length == 0:
        for carry in carries:
            copy_bytes(carry.start, carry.out, carry.count, services, code)
        return
    split = form.num_consts + form.num_carry
    # The buffers alternate such that the last iteration writes to the outputs.
    ends_first = form.length % 2 == 1
    alternating = [(c.out, c.spare) if ends_first else (c.spare, c.out) for c in carries]
    table = [always(location) for location in operands[: form.num_consts]]
    table += [
        LoopRegister(c.start, one, two) for c, (one, two) in zip(carries, alternating, strict=True)
    ]
    table += [
        always(location, _element_bytes(operand.aval.shape, operand.aval.dtype))
        for location, operand in zip(operands[split:], step.operands[split:], strict=True)
    ]
    table += [always(location) for location in values]
    table += [
        LoopRegister(one, two, one)
        for c, (one, two) in zip(carries, alternating, strict=True)
        if not c.keeps
    ]
    stacked = step.eqn.outputs[form.num_carry :]
    table += [
        always(location, _element_bytes(var.aval.shape, var.aval.dtype))
        for location, var in zip(outs[form.num_carry :], stacked, strict=True)
    ]
    if len(bodies) > 1:
        code.parallel_loop(form.length, bodies, table)
    else:
        code.scan(form.length, form.reverse, bodies[0], table)


def _while(
    form: WhileForm,
    programs: Sequence[Code],
    operands: Sequence[Location],
    values: Sequence[Sequence[Location]],
    carries: Sequence[_Carry],
    code: Code,
) -> None:
    """Emit a while loop, with the flag that its condition and its body set."""
    condition, body = programs
    first, split = form.num_condition_consts, form.first_carry
    flag_memory = code.array([0])
    flag = fixed(address(flag_memory))
    starts = [carry.start for carry in carries]
    check = Program(condition, (*operands[:first], *starts, *values[0], flag))
    moving = [carry for carry in carries if not carry.keeps]
    table = [always(location) for location in operands[:split]]
    table += [LoopRegister(c.start, c.out, c.spare) for c in carries]
    table += [always(location) for location in values[1]]
    table += [LoopRegister(c.out, c.spare, c.out) for c in moving]
    table.append(always(flag))
    copies = [Copy(c.out, c.start, c.spare, c.count) for c in moving]
    code.while_loop(check, body, table, flag, copies)


def _element_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) * storage_dtype(dtype).itemsize
