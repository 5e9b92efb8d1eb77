"""Cache of the kernels that are loaded on a device: loaded once, unloaded if no launch holds them.

CUDA does not document what happens to enqueued launches of an unloaded module. Therefore a module
stays loaded until an event after its last launch has completed.

Tests: tests/targets/cuda/test_cuda_driver.py.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from gpuflow.targets.cuda.codegen.build import CudaObject, KernelArrayAccess
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.runtime.driver.api import (
    BuiltKernel,
    DeviceEvent,
    GpuApi,
    LoadedKernel,
    Module,
)


class LoadedKernels:
    """The loaded kernels of one device; thread-safe.

    Args:
        api: the device.
        stream: stream of all launches.
    """

    def __init__(self, api: GpuApi, stream: int) -> None:
        self._api, self._stream = api, stream
        self._loaded: weakref.WeakValueDictionary[CudaObject, LoadedKernel]
        self._loaded = weakref.WeakValueDictionary()
        self._unused: deque[Module] = deque()  # any thread that drops a last launch appends
        # Unused modules, each with an event after all launches that may still run in it.
        self._waiting: deque[tuple[DeviceEvent, Module]] = deque()
        self._lock = threading.RLock()

    def bind(
        self,
        kernel: BuiltKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        shared_bytes: int,
        array_accesses: Sequence[KernelArrayAccess] | None,
    ) -> Callable[[], None]:
        """Bind a launch, which keeps its kernel loaded; arguments are those of ``GpuApi.bind``."""
        with self._lock:
            loaded = self._loaded.get(kernel.built)
            if loaded is None:
                self.unload_unused()
                loaded = self._loaded[kernel.built] = self._api.load(kernel)
                unused = weakref.finalize(loaded, self._unused.append, loaded.module)
                unused.atexit = False
            # By default, static and dynamic shared memory may have 48 KB in total. The limit only
            # rises: a smaller one would break launches that are bound already.
            if shared_bytes > loaded.dynamic_bytes:
                self._api.allow_shared(loaded, shared_bytes)
                loaded.dynamic_bytes = shared_bytes
        return self._api.bind(
            loaded, grid, block, slots, self._stream, shared_bytes, array_accesses
        )

    def built(self) -> set[CudaObject]:
        """The kernels that are loaded."""
        return set(self._loaded)

    def unload_unused(self) -> None:
        """Unload modules that no launch holds, if their enqueued launches are done."""
        with self._lock:
            if self._unused:
                event = self._api.event(self._stream)
                while self._unused:
                    self._waiting.append((event, self._unused.popleft()))
            while self._waiting and self._api.is_done(self._waiting[0][0]):
                self._api.unload(self._waiting.popleft()[1])
