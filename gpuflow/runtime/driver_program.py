"""Driver programs: a bound plan as straight-line Python.

The driver allocates outputs, fills addresses into argument blocks, launches kernels and calls
libraries; addresses of temporaries are written into the blocks once, when it is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpuflow.compiler.lower import KernelCall
from gpuflow.compiler.plan import (
    ALIGNMENT,
    CallStep,
    CopyStep,
    KernelStep,
    Operand,
    Plan,
    ProgramStep,
    carried_avals,
    rounded_bytes,
    writes_of,
)
from gpuflow.core.aval import aval_of, storage_dtype
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.core.lowering import Library
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.inner_programs import contiguous, runner
from gpuflow.runtime.memory import SMALLEST_POOLED, Arena, address, address_text, allocate
from gpuflow.runtime.program_text import DriverText


def build_driver(
    plan: Plan, memory: Arena, driver: Driver
) -> Callable[[list[np.ndarray]], list[Any]]:
    """Print and load the driver of a plan, for one arena of one device."""
    text = DriverText()
    places = _Places(plan, memory, text)
    for step in plan.steps:
        if isinstance(step, KernelStep):
            _kernel_step(step, places, text, driver)
        elif isinstance(step, CopyStep):
            target, source = places.array(step.target), places.operand(step.source)
            text.line(f"copyto({target}, {source})")
        elif isinstance(step, ProgramStep):
            _program_step(step, places, text, driver)
        else:
            _call_step(step, places, text)
    outs = "" if plan.given else ", ".join(_output(out, places, text) for out in plan.outputs)
    return text.finish(f"[{outs}]", _NAMES)


_NAMES = {
    "copyto": np.copyto, "empty": np.empty, "allocate": allocate, "contiguous": contiguous,
}  # fmt: skip


class _Places:
    """Where buffers are: names of arrays and of addresses in the driver's text."""

    def __init__(self, plan: Plan, memory: Arena, text: DriverText) -> None:
        self.plan, self.memory, self.text = plan, memory, text
        self.inputs = {var: k for k, var in enumerate(plan.jaxpr.invars)}
        for out, var in plan.in_place.items():
            self.inputs[out] = self.inputs[var]
        for out in plan.given:
            self.inputs[out] = len(self.inputs)
        self.owned = set(plan.owned)
        self.names: dict[Var, str] = {}
        self.addresses: dict[Var, str] = {}

    def array(self, var: Var) -> str:
        """The name of the array of a buffer."""
        if var in self.names:
            return self.names[var]
        if var in self.inputs:
            name = f"operands[{self.inputs[var]}]"
        elif var in self.owned:
            name = self.text.fresh("out")
            dtype = storage_dtype(var.aval.dtype)
            count = var.aval.size * dtype.itemsize
            kind = self.text.constant("dtype", dtype)
            if count < SMALLEST_POOLED:
                self.text.line(f"{name} = empty({var.aval.shape}, {kind})")
            else:
                self.text.line(f"{name} = allocate({var.aval.shape}, {kind}, {count})")
        else:
            name = self.text.constant("temporary", self._temporary(var))
        self.names[var] = name
        return name

    def _temporary(self, var: Var) -> np.ndarray:
        dtype = storage_dtype(var.aval.dtype)
        return self.memory.array(self.plan.offsets[var], var.aval.shape, dtype)

    def fixed_address(self, var: Var) -> int | None:
        """The address of a temporary, which no call changes."""
        if var in self.inputs or var in self.owned:
            return None
        return address(self.memory.memory) + self.plan.offsets[var]

    def address(self, var: Var) -> str:
        """The name of the address of an input or output."""
        if var not in self.addresses:
            array = self.array(var)
            name = self.text.fresh("at")
            found, names = address_text(array)
            self.text.namespace.update(names)
            self.text.line(f"{name} = {found}")
            self.addresses[var] = name
        return self.addresses[var]

    def operand(self, operand: Operand) -> str:
        """The text of a library operand: an array, a strided view of one, or a literal."""
        if operand.buffer is None:
            value = np.asarray(operand.value, storage_dtype(operand.aval.dtype))
            return self.text.constant("literal", value)
        view, dtype = operand.view, storage_dtype(operand.buffer.aval.dtype)
        assert view is not None
        array = self.array(operand.buffer)
        whole = operand.aval.size == operand.buffer.aval.size
        if whole and view.is_contiguous and view.offset == 0:
            if view.shape == operand.buffer.aval.shape:
                return array
            return f"{array}.reshape({view.shape})"
        strides = tuple(s * dtype.itemsize for s in view.strides)
        make = self.text.constant("strided", np.ndarray)
        kind = self.text.constant("dtype", dtype)
        offset = view.offset * dtype.itemsize
        if 0 in view.shape:
            return self.text.constant("empty", np.empty(view.shape, dtype))
        return f"{make}({view.shape}, {kind}, {array}, {offset}, {strides})"


