"""Programs of GPUs: a plan as straight-line Python that launches kernels and calls libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.compiler.cuda_cache import CudaKernel, compile_cuda, cuda_source_path
from gpuflow.compiler.lower import NO_BUFFER
from gpuflow.compiler.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Operand,
    Plan,
    ProgramStep,
    calls_python,
)
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.gpu_arena import DeviceArena
from gpuflow.runtime.gpu_device import GpuDevice
from gpuflow.runtime.gpu_graphs import RecordedLaunches, may_record
from gpuflow.runtime.gpu_launch import Place, Registers, launched_kernel, make_launch
from gpuflow.runtime.gpu_library import LibraryCall
from gpuflow.runtime.gpu_products import multiplier, products_of
from gpuflow.runtime.kernels import kernel_cache
from gpuflow.runtime.program_arrays import NamedArrays
from gpuflow.runtime.program_text import DriverText


class GpuProgram:
    """A plan that runs on one GPU.

    Attributes:
        summary: what it is, for errors.
    """

    def __init__(
        self, plan: Plan, out_avals: Sequence[ShapedArray], device: GpuDevice
    ) -> None:
        self.plan, self.out_avals, self.device = plan, out_avals, device
        self.summary = _summary(plan)
        self._drivers: dict[DeviceArena, tuple[int, Callable[..., list[Array]]]] = {}

    def run(self, arrays: list[Any], device: Device) -> list[Array]:
        """The outputs, on ``device``, for the data of all inputs; kernels may still run."""
        arena = self.device.acquire(self)
        try:
            generation, driver = self._drivers.get(arena, _NO_DRIVER)
            if driver is None or generation != arena.generation:
                driver = self._print(arena)
            return driver(arrays, device)
        finally:
            self.device.release(arena)

    def _print(self, arena: DeviceArena) -> Callable[..., list[Array]]:
        """A new driver for an arena, which is new or has moved."""
        arena.reserve(self.plan.arena_bytes)
        driver = _build_driver(self.plan, arena, self.device, self.out_avals)
        if calls_python(self.plan):
            driver = _quietly(driver)
        self._drivers[arena] = (arena.generation, driver)
        return driver

    def forget(self, arenas: Collection[DeviceArena]) -> None:
        """Drop what was made for arenas that are given up."""
        for arena in arenas:
            self._drivers.pop(arena, None)

    def code_bytes(self) -> int:
        """Bytes of the machine code of all kernels, which are built."""
        built = {id(kernel): kernel for kernel in self._built_kernels(self.plan)}
        return sum(len(kernel.built.cubin) for kernel in built.values())

    def sources_of(self, step: KernelStep) -> list[Path]:
        """Where the generated source of a step's kernels lies; they are built."""
        capability = self.device.compute_capability
        paths = []
        for calls in step.launches:
            kernel, vectorize = launched_kernel(step, calls)
            compile_cuda(kernel, kernel_cache(), capability, vectorize)
            paths.append(cuda_source_path(kernel, kernel_cache(), capability, vectorize))
        return [path for path in paths if path is not None]

    def _built_kernels(self, plan: Plan) -> Iterator[CudaKernel]:
        """The kernels of a plan and of the programs inside it."""
        capability = self.device.compute_capability
        for step in plan.steps:
            if isinstance(step, ProgramStep):
                for inner in step.programs:
                    yield from self._built_kernels(inner.plan)
            elif isinstance(step, KernelStep):
                for calls in step.launches:
                    kernel, vectorize = launched_kernel(step, calls)
                    yield compile_cuda(kernel, kernel_cache(), capability, vectorize)


_NO_DRIVER: tuple[int, Any] = (-1, None)


def _quietly(driver: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """The driver without NumPy's warnings, which library calls on the host may give."""

    def run(arrays: list[Any], device: Device) -> list[Array]:
        with np.errstate(all="ignore"):
            return driver(arrays, device)

    return run


def _summary(plan: Plan) -> str:
    """The steps of a plan and where the user wrote the first and the last one, in a line."""
    names = Counter(step.name for step in plan.steps)
    steps = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in names.items())
    lines = [str(eqn.source) for eqn in plan.jaxpr.eqns if eqn.source is not None]
    where = " to ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
    return f"{steps or 'nothing'}{' from ' if where else ''}{where}"


def _build_driver(
    plan: Plan, arena: DeviceArena, device: GpuDevice, out_avals: Sequence[ShapedArray] = ()
) -> Callable[..., list[Array]]:
    """``function(operands, device)``; a program inside another has no ``out_avals``."""
    text = DriverText()
    places = _Places(plan, text, device, arena)
    for step in plan.steps:
        if isinstance(step, KernelStep):
            places.kernel_step(step)
        elif isinstance(step, CopyStep):
            places.copy_step(step)
        elif isinstance(step, ProgramStep):
            places.program_step(step)
        else:
            places.call_step(step)
    outs = [places.output(out) for out in plan.outputs] if out_avals else []
    names = {
        "empty": device.empty, "copyto": device.copy_into, "new": object.__new__, "Array": Array,
    }  # fmt: skip
    text.lines += places.work(names, may_record(places.launches) and bool(out_avals))
    results = [places.result(name, aval) for name, aval in zip(outs, out_avals, strict=True)]
    return text.finish(f"[{', '.join(results)}]", names)


