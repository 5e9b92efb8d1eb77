"""Print the driver of a plan on a GPU: straight-line Python that launches its steps.

The address of each array outside of the arena is in a variable ``pointerN``. Register N of
``BufferLocation`` is that variable; buffers in the arena have fixed addresses, which are constants.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_block_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Plan,
    ProgramStep,
    StepOperand,
    writes_of,
)
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.array import Array
from gpuflow.runtime.device_array import DeviceArray, described
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.runtime.program_arrays import NamedArrays
from gpuflow.runtime.program_text import DriverText
from gpuflow.targets.cuda.library.launch_binding import bind_launch, copy_sequence
from gpuflow.targets.cuda.library.launch_sequence import LaunchSequence
from gpuflow.targets.cuda.runtime.driver.arena import DeviceArena
from gpuflow.targets.cuda.runtime.driver.graphs import may_record
from gpuflow.targets.cuda.runtime.driver.launch import (
    BufferLocation,
    LaunchRegisters,
    bind_kernel_launch,
    launched_kernel,
)
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice
from gpuflow.targets.cuda.runtime.program.block_programs import bind_loop_launch
from gpuflow.targets.cuda.runtime.program.build_processes import build_missing
from gpuflow.targets.cuda.runtime.program.driver_statements import AddressArgument, DriverStatements
from gpuflow.targets.cuda.runtime.program.library_calls import LibraryCall
from gpuflow.targets.cuda.runtime.program.step_builds import builds_of
from gpuflow.targets.cuda.runtime.program.step_timer import GpuStepTimer


def build_driver_function(
    plan: Plan, arena: DeviceArena, device: GpuDevice, out_avals: Sequence[ShapedArray] = ()
) -> Callable[..., list[Array]]:
    """Build the driver of a plan: ``function(operands, device)``.

    Args:
        plan: the plan.
        arena: memory of its temporaries. The driver contains addresses in it, and is valid only for
            the current generation of the arena.
        device: the device that runs it.
        out_avals: the outputs; empty for a nested program, whose caller passes output buffers.
    """
    text, result, names = _printed(plan, arena, device, out_avals)
    return text.finish(result, names)


def driver_text(
    plan: Plan, arena: DeviceArena, device: GpuDevice, out_avals: Sequence[ShapedArray]
) -> str:
    """The text of a plan's driver, for readers."""
    text, result, _ = _printed(plan, arena, device, out_avals)
    return text.source(result)


def _printed(
    plan: Plan, arena: DeviceArena, device: GpuDevice, out_avals: Sequence[ShapedArray]
) -> tuple[DriverText, str, dict[str, Any]]:
    """Print a driver: its text, the expression of its result, and its globals.

    The globals are in addition to the constants of the text.
    """
    text = DriverText()
    arrays = _DeviceArrays(plan, text, device, arena)
    timer = GpuStepTimer(plan, text, arrays.driver_statements, device)
    build_missing(builds_of(plan.steps, device.compute_capability), kernel_cache())
    for step in plan.steps:
        timer.begin(step)
        if isinstance(step, KernelStep):
            arrays.kernel_step(step)
        elif isinstance(step, CopyStep):
            arrays.copy_step(step)
        elif isinstance(step, ProgramStep):
            arrays.program_step(step)
        else:
            arrays.call_step(step)
    timer.end()
    expected = zip(plan.outputs, out_avals, strict=True) if out_avals else ()
    outs = [arrays.output(out, aval) for out, aval in expected]
    names = {
        "allocate": device.allocate,
        "copyto": device.copy_into,
        "new": object.__new__,
        "Array": Array,
        "DeviceArray": DeviceArray,
        "gpu": device,
    }
    text.statements += arrays.driver_statements.statements(names, arrays.counts)
    results = [arrays.result(name, aval) for name, aval in zip(outs, out_avals, strict=True)]
    return text, f"[{', '.join(results)}]", names


