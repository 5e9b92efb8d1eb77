"""The driver of the CPU: arrays are NumPy arrays, and calls are synchronous.

Data of Arrays is row-major and in the storage dtype of the aval; ``result`` ensures that for ops
that run by their ``impl``. All CPU devices share one driver.

Tests: tests/runtime/test_array.py, tests/runtime/test_memory.py, tests/runtime/test_holders.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.util import SourceLocation
from gpuflow.compiler.planning.plan import Plan
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.primitive import Primitive
from gpuflow.runtime.driver import Driver, FlagReader
from gpuflow.runtime.holders import Holders
from gpuflow.runtime.memory import MIN_POOLED, allocate, process_memory
from gpuflow.runtime.origins import origins
from gpuflow.targets.cpu.runtime.eager_ops import plan_of_op
from gpuflow.targets.cpu.runtime.program import CpuProgram
from gpuflow.targets.cpu.target import NATIVE_TARGET


class CpuDriver:
    """Driver of all CPU devices, which share the process's memory."""

    xp: Any = np
    strided: Callable[..., Any] = np.ndarray
    evaluate: Callable[..., Any] | None = None

    @property
    def target(self) -> Target:
        """The compilation target."""
        return NATIVE_TARGET

    def program_of_op(
        self, primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any]
    ) -> CpuProgram | None:
        """Return a native program for an op outside of jit; None: use the op's ``impl``."""
        planned = plan_of_op(primitive, avals, params)
        if planned is None:
            return None
        plan, jaxpr = planned
        return self.program(plan, jaxpr.out_avals)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialized array."""
        return allocate(shape, dtype, prod(shape) * dtype.itemsize)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        """Return the array itself, without a copy."""
        return array

    def to_host(self, data: np.ndarray) -> np.ndarray:
        """Return the array itself, without a copy."""
        return data

    def from_driver(self, data: Any, source: Driver) -> np.ndarray:
        """Copy another driver's data to host memory."""
        return source.to_host(data)

    def copy(self, data: np.ndarray) -> np.ndarray:
        """Return a copy with the same values."""
        return data.copy()

    def flag_reader(self) -> FlagReader:
        """Return a reader of bool scalars, whose values are always ready."""
        return _read_flag

    def wait(self, data: np.ndarray) -> None:
        """Do nothing: work is synchronous."""

    def result(self, value: Any, aval: ShapedArray, operands: Sequence[np.ndarray]) -> np.ndarray:
        """Convert the result of an ``impl`` to a row-major array that owns its memory.

        It is copied if it is an operand or a view: donation must never reach the buffer of another
        array.
        """
        data = value if type(value) is np.ndarray else np.asarray(value)
        must_copy = data.base is not None
        for operand in operands:
            must_copy = must_copy or data is operand
        dtype = aval.dtype
        if data.dtype is not dtype:
            dtype = storage_dtype(dtype)
            must_copy = must_copy or data.dtype != dtype
        if must_copy or not data.flags.c_contiguous:
            data = np.array(data, dtype=dtype, order="C", copy=True)
        if origins is not None and data.nbytes >= MIN_POOLED:
            origins.note(data)
        return data

    def made_at(self, data: np.ndarray) -> SourceLocation | None:
        """Return the user's line that created a large array, if such lines are recorded."""
        return None if origins is None else origins.of(data)

    def is_shared(self, arrays: list[np.ndarray], k: int) -> bool:
        """Whether operand k's memory is referenced by more than one Array."""
        return _holders.is_shared(arrays, k)

    def memory_stats(self) -> dict[str, int]:
        """Return memory use of the process, and of its pool for large results."""
        return process_memory()

    def program(self, plan: Plan, out_avals: Sequence[ShapedArray]) -> CpuProgram:
        """Return a plan as a program of native code, without building it."""
        return CpuProgram(plan, out_avals, self)


def _pooled_byte_array() -> np.ndarray:
    """A view of pooled memory, as large results are. Small results have no base object."""
    return allocate((MIN_POOLED,), np.dtype(np.uint8), MIN_POOLED)


_holders = Holders(attrgetter("base"), _pooled_byte_array)


@cache
def cpu_driver() -> CpuDriver:
    """The driver of all CPU devices."""
    return CpuDriver()


def _read_flag(data: np.ndarray) -> Callable[[], bool]:
    flag = bool(data)
    return lambda: flag
