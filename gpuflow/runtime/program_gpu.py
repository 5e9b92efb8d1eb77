"""Programs of GPUs: a plan as straight-line Python that launches kernels and calls libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.compiler.cpu import source_path
from gpuflow.compiler.cuda_cache import compile_cuda
from gpuflow.compiler.lower import KernelCall
from gpuflow.compiler.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Plan,
    ProgramStep,
    all_kernels,
    kernels_of,
)
from gpuflow.compiler.target import Allocate
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.jaxpr import Var
from gpuflow.kir.nodes import Kernel
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.gpu_device import GpuDevice
from gpuflow.runtime.gpu_launch import Place, Registers, make_launch
from gpuflow.runtime.kernels import kernel_cache
from gpuflow.runtime.program_arrays import NamedArrays
from gpuflow.runtime.program_text import DriverText


class GpuTarget:
    """Every kernel is one launch, whose scratch memory is the device's."""

    def launches(self, call: KernelCall, allocate: Allocate) -> tuple[KernelCall, ...]:
        """The call itself."""
        return (call,)

    def workspace_bytes(self, step: CallStep) -> int:
        """None: libraries allocate what they need."""
        return 0


class DeviceArena:
    """Device memory for the temporaries of programs; one runs in it at a time."""

    def __init__(self, device: GpuDevice) -> None:
        self.device, self.generation = device, 0
        self.memory: Any = device.empty((0,), np.dtype(np.uint8))

    def reserve(self, count: int) -> None:
        """Make the arena at least ``count`` bytes large."""
        if self.memory.shape[0] < count:
            self.memory = self.device.empty((count,), np.dtype(np.uint8))
            self.generation += 1

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """The array at ``offset`` of the arena."""
        return self.device.strided(shape, dtype, self.memory, offset)

    def part(self, offset: int, count: int) -> DeviceArena:
        """``count`` bytes of this arena, for a program inside another."""
        inner = DeviceArena.__new__(DeviceArena)
        inner.device, inner.generation = self.device, 0
        inner.memory = self.memory[offset : offset + count]
        return inner


class GpuProgram:
    """A plan that runs on one GPU."""

    def __init__(
        self, plan: Plan, out_avals: Sequence[ShapedArray], device: GpuDevice
    ) -> None:
        self.plan, self.out_avals, self.device = plan, out_avals, device
        self._drivers: dict[DeviceArena, tuple[int, Callable[..., list[Array]]]] = {}

    def run(self, arrays: list[Any], device: Device) -> list[Array]:
        """The outputs, on ``device``, for the data of all inputs; kernels may still run."""
        arena = self.device.acquire()
        try:
            driver = self._driver(arena)
            with np.errstate(all="ignore"):
                return driver(arrays, device)
        finally:
            self.device.release(arena)

    def _driver(self, arena: DeviceArena) -> Callable[..., list[Array]]:
        """The driver for an arena, printed again when the arena has moved."""
        generation, driver = self._drivers.get(arena, (-1, None))
        if driver is None or generation != arena.generation:
            arena.reserve(self.plan.arena_bytes)
            driver = _build_driver(self.plan, arena, self.device, self.out_avals)
            self._drivers[arena] = (arena.generation, driver)
        return driver

    def code_bytes(self) -> int:
        """Bytes of the machine code of all kernels, which are built."""
        kernels = {id(kernel): kernel for kernel in all_kernels(self.plan)}
        return sum(len(self._built(kernel).built.cubin) for kernel in kernels.values())

    def sources_of(self, step: KernelStep) -> list[Path]:
        """Where the generated source of a step's kernels lies; they are built."""
        kernels = kernels_of(step)
        for kernel in kernels:
            self._built(kernel)
        paths = [source_path(kernel, kernel_cache()) for kernel in kernels]
        return [path for path in paths if path is not None]

    def _built(self, kernel: Kernel) -> Any:
        return compile_cuda(kernel, kernel_cache(), self.device.compute_capability)


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
    results = [places.result(name, aval) for name, aval in zip(outs, out_avals, strict=True)]
    names = {
        "empty": device.empty, "address": device.address, "copyto": device.xp.copyto,
        "new": object.__new__, "Array": Array,
    }  # fmt: skip
    return text.finish(f"[{', '.join(results)}]", names)


class _Places(NamedArrays):
    """Names of arrays and of their addresses."""

    device: GpuDevice

    def __init__(
        self, plan: Plan, text: DriverText, device: GpuDevice, arena: DeviceArena
    ) -> None:
        super().__init__(plan, text, device, arena)
        self.device, self.arena = device, arena
        self.pointers: dict[str, str] = {}

    def allocate(self, name: str, var: Var) -> None:
        """Print the allocation of an output."""
        kind = self.text.constant("dtype", storage_dtype(var.aval.dtype))
        shape = self.text.constant("shape", var.aval.shape)
        self.text.line(f"{name} = empty({shape}, {kind})")

    def body(self, plan: Plan, memory: DeviceArena) -> Callable[..., list[Array]]:
        """The driver of a program inside this one."""
        return _build_driver(plan, memory, self.device)

    def place(self, var: Var) -> Place:
        """Where a launch finds a buffer."""
        if var not in self.inputs and var not in self.owned:
            return None, self.device.address(self.arena.memory) + self.plan.offsets[var]
        return self._pointer(self.array(var)), 0

    def _pointer(self, name: str) -> int:
        """The number of the variable that holds an array's address."""
        if name not in self.pointers:
            self.pointers[name] = f"pointer{len(self.pointers)}"
            self.text.line(f"{self.pointers[name]} = address({name})")
        return list(self.pointers).index(name)

    def kernel_step(self, step: KernelStep) -> None:
        """Print a step's launches."""
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            registers = Registers(self.place)
            kernel = step.kernel if len(calls) > 1 else calls[0].kernel
            launch = make_launch(calls, kernel, registers, self.device)
            if launch is None:
                continue
            names = list(self.pointers.values())
            used = ", ".join(names[number] for number in registers.numbers)
            self.text.line(f"{self.text.constant('launch', launch)}({used})  # {step.name}")

    def copy_step(self, step: CopyStep) -> None:
        """Print a copy of a view."""
        if step.source.aval.size:
            target, source = self.array(step.target), self.operand(step.source)
            self.text.line(f"copyto({target}, {source})")
