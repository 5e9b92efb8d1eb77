"""Plan steps as instructions of native programs.

``native_step`` answers for each step how it is written, or that it needs Python. A loop or branch
is native if everything in it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Protocol

import numpy as np

from gpuflow.compiler.launches import launches
from gpuflow.compiler.lower import KernelCall
from gpuflow.compiler.orders import transposing_copy
from gpuflow.compiler.plan import (
    CallStep,
    CopyStep,
    Inner,
    KernelStep,
    Operand,
    Plan,
    ProgramStep,
    Step,
    carried_places,
    kept_carries,
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.core.lowering import Branch, Convolution, Library, ScanForm, WhileForm
from gpuflow.core.views import View
from gpuflow.core.views import contiguous as whole_view
from gpuflow.kir.nodes import Kernel, Role
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.convolutions import (
    LHS_WORD,
    OUT_WORD,
    RHS_WORD,
    SLOT_BYTES,
    SLOT_WORDS,
    STEP_TABLE_WORD,
    TABLE_WORD,
    ConvolutionCall,
)
from gpuflow.runtime.driver_cpu import ConvolutionFunctions, CpuDriver
from gpuflow.runtime.memory import Arena, address, aligned_bytes
from gpuflow.runtime.native_code import Code, Copy, Place, Program, Turns, always, fixed
from gpuflow.runtime.products import A_WORD, B_WORD, C_WORD, ProductCall


class Places(Protocol):
    """Where a program's buffers are, while it is written."""

    memory: Arena
    plan: Plan

    def place(self, var: Var) -> Place:
        """The place of a buffer."""
        ...


Emit = Callable[[Code, Places], None]


class InnerPlaces:
    """Buffers of a program inside another: its registers are its inputs, then given outputs."""

    def __init__(self, plan: Plan, memory: Arena) -> None:
        self.plan, self.memory = plan, memory
        self.registers = {var: k for k, var in enumerate((*plan.jaxpr.invars, *plan.given))}
        for out, var in plan.in_place.items():
            self.registers[out] = self.registers[var]

    def place(self, var: Var) -> Place:
        """The place of a buffer."""
        if var in self.registers:
            return self.registers[var], 0
        return fixed(address(self.memory.memory) + self.plan.offsets[var])


def native_step(step: Step, driver: CpuDriver) -> Emit | None:
    """What writes a step's instructions, or None if it needs Python."""
    if isinstance(step, KernelStep):
        return partial(_kernel, step, driver)
    if isinstance(step, CopyStep):
        return partial(_copy, step, driver)
    if isinstance(step, ProgramStep):
        return _program_step(step, driver)
    return _call_step(step, driver)


def _kernel(step: KernelStep, driver: CpuDriver, code: Code, places: Places) -> None:
    # Reductions store their initial values even where there is nothing to reduce.
    if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
        return
    if len(step.calls) > 1:
        _launch(step.kernel, step.calls, driver, code, places)
        return
    for call in launches(step.calls[0], partial(_scratch, code)):
        _launch(call.kernel, (call,), driver, code, places)


def kernels_of(step: KernelStep) -> list[Kernel]:
    """The kernels that a step launches."""
    if len(step.calls) > 1:
        return [step.kernel]
    return [call.kernel for call in launches(step.calls[0], lambda count: 0)]


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


def _scratch(code: Code, count: int) -> int:
    """The address of bytes that live as long as the program."""
    memory = aligned_bytes(count)
    code.keep(memory)
    return address(memory)


def _launch(
    kernel: Kernel, calls: Sequence[KernelCall], driver: CpuDriver, code: Code, places: Places
) -> None:
    """One launch; several calls go through a table of their argument blocks."""
    loaded = driver.load(kernel)
    code.keep(loaded)
    blocks = [_argument_block(call, code, places) for call in calls]
    extents = [call.extent for call in calls]
    words = blocks[0] if len(blocks) == 1 else _segment_table(blocks, extents, code)
    extent, points = sum(extents), sum(call.points for call in calls)
    in_order = any(axis.role is Role.SERIAL for axis in kernel.axes)
    chunk = max(extent, 1) if in_order else driver.chunk(extent, points)
    code.run(loaded.address, words, extent, chunk, points)


def _argument_block(call: KernelCall, code: Code, places: Places) -> int:
    """The address of a call's block; instructions fill in what each call of the plan changes."""
    block = code.array([0] * max(len(call.words), 1))
    for k, word in enumerate(call.words):
        if word.buffer is None:
            block[k] = word.value
        else:
            _fill(block, k, places.place(word.buffer), word.value, code)
    return address(block)


def _fill(block: np.ndarray, k: int, place: Place, offset: int, code: Code) -> None:
    register, base = place
    if register < 0:
        block[k] = base + offset
    else:
        code.set(address(block) + 8 * k, (register, base + offset))


