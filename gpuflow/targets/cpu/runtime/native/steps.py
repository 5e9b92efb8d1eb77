"""Translates steps of a plan to instructions of native programs.

``native_step`` returns the emitter of a step, or None if the step needs Python. A loop or branch is
native if all steps of its programs are. Emitters depend on the plan; the addresses of an arena come
in when an emitter is called, so one emitter may write the same step for several arenas.

Tests: tests/targets/cpu/test_cpu_parallel_loops.py, tests/targets/cpu/test_native_builds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import (
    CopyStep,
    InnerProgram,
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    all_kernels,
    all_steps,
    argument_positions,
    calls_python,
    carry_count,
    nbytes,
    output_alias_flags,
    workspace_layout,
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.memory import Arena, address
from gpuflow.targets.cpu.runtime.native.calls import NativeCall, launch
from gpuflow.targets.cpu.runtime.native.copies import (
    Locations,
    code_for_copy,
    copy_bytes,
    copy_view,
    operand_location,
    temporary_addresses,
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
    MIN_PARALLEL,
    Build,
    Buildable,
    NativeServices,
    native_services,
)

Emitter = Callable[[Code, Locations], None]


class NestedLocations:
    """Locations in a nested program; its registers are its inputs, then the outputs it writes.

    Args:
        plan: the nested plan.
        memory: arena of its temporaries, with at least ``plan.arena_bytes`` reserved.
    """

    def __init__(self, plan: Plan, memory: Arena) -> None:
        self.plan, self.memory = plan, memory
        self.registers = argument_positions(plan)
        self.addresses = temporary_addresses(plan, memory)

    def of(self, buffer: int) -> Location:
        """The location of a buffer."""
        at = self.addresses.get(buffer)
        return Location(self.registers[buffer], 0) if at is None else fixed(at)


def required_code(plan: Plan, services: NativeServices) -> list[Buildable]:
    """Return all code that a plan's native programs run: kernels and functions of the runtime.

    It must name what the emitters load, so that ``NativeServices.prepare`` builds it on all cores;
    the emitters themselves build missing code one by one.
    """
    code: list[Buildable] = [*all_kernels(plan)]
    for step in all_steps(plan):
        if isinstance(step, CopyStep):
            itemsize = storage_dtype(step.source.aval.dtype).itemsize
            code += code_for_copy(step.source.layout, itemsize)
        elif isinstance(step, ProgramStep):
            code += [Build(native_function, (name,)) for name in _runtime_functions(step, services)]
        elif isinstance(step, KernelStep):
            if any(len(calls) > 1 for calls in step.launches):
                code.append(Build(native_function, ("gf_segments",)))
        elif step.implementation is not None:
            call: NativeCall = step.implementation
            code += call.required_code()
    return code


def native_step(step: Step, services: NativeServices) -> Emitter | None:
    """Return the emitter of a step's instructions; None if the step needs Python."""
    if isinstance(step, KernelStep):
        return partial(_emit_kernel, step, services)
    if isinstance(step, CopyStep):
        return partial(_emit_copy, step, services)
    if isinstance(step, ProgramStep):
        return _program_emitter(step, services)
    if step.implementation is None:
        return None
    call: NativeCall = step.implementation
    return partial(call.emit, step, services)


