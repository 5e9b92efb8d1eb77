"""A GPU that only plans: programs are lowered and their kernels built, and nothing runs.

Its driver is the one of every GPU; memory is numbers, launches and library calls do nothing, and
whatever is read from it is zero. So a call of a function builds exactly the kernels that a GPU of
that compute capability would ask for, at any size, on any machine.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import gpuflow
from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Platform, register_platform
from gpuflow.targets.cuda.library.dnn.calls import PlannedCall
from gpuflow.targets.cuda.runtime.driver.api import LoadedKernel
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda_sim.driver import SIM_EPILOGUES

# Multiprocessors decide about grids alone; these are an H100's.
PROCESSORS = 132
_ALIGNMENT = 512  # of what CuPy's pools give
_REMEMBERED = 1024  # launches


class _NotRun(Exception):
    """A library was to compute something."""


class Launched(NamedTuple):
    """A kernel that was to be launched, with its grid and block."""

    kernel: Any
    grid: Any
    block: Any


class PlannedLibrary:
    """A cuDNN that takes every call, and computes nothing."""

    def plan_call(self, call: Any, deterministic: bool) -> PlannedCall:
        """A plan without a workspace."""
        return PlannedCall(call, deterministic, 0)

    def bind(self, chosen: Any, stream: int) -> Callable[..., None]:
        """A call of nothing."""
        del chosen, stream
        return _nothing


class PlannedApi:
    """The calls of a GPU, which do nothing.

    Args:
        compute_capability: (9, 0) for sm_90.
        has_cudnn: whether cuDNN makes all calls that it can be asked for.

    Attributes:
        launched: the last launches that were prepared, in order.
    """

    name = "a GPU that only plans"
    processors = PROCESSORS
    memory_bytes = 1 << 40
    xp: Any = np
    synchronous = True

    def __init__(self, compute_capability: tuple[int, int], has_cudnn: bool = False) -> None:
        self.compute_capability = compute_capability
        self.dnn_library = self.planning_library = PlannedLibrary() if has_cudnn else None
        self.epilogues = SIM_EPILOGUES
        self._streams, self._next = 0, 1 << 20
        self.launched: deque[Launched] = deque(maxlen=_REMEMBERED)

    def activate(self) -> None:
        """There is no current device."""

    visit = free_library_memory = activate

    def stream(self) -> int:
        """A number."""
        self._streams += 1
        return self._streams

    def pool(self) -> PlannedApi:
        """Itself: see ``malloc``."""
        return self

    def malloc(self, count: int) -> Any:
        """An address that nothing lies at."""
        place, self._next = self._next, self._next + -(-count // _ALIGNMENT) * _ALIGNMENT
        return SimpleNamespace(ptr=place)

    def free_all_blocks(self) -> None:
        """There are none."""

    def pinned(self, count: int) -> np.ndarray:
        """Any memory of the host."""
        return np.empty(count, np.uint8)

    def event(self, stream: int) -> Any:
        """Nothing."""
        del stream

    timed_event = synchronize = synchronize_event = event

    def nanoseconds(self, first: Any, second: Any) -> int:
        """Nothing runs."""
        del first, second
        return 0

    def wait_event(self, stream: int, event: Any) -> None:
        """Nothing runs."""

    def is_done(self, event: Any) -> bool:
        """Nothing runs."""
        del event
        return True

    def copy_in(self, target: int, source: int, count: int, stream: int) -> None:
        """There is no memory."""

    copy_within = copy_in

    def copy_peer(self, target: int, other: Any, source: int, count: int, stream: int) -> None:
        """There is no memory."""

    def copy_out(self, target: int, source: int, count: int, stream: int) -> None:
        """Zeros: loops that Python drives end, and branches are the first."""
        del source, stream
        ctypes.memset(target, 0, count)

    def clear(self, target: int, count: int, stream: int) -> None:
        """There is no memory."""

    def load(self, kernel: Any) -> LoadedKernel:
        """The kernel, which is built."""
        return LoadedKernel(kernel, kernel)

    def unload(self, module: Any) -> None:
        """Nothing is loaded."""

    def allow_shared(self, kernel: LoadedKernel, count: int) -> None:
        """There is no limit."""

    def bind(
        self,
        kernel: LoadedKernel,
        grid: Any,
        block: Any,
        words: array[int],
        stream: int,
        shared_bytes: int = 0,
        array_accesses: Any = None,
    ) -> Callable[[], None]:
        """A launch of nothing."""
        del words, stream, shared_bytes, array_accesses
        self.launched.append(Launched(kernel.function, grid, block))
        return _nothing

    def record(self, stream: int, work: Sequence[Callable[[], Any]]) -> None:
        """Nothing is recorded."""
        del stream, work

    @contextmanager
    def library(self, stream: int) -> Iterator[None]:
        """What would compute there is left out."""
        del stream
        with suppress(_NotRun):
            yield

    def view(self, data: Any) -> Any:
        """There is no memory to look at."""
        raise _NotRun

    def gemm(self, gemm: Any, stream: int) -> Callable[..., None]:
        """A product of nothing."""
        del gemm, stream
        return _nothing

    def gemm_with(self, gemm: Any, epilogue: Any, stream: int) -> Callable[..., None]:
        """A product of nothing; GPUFLOW_CUDA_EPILOGUES=0 is for libraries that lack it."""
        del gemm, epilogue, stream
        return _nothing

    def free_bytes(self) -> int:
        """As much as one likes."""
        return self.memory_bytes


def _nothing(*addresses: int) -> None:
    """A launch."""


def planned_device(compute_capability: tuple[int, int], has_cudnn: bool = False) -> Any:
    """The device for an architecture, with cuDNN or without; the same one each time."""
    name = "planned_{}_{}".format(*compute_capability) + ("_cudnn" if has_cudnn else "")
    driver = cache(lambda number: GpuDriver(PlannedApi(compute_capability, has_cudnn)))
    with suppress(RuntimeError):
        return gpuflow.devices(name)[0]
    register_platform(Platform(name, lambda: 1, driver))
    return gpuflow.devices(name)[0]


def planned_array(device: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of a shape and dtype, without memory, as ``device_put`` would make it."""
    aval = ShapedArray(shape, np.dtype(dtype))
    data = device.driver.empty(shape, storage_dtype(aval.dtype))
    return Array(data, aval, device.committed)