def _kernel_step(
    step: KernelStep, places: _Places, text: DriverText, driver: Driver
) -> None:
    if all(call.points == 0 and not _always_runs(step) for call in step.calls):
        for var in writes_of(step):
            places.array(var)
        return
    loaded = driver.load(step.kernel)
    blocks = [_argument_block(call, places, text) for call in step.calls]
    extents = [call.extent for call in step.calls]
    words = blocks[0] if len(blocks) == 1 else _segment_table(blocks, extents, text)
    points = sum(call.points for call in step.calls)
    launch = text.constant("launch", driver.launcher(loaded, words, sum(extents), points))
    text.line(f"{launch}()  # {step.kernel.name}")


def _always_runs(step: KernelStep) -> bool:
    """Reductions store their initial values even where there is nothing to reduce."""
    return step.kernel.kind != "map"


def _argument_block(call: KernelCall, places: _Places, text: DriverText) -> int:
    """Prepare a block of words; returns its address. Lines that fill in addresses are printed."""
    block = np.zeros(max(len(call.words), 1), np.int64)
    view = text.constant("words", block.data)
    text.keep(block)
    for k, word in enumerate(call.words):
        if word.buffer is None:
            block[k] = word.value
            continue
        fixed = places.fixed_address(word.buffer)
        if fixed is not None:
            block[k] = fixed + word.value
        else:
            offset = f" + {word.value}" if word.value else ""
            text.line(f"{view}[{k}] = {places.address(word.buffer)}{offset}")
    return address(block)


def _segment_table(blocks: list[int], extents: list[int], text: DriverText) -> int:
    table, start = [len(blocks)], 0
    for block, extent in zip(blocks, extents, strict=True):
        table += [start, block]
        start += extent
    array = np.array([*table, start], np.int64)
    text.keep(array)
    return address(array)


def _call_step(step: CallStep, places: _Places, text: DriverText) -> None:
    operands = [places.operand(operand) for operand in step.operands]
    outs = [places.array(var) for var in step.eqn.outputs]
    function = text.constant("call", _library_call(step))
    text.line(f"{function}([{', '.join(outs)}], {', '.join(operands)})")


def _program_step(step: ProgramStep, places: _Places, text: DriverText, driver: Driver) -> None:
    start = places.plan.offsets[step.workspace]
    count = max(inner.plan.arena_bytes for inner in step.programs)
    arena = places.memory.part(start, count)
    bodies = [build_driver(inner.plan, arena, driver) for inner in step.programs]
    spare, start = [], start + -(-count // ALIGNMENT) * ALIGNMENT
    for aval in carried_avals(step.eqn):
        spare.append(places.memory.array(start, aval.shape, storage_dtype(aval.dtype)))
        start += rounded_bytes(aval)
    values = [
        [as_numpy(value, aval_of(value)) for value in inner.values] for inner in step.programs
    ]
    run = text.constant("run", runner(step.eqn, bodies, values, spare))
    operands = []
    for operand in step.operands:
        name = places.operand(operand)
        is_whole = operand.view is None or operand.view.is_contiguous
        operands.append(name if is_whole else f"contiguous({name})")
    outs = ", ".join(places.array(var) for var in step.eqn.outputs)
    text.line(f"{run}([{outs}], [{', '.join(operands)}])  # {step.eqn.primitive.name}")


def _library_call(step: CallStep) -> Callable[..., None]:
    """A function of output and operand arrays; the executable has turned NumPy's warnings off."""
    primitive, params = step.eqn.primitive, step.eqn.params
    rule = primitive.lower
    if isinstance(rule, Library) and rule.prepare is not None:
        avals = [operand.aval for operand in step.operands]
        return partial(rule.prepare(avals, [var.aval for var in step.eqn.outputs], params), np)
    if isinstance(rule, Library) and rule.call is not None:
        return partial(rule.call, np, **params)

    impl = primitive.impl
    assert impl is not None  # without a library call, an op needs it
    # A host function may keep what it is given, and temporaries are overwritten.
    may_keep = step.kind == "host"

    def through_impl(outs: list[np.ndarray], *operands: np.ndarray) -> None:
        if may_keep:
            whole = [np.array(x, order="C") for x in operands]
        else:
            whole = [np.ascontiguousarray(x).reshape(x.shape) for x in operands]
        results = impl(np, *whole, **params)
        results = results if primitive.multiple_results else [results]
        for out, result in zip(outs, results, strict=True):
            if np.shape(result) != out.shape:
                raise RuntimeError(
                    f"[{primitive.name}] impl must give shape {out.shape}; got "
                    f"{np.shape(result)}: impl and shape rule disagree."
                )
            np.copyto(out, result, casting="unsafe")  # eager converts as well

    return through_impl


def _output(out: int | Var | Literal, places: _Places, text: DriverText) -> str:
    if isinstance(out, int):
        return str(out)
    if isinstance(out, Literal):
        value = np.asarray(out.value, storage_dtype(out.aval.dtype))
        return f"{text.constant('literal', value)}.copy()"
    return places.array(out)
