"""Plan steps as instructions of native programs.

``native_step`` answers for each step how it is written, or that it needs Python. A loop or branch
is native if everything in it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    Inner,
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    carried_places,
    kept_carries,
    nbytes,
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.core.lowering import Branch, Launches, Library, ScanForm, WhileForm
from gpuflow.kir.nodes import Kernel, Role, remembered
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.memory import Arena, address
from gpuflow.runtime.program_arrays import operand_places
from gpuflow.targets.cpu.native.copies import (
    Places,
    addresses_in,
    copy_bytes,
    copy_view,
    operand_place,
)
from gpuflow.targets.cpu.native.program_writer import (
    Code,
    Copy,
    Place,
    Program,
    Turns,
    always,
    fixed,
)
from gpuflow.targets.cpu.native.services import NativeServices
from gpuflow.targets.cpu.providers.convolution_steps import emit_convolution
from gpuflow.targets.cpu.providers.decompositions import is_native_lu
from gpuflow.targets.cpu.providers.kernel_steps import numbered
from gpuflow.targets.cpu.providers.lu_steps import emit_lu
from gpuflow.targets.cpu.providers.products import A_WORD, B_WORD, C_WORD, ProductCall
from gpuflow.targets.cpu.providers.triangular_steps import emit_triangular, triangular_of

VECTOR_POINTS = 64  # as many as a vector loop takes at a time; chunks are multiples of it

Emit = Callable[[Code, Places], None]


class InnerPlaces:
    """Buffers of a program inside another: its registers are its inputs, then given outputs."""

    def __init__(self, plan: Plan, memory: Arena) -> None:
        self.plan, self.memory = plan, memory
        self.registers = operand_places(plan)
        self.addresses = addresses_in(plan, memory)

    def place(self, buffer: int) -> Place:
        """The place of a buffer."""
        at = self.addresses.get(buffer)
        return (self.registers[buffer], 0) if at is None else fixed(at)


def native_step(step: Step, services: NativeServices) -> Emit | None:
    """What writes a step's instructions, or None if it needs Python."""
    if isinstance(step, KernelStep):
        return partial(_kernel, step, services)
    if isinstance(step, CopyStep):
        return partial(_copy, step, services)
    if isinstance(step, ProgramStep):
        return _program_step(step, services)
    return _call_step(step, services)


def _kernel(step: KernelStep, services: NativeServices, code: Code, places: Places) -> None:
    # Reductions store their initial values even where there is nothing to reduce.
    if step.kernel.kind == "map" and not any([call.points for call in step.calls]):
        return
    for calls in step.launches:
        _launch(calls, services, code, places)


def _launch(
    calls: Sequence[KernelCall], services: NativeServices, code: Code, places: Places
) -> None:
    """One launch of a kernel; several calls go through a table of their argument blocks."""
    kernel = calls[0].kernel
    loaded = services.load(kernel)
    code.keep(loaded)
    if len(calls) > 1:
        blocks = [_argument_block(call, code, places) for call in calls]
        _launch_segments(kernel, loaded.address, calls, blocks, services, code)
        return
    (call,) = calls
    in_order = remembered(kernel, _is_in_order)
    chunk = max(call.extent, 1) if in_order else services.chunk(call.extent, call.points)
    block = _argument_block(call, code, places)
    code.run(loaded.address, block, call.extent, chunk, call.points)


def _is_in_order(kernel: Kernel) -> bool:
    return any(axis.role is Role.SERIAL for axis in kernel.axes)