class _DeviceArrays(NamedArrays):
    """Names of a driver's arrays and of their addresses, and the statements of its steps.

    Attributes:
        pointer_variables: variable of the address by name of an array. Register n is the n-th one.
        counts: size in bytes of the array at each of these variables.
        driver_statements: the statements that enqueue work.
    """

    device: GpuDevice

    def __init__(self, plan: Plan, text: DriverText, device: GpuDevice, arena: DeviceArena) -> None:
        super().__init__(plan, text, device, arena)
        self.device, self.arena = device, arena
        self.pointer_variables: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        # Printed after all allocations, so that consecutive launches can be recorded.
        self.driver_statements = DriverStatements(text, device, may_record())

    def allocate(self, name: str, aval: ShapedArray) -> None:
        """Print the allocation of an output; inlines ``DeviceArray.__init__`` for speed.

        It must set all attributes of a ``DeviceArray``.
        """
        dtype = storage_dtype(aval.dtype)
        kind, shape = self.text.constant("dtype", dtype), self.text.constant("shape", aval.shape)
        what = self.text.constant("what", partial(described, aval.shape, dtype))
        block, pointer = self.text.fresh("block"), f"pointer{len(self.pointer_variables)}"
        self.pointer_variables[name], self.counts[pointer] = (
            pointer,
            prod(aval.shape) * dtype.itemsize,
        )
        self.text.statement(f"{block} = allocate({self.counts[pointer]}, {what})")
        self.text.statement(
            f"{name} = new(DeviceArray); {name}.device = gpu; {name}.shape = {shape}; "
            f"{name}.dtype = {kind}; {name}.block = {block}; {name}.strides = None; "
            f"{name}.address = {pointer} = {block}.address"
        )

    def body(self, plan: Plan, memory: DeviceArena) -> Callable[..., list[Array]]:
        """The driver of a nested program."""
        return build_driver_function(plan, memory, self.device)

    def locate(self, buffer: int) -> BufferLocation:
        """The location of a buffer of the plan, by its number."""
        if buffer in self.plan.offsets:
            return BufferLocation(None, self.arena.memory.address + self.plan.offsets[buffer])
        return BufferLocation(self._register(self.array(buffer), self.plan.aval(buffer)), 0)

    def _register(self, name: str, aval: ShapedArray) -> int:
        """The register of an array's address; prints its variable at the first use."""
        if name not in self.pointer_variables:
            pointer = self.pointer_variables[name] = f"pointer{len(self.pointer_variables)}"
            self.counts[pointer] = prod(aval.shape) * storage_dtype(aval.dtype).itemsize
            self.text.statement(f"{pointer} = {name}.address")
        return list(self.pointer_variables).index(name)

    def _variables(self, buffers: Iterable[int | None]) -> list[str]:
        """The address variables of those buffers that are not in the arena."""
        locations = [self.locate(b) for b in buffers if b is not None and b >= 0]
        variables = [self._argument(location).variable for location in locations]
        return [variable for variable in variables if variable is not None]

    def kernel_step(self, step: KernelStep) -> None:
        """Print the launches of a kernel step."""
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            registers = LaunchRegisters(self.locate)
            kernel, _ = launched_kernel(step, calls)
            launch = bind_kernel_launch(calls, kernel, registers, self.device)
            if launch is None:
                continue
            arguments = [
                self._argument(BufferLocation(register, 0))
                for register in registers.address_indices
            ]
            writes = self._variables(writes_of(step))
            self.driver_statements.launch("launch", launch, arguments, step.name, writes)

    def copy_step(self, step: CopyStep) -> None:
        """Print a copy of a view."""
        if step.source.aval.size:
            sequence = copy_sequence(step)
            if sequence is not None:
                locations = [self._location(step.source), self.locate(step.target)]
                self._launches(step, sequence, locations)
                return
            target, source = self.array(step.target), self.operand(step.source)
            self.driver_statements.statement(f"copyto({target}, {source})")

    def call_step(self, step: CallStep) -> None:
        """Print the launch sequence of a call, or a call of CuPy or a host function."""
        if step.implementation is not None:
            buffers = [*step.outputs, *([] if step.workspace is None else [step.workspace])]
            locations = [self._location(operand) for operand in step.operands]
            locations += [self.locate(buffer) for buffer in buffers]
            if self._launches(step, step.implementation, locations):
                return
        operands = [self.operand(operand) for operand in step.operands]
        call = self.text.constant("call", LibraryCall(step, self.device))
        outs = ", ".join(self.array(buffer) for buffer in step.outputs)
        self.driver_statements.statement(f"{call}([{outs}], {', '.join(operands)})  # {step.name}")

    def _launches(
        self,
        step: CallStep | CopyStep,
        sequence: LaunchSequence,
        locations: Sequence[BufferLocation],
    ) -> bool:
        """Print the launches of a sequence; False, and no text, if the device lacks a library.

        Args:
            step: the step that the sequence implements.
            sequence: the launches.
            locations: locations of the sequence's arrays, in order.
        """
        calls = [bind_launch(launch, locations, self.device) for launch in sequence.launches]
        if None in calls:
            return False
        writes, add = self._variables(writes_of(step)), self.driver_statements.launch
        for call in calls:
            assert call is not None
            arguments = [self._argument(location) for location in call.buffers]
            if call.out is None:
                add(call.stem, call.run, arguments, step.name, writes)
                continue
            out_variable = arguments[call.out].variable
            out = [] if out_variable is None else [out_variable]
            add(call.stem, call.run, arguments, step.name, out, fills=out)
        return True

    def program_step(self, step: ProgramStep) -> None:
        """Print a loop or branch: as one launch that blocks run, or driven from Python."""
        bound = bind_loop_launch(step, self.device, self.text.keep)
        if bound is not None:
            launch, operand_indices = bound
            locations = [
                *[None if o.buffer == NO_BUFFER else self.locate(o.buffer) for o in step.operands],
                *[self.locate(buffer) for buffer in step.outputs],
            ]
            used = [locations[index] for index in operand_indices]
            arguments = [self._argument(location) for location in used if location is not None]
            writes = self._variables(step.outputs)
            self.driver_statements.launch("launch", launch, arguments, step.name, writes)
            return
        super().program_step(step)
        # The last statement is the call; the others allocate outputs.
        self.driver_statements.statement(self.text.statements.pop())

    def _location(self, operand: StepOperand) -> BufferLocation:
        """The location of an operand's buffer."""
        if operand.buffer != NO_BUFFER:
            return self.locate(operand.buffer)
        literal = self.text.namespace[self.operand(operand)]
        return BufferLocation(None, literal.address)

    def _argument(self, location: BufferLocation) -> AddressArgument:
        """The address of a location, which has no offset if it has a register."""
        register, offset = location
        if register is None:
            return AddressArgument(None, offset)
        return AddressArgument(list(self.pointer_variables.values())[register], 0)