def _segment_table(blocks: list[int], extents: list[int], code: Code) -> int:
    table, start = [len(blocks)], 0
    for block, extent in zip(blocks, extents, strict=True):
        table += [start, block]
        start += extent
    return address(code.array([*table, start]))


def _operand_place(operand: Operand, code: Code, places: Places) -> Place:
    """Where the elements of a row-major operand start."""
    if operand.buffer is None:
        value = np.asarray(operand.value, storage_dtype(operand.aval.dtype))
        made = np.array(np.broadcast_to(value, operand.aval.shape), order="C")
        code.keep(made)
        return fixed(address(made))
    assert operand.view is not None
    register, offset = places.place(operand.buffer)
    itemsize = storage_dtype(operand.aval.dtype).itemsize
    return register, offset + operand.view.offset * itemsize


def _copy(step: CopyStep, driver: CpuDriver, code: Code, places: Places) -> None:
    aval = step.source.aval
    if aval.size == 0:
        return
    source, target = _operand_place(step.source, code, places), places.place(step.target)
    view = step.source.view or whole_view(aval.shape)
    _copy_view(view, storage_dtype(aval.dtype).itemsize, source, target, driver, code)


def _copy_view(
    view: View, itemsize: int, source: Place, target: Place, driver: CpuDriver, code: Code
) -> None:
    """Copy the elements of a view, whose first one lies at ``source``, in row-major order."""
    size = prod(view.shape)
    if view.is_contiguous:
        name, rest, extent = "gf_copy", [], size * itemsize
    else:
        axes = _moving_axes(view)
        tiled = transposing_copy(axes, itemsize)
        if tiled is not None:
            _copy_tiles(tiled, source, target, driver, code)
            return
        *outer, (row, stride) = axes
        rest = [len(outer), row, stride * itemsize]
        rest += [word for n, step_ in outer for word in (n, step_ * itemsize)]
        name, extent = f"gf_strided_{itemsize}", size // row
    block = code.array([0, 0, *rest])
    for k, place in enumerate((target, source)):
        _fill(block, k, place, 0, code)
    chunk = driver.chunk(extent, size)
    code.run(driver.function(name), address(block), extent, chunk, size)


def _copy_tiles(
    call: KernelCall, source: Place, target: Place, driver: CpuDriver, code: Code
) -> None:
    block = code.array([word.value for word in call.words])
    for k, place in enumerate((source, target)):
        _fill(block, k, place, 0, code)
    loaded = driver.load(call.kernel)
    code.keep(loaded)
    chunk = driver.chunk(call.extent, call.points)
    code.run(loaded.address, address(block), call.extent, chunk, call.points)


def _moving_axes(view: View) -> list[tuple[int, int]]:
    """Sizes and strides of a view's dimensions; those of size 1 and collapsible ones are gone."""
    axes: list[tuple[int, int]] = []
    repeats = view.broadcast or (False,) * len(view.shape)
    for size, stride, repeat in zip(view.shape, view.strides, repeats, strict=True):
        stride = 0 if repeat else stride
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes or [(1, 1)]


# --- products --------------------------------------------------------------------------------


def _call_step(step: CallStep, driver: CpuDriver) -> Emit | None:
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library):
        return None
    form = rule.convolution or rule.product
    if form is None:
        return None
    avals = [operand.aval for operand in step.operands]
    record = form(avals, [var.aval for var in step.eqn.outputs], step.eqn.params)
    if record is None:
        return None
    left, right = (
        whole_view(operand.aval.shape) if operand.view is None else operand.view
        for operand in step.operands
    )
    out = step.eqn.outputs[0].aval
    if isinstance(record, Convolution):
        left, right = replace(left, offset=0), replace(right, offset=0)
        made = driver.convolution(record, left, right, out.shape, out.dtype)
        return None if made is None else partial(_convolution, step, made, driver)
    call = driver.product(record, left, right, out.dtype)
    return None if call is None else partial(_product, step, call, driver)


def _product(
    step: CallStep, call: ProductCall, driver: CpuDriver, code: Code, places: Places
) -> None:
    block = code.array(call.words)
    dtype = step.eqn.outputs[0].aval.dtype
    function, block[0] = driver.product_functions(dtype)
    left, right = (_operand_place(operand, code, places) for operand in step.operands)
    out = places.place(step.eqn.outputs[0])
    for k, place in ((A_WORD, left), (B_WORD, right), (C_WORD, out)):
        _fill(block, k, place, 0, code)
    code.run(function, address(block), call.extent, call.chunk, call.points)


def _convolution(
    step: CallStep, made: tuple[list[ConvolutionCall], bool], driver: CpuDriver, code: Code,
    places: Places,
) -> None:  # fmt: skip
    (out,), (calls, has_zeros) = step.eqn.outputs, made
    functions = driver.convolution_functions(out.aval.dtype)
    target = places.place(out)
    if has_zeros:
        block, count = code.array([0]), _total_bytes(out)
        _fill(block, 0, target, 0, code)
        code.run(functions.zero, address(block), count, driver.chunk(count, count), count)
    operands = [_operand_place(operand, code, places) for operand in step.operands]
    for call in calls:
        _convolution_call(call, operands, target, out.aval.dtype, functions, driver, code)


