"""Programs of GPUs: a plan, with a printed driver for each arena in which it runs.

A driver is straight-line Python that launches kernels and calls libraries (``driver_text``).

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_cuda_programs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.compiler.planning.plan import KernelStep, Plan, ProgramStep, calls_python
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import settle
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.cached_builds import CudaKernel, compile_cuda, cuda_source_path
from gpuflow.targets.cuda.runtime.driver.arena import DeviceArena
from gpuflow.targets.cuda.runtime.driver.launch import launched_kernel
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice
from gpuflow.targets.cuda.runtime.program.build_processes import Build, build_missing
from gpuflow.targets.cuda.runtime.program.driver_text import build_driver_function, driver_text
from gpuflow.targets.cuda.runtime.program.step_builds import builds_of


class GpuProgram:
    """A plan on one GPU; thread-safe, as concurrent calls run in different arenas.

    Attributes:
        summary: description for errors of kernels.
    """

    def __init__(self, plan: Plan, out_avals: Sequence[ShapedArray], device: GpuDevice) -> None:
        self.plan, self.out_avals, self.device = plan, out_avals, device
        self.summary = _summary(plan)
        # By arena: the generation for which the driver was printed, and the driver.
        self._drivers: dict[DeviceArena, tuple[int, Callable[..., list[Array]]]] = {}

    def run(self, arrays: list[Any], device: Device) -> list[Array]:
        """Run the plan on the data of all inputs; returns while kernels may still run."""
        arena = self.device.acquire(self)
        try:
            generation, driver = self._drivers.get(arena, _NO_DRIVER)
            if driver is None or generation != arena.generation:
                driver = self._print(arena)
            return driver(arrays, device)
        except BaseException as error:
            settle()  # a pending collective must not write into memory that is reused
            translated = self.device.fault_of(error)
            if translated is error:
                raise
            raise translated from error
        finally:
            self.device.release(arena)

    def _print(self, arena: DeviceArena) -> Callable[..., list[Array]]:
        """Print the driver for an arena that is new or was reallocated."""
        arena.reserve(self.plan.arena_bytes)
        driver = build_driver_function(self.plan, arena, self.device, self.out_avals)
        if calls_python(self.plan):
            driver = _quietly(driver)
        self._drivers[arena] = (arena.generation, driver)
        return driver

    def forget(self, arenas: Collection[DeviceArena]) -> None:
        """Drop the drivers of arenas that are freed."""
        for arena in arenas:
            self._drivers.pop(arena, None)

    def driver_text(self) -> str:
        """The text of the driver for one arena."""
        arena = self.device.acquire(self)
        try:
            arena.reserve(self.plan.arena_bytes)
            return driver_text(self.plan, arena, self.device, self.out_avals)
        finally:
            self.device.release(arena)

    def code_bytes(self) -> int:
        """Size of the machine code of all kernels, which it builds if necessary."""
        built = {id(kernel): kernel for kernel in self._built_kernels(self.plan)}
        return sum(len(kernel.built.cubin) for kernel in built.values())

    def sources_of(self, step: KernelStep) -> list[Path]:
        """Files of the printed source of a step's kernels, which it builds if necessary."""
        capability = self.device.compute_capability
        paths = []
        for calls in step.launches:
            kernel, vectorize = launched_kernel(step, calls)
            compile_cuda(kernel, kernel_cache(), capability, vectorize)
            paths.append(cuda_source_path(kernel, kernel_cache(), capability, vectorize))
        return [path for path in paths if path is not None]

    def build(self) -> None:
        """Build all kernels that calls may need, including variants for unaligned addresses."""
        build_missing(self._builds(self.plan), kernel_cache())
        for _ in self._built_kernels(self.plan, unaligned=True):
            pass

    def _builds(self, plan: Plan) -> Iterator[Build]:
        """The builds of a plan and of nested programs."""
        yield from builds_of(plan.steps, self.device.compute_capability)
        for step in plan.steps:
            if isinstance(step, ProgramStep):
                for inner in step.programs:
                    yield from self._builds(inner.plan)

    def _built_kernels(self, plan: Plan, unaligned: bool = False) -> Iterator[CudaKernel]:
        """The kernels of a plan and of nested programs, built if necessary."""
        capability = self.device.compute_capability
        for step in plan.steps:
            if isinstance(step, ProgramStep):
                for inner in step.programs:
                    yield from self._built_kernels(inner.plan, unaligned)
            elif isinstance(step, KernelStep):
                for calls in step.launches:
                    kernel, vectorize = launched_kernel(step, calls)
                    yield compile_cuda(kernel, kernel_cache(), capability, vectorize)
                    if unaligned:
                        yield compile_cuda(kernel, kernel_cache(), capability, False)


_NO_DRIVER: tuple[int, Any] = (-1, None)


def _quietly(driver: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """The driver with NumPy's warnings disabled, which host functions could cause."""

    def run(arrays: list[Any], device: Device) -> list[Array]:
        with np.errstate(all="ignore"):
            return driver(arrays, device)

    return run


def _summary(plan: Plan) -> str:
    """One line of text: step names of a plan, and source lines of its first and last equation."""
    names = Counter(step.name for step in plan.steps)
    steps = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in names.items())
    sources = [str(eqn.source) for eqn in plan.jaxpr.eqns if eqn.source is not None]
    where = " to ".join(dict.fromkeys([*sources[:1], *sources[-1:]]))
    return f"{steps or 'nothing'}{' from ' if where else ''}{where}"
