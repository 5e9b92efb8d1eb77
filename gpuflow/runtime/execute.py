"""Executables: what runs a compiled program on Arrays.

Plans share arenas; a driver belongs to one arena, so that callers in several threads never share
argument blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.compiler.cpu import source_path
from gpuflow.compiler.explain import explain_plan
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.plan import KernelStep, Step, bytes_of, calls_python, flops_of
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.trace import Tracer, check_not_leaked
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import Device, default_device
from gpuflow.runtime.driver_cpu import cpu_driver
from gpuflow.runtime.driver_program import build_driver
from gpuflow.runtime.eager import check_finite
from gpuflow.runtime.kernels import kernel_cache
from gpuflow.runtime.memory import SMALLEST_POOLED, Arena, allocate, arenas
from gpuflow.runtime.native_steps import all_kernels, kernels_of


def _references(data: np.ndarray) -> tuple[int, int]:
    """Reference counts of an array and of the memory behind it."""
    return sys.getrefcount(data), sys.getrefcount(data.base)


@cache
def _unshared_references() -> tuple[int, int]:
    """The counts for an array that only its Array and a list of operands hold.

    Measured, because Python versions differ in what they count.
    """
    count = SMALLEST_POOLED
    aval = ShapedArray((count,), np.uint8)
    array = Array(allocate(aval.shape, aval.dtype, count), aval, default_device())
    arrays: list[Any] = [array._data]
    return _references(arrays[0])


def is_shared(arrays: list[np.ndarray], k: int) -> bool:
    """Whether somebody besides one Array holds operand k's memory and would see it change.

    A view of pooled memory refers to the block behind it, as the array itself does.
    """
    own, behind = _references(arrays[k])
    most, most_behind = _unshared_references()
    return own > most or (arrays[k].base is not None and behind > most_behind)


class Executable:
    """A compiled program. Called with operand values, it returns Arrays."""

    def __init__(self, jaxpr: ClosedJaxpr, donated: tuple[bool, ...]) -> None:
        self.in_avals = tuple(jaxpr.in_avals)
        self.donated = tuple(k for k, flag in enumerate(donated) if flag)
        self.plan, self._constants = compile_plan(jaxpr, self.donated, target=cpu_driver())
        self._calls_python = calls_python(self.plan)
        overwritten = set(self.plan.in_place.values())
        self._overwritten = [k for k in self.donated if self.plan.jaxpr.invars[k] in overwritten]
        self._constant_arrays = [as_numpy(value, aval_of(value)) for value in self._constants]
        self._drivers: dict[Arena, tuple[int, Callable[..., list[Any]]]] = {}
        settings = config.trace_context()  # a part of jit's key: programs of others differ
        self._checked = settings if settings.debug_nans or settings.debug_infs else None
        self._out_avals = jaxpr.out_avals
        self._forwarded = [out for out in self.plan.outputs if isinstance(out, int)]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The plan's steps."""
        return self.plan.steps

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        arrays, device = [], None
        for value, aval in zip(operands, self.in_avals, strict=True):
            if type(value) is Array:
                arrays.append(value.data)
                device = value.device
            else:
                if isinstance(value, Tracer):
                    check_not_leaked(value, "jit")
                arrays.append(as_numpy(value, aval))
        for k in self._forwarded:
            if type(operands[k]) is not Array:
                arrays[k] = arrays[k].copy()
        return self.run(arrays, operands, device or default_device())

    def run(
        self, arrays: list[np.ndarray], operands: Sequence[Any], device: Device
    ) -> list[Array]:
        """Run the program on data that is there.

        Args:
            arrays: the data of each operand, in a list that nobody else uses.
            operands: the operands themselves, to delete what is donated.
            device: where the outputs are.
        """
        if self.donated:
            self._check_donated(operands)
            for k in self._overwritten:
                if type(operands[k]) is not Array or is_shared(arrays, k):
                    arrays[k] = arrays[k].copy()
        arrays += self._constant_arrays
        memory = arenas.acquire()
        try:
            driver = self._driver(memory)
            if self._calls_python:
                with np.errstate(all="ignore"):
                    results = driver(arrays, device)
            else:
                results = driver(arrays, device)
        except BaseException:
            self._delete_donated(operands)  # a host function raised: they may be overwritten
            raise
        finally:
            arenas.release(memory)
        if self.donated:
            self._delete_donated(operands)
        if self._checked is not None:
            for array in results:
                check_finite("jit", array.data, array.aval, self._checked)
        return results

    def _delete_donated(self, operands: Sequence[Any]) -> None:
        for k in self.donated:
            if type(operands[k]) is Array:
                operands[k].delete()

    def _check_donated(self, operands: Sequence[Any]) -> None:
        if len({id(value) for value in operands}) == len(operands):
            return
        for k in self.donated:
            same = [n for n, value in enumerate(operands) if value is operands[k]]
            check(
                len(same) == 1 or type(operands[k]) is not Array,
                lambda same=same: (
                    "[jit] a donated array must be passed once; got one array as arguments "
                    f"{same}. Fix: pass a copy, or do not donate it."
                ),
                ValueError,
            )

    def _driver(self, memory: Arena) -> Callable[..., list[Any]]:
        """The driver for an arena, printed again when the arena has moved."""
        generation, driver = self._drivers.get(memory, (-1, None))
        if driver is None or generation != memory.generation:
            memory.reserve(self.plan.arena_bytes)
            cpu_driver().prepare(all_kernels(self.plan))
            driver = build_driver(self.plan, memory, cpu_driver(), self._out_avals)
            self._drivers[memory] = (memory.generation, driver)
        return driver

    def code_bytes(self) -> int:
        """Bytes of the object code of all kernels, which are built."""
        kernels = all_kernels(self.plan)
        cpu_driver().prepare(kernels)
        loaded = {id(made): made for made in map(cpu_driver().load, kernels)}
        return sum(made.size for made in loaded.values())

    def explain(self, name: str) -> str:
        """What the program called ``name`` does, step by step; its kernels are built."""

        def sources_of(step: KernelStep) -> list[Path]:
            paths = []
            for kernel in kernels_of(step):
                cpu_driver().load(kernel)
                paths.append(source_path(kernel, kernel_cache()))
            return [path for path in paths if path is not None]

        return explain_plan(self.plan, name, sources_of)

    def cost_analysis(self) -> dict[str, float]:
        """FLOPs and bytes of one call, from the plan."""
        return {
            "flops": float(sum(flops_of(step) for step in self.steps)),
            "bytes accessed": float(sum(bytes_of(step) for step in self.steps)),
        }


def executable_of(jaxpr: ClosedJaxpr, donated: tuple[bool, ...]) -> Executable:
    """The executable of a program, made once."""
    return jaxpr.jaxpr.memo(("executable", donated), lambda: Executable(jaxpr, donated))
