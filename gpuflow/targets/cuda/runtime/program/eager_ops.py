"""Eager ops on GPUs: each is a compiled program of one equation, which is cached.

``impl`` of a primitive is for the CPU. CuPy lacks dtypes, functions, and NumPy's exact behavior in
edge cases, and its launches cost as much as ours. With programs, eager and jitted results come from
the same kernels (docs/design/0015-cuda-driver.md).

Tests: tests/targets/cuda/test_cuda_device.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.compiler.pipeline import compile_plan
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import one_op
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device
from gpuflow.runtime.driver import Driver, Program

_MAX_PROGRAMS = 4096


class OneOpPrograms:
    """The programs of single ops of one device, by target, primitive, avals and params.

    Args:
        driver: the driver of the device.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # A program, and its constants in device memory, which are its last inputs.
        self._cached: dict[Any, tuple[Program, list[Any]]] = {}

    def run(
        self,
        primitive: Any,
        avals: Sequence[ShapedArray],
        params: dict[str, Any],
        arrays: list[Any],
        device: Device,
    ) -> list[Array]:
        """Run an op on the data of its operands."""
        key = (self._driver.target, primitive, *avals, *params.items())
        try:
            compiled = self._cached.get(key)
        except TypeError:  # params that are not hashable are not cached
            program, constants = self._compile(primitive, avals, params)
        else:
            if compiled is None:
                if len(self._cached) >= _MAX_PROGRAMS:
                    self._cached.clear()
                compiled = self._cached[key] = self._compile(primitive, avals, params)
            program, constants = compiled
        return program.run([*arrays, *constants], device)

    def _compile(
        self, primitive: Any, avals: Sequence[ShapedArray], params: dict[str, Any]
    ) -> tuple[Program, list[Any]]:
        jaxpr = one_op(primitive, avals, params)
        plan, values = compile_plan(jaxpr, target=self._driver.target)
        data = [self._driver.from_host(as_numpy(value, aval_of(value))) for value in values]
        return self._driver.program(plan, jaxpr.out_avals), data
