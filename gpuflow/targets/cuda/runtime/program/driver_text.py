"""Print the driver of a plan on a GPU: straight-line Python that launches its steps.

The address of each array outside of the arena is in a variable ``pointerN``. Register N of
``BufferLocation`` is that variable; buffers in the arena have fixed addresses, which are constants.
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
    Operand,
    Plan,
    ProgramStep,
    writes_of,
)
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.array import Array
from gpuflow.runtime.device_array import DeviceArray, described
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.runtime.program_arrays import NamedArrays
from gpuflow.runtime.program_text import DriverText
from gpuflow.targets.cuda.library.launch_binding import bound, copy_sequence
from gpuflow.targets.cuda.library.launch_sequence import LaunchSequence
from gpuflow.targets.cuda.runtime.driver.arena import DeviceArena
from gpuflow.targets.cuda.runtime.driver.graphs import may_record
from gpuflow.targets.cuda.runtime.driver.launch import (
    BufferLocation,
    Registers,
    launched_kernel,
    make_launch,
)
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice
from gpuflow.targets.cuda.runtime.program.block_programs import block_launch
from gpuflow.targets.cuda.runtime.program.build_processes import build_missing
from gpuflow.targets.cuda.runtime.program.library_calls import LibraryCall
from gpuflow.targets.cuda.runtime.program.step_builds import builds_of
from gpuflow.targets.cuda.runtime.program.step_timer import GpuStepTimer
from gpuflow.targets.cuda.runtime.program.work import Argument, Work


def build_driver(
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
    """Print a driver: its text, the expression of its result, and its globals."""
    text = DriverText()
    arrays = _DeviceArrays(plan, text, device, arena)
    timer = GpuStepTimer(plan, text, arrays.work, device)
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
    text.statements += arrays.work.statements(names, arrays.counts)
    results = [arrays.result(name, aval) for name, aval in zip(outs, out_avals, strict=True)]
    return text, f"[{', '.join(results)}]", names


class _DeviceArrays(NamedArrays):
    """Names of a driver's arrays and of their addresses, and the statements of its steps.

    Attributes:
        pointers: variable of the address by name of an array; the order numbers the registers.
        counts: size in bytes of the array at each of these variables.
        work: the statements that enqueue work.
    """

    device: GpuDevice

    def __init__(self, plan: Plan, text: DriverText, device: GpuDevice, arena: DeviceArena) -> None:
        super().__init__(plan, text, device, arena)
        self.device, self.arena = device, arena
        self.pointers: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        # Printed after all allocations, so that consecutive launches can be recorded.
        self.work = Work(text, device, may_record())

    def allocate(self, name: str, aval: ShapedArray) -> None:
        """Print the allocation of an output; inlines ``DeviceArray.__init__`` for speed."""
        dtype = storage_dtype(aval.dtype)
        kind, shape = self.text.constant("dtype", dtype), self.text.constant("shape", aval.shape)
        what = self.text.constant("what", partial(described, aval.shape, dtype))
        block, pointer = self.text.fresh("block"), f"pointer{len(self.pointers)}"
        self.pointers[name], self.counts[pointer] = pointer, prod(aval.shape) * dtype.itemsize
        self.text.statement(f"{block} = allocate({self.counts[pointer]}, {what})")
        self.text.statement(
            f"{name} = new(DeviceArray); {name}.device = gpu; {name}.shape = {shape}; "
            f"{name}.dtype = {kind}; {name}.block = {block}; {name}.strides = None; "
            f"{name}.address = {pointer} = {block}.address"
        )

    def body(self, plan: Plan, memory: DeviceArena) -> Callable[..., list[Array]]:
        """The driver of a nested program."""
        return build_driver(plan, memory, self.device)

    def locate(self, buffer: int) -> BufferLocation:
        """The location of a buffer."""
        if buffer in self.plan.offsets:
            return None, self.arena.memory.address + self.plan.offsets[buffer]
        return self._pointer(self.array(buffer), self.plan.aval(buffer)), 0

    def _pointer(self, name: str, aval: ShapedArray) -> int:
        """The register of an array's address; prints its variable at the first use."""
        if name not in self.pointers:
            pointer = self.pointers[name] = f"pointer{len(self.pointers)}"
            self.counts[pointer] = prod(aval.shape) * storage_dtype(aval.dtype).itemsize
            self.text.statement(f"{pointer} = {name}.address")
        return list(self.pointers).index(name)

    def _variables(self, buffers: Iterable[int | None]) -> list[str]:
        """The address variables of those buffers that are not in the arena."""
        variables = [self._argument(self.locate(b))[0] for b in buffers if b is not None and b >= 0]
        return [name for name in variables if name is not None]

    def kernel_step(self, step: KernelStep) -> None:
        """Print the launches of a kernel step."""
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            registers = Registers(self.locate)
            kernel, _ = launched_kernel(step, calls)
            launch = make_launch(calls, kernel, registers, self.device)
            if launch is None:
                continue
            used = [self._argument((number, 0)) for number in registers.numbers]
            self.work.launch("launch", launch, used, step.name, self._variables(writes_of(step)))

    def copy_step(self, step: CopyStep) -> None:
        """Print a copy of a view."""
        if step.source.aval.size:
            sequence = copy_sequence(step)
            if sequence is not None:
                locations = [self._location(step.source), self.locate(step.target)]
                self._launches(step, sequence, locations)
                return
            target, source = self.array(step.target), self.operand(step.source)
            self.work.statement(f"copyto({target}, {source})")

    def call_step(self, step: CallStep) -> None:
        """Print the launch sequence of a call, or a call of CuPy or a host function."""
        if step.choice is not None:
            buffers = [*step.outputs, *([] if step.workspace is None else [step.workspace])]
            locations = [self._location(operand) for operand in step.operands]
            locations += [self.locate(buffer) for buffer in buffers]
            if self._launches(step, step.choice, locations):
                return
        operands = [self.operand(operand) for operand in step.operands]
        call = self.text.constant("call", LibraryCall(step, self.device))
        outs = ", ".join(self.array(buffer) for buffer in step.outputs)
        self.work.statement(f"{call}([{outs}], {', '.join(operands)})  # {step.name}")

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
        launches = [bound(one, locations, self.device) for one in sequence.launches]
        if None in launches:
            return False
        writes = self._variables(writes_of(step))
        for one in launches:
            assert one is not None
            arguments = [self._argument(location) for location in one.buffers]
            if one.out is None:
                self.work.launch(one.stem, one.run, arguments, step.name, writes)
                continue
            name, _ = arguments[one.out]
            out = [] if name is None else [name]
            self.work.launch(one.stem, one.run, arguments, step.name, out, fills=out)
        return True

    def program_step(self, step: ProgramStep) -> None:
        """Print a loop or branch: as one launch that blocks run, or driven from Python."""
        one = block_launch(step, self.device, self.text.keep)
        if one is not None:
            launch, numbers = one
            locations = [
                *[None if o.buffer == NO_BUFFER else self.locate(o.buffer) for o in step.operands],
                *[self.locate(buffer) for buffer in step.outputs],
            ]
            used = [locations[number] for number in numbers]
            arguments = [self._argument(location) for location in used if location is not None]
            self.work.launch("launch", launch, arguments, step.name, self._variables(step.outputs))
            return
        super().program_step(step)
        # The last statement is the call; the others allocate outputs.
        self.work.statement(self.text.statements.pop())

    def _address(self, operand: Operand) -> Argument:
        """The address of an operand's buffer, as an argument."""
        return self._argument(self._location(operand))

    def _location(self, operand: Operand) -> BufferLocation:
        """The location of an operand's buffer."""
        if operand.buffer != NO_BUFFER:
            return self.locate(operand.buffer)
        return None, self.text.namespace[self.operand(operand)].address  # a literal

    def _argument(self, location: BufferLocation) -> Argument:
        register, offset = location
        return (None, offset) if register is None else (list(self.pointers.values())[register], 0)