def function_of(
    parameters: str, lines: Sequence[str], namespace: dict[str, Any]
) -> Callable[..., None]:
    """A function with these lines."""
    body = "\n".join("    " + line for line in lines or ["pass"])
    names = dict(namespace)
    exec(compile(f"def work({parameters}):\n{body}\n", "<gpuflow launches>", "exec"), names)
    return names["work"]


class _Places(NamedArrays):
    """Names of arrays and of their addresses."""

    device: GpuDevice

    def __init__(
        self, plan: Plan, text: DriverText, device: GpuDevice, arena: DeviceArena
    ) -> None:
        super().__init__(plan, text, device, arena)
        self.device, self.arena = device, arena
        self.pointers: dict[str, str] = {}
        # What runs on the device stands behind all allocations, so that it can be recorded.
        self._work: list[str] = []
        self._tables: list[str] = []
        self.launches = 0
        self._is_recordable = True

    def work(self, names: dict[str, Any], record: bool) -> list[str]:
        """The lines that give work to the device."""
        if not record or not self._is_recordable:
            return self._work
        pointers = ", ".join(self.pointers.values())
        namespace = {**names, **self.text.namespace}
        made = [
            function_of(pointers, lines, namespace) for lines in (self._work, self._tables)
        ]
        recorded = RecordedLaunches(self.device.api, self.device.compute, *made)
        return [f"{self.text.constant('recorded', recorded)}({pointers})"]

    def allocate(self, name: str, aval: ShapedArray) -> None:
        """Print the allocation of an output."""
        kind = self.text.constant("dtype", storage_dtype(aval.dtype))
        shape = self.text.constant("shape", aval.shape)
        self.text.line(f"{name} = empty({shape}, {kind})")

    def body(self, plan: Plan, memory: DeviceArena) -> Callable[..., list[Array]]:
        """The driver of a program inside this one."""
        return _build_driver(plan, memory, self.device)

    def place(self, buffer: int) -> Place:
        """Where a launch finds a buffer."""
        if buffer in self.plan.offsets:
            return None, self.arena.memory.address + self.plan.offsets[buffer]
        return self._pointer(self.array(buffer)), 0

    def _pointer(self, name: str) -> int:
        """The number of the variable that holds an array's address."""
        if name not in self.pointers:
            self.pointers[name] = f"pointer{len(self.pointers)}"
            self.text.line(f"{self.pointers[name]} = {name}.address")
        return list(self.pointers).index(name)

    def kernel_step(self, step: KernelStep) -> None:
        """Print a step's launches."""
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            registers = Registers(self.place)
            kernel, _ = launched_kernel(step, calls)
            launch = make_launch(calls, kernel, registers, self.device)
            if launch is None:
                continue
            names = list(self.pointers.values())
            used = ", ".join(names[number] for number in registers.numbers)
            name = self.text.constant("launch", launch)
            self._work.append(f"{name}({used})  # {step.name}")
            self.launches += 1
            if launch.has_table:
                self._tables.append(f"{name}.fill_table({used})")

    def copy_step(self, step: CopyStep) -> None:
        """Print a copy of a view."""
        if step.source.aval.size:
            target, source = self.array(step.target), self.operand(step.source)
            self._work.append(f"copyto({target}, {source})")
            self._is_recordable = False

    def call_step(self, step: CallStep) -> None:
        """Print a product of matrices, or the call of a library or host function."""
        products = products_of(step)
        multiply = None
        if products is not None:
            device = self.device
            multiply = multiplier(products, lambda gemm: device.api.gemm(gemm, device.compute))
        if multiply is None:
            operands = [self.operand(operand) for operand in step.operands]
            call = self.text.constant("call", LibraryCall(step, self.device))
            outs = ", ".join(self.array(buffer) for buffer in step.outputs)
            self._work.append(f"{call}([{outs}], {', '.join(operands)})  # {step.name}")
            self._is_recordable = False
            return
        addresses = [self._address(operand) for operand in step.operands]
        out = self._start(step.outputs[0])
        call = self.text.constant("multiply", multiply)
        self._work.append(f"{call}({', '.join(addresses)}, {out})  # {step.name}")
        self.launches += 1

    def program_step(self, step: ProgramStep) -> None:
        """Print a loop or branch that is driven from Python."""
        super().program_step(step)
        # Its last line is the call; allocations of outputs stand before.
        self._work.append(self.text.lines.pop())
        self._is_recordable = False

    def _address(self, operand: Operand) -> str:
        """The text of the address of the buffer behind an operand."""
        if operand.buffer != NO_BUFFER:
            return self._start(operand.buffer)
        return f"{self.operand(operand)}.address"  # a literal

    def _start(self, buffer: int) -> str:
        register, offset = self.place(buffer)
        return str(offset) if register is None else list(self.pointers.values())[register]