def _launch_segments(
    kernel: Kernel, function: int, calls: Sequence[KernelCall], blocks: Sequence[int],
    services: NativeServices, code: Code,
) -> None:  # fmt: skip
    """Segments lie one after the other: threads take ranges of points, or whole reductions."""
    is_whole = all(axis.role is not Role.PARALLEL for axis in kernel.axes)
    table, start = [function, int(is_whole), len(calls)], 0
    for call, block in zip(calls, blocks, strict=True):
        table += [start, block, call.extent]
        # A whole reduction is as long as it has points, so that threads get like amounts of work.
        start += max(call.points, 1) if is_whole else call.extent
        if kernel.kind == "map":
            # Chunks begin at whole vectors of a segment, as in a launch of its own.
            start = -(-start // VECTOR_POINTS) * VECTOR_POINTS
    first = code.block(table)
    for k in range(len(calls)):
        code.refer(first + 4 + 3 * k)
    points = sum(call.points for call in calls)
    code.run(services.function("gf_segments"), first, start, services.chunk(start, points), points)


def _argument_block(call: KernelCall, code: Code, places: Places) -> int:
    """The place of a call's block; instructions fill in what each call of the plan changes."""
    block = code.block(call.words)
    addresses, data = places.addresses, code.data
    for k, buffer in enumerate(call.buffers, block):
        if buffer == NO_BUFFER:
            continue
        at = addresses.get(buffer)
        if at is None:
            code.fill(k, places.place(buffer), data[k])
        else:
            data[k] += at
    return block


def _copy(step: CopyStep, services: NativeServices, code: Code, places: Places) -> None:
    aval = step.source.aval
    if aval.size == 0:
        return
    source, target = operand_place(step.source, code, places), places.place(step.target)
    itemsize = storage_dtype(aval.dtype).itemsize
    copy_view(step.source.lies, itemsize, source, target, services, code)


# --- products --------------------------------------------------------------------------------


def _call_step(step: CallStep, services: NativeServices) -> Emit | None:
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library):
        return None
    if rule.convolution is not None:
        convolution = services.convolution_of(step)
        if convolution is None:
            return None
        return partial(emit_convolution, step, convolution, services)
    if rule.lu:
        return partial(emit_lu, step, services) if is_native_lu(step) else None
    if rule.triangular is not None:
        system = triangular_of(step)
        return None if system is None else partial(emit_triangular, step, system, services)
    if rule.kernels is not None:
        launches = services.launches_of(step)
        return None if launches is None else partial(_hand_kernels, step, launches, services)
    if rule.product is None:
        return None
    avals = [operand.aval for operand in step.operands]
    record = rule.product(avals, [var.aval for var in step.eqn.outputs], step.eqn.params)
    if record is None:
        return None
    left, right = step.operands
    call = services.product(record, left.lies, right.lies, step.eqn.outputs[0].aval.dtype)
    return None if call is None else partial(_product, step, call, services)


def _hand_kernels(
    step: CallStep, launches: Launches, services: NativeServices, code: Code, places: Places
) -> None:
    services.prepare([launch.kernel for launch in launches.launches])
    code.keep(*launches.kept)
    for launch in launches.launches:
        _launch([numbered(launch, step)], services, code, places)


def _product(
    step: CallStep, call: ProductCall, services: NativeServices, code: Code, places: Places
) -> None:
    function, gemm = services.product_functions(step.eqn.outputs[0].aval.dtype)
    block = code.block(call.words)
    code.data[block] = gemm
    for k, operand in zip((A_WORD, B_WORD), step.operands, strict=True):
        code.fill(block + k, operand_place(operand, code, places))
    code.fill(block + C_WORD, places.place(step.outputs[0]))
    code.run(function, block, call.extent, call.chunk, call.points)


# --- loops and branches ----------------------------------------------------------------------


def _program_step(step: ProgramStep, services: NativeServices) -> Emit | None:
    bodies: list[list[Emit]] = []
    for inner in step.programs:
        emits = [native_step(s, services) for s in inner.plan.steps]
        if any(emit is None for emit in emits):
            return None
        bodies.append([emit for emit in emits if emit is not None])
    return partial(_program, step, bodies, services)


