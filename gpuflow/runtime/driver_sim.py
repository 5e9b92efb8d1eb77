"""The driver of the simulated GPU: NumPy memory, and an interpreter that runs our kernels' PTX.

It is for tests and debugging where there is no GPU: programs take the very path that they take on
one, and what a GPU would do silently, such as a load out of bounds, is an error.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from gpuflow.compiler.cuda_cache import DEFAULT_COMPUTE_CAPABILITY, CudaKernel
from gpuflow.compiler.cuda_schedule import Dim
from gpuflow.compiler.plan import Plan
from gpuflow.compiler.target import Target
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.driver_cpu import is_shared
from gpuflow.runtime.memory import address
from gpuflow.runtime.program_gpu import DeviceArena, GpuProgram, GpuTarget
from gpuflow.runtime.ptx.kernel import PtxModule
from gpuflow.runtime.ptx.memory import DeviceMemory

PROCESSORS = 2  # few, so that grids stay small
_TARGET = GpuTarget()


class SimDriver:
    """One simulated GPU."""

    xp: Any = np
    strided: Callable[..., Any] = np.ndarray
    compute_capability: tuple[int, int] = DEFAULT_COMPUTE_CAPABILITY
    processors: int = PROCESSORS

    def __init__(self) -> None:
        self.memory = DeviceMemory()
        self._idle: list[DeviceArena] = []
        self._scratch = self.empty((0,), np.dtype(np.uint8))
        self._counters = self.empty((0,), np.dtype(np.uint32))
        self._kept: list[Any] = []  # programs hold the addresses of what was outgrown
        self._lock = threading.Lock()

    @property
    def target(self) -> Target:
        """One launch for each kernel."""
        return _TARGET

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Device memory, given back when no array uses it."""
        count = max(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 1)
        place = self.memory.allocate(count)
        memory: Any = self.memory.view(place, count)
        block: Any = (ctypes.c_char * count).from_buffer(memory)
        weakref.finalize(block, self.memory.free, place)
        return np.ndarray(shape, dtype, buffer=block)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        """A copy in device memory."""
        data = self.empty(array.shape, array.dtype)
        np.copyto(data, array)
        return data

    def to_host(self, data: np.ndarray) -> np.ndarray:
        """The memory itself: all kernels have run."""
        return data

    def copy(self, data: np.ndarray) -> np.ndarray:
        """A copy."""
        return self.from_host(data)

    def wait(self, data: np.ndarray) -> None:
        """Nothing is under way."""

    def result(
        self, value: Any, aval: ShapedArray, operands: Sequence[np.ndarray]
    ) -> np.ndarray:
        """The value in device memory."""
        return self.from_host(np.asarray(value, storage_dtype(aval.dtype)))

    def is_shared(self, arrays: list[np.ndarray], k: int) -> bool:
        """As on the CPU."""
        return is_shared(arrays, k)

    def program(self, plan: Plan, out_avals: Sequence[ShapedArray]) -> GpuProgram:
        """The plan as launches."""
        return GpuProgram(plan, out_avals, self)

    def address(self, data: np.ndarray) -> int:
        """The address of the first element."""
        return address(data)

    def upload(self, data: np.ndarray, words: array[int]) -> None:
        """Copy words."""
        data[:] = words

    def load(self, kernel: CudaKernel) -> Any:
        """The kernel's PTX, parsed."""
        return PtxModule(kernel.built.ptx).entry(kernel.built.entry)

    def launch(self, function: Any, grid: Dim, block: Dim, words: array[int]) -> None:
        """Run the whole grid."""
        function.launch(grid, block, np.frombuffer(words, np.uint64), self.memory)

    def scratch(self, count: int) -> int:
        """One memory for all launches, as they run one after the other."""
        with self._lock:
            if self._scratch.nbytes < count:
                self._kept.append(self._scratch)
                self._scratch = self.empty((count,), np.dtype(np.uint8))
            return address(self._scratch)

    def counters(self, count: int) -> int:
        """One memory for all launches, as they leave zeros behind."""
        with self._lock:
            if self._counters.size < count:
                self._kept.append(self._counters)
                self._counters = self.empty((count,), np.dtype(np.uint32))
                self._counters[:] = 0
            return address(self._counters)

    def acquire(self) -> DeviceArena:
        """An arena that no running program uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return DeviceArena(self)

    def release(self, arena: DeviceArena) -> None:
        """Give back an arena."""
        self._idle.append(arena)


@cache
def sim_driver(number: int) -> SimDriver:
    """The driver of simulated device ``number``."""
    del number
    return SimDriver()
