"""Driver functions of the CPU: a bound plan as straight-line Python.

A driver function allocates outputs. It merges as many consecutive steps as possible into native
programs, which launch kernels and call BLAS without Python. Other libraries and host functions are
called from Python. (``Driver`` is the platform: the code that stores the arrays of a device.)

Tests: tests/targets/cpu/test_native_functions.py, tests/targets/cpu/test_native_builds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuflow.compiler.planning.plan import CallStep, Plan, ProgramStep, all_kernels
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.array import Array
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.memory import MIN_POOLED, Arena, allocate
from gpuflow.runtime.program_arrays import NamedArrays
from gpuflow.runtime.program_text import DriverText
from gpuflow.runtime.step_timer import StepTimer
from gpuflow.targets.cpu.runtime.native.copies import temporary_addresses
from gpuflow.targets.cpu.runtime.native.program_writer import (
    Code,
    Location,
    callable_program,
    fixed,
)
from gpuflow.targets.cpu.runtime.native.services import NativeServices
from gpuflow.targets.cpu.runtime.native.steps import native_step


def build_driver_function(
    plan: Plan,
    memory: Arena,
    driver: Driver,
    services: NativeServices,
    out_avals: Sequence[ShapedArray] = (),
) -> Callable[..., list[Array]]:
    """Print and load the driver function of a plan, for one arena.

    The addresses of temporaries are constants of the function. So it is valid as long as the arena
    is not reallocated, and only one thread may run it at a time.

    Args:
        plan: the plan.
        memory: the arena of its temporaries, with at least ``plan.arena_bytes`` reserved.
        driver: the CPU's driver.
        services: services for native programs.
        out_avals: types of the outputs. Empty for a nested program, which writes its outputs to
            addresses that it is passed, and returns nothing.

    Returns:
        ``function(operands, device)``, which takes NumPy arrays in the order of the plan's inputs
        and returns Arrays. It does not check them: they must have the plan's shapes and storage
        dtypes, and be row-major.
    """
    writer, result = _write_driver_function(plan, memory, driver, services, out_avals)
    names = {"empty": np.empty, "allocate": allocate, "new": object.__new__, "Array": Array}
    return writer.text.finish(result, names)


def driver_text(
    plan: Plan,
    memory: Arena,
    driver: Driver,
    services: NativeServices,
    out_avals: Sequence[ShapedArray],
) -> str:
    """Return a plan's driver function as text, with its native programs disassembled."""
    writer, result = _write_driver_function(plan, memory, driver, services, out_avals)
    kernel_names = {services.load(kernel).address: kernel.name for kernel in all_kernels(plan)}
    texts = [writer.text.source(result)]
    for program_name, code in writer.programs:
        instructions = [f"    {instruction}" for instruction in code.listing(kernel_names)]
        texts.append("\n".join([f"{program_name}:", *instructions]))
    return "\n".join(texts)


def _write_driver_function(
    plan: Plan,
    memory: Arena,
    driver: Driver,
    services: NativeServices,
    out_avals: Sequence[ShapedArray],
) -> tuple[_DriverWriter, str]:
    """Return the writer of a plan's driver function, and the expression that it returns."""
    text = DriverText()
    writer = _DriverWriter(plan, text, driver, memory, services)
    timer = StepTimer(plan, text)
    for step in plan.steps:
        if timer.active:  # the profiler times each step, so each is a separate program
            writer.finish_native()
            timer.begin(step)
        emit = native_step(step, services)
        if emit is not None:
            emit(writer.code, writer)
            writer.comments.append(step.name)
            continue
        writer.finish_native()
        assert isinstance(step, (CallStep, ProgramStep))  # kernels and copies are native
        if isinstance(step, ProgramStep):
            writer.program_step(step)
        else:
            writer.call_step(step)
    writer.finish_native()
    timer.end()
    typed_outputs = zip(plan.outputs, out_avals, strict=True) if out_avals else ()
    outs = [writer.output(out, aval) for out, aval in typed_outputs]
    results = [writer.result(name, aval) for name, aval in zip(outs, out_avals, strict=True)]
    return writer, f"[{', '.join(results)}]"


class _DriverWriter(NamedArrays):
    """Writes a driver function's text, and the native programs that it calls.

    It implements ``Locations`` for the native program under construction.

    Attributes:
        services: services for native programs.
        addresses: addresses of temporaries by buffer.
        programs: the finished native programs, after the names by which the text calls them.
        code: the native program under construction.
        registers: indices of its registers, by the name of the array that the text passes in.
        comments: names of the program's steps, for the comment in the text.
    """

    memory: Arena

    def __init__(
        self,
        plan: Plan,
        text: DriverText,
        driver: Driver,
        memory: Arena,
        services: NativeServices,
    ) -> None:
        super().__init__(plan, text, driver, memory)
        self.services = services
        self.addresses = temporary_addresses(plan, memory)
        self.programs: list[tuple[str, Code]] = []
        self._start_native()

    def _start_native(self) -> None:
        self.code = Code()
        self.registers: dict[str, int] = {}
        self.comments: list[str] = []

    def allocate(self, name: str, aval: ShapedArray) -> None:
        """Print the allocation of an output."""
        dtype = storage_dtype(aval.dtype)
        byte_count = aval.size * dtype.itemsize
        dtype_name = self.text.constant("dtype", dtype)
        shape = self.text.constant("shape", aval.shape)
        if byte_count < MIN_POOLED:
            self.text.statement(f"{name} = empty({shape}, {dtype_name})")
        else:
            size = self.text.constant("bytes", byte_count)
            self.text.statement(f"{name} = allocate({shape}, {dtype_name}, {size})")

    def body(self, plan: Plan, memory: Arena) -> Callable[..., list[Array]]:
        """The driver function of a nested program."""
        return build_driver_function(plan, memory, self.driver, self.services)

    def of(self, buffer: int) -> Location:
        """The location of a buffer in the native program under construction."""
        at = self.addresses.get(buffer)
        if at is not None:
            return fixed(at)
        register = self.registers.setdefault(self.array(buffer), len(self.registers))
        return Location(register, 0)

    def finish_native(self) -> None:
        """Print the call of the native program under construction, and start a new one."""
        if self.code.instructions:
            arrays = list(self.registers)
            function, owners = callable_program(self.code, len(arrays), self.services.runtime)
            self.text.keep(owners)
            program_name = self.text.constant("run", function)
            self.programs.append((program_name, self.code))
            call = f"{program_name}({', '.join(arrays)})"
            self.text.statement(f"{call}  # {', '.join(self.comments)}")
        self._start_native()