def _program(
    step: ProgramStep, bodies: list[list[Emit]], services: NativeServices, code: Code,
    places: Places,
) -> None:  # fmt: skip
    arena, spare = carried_places(step, places.plan.offsets[step.workspace])
    memory = places.memory.part(*arena)
    programs = [
        _body(inner, emits, memory) for inner, emits in zip(step.programs, bodies, strict=True)
    ]
    values = [_values(inner, code) for inner in step.programs]
    operands = [operand_place(operand, code, places) for operand in step.operands]
    outs = [places.place(buffer) for buffer in step.outputs]
    rule = step.eqn.primitive.lower
    if isinstance(rule, Branch):
        registers = [(*operands[1:], *inner_values, *outs) for inner_values in values]
        code.branch(
            operands[0], [Program(c, r) for c, r in zip(programs, registers, strict=True)]
        )
        return
    start = address(places.memory.memory)
    free = (fixed(start + offset) for offset in spare)
    form = rule.form(step.eqn.params)
    first = _first_carry(form)
    carries = []
    kept = kept_carries(step.eqn, step.programs)
    for k, (keeps, out, var) in enumerate(zip(kept, outs, step.eqn.outputs, strict=False), first):
        if keeps:
            copy_bytes(operands[k], out, nbytes(var.aval), services, code)
            operands[k] = out
        spare_place = out if keeps else next(free)
        carries.append(_Carry(operands[k], out, spare_place, nbytes(var.aval), keeps))
    if isinstance(form, ScanForm):
        _scan(form, step, services, programs[0], operands, values[0], outs, carries, code)
    else:
        _while(form, programs, operands, values, carries, code)


@record
class _Carry:
    """Where a carry starts, where it ends, and the second array; the same one where it is kept.

    ``count`` is how many bytes it has.
    """

    start: Place
    out: Place
    spare: Place
    count: int
    keeps: bool


def _first_carry(form: ScanForm | WhileForm) -> int:
    if isinstance(form, ScanForm):
        return form.num_consts
    return form.num_condition_consts + form.num_body_consts


def _body(inner: Inner, emits: Sequence[Emit], memory: Arena) -> Code:
    code, places = Code(), InnerPlaces(inner.plan, memory)
    for emit in emits:
        emit(code, places)
    return code


def _values(inner: Inner, code: Code) -> list[Place]:
    arrays = [as_numpy(value, aval_of(value)) for value in inner.values]
    code.keep(*arrays)
    return [fixed(address(array)) for array in arrays]


def _scan(
    form: ScanForm, step: ProgramStep, services: NativeServices, body: Code,
    operands: Sequence[Place], values: Sequence[Place], outs: Sequence[Place],
    carries: Sequence[_Carry], code: Code,
) -> None:  # fmt: skip
    if form.length == 0:
        for carry in carries:
            copy_bytes(carry.start, carry.out, carry.count, services, code)
        return
    split = form.num_consts + form.num_carry
    # The last iteration writes into the outputs.
    ends_first = form.length % 2 == 1
    turns = [(c.out, c.spare) if ends_first else (c.spare, c.out) for c in carries]
    table = [always(place) for place in operands[: form.num_consts]]
    table += [Turns(c.start, one, two) for c, (one, two) in zip(carries, turns, strict=True)]
    table += [
        always(place, _element_bytes(operand.aval.shape, operand.aval.dtype))
        for place, operand in zip(operands[split:], step.operands[split:], strict=True)
    ]
    table += [always(place) for place in values]
    table += [
        Turns(one, two, one)
        for c, (one, two) in zip(carries, turns, strict=True)
        if not c.keeps
    ]
    stacked = step.eqn.outputs[form.num_carry :]
    table += [
        always(place, _element_bytes(var.aval.shape, var.aval.dtype))
        for place, var in zip(outs[form.num_carry :], stacked, strict=True)
    ]
    code.scan(form.length, form.reverse, body, table)


def _while(
    form: WhileForm, programs: Sequence[Code], operands: Sequence[Place],
    values: Sequence[Sequence[Place]], carries: Sequence[_Carry], code: Code,
) -> None:  # fmt: skip
    condition, body = programs
    first, split = form.num_condition_consts, _first_carry(form)
    flag_memory = code.array([0])
    flag = fixed(address(flag_memory))
    starts = [carry.start for carry in carries]
    check = Program(condition, (*operands[:first], *starts, *values[0], flag))
    moving = [carry for carry in carries if not carry.keeps]
    table = [always(place) for place in operands[:split]]
    table += [Turns(c.start, c.out, c.spare) for c in carries]
    table += [always(place) for place in values[1]]
    table += [Turns(c.out, c.spare, c.out) for c in moving]
    table.append(always(flag))
    copies = [Copy(c.out, c.start, c.spare, c.count) for c in moving]
    code.while_loop(check, body, table, flag, copies)


def _element_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) * storage_dtype(dtype).itemsize