def _convolution_call(
    call: ConvolutionCall, operands: Sequence[Place], target: Place, dtype: np.dtype,
    functions: ConvolutionFunctions, driver: CpuDriver, code: Code,
) -> None:  # fmt: skip
    block = code.array(call.words)
    block[0] = functions.gemm
    block[SLOT_WORDS[0] : SLOT_WORDS[-1] + 1] = driver.slots(SLOT_BYTES)
    block[TABLE_WORD] = address(code.array(call.table))
    block[STEP_TABLE_WORD] = address(code.array(call.step_table))
    left, right = operands
    if call.copied_lhs is not None:
        left = _own_copy(call.copied_lhs, left, dtype, driver, code)
    if call.copied is not None:
        right = _own_copy(call.copied, right, dtype, driver, code)
    sums = _own_memory(call.partial, dtype, code) if call.partial else target
    for k, place in ((LHS_WORD, left), (RHS_WORD, right), (OUT_WORD, sums)):
        _fill(block, k, place, call.words[k], code)
    code.run(functions.convolution, address(block), call.extent, call.chunk, call.points)
    if call.partial:
        block = code.array([0, 0, *call.summed])
        _fill(block, 0, target, call.offset, code)
        _fill(block, 1, sums, 0, code)
        chunk = driver.chunk(call.rows, call.partial)
        code.run(functions.sum_parts, address(block), call.rows, chunk, call.partial)


def _own_copy(
    view: View, start: Place, dtype: np.dtype, driver: CpuDriver, code: Code
) -> Place:
    """A row-major copy of a view of what begins at ``start``."""
    register, offset = start
    target = _own_memory(prod(view.shape), dtype, code)
    source = register, offset + view.offset * dtype.itemsize
    _copy_view(view, dtype.itemsize, source, target, driver, code)
    return target


def _own_memory(count: int, dtype: np.dtype, code: Code) -> Place:
    """Memory that lives as long as the program."""
    made = np.empty(count, dtype)
    code.keep(made)
    return fixed(address(made))


# --- loops and branches ----------------------------------------------------------------------


def _program_step(step: ProgramStep, driver: CpuDriver) -> Emit | None:
    bodies: list[list[Emit]] = []
    for inner in step.programs:
        emits = [native_step(s, driver) for s in inner.plan.steps]
        if any(emit is None for emit in emits):
            return None
        bodies.append([emit for emit in emits if emit is not None])
    return partial(_program, step, bodies, driver)


def _program(
    step: ProgramStep, bodies: list[list[Emit]], driver: CpuDriver, code: Code, places: Places
) -> None:
    arena, spare = carried_places(step, places.plan.offsets[step.workspace])
    memory = places.memory.part(*arena)
    programs = [
        _body(inner, emits, memory) for inner, emits in zip(step.programs, bodies, strict=True)
    ]
    values = [_values(inner, code) for inner in step.programs]
    operands = [_operand_place(operand, code, places) for operand in step.operands]
    outs = [places.place(var) for var in step.eqn.outputs]
    rule = step.eqn.primitive.lower
    if isinstance(rule, Branch):
        registers = [(*operands[1:], *own, *outs) for own in values]
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
            _copy_bytes(operands[k], out, var, driver, code)
            operands[k] = out
        carries.append(_Carry(operands[k], out, out if keeps else next(free), var, keeps))
    if isinstance(form, ScanForm):
        _scan(form, step, driver, programs[0], operands, values[0], outs, carries, code)
    else:
        _while(form, programs, operands, values, carries, code)


@dataclass(frozen=True)
class _Carry:
    """Where a carry starts, where it ends, and the second array; the same one where it is kept."""

    start: Place
    out: Place
    spare: Place
    var: Var
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
    form: ScanForm, step: ProgramStep, driver: CpuDriver, body: Code, operands: Sequence[Place],
    values: Sequence[Place], outs: Sequence[Place], carries: Sequence[_Carry], code: Code,
) -> None:  # fmt: skip
    if form.length == 0:
        for carry in carries:
            _copy_bytes(carry.start, carry.out, carry.var, driver, code)
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


def _copy_bytes(
    source: Place, target: Place, var: Var, driver: CpuDriver, code: Code
) -> None:
    if source == target:
        return
    block = code.array([0, 0])
    for k, place in enumerate((target, source)):
        _fill(block, k, place, 0, code)
    count = _total_bytes(var)
    code.run(driver.function("gf_copy"), address(block), count, count, count)


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
    copies = [Copy(c.out, c.start, c.spare, _total_bytes(c.var)) for c in moving]
    code.while_loop(check, body, table, flag, copies)


def _element_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) * storage_dtype(dtype).itemsize


def _total_bytes(var: Var) -> int:
    return var.aval.size * storage_dtype(var.aval.dtype).itemsize
