"""Printing of driver functions, common to all platforms: arrays, library calls, results.

Tests: tests/ops/test_device_programs.py, tests/explaining/test_explanation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import (
    CallStep,
    Plan,
    ProgramStep,
    StepOperand,
    argument_positions,
    double_buffered_carries,
    output_alias_flags,
    workspace_layout,
)
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.jaxpr import Literal
from gpuflow.core.primitive import Primitive
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.inner_programs import runner
from gpuflow.runtime.program_text import DriverText


class Memory(Protocol):
    """Memory for the temporaries of a program."""

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """The array at an offset, in bytes."""
        ...

    def section(self, offset: int, count: int) -> Memory:
        """``count`` bytes from an offset on, for an inner program."""
        ...


class NamedArrays:
    """Prints a plan's arrays and calls into the text of its driver.

    A buffer is an operand, an output that the driver allocates, or a temporary in the arena. A
    platform defines the allocation of outputs (``allocate``) and inner drivers (``body``).

    Args:
        plan: the plan.
        text: the text that statements are appended to.
        driver: the device's driver.
        memory: the memory of temporaries.
    """

    def __init__(self, plan: Plan, text: DriverText, driver: Driver, memory: Memory) -> None:
        self.plan, self.text, self.driver, self.memory = plan, text, driver, memory
        self.inputs = argument_positions(plan)
        self.destination_shapes = {
            out: atom.aval.shape
            for out, atom in zip(plan.outputs, plan.jaxpr.outvars, strict=True)
            if out in plan.destinations
        }
        self.owned = set(plan.owned)
        self.names: dict[int, str] = {}

    def array(self, buffer: int) -> str:
        """The name of a buffer's array; prints its allocation at the first use."""
        name = self.names.get(buffer)
        if name is not None:
            return name
        if buffer in self.inputs:
            name = f"operands[{self.inputs[buffer]}]"
            shape = self.plan.aval(buffer).shape
            if self.destination_shapes.get(buffer, shape) != shape:
                whole, name = name, self.text.fresh("destination")
                kind = self.text.constant("shape", shape)
                self.text.statement(f"{name} = {whole}.reshape({kind})")
        elif buffer in self.owned:
            name = self.text.fresh("out")
            self.allocate(name, self.plan.aval(buffer))
        else:
            offset, aval = self.plan.offsets[buffer], self.plan.aval(buffer)
            name = self.text.constant("temporary", self._in_arena(offset, aval))
        self.names[buffer] = name
        return name

    def allocate(self, name: str, aval: ShapedArray) -> None:
        """Print the allocation of an output."""
        raise NotImplementedError

    def body(self, plan: Plan, memory: Memory) -> Callable[..., Any]:
        """The driver of an inner program."""
        raise NotImplementedError

    def _in_arena(self, offset: int, aval: ShapedArray) -> Any:
        return self.memory.array(offset, aval.shape, storage_dtype(aval.dtype))

    def operand(self, operand: StepOperand) -> str:
        """The text of a library operand: an array, a strided view of one, or a literal."""
        if operand.buffer == NO_BUFFER:
            value = np.asarray(operand.value, storage_dtype(operand.aval.dtype))
            return self.text.constant("literal", self.driver.from_host(value))
        array, view = self.array(operand.buffer), operand.view
        if view is None:
            return array
        buffer = self.plan.aval(operand.buffer)
        dtype = storage_dtype(buffer.dtype)
        if operand.aval.size == buffer.size and view.is_contiguous and view.offset == 0:
            if view.shape == buffer.shape:
                return array
            return f"{array}.reshape({view.shape})"
        strides = tuple(s * dtype.itemsize for s in view.strides)
        kind = self.text.constant("dtype", dtype)
        offset = view.offset * dtype.itemsize
        if 0 in view.shape:
            return self.text.constant("empty", self.driver.xp.empty(view.shape, dtype))
        make = self.text.constant("strided", self.driver.strided)
        return f"{make}({view.shape}, {kind}, {array}, {offset}, {strides})"

    def call_step(self, step: CallStep) -> None:
        """Print the call of a library or host function."""
        operands = [self.operand(operand) for operand in step.operands]
        outs = [self.array(buffer) for buffer in step.outputs]
        function = self.text.constant("call", library_call(step, self.driver))
        self.text.statement(f"{function}([{', '.join(outs)}], {', '.join(operands)})")

    def program_step(self, step: ProgramStep) -> None:
        """Print a loop or branch that is driven from Python."""
        arena, offsets = workspace_layout(step, self.plan.offsets[step.workspace])
        memory = self.memory.section(*arena)
        bodies = [self.body(inner.plan, memory) for inner in step.programs]
        aliased = output_alias_flags(step.eqn, step.programs)
        moving = [step.eqn.outputs[k] for k in double_buffered_carries(step.eqn, step.programs)]
        spare = [
            self._in_arena(offset, var.aval) for offset, var in zip(offsets, moving, strict=True)
        ]
        values = [
            [self.driver.from_host(as_numpy(value, aval_of(value))) for value in inner.values]
            for inner in step.programs
        ]
        is_speculative = step.programs[-1].is_speculative
        program_runner = runner(
            step.eqn, bodies, values, aliased, spare, self.driver, is_speculative
        )
        run = self.text.constant("run", program_runner)
        operands = ", ".join(self.operand(operand) for operand in step.operands)
        outs = ", ".join(self.array(buffer) for buffer in step.outputs)
        self.text.statement(f"{run}([{outs}], [{operands}])  # {step.name}")

    def output(self, out: int | Literal, aval: ShapedArray) -> str:
        """The expression of an output's array; reshaped if it aliases an array of another shape."""
        if type(out) is Literal:
            value = np.asarray(out.value, storage_dtype(out.aval.dtype))
            return f"{self.text.constant('literal', self.driver.from_host(value))}.copy()"
        array = self.array(out)
        if self.plan.aval(out).shape == aval.shape:
            return array
        return f"{array}.reshape({self.text.constant('shape', aval.shape)})"

    def result(self, name: str, aval: ShapedArray) -> str:
        """Print the creation of an Array, without a call of ``__init__``; returns its name."""
        result = self.text.fresh("result")
        kind = self.text.constant("aval", aval)
        self.text.statement(
            f"{result} = new(Array); {result}._data = {name}; {result}.aval = {kind}; "
            f"{result}.device = device"
        )
        return result


