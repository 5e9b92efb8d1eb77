"""A plan that is ready to run on the CPU, with one driver function for each arena of temporaries.

Plans share arenas, and a call holds one while it runs. A driver function belongs to one arena. So
calls from several threads never share argument blocks.

Tests: tests/runtime/test_memory_analysis.py, tests/targets/cpu/test_native_builds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.compiler.planning.plan import KernelStep, Plan, all_kernels, calls_python, kernels_of
from gpuflow.core.aval import ShapedArray
from gpuflow.core.communicator import settle
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.runtime.memory import Arena, arenas
from gpuflow.targets.cpu.runtime.driver_program import build_driver_function, driver_text
from gpuflow.targets.cpu.runtime.kernels import source_path
from gpuflow.targets.cpu.runtime.native.services import native_services
from gpuflow.targets.cpu.runtime.native.steps import required_code


class CpuProgram:
    """A plan that runs on the CPU; any thread may call ``run``.

    Args:
        plan: the plan.
        out_avals: types of the outputs.
        driver: the CPU's driver.
    """

    def __init__(self, plan: Plan, out_avals: Sequence[ShapedArray], driver: Driver) -> None:
        self.plan, self.out_avals, self._driver = plan, out_avals, driver
        self._calls_python = calls_python(plan)
        # By arena: its generation when the driver function was built, and the function.
        self._driver_functions: dict[Arena, tuple[int, Callable[..., list[Array]]]] = {}

    def run(self, arrays: list[np.ndarray], device: Device) -> list[Array]:
        """Run the plan on the data of all inputs; returns the outputs, on ``device``.

        The arrays must be row-major, with the shapes and storage dtypes of the plan's inputs. Those
        of donated inputs may be overwritten.
        """
        memory = arenas.acquire()
        try:
            driver_function = self._driver_function(memory)
            if self._calls_python:
                with np.errstate(all="ignore"):
                    return driver_function(arrays, device)
            return driver_function(arrays, device)
        except BaseException:
            settle()  # a started collective still writes to the arena, which is released next
            raise
        finally:
            arenas.release(memory)

    def _driver_function(self, memory: Arena) -> Callable[..., list[Any]]:
        """Return the driver function for an arena; a reallocated arena needs a new one.

        The caller holds the arena.
        """
        generation, driver_function = self._driver_functions.get(memory, (-1, None))
        if driver_function is None or generation != memory.generation:
            memory.reserve(self.plan.arena_bytes)
            services = native_services()
            services.prepare(required_code(self.plan, services))
            driver_function = build_driver_function(
                self.plan, memory, self._driver, services, self.out_avals
            )
            self._driver_functions[memory] = (memory.generation, driver_function)
        return driver_function

    def driver_text(self) -> str:
        """Return the text of the driver function for one arena, with its native programs."""
        memory, services = arenas.acquire(), native_services()
        try:
            memory.reserve(self.plan.arena_bytes)
            return driver_text(self.plan, memory, self._driver, services, self.out_avals)
        finally:
            arenas.release(memory)

    def build(self) -> None:
        """Build all code that a call may use."""
        services = native_services()
        services.prepare(required_code(self.plan, services))

    def code_bytes(self) -> int:
        """Return the bytes of object code of all kernels; builds them."""
        self.build()
        kernels, services = all_kernels(self.plan), native_services()
        loaded = {id(kernel): kernel for kernel in map(services.load, kernels)}
        return sum(kernel.size for kernel in loaded.values())

    def sources_of(self, step: KernelStep) -> list[Path]:
        """Return the files of the generated source of a step's kernels; builds them."""
        paths = []
        for kernel in kernels_of(step):
            native_services().load(kernel)
            paths.append(source_path(kernel, kernel_cache()))
        return [path for path in paths if path is not None]
