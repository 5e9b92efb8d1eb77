"""Plan steps as instructions of native programs.

``native_step`` answers for each step how it is written, or that it needs Python. A loop or branch
is native if everything in it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from gpuflow.compiler.lower import KernelCall
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
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.core.lowering import Branch, Library, ScanForm, WhileForm
from gpuflow.core.views import View
from gpuflow.core.views import contiguous as whole_view
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.driver_cpu import CpuDriver
from gpuflow.runtime.memory import Arena, address
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
    loaded = driver.load(step.kernel)
    code.keep(loaded)
    blocks = [_argument_block(call, code, places) for call in step.calls]
    extents = [call.extent for call in step.calls]
    words = blocks[0] if len(blocks) == 1 else _segment_table(blocks, extents, code)
    extent, points = sum(extents), sum(call.points for call in step.calls)
    code.run(loaded.address, words, extent, driver.chunk(extent, points), points)


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
    itemsize, view = storage_dtype(aval.dtype).itemsize, step.source.view
    if view is None or view.is_contiguous:
        name, rest, extent = "gf_copy", [], aval.size * itemsize
    else:
        axes = _moving_axes(view)
        *outer, (size, stride) = axes
        rest = [len(outer), size, stride * itemsize]
        rest += [word for n, step_ in outer for word in (n, step_ * itemsize)]
        name, extent = f"gf_strided_{itemsize}", aval.size // size
    block = code.array([0, 0, *rest])
    for k, place in enumerate((target, source)):
        _fill(block, k, place, 0, code)
    chunk = driver.chunk(extent, aval.size)
    code.run(driver.function(name), address(block), extent, chunk, aval.size)


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
    if not isinstance(rule, Library) or rule.product is None:
        return None
    avals = [operand.aval for operand in step.operands]
    product = rule.product(avals, [var.aval for var in step.eqn.outputs], step.eqn.params)
    if product is None:
        return None
    left, right = (
        whole_view(operand.aval.shape) if operand.view is None else operand.view
        for operand in step.operands
    )
    call = driver.product(product, left, right, step.eqn.outputs[0].aval.dtype)
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
    spares = [fixed(start + offset) for offset in spare]
    form = rule.form(step.eqn.params)
    if isinstance(form, ScanForm):
        _scan(form, step, driver, programs[0], operands, values[0], outs, spares, code)
    else:
        _while(form, step, programs, operands, values, outs, spares, code)


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
    values: Sequence[Place], outs: Sequence[Place], spares: Sequence[Place], code: Code,
) -> None:  # fmt: skip
    split = form.num_consts + form.num_carry
    carry, final = operands[form.num_consts : split], outs[: form.num_carry]
    if form.length == 0:
        for source, target, var in zip(carry, final, step.eqn.outputs, strict=False):
            _copy_bytes(source, target, var, driver, code)
        return
    # The last iteration writes into the outputs.
    one, two = (final, spares) if form.length % 2 else (spares, final)
    table = [always(place) for place in operands[: form.num_consts]]
    table += [Turns(c, a, b) for c, a, b in zip(carry, one, two, strict=True)]
    table += [
        always(place, _element_bytes(operand.aval.shape, operand.aval.dtype))
        for place, operand in zip(operands[split:], step.operands[split:], strict=True)
    ]
    table += [always(place) for place in values]
    table += [Turns(a, b, a) for a, b in zip(one, two, strict=True)]
    stacked = step.eqn.outputs[form.num_carry :]
    table += [
        always(place, _element_bytes(var.aval.shape, var.aval.dtype))
        for place, var in zip(outs[form.num_carry :], stacked, strict=True)
    ]
    code.scan(form.length, form.reverse, body, table)


def _copy_bytes(
    source: Place, target: Place, var: Var, driver: CpuDriver, code: Code
) -> None:
    block = code.array([0, 0])
    for k, place in enumerate((target, source)):
        _fill(block, k, place, 0, code)
    count = _total_bytes(var)
    code.run(driver.function("gf_copy"), address(block), count, count, count)


def _while(
    form: WhileForm, step: ProgramStep, programs: Sequence[Code], operands: Sequence[Place],
    values: Sequence[Sequence[Place]], outs: Sequence[Place], spares: Sequence[Place], code: Code,
) -> None:  # fmt: skip
    condition, body = programs
    first = form.num_condition_consts
    split = first + form.num_body_consts
    carry = operands[split:]
    flag_memory = code.array([0])
    flag = fixed(address(flag_memory))
    check = Program(condition, (*operands[:first], *carry, *values[0], flag))
    table = [always(place) for place in operands[:split]]
    table += [Turns(c, a, b) for c, a, b in zip(carry, outs, spares, strict=True)]
    table += [always(place) for place in values[1]]
    table += [Turns(a, b, a) for a, b in zip(outs, spares, strict=True)]
    table.append(always(flag))
    copies = [
        Copy(out, start, spare, _total_bytes(var))
        for out, start, spare, var in zip(outs, carry, spares, step.eqn.outputs, strict=True)
    ]
    code.while_loop(check, body, table, flag, copies)


def _element_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape[1:], dtype=np.int64)) * storage_dtype(dtype).itemsize


def _total_bytes(var: Var) -> int:
    return var.aval.size * storage_dtype(var.aval.dtype).itemsize