def _emit_kernel(
    step: KernelStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    # Reductions store their initial values even if there is nothing to reduce.
    if step.kernel.kind == "map" and not any([call.points for call in step.calls]):
        return
    for calls in step.launches:
        launch(calls, services, code, locations)


def _emit_copy(step: CopyStep, services: NativeServices, code: Code, locations: Locations) -> None:
    aval = step.source.aval
    if aval.size == 0:
        return
    source, target = operand_location(step.source, code, locations), locations.of(step.target)
    itemsize = storage_dtype(aval.dtype).itemsize
    copy_view(step.source.layout, itemsize, source, target, services, code)


# --- loops and branches ----------------------------------------------------------------------


# Most bytes for the arenas of all threads that share a loop with independent iterations. A larger
# body runs on one thread at a time, and its kernels use all threads.
_MAX_ARENA_BYTES = 1 << 26


def _program_emitter(step: ProgramStep, services: NativeServices) -> Emitter | None:
    threads = _loop_threads(step, services)
    if threads > 1:
        services = native_services(is_serial=True)
    bodies: list[list[Emitter]] = []
    for inner in step.programs:
        emitters = [native_step(inner_step, services) for inner_step in inner.plan.steps]
        if any(emitter is None for emitter in emitters):
            return None
        bodies.append([emitter for emitter in emitters if emitter is not None])
    return partial(_emit_program, step, bodies, threads, services)


def _runtime_functions(step: ProgramStep, services: NativeServices) -> list[str]:
    """Functions of the runtime that run a loop or branch; none if Python runs it."""
    if any(calls_python(inner.plan) for inner in step.programs):
        return []
    lowering = step.eqn.primitive.lower
    if lowering.branches is not None:
        return ["gf_branch"]
    assert lowering.form is not None
    if not isinstance(lowering.form(step.eqn.params), ScanForm):
        return ["gf_while"]
    return ["gf_scan", "gf_parallel_loop"] if _loop_threads(step, services) > 1 else ["gf_scan"]


def _loop_threads(step: ProgramStep, services: NativeServices) -> int:
    """Return the number of threads that share the iterations of a loop, each with its own arena.

    More than 1 only for a scan without carries, whose iterations are independent. Threads get equal
    shares, so there must be at least two iterations per thread to balance them.
    """
    lowering, threads = step.eqn.primitive.lower, services.threads
    if lowering.form is None or threads == 1:
        return 1
    form = lowering.form(step.eqn.params)
    if not form.is_parallel or form.length < 2 * threads:
        return 1
    is_small = step.programs[0].plan.arena_bytes * threads <= _MAX_ARENA_BYTES
    return threads if is_small else 1


def _emit_program(
    step: ProgramStep,
    bodies: list[list[Emitter]],
    threads: int,
    services: NativeServices,
    code: Code,
    locations: Locations,
) -> None:
    """Emit a loop or branch whose programs are native.

    Programs use a section of the arena: temporaries, and spare buffers of alternating carries.
    """
    arena_section, spare_offsets = workspace_layout(step, locations.plan.offsets[step.workspace])
    memory = locations.memory.section(*arena_section)
    programs = [
        _write_body(inner, emitters, memory)
        for inner, emitters in zip(step.programs, bodies, strict=True)
    ]
    constants = [_constant_locations(inner, code) for inner in step.programs]
    operands = [operand_location(operand, code, locations) for operand in step.operands]
    outs = [locations.of(buffer) for buffer in step.outputs]
    lowering = step.eqn.primitive.lower
    aliasing = output_alias_flags(step.eqn, step.programs)
    if lowering.branches is not None:
        written_outs = [out for out, aliases in zip(outs, aliasing, strict=True) if not aliases]
        branches = [
            Program(program, (*operands[1:], *values, *written_outs))
            for program, values in zip(programs, constants, strict=True)
        ]
        code.branch(operands[0], branches)
        return
    arena_start = address(locations.memory.memory)
    spare_buffers = (fixed(arena_start + offset) for offset in spare_offsets)
    form = lowering.form(step.eqn.params)
    carries = []
    for k in range(carry_count(step.eqn)):
        out, byte_count = outs[k], nbytes(step.eqn.outputs[k].aval)
        spare = out if aliasing[k] else next(spare_buffers)
        start = operands[form.first_carry + k]
        carries.append(_Carry(start, out, spare, byte_count, aliasing[k]))
    if isinstance(form, ScanForm):
        if programs[0].points * form.length < MIN_PARALLEL:
            threads = 1
        thread_bodies = [programs[0]]
        for _ in range(threads - 1):
            thread_arena = Arena()
            thread_arena.reserve(arena_section[1])
            code.keep_alive(thread_arena)
            thread_bodies.append(_write_body(step.programs[0], bodies[0], thread_arena))
        _emit_scan(form, step, services, thread_bodies, operands, constants[0], outs, carries, code)
    else:
        _emit_while(form, programs, operands, constants, carries, code)


@record
class _Carry:
    """A loop carry, which alternates between two buffers unless the body updates it in place.

    Attributes:
        start: location of the initial value.
        out: location of the result.
        spare: location of the second buffer; the same as ``out`` if the carry is in place.
        byte_count: size of the carry.
        is_in_place: whether the body updates the carry in place.
    """

    start: Location
    out: Location
    spare: Location
    byte_count: int
    is_in_place: bool


def _write_body(inner: InnerProgram, emitters: Sequence[Emitter], memory: Arena) -> Code:
    """Write a nested program for an arena of temporaries, which must outlive it."""
    code, locations = Code(), NestedLocations(inner.plan, memory)
    for emitter in emitters:
        emitter(code, locations)
    return code


def _constant_locations(inner: InnerProgram, code: Code) -> list[Location]:
    """Locations of a nested program's captured constants, which the outer program owns."""
    arrays = [as_numpy(value, aval_of(value)) for value in inner.values]
    code.keep_alive(*arrays)
    return [fixed(address(array)) for array in arrays]


def _emit_scan(
    form: ScanForm,
    step: ProgramStep,
    services: NativeServices,
    bodies: Sequence[Code],
    operands: Sequence[Location],
    constants: Sequence[Location],
    outs: Sequence[Location],
    carries: Sequence[_Carry],
    code: Code,
) -> None:
    """Emit a scan.

    The body's registers are: constant operands, carries, elements, captured constants, then
    outputs: new carries that are not in place, and stacked elements.

    Args:
        form: the scan's numbers of constants and carries, its length and direction.
        step: the step of the scan.
        services: services of the program.
        bodies: the body, or one copy of it for each thread that shares the iterations.
        operands: locations of the scan's operands.
        constants: locations of the body's captured constants.
        outs: locations of the scan's outputs.
        carries: the loop carries.
        code: the outer program.
    """
    if form.length == 0:
        for carry in carries:
            copy_bytes(carry.start, carry.out, carry.byte_count, services, code)
        return
    first_element = form.num_consts + form.num_carry
    # The buffers alternate such that the last iteration writes to the outputs.
    ends_even = form.length % 2 == 1
    # By carry: the buffers that even and odd iterations write. The next iteration reads them.
    alternating = [(c.out, c.spare) if ends_even else (c.spare, c.out) for c in carries]
    table = [always(location) for location in operands[: form.num_consts]]
    table += [
        LoopRegister(carry.start, even, odd)
        for carry, (even, odd) in zip(carries, alternating, strict=True)
    ]
    elements = zip(operands[first_element:], step.operands[first_element:], strict=True)
    table += [
        always(location, _element_bytes(operand.aval.shape, operand.aval.dtype))
        for location, operand in elements
    ]
    table += [always(location) for location in constants]
    table += [
        LoopRegister(even, odd, even)
        for carry, (even, odd) in zip(carries, alternating, strict=True)
        if not carry.is_in_place
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


def _emit_while(
    form: WhileForm,
    programs: Sequence[Code],
    operands: Sequence[Location],
    constants: Sequence[Sequence[Location]],
    carries: Sequence[_Carry],
    code: Code,
) -> None:
    """Emit a while loop, with the flag that its condition and its body set.

    The body's registers are: constant operands, carries, captured constants, new carries that are
    not in place, then the flag.
    """
    condition, body = programs
    condition_operands = operands[: form.num_condition_consts]
    flag_memory = code.constant_array([0])
    flag = fixed(address(flag_memory))
    starts = [carry.start for carry in carries]
    check = Program(condition, (*condition_operands, *starts, *constants[0], flag))
    alternating = [carry for carry in carries if not carry.is_in_place]
    table = [always(location) for location in operands[: form.first_carry]]
    table += [LoopRegister(c.start, c.out, c.spare) for c in carries]
    table += [always(location) for location in constants[1]]
    table += [LoopRegister(c.out, c.spare, c.out) for c in alternating]
    table.append(always(flag))
    copies = [Copy(c.out, c.start, c.spare, c.byte_count) for c in alternating]
    code.while_loop(check, body, table, flag, copies)


def _element_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) * storage_dtype(dtype).itemsize
