"""Driver programs: a bound plan as straight-line Python.

The driver allocates outputs and runs as many steps as possible as native programs, which launch
kernels and compute products without Python; libraries and host functions are called from Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuflow.compiler.planning.plan import CallStep, Plan, ProgramStep, all_kernels
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.array import Array
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.marks import Marks
from gpuflow.runtime.memory import SMALLEST_POOLED, Arena, allocate
from gpuflow.runtime.program_arrays import NamedArrays
from gpuflow.runtime.program_text import DriverText
from gpuflow.targets.cpu.runtime.native.copies import addresses_in
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Place, callable_program, fixed
from gpuflow.targets.cpu.runtime.native.services import NativeServices
from gpuflow.targets.cpu.runtime.native.steps import native_step


def build_driver(
    plan: Plan, memory: Arena, driver: Driver, services: NativeServices,
    out_avals: Sequence[ShapedArray] = (),
) -> Callable[..., list[Array]]:  # fmt: skip
    """Print and load the driver of a plan, for one arena of one device.

    Args:
        plan: the plan.
        memory: where its temporaries are.
        driver: the CPU's.
        services: services for native programs.
        out_avals: types of the outputs; none for a program inside another, which writes to given
            addresses and returns nothing.

    Returns:
        ``function(operands, device)``: operands as NumPy arrays, outputs as Arrays.
    """
    places, result = _written(plan, memory, driver, services, out_avals)
    names = {"empty": np.empty, "allocate": allocate, "new": object.__new__, "Array": Array}
    return places.text.finish(result, names)


def driver_text(
    plan: Plan, memory: Arena, driver: Driver, services: NativeServices,
    out_avals: Sequence[ShapedArray],
) -> str:  # fmt: skip
    """The text of a plan's driver, and the instructions of its native programs, for people."""
    places, result = _written(plan, memory, driver, services, out_avals)
    names = {services.load(kernel).address: kernel.name for kernel in all_kernels(plan)}
    parts = [places.text.source(result)]
    for call, code in places.programs:
        parts.append("\n".join([f"{call}:", *(f"    {line}" for line in code.listing(names))]))
    return "\n".join(parts)


def _written(
    plan: Plan, memory: Arena, driver: Driver, services: NativeServices,
    out_avals: Sequence[ShapedArray],
) -> tuple[_Places, str]:  # fmt: skip
    """A plan's driver as far as its text, and the expression of its result."""
    text = DriverText()
    places = _Places(plan, text, driver, memory, services)
    marks = Marks(plan, text)
    for step in plan.steps:
        if marks.active:  # each step by itself
            places.finish_native()
            marks.begin(step)
        emit = native_step(step, services)
        if emit is not None:
            emit(places.code, places)
            places.comments.append(step.name)
            continue
        places.finish_native()
        assert isinstance(step, (CallStep, ProgramStep))  # kernels and copies are native
        if isinstance(step, ProgramStep):
            places.program_step(step)
        else:
            places.call_step(step)
    places.finish_native()
    marks.end()
    wanted = zip(plan.outputs, out_avals, strict=True) if out_avals else ()
    outs = [places.output(out, aval) for out, aval in wanted]
    results = [places.result(name, aval) for name, aval in zip(outs, out_avals, strict=True)]
    return places, f"[{', '.join(results)}]"


class _Places(NamedArrays):
    """Where buffers are: names of arrays in the driver's text, registers of native programs."""

    memory: Arena

    def __init__(
        self, plan: Plan, text: DriverText, driver: Driver, memory: Arena,
        services: NativeServices,
    ) -> None:  # fmt: skip
        super().__init__(plan, text, driver, memory)
        self.services = services
        self.addresses = addresses_in(plan, memory)
        self.programs: list[tuple[str, Code]] = []
        self._start_native()

    def _start_native(self) -> None:
        self.code = Code()
        self.registers: dict[str, int] = {}
        self.comments: list[str] = []

    def allocate(self, name: str, aval: ShapedArray) -> None:
        """Print the allocation of an output."""
        dtype = storage_dtype(aval.dtype)
        count = aval.size * dtype.itemsize
        kind = self.text.constant("dtype", dtype)
        shape = self.text.constant("shape", aval.shape)
        if count < SMALLEST_POOLED:
            self.text.line(f"{name} = empty({shape}, {kind})")
        else:
            size = self.text.constant("bytes", count)
            self.text.line(f"{name} = allocate({shape}, {kind}, {size})")

    def body(self, plan: Plan, memory: Arena) -> Callable[..., list[Array]]:
        """The driver of a program inside this one."""
        return build_driver(plan, memory, self.driver, self.services)

    def place(self, buffer: int) -> Place:
        """Where the native program under construction finds a buffer."""
        at = self.addresses.get(buffer)
        if at is not None:
            return fixed(at)
        return self.registers.setdefault(self.array(buffer), len(self.registers)), 0

    def finish_native(self) -> None:
        """Print the call of the native program under construction, and start another."""
        if self.code.words:
            names = list(self.registers)
            function, kept = callable_program(self.code, len(names), self.services.runtime)
            self.text.keep(kept)
            call = self.text.constant("run", function)
            self.programs.append((call, self.code))
            self.text.line(f"{call}({', '.join(names)})  # {', '.join(self.comments)}")
        self._start_native()

