"""Driver programs: a bound plan as straight-line Python.

The driver allocates outputs and runs what it can as native programs, which launch kernels and make
products without Python between them; libraries and host functions are called from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuflow.compiler.plan import (
    CallStep,
    Operand,
    Plan,
    ProgramStep,
    carried_places,
    kept_carries,
)
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.jaxpr import Literal, Var
from gpuflow.core.lowering import Library
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.driver_cpu import CpuDriver
from gpuflow.runtime.inner_programs import runner
from gpuflow.runtime.memory import SMALLEST_POOLED, Arena, address, allocate
from gpuflow.runtime.native_code import Code, Place, callable_program, fixed
from gpuflow.runtime.native_steps import native_step
from gpuflow.runtime.program_text import DriverText


def build_driver(
    plan: Plan, memory: Arena, driver: CpuDriver, out_avals: Sequence[ShapedArray] = ()
) -> Callable[..., list[Array]]:
    """Print and load the driver of a plan, for one arena of one device.

    Args:
        plan: the plan.
        memory: where its temporaries are.
        driver: the device.
        out_avals: types of the outputs; none for a program inside another, which writes where it
            is told and returns nothing.

    Returns:
        ``function(operands, device)``: operands as NumPy arrays, outputs as Arrays.
    """
    text = DriverText()
    places = _Places(plan, memory, driver, text)
    for step in plan.steps:
        emit = native_step(step, driver)
        if emit is not None:
            emit(places.code, places)
            places.comments.append(step.name)
            continue
        places.finish_native()
        assert isinstance(step, (CallStep, ProgramStep))  # kernels and copies are native
        if isinstance(step, ProgramStep):
            _program_step(step, places, text, driver)
        else:
            _call_step(step, places, text)
    places.finish_native()
    outs = [_output(out, places, text) for out in plan.outputs] if out_avals else []
    results = [
        _result(name, aval, text) for name, aval in zip(outs, out_avals, strict=True)
    ]
    names = {"empty": np.empty, "allocate": allocate, "new": object.__new__, "Array": Array}
    return text.finish(f"[{', '.join(results)}]", names)


class _Places:
    """Where buffers are: names of arrays in the driver's text, registers of native programs."""

    def __init__(self, plan: Plan, memory: Arena, driver: CpuDriver, text: DriverText) -> None:
        self.plan, self.memory, self.driver, self.text = plan, memory, driver, text
        self.inputs = {var: k for k, var in enumerate(plan.jaxpr.invars)}
        for out, var in plan.in_place.items():
            self.inputs[out] = self.inputs[var]
        for k, out in enumerate(plan.given, len(plan.jaxpr.invars)):
            self.inputs[out] = k
        self.owned = set(plan.owned)
        self.names: dict[Var, str] = {}
        self._start_native()

    def _start_native(self) -> None:
        self.code = Code()
        self.registers: dict[str, int] = {}
        self.comments: list[str] = []

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
            shape = self.text.constant("shape", var.aval.shape)
            if count < SMALLEST_POOLED:
                self.text.line(f"{name} = empty({shape}, {kind})")
            else:
                size = self.text.constant("bytes", count)
                self.text.line(f"{name} = allocate({shape}, {kind}, {size})")
        else:
            name = self.text.constant("temporary", self._temporary(var))
        self.names[var] = name
        return name

    def _temporary(self, var: Var) -> np.ndarray:
        dtype = storage_dtype(var.aval.dtype)
        return self.memory.array(self.plan.offsets[var], var.aval.shape, dtype)

    def place(self, var: Var) -> Place:
        """Where the native program under construction finds a buffer."""
        if var not in self.inputs and var not in self.owned:
            return fixed(address(self.memory.memory) + self.plan.offsets[var])
        return self.registers.setdefault(self.array(var), len(self.registers)), 0

    def finish_native(self) -> None:
        """Print the call of the native program under construction, and start another."""
        if self.code.words:
            names = list(self.registers)
            function, kept = callable_program(self.code, len(names), self.driver.runtime)
            self.text.keep(kept)
            call = self.text.constant("run", function)
            self.text.line(f"{call}({', '.join(names)})  # {', '.join(self.comments)}")
        self._start_native()

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


def _call_step(step: CallStep, places: _Places, text: DriverText) -> None:
    operands = [places.operand(operand) for operand in step.operands]
    outs = [places.array(var) for var in step.eqn.outputs]
    function = text.constant("call", _library_call(step))
    text.line(f"{function}([{', '.join(outs)}], {', '.join(operands)})")


def _program_step(step: ProgramStep, places: _Places, text: DriverText, driver: CpuDriver) -> None:
    """A loop or branch that calls Python, driven from Python."""
    arena, offsets = carried_places(step, places.plan.offsets[step.workspace])
    memory = places.memory.part(*arena)
    bodies = [build_driver(inner.plan, memory, driver) for inner in step.programs]
    kept = kept_carries(step.eqn, step.programs)
    moving = [var for var, keeps in zip(step.eqn.outputs, kept, strict=False) if not keeps]
    spare = [
        places.memory.array(offset, var.aval.shape, storage_dtype(var.aval.dtype))
        for offset, var in zip(offsets, moving, strict=True)
    ]
    values = [
        [as_numpy(value, aval_of(value)) for value in inner.values] for inner in step.programs
    ]
    run = text.constant("run", runner(step.eqn, bodies, values, kept, spare))
    operands = ", ".join(places.operand(operand) for operand in step.operands)
    outs = ", ".join(places.array(var) for var in step.eqn.outputs)
    text.line(f"{run}([{outs}], [{operands}])  # {step.name}")


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
        return f"operands[{out}]"
    if isinstance(out, Literal):
        value = np.asarray(out.value, storage_dtype(out.aval.dtype))
        return f"{text.constant('literal', value)}.copy()"
    return places.array(out)


def _result(name: str, aval: ShapedArray, text: DriverText) -> str:
    """An output's array as an Array, made without a call of its ``__init__``."""
    result = text.fresh("result")
    kind = text.constant("aval", aval)
    text.line(f"{result} = new(Array)")
    text.line(f"{result}._data = {name}")
    text.line(f"{result}.aval = {kind}")
    text.line(f"{result}.device = device")
    return result
