"""The kernels in a device's memory: each is loaded once, and unloaded when no launch holds it.

CUDA does not document the behavior of launches of an unloaded module. A module therefore remains
loaded until an event after them has completed.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from gpuflow.targets.cuda.codegen.build import CudaObject, Touched
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.runtime.driver.api import (
    BuiltKernel,
    DeviceEvent,
    GpuApi,
    LoadedKernel,
    Module,
)


class LoadedKernels:
    """The loaded kernels of one device.

    Args:
        api: of the device.
        stream: that launches run on.
    """

    def __init__(self, api: GpuApi, stream: int) -> None:
        self._api, self._stream = api, stream
        self._loaded: weakref.WeakValueDictionary[CudaObject, LoadedKernel]
        self._loaded = weakref.WeakValueDictionary()
        self._unused: deque[Module] = deque()  # filled by the thread that drops the last launch
        self._waiting: deque[tuple[DeviceEvent, Module]] = deque()
        self._lock = threading.RLock()

    def bind(
        self,
        kernel: BuiltKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        shared_bytes: int,
        touches: Sequence[Touched] | None,
    ) -> Callable[[], None]:
        """A launch, which keeps its kernel loaded; arguments as for ``GpuDevice.prepare``."""
        with self._lock:
            loaded = self._loaded.get(kernel.built)
            if loaded is None:
                self.unload_unused()
                loaded = self._loaded[kernel.built] = self._api.load(kernel)
                unused = weakref.finalize(loaded, self._unused.append, loaded.module)
                unused.atexit = False
            # By default static and dynamic memory may have 48 KB in total. A smaller limit than
            # before would break launches that are bound already.
            if shared_bytes > loaded.dynamic_bytes:
                self._api.allow_shared(loaded, shared_bytes)
                loaded.dynamic_bytes = shared_bytes
        return self._api.bind(loaded, grid, block, slots, self._stream, shared_bytes, touches)

    def built(self) -> set[CudaObject]:
        """The kernels that are loaded."""
        return set(self._loaded)

    def unload_unused(self) -> None:
        """Unload modules that no launch holds, as far as their launches are done."""
        with self._lock:
            if self._unused:
                event = self._api.event(self._stream)
                while self._unused:
                    self._waiting.append((event, self._unused.popleft()))
            while self._waiting and self._api.is_done(self._waiting[0][0]):
                self._api.unload(self._waiting.popleft()[1])