def library_call(step: CallStep, driver: Driver) -> Callable[..., None]:
    """A function ``(outs, *operands)`` that runs a library or host call.

    The caller must disable NumPy's warnings.
    """
    primitive, params = step.eqn.primitive, step.eqn.params
    rule, xp = primitive.lower, driver.xp
    if rule.prepare is not None:
        avals = [operand.aval for operand in step.operands]
        return partial(rule.prepare(avals, [var.aval for var in step.eqn.outputs], params), xp)
    if rule.call is not None:
        return partial(rule.call, xp, **params)

    impl = primitive.impl
    assert impl is not None, primitive.name  # without a library call, an op needs it
    # A host function may keep its arguments, so it gets copies: temporaries are overwritten.
    may_keep = step.kind == "host"

    def through_impl(outs: list[Any], *operands: Any) -> None:
        if may_keep:
            whole = [xp.array(x, order="C") for x in operands]
        else:
            whole = [xp.ascontiguousarray(x).reshape(x.shape) for x in operands]
        store_results(primitive, xp, outs, impl(xp, *whole, **params))

    return through_impl


def store_results(primitive: Primitive, xp: Any, outs: Sequence[Any], results: Any) -> None:
    """Copy the results of ``impl`` to the outputs.

    Raises:
        RuntimeError: if a result has another shape than its output.
    """
    results = results if primitive.multiple_results else [results]
    for out, result in zip(outs, results, strict=True):
        if np.shape(result) != out.shape:
            raise RuntimeError(
                f"[{primitive.name}] impl must give shape {out.shape}; got "
                f"{np.shape(result)}: impl and shape rule disagree."
            )
        xp.copyto(out, xp.asarray(result), casting="unsafe")  # as in eager evaluation
