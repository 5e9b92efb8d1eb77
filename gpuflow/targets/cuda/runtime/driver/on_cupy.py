"""``GpuApi`` of a real GPU: CUDA's calls through CuPy, with our own streams, pools and kernels.

This module only calls CUDA; ``driver/driver.py`` is common to real and simulated GPUs. Written from
CuPy's and CUDA's documentation; not measured on a GPU.

Tests: tests/targets/cuda/test_on_cupy.py.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import ModuleType
from typing import Any, cast

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.installation import pip_install
from gpuflow.compiler.debugging import show
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.targets.cuda.codegen.build import KernelArrayAccess
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.library.blas.epilogue_check import CheckedEpilogues
from gpuflow.targets.cuda.library.blas.gemm import CuBlas, find_cublas, load_cublas, workspace_bytes
from gpuflow.targets.cuda.library.blas.gemm_lt import CuBlasLt, load_cublaslt
from gpuflow.targets.cuda.library.dnn.calls import DnnLibrary
from gpuflow.targets.cuda.library.dnn.cudnn import Cudnn
from gpuflow.targets.cuda.library.dnn.frontend import load_frontend
from gpuflow.targets.cuda.library.dnn.self_check import CheckedLibrary
from gpuflow.targets.cuda.library.dnn.trials import TRIALS
from gpuflow.targets.cuda.runtime.driver.api import (
    BuiltKernel,
    Epilogue,
    Gemm,
    LibraryWork,
    LoadedKernel,
    Pool,
)
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda.runtime.driver.faults import is_fault
from gpuflow.targets.cuda.runtime.driver.graph_api import (
    LaunchGraph,
    bind_driver_launch,
    load_graph_calls,
)

_NO_DEVICE = "cudaErrorNoDevice"
_HAS_ACCESS = "cudaErrorPeerAccessAlreadyEnabled"  # CuPy may have enabled it


def load_cupy() -> ModuleType:
    """Import CuPy.

    Raises:
        RuntimeError: if it is not installed, or fails to import.
    """
    try:
        import cupy
    except Exception as error:
        raise RuntimeError(
            f"[cuda] CuPy must be importable; got {type(error).__name__}: {error}. Fix: "
            f"{pip_install('cuda13')}."
        ) from error
    return cupy


@cache
def device_count() -> int:
    """The number of GPUs.

    Raises:
        RuntimeError: if there is no GPU, driver or CuPy; the error contains the fix.
    """
    runtime = load_cupy().cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except Exception as error:
        if _NO_DEVICE in str(error):
            count = 0
        else:
            raise RuntimeError(
                f"[cuda] CUDA's driver must work; got {error}. Fix: install a driver for CUDA 13 "
                "(580 or newer); gpuflow doctor prints details."
            ) from error
    if count == 0:
        raise NoGpuError(
            "[cuda] there must be a GPU; CUDA shows none. "
            "Fix: check nvidia-smi and CUDA_VISIBLE_DEVICES, or set GPUFLOW_PLATFORM=cpu."
        )
    return count


_graph_calls = cache(load_graph_calls)

# By model of a device: its name and compute capability.
_epilogues: dict[tuple[str, tuple[int, int]], CheckedEpilogues] = {}
_planning_libraries: dict[tuple[str, tuple[int, int]], DnnLibrary] = {}
_frontend = cache(load_frontend)


_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class NoGpuError(RuntimeError):
    """CUDA works, but finds no device."""


class CupyApi:
    """One GPU through CuPy; the methods are those of ``GpuApi``.

    Args:
        number: CUDA's index of the device, also an attribute.
    """

    synchronous = False

    def __init__(self, number: int) -> None:
        cupy = self.xp = load_cupy()
        self._cuda, self._runtime, self._driver = cupy.cuda, cupy.cuda.runtime, cupy.cuda.driver
        self.number, self._has_peers = number, device_count() > 1
        self._ready = _Ready()
        # Held while a library call or graph is enqueued, as these share workspaces.
        self._lock = threading.RLock()
        self._capture_stream: int | None = None  # on which calls of libraries are captured
        self.activate()
        properties = self._runtime.getDeviceProperties(number)
        self.name: str = properties["name"].decode()
        self.compute_capability = (properties["major"], properties["minor"])
        self.processors: int = properties["multiProcessorCount"]
        self.memory_bytes: int = properties["totalGlobalMem"]
        self._streams: dict[int, Any] = {}
        self._tried_peers: set[int] = set()  # devices for which peer access was tried
        self._blas: CuBlas | None = None
        self._lt: CuBlasLt | None = None
        self._has_no_blas = self._has_no_lt = False
        self.dnn_library: DnnLibrary | None = None
        self.planning_library: DnnLibrary | None = None
        model = (self.name, self.compute_capability)
        self.epilogues = _epilogues.setdefault(model, CheckedEpilogues(self, self.gemm_with))
        if config.environment.cudnn:
            library = Cudnn(_frontend, partial(self._cuda.Device, number))
            self.dnn_library = CheckedLibrary(library, self, TRIALS)
            self.planning_library = _planning_libraries.setdefault(model, self.dnn_library)

    def activate(self) -> None:
        """Make the device the current one of this thread; the first call creates its context."""
        if not self._ready.done:
            self._runtime.setDevice(self.number)
            self._runtime.free(0)  # does nothing but create the context
            self._ready.done = True
        elif self._has_peers:
            self._runtime.setDevice(self.number)

    def visit(self) -> None:
        """Make the device the current one of a thread that launches nothing."""
        self._runtime.setDevice(self.number)

    def stream(self) -> int:
        """A new stream, which the default stream does not wait for."""
        stream = self._cuda.Stream(non_blocking=True)
        self._streams[stream.ptr] = stream
        return stream.ptr

    def pool(self) -> Pool:
        """A memory pool of CuPy, separate from that of CuPy's arrays.

        CuPy reuses freed memory per stream: the one that was current at the allocation. A pool that
        serves only one of our streams needs no current stream, as all work on its memory runs in
        the order of that stream.
        """
        return self._cuda.MemoryPool()

    def pinned(self, count: int) -> np.ndarray:
        """Page-locked host memory."""
        return np.frombuffer(self._cuda.alloc_pinned_memory(count), np.uint8, count)

    def event(self, stream: int) -> Any:
        """Record an event without a time; any device may be current.

        Freed arrays record events, while another device may be the current one.
        """
        if self._has_peers:
            with self._cuda.Device(self.number):
                return self._record_event(stream)
        return self._record_event(stream)

    def _record_event(self, stream: int) -> Any:
        event = self._cuda.Event(disable_timing=True)
        event.record(self._streams[stream])
        return event

    def timed_event(self, stream: int) -> Any:
        """Record an event with its time."""
        event = self._cuda.Event()
        event.record(self._streams[stream])
        return event

    def nanoseconds(self, first: Any, second: Any) -> int:
        """The time between two timed events."""
        return round(self._cuda.get_elapsed_time(first, second) * 1e6)

    def wait_event(self, stream: int, event: Any) -> None:
        """Let later work of the stream wait for the event."""
        self._streams[stream].wait_event(event)

    def is_done(self, event: Any) -> bool:
        """Whether the event has completed."""
        return event.done

    def synchronize_event(self, event: Any) -> None:
        """Wait for the event."""
        event.synchronize()

    def synchronize(self, stream: int) -> None:
        """Wait for the stream."""
        self._runtime.streamSynchronize(stream)

    def copy_in(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy from host to device, in stream order."""
        runtime = self._runtime
        runtime.memcpyAsync(target, source, count, runtime.memcpyHostToDevice, stream)

    def copy_out(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy from device to host, in stream order."""
        runtime = self._runtime
        runtime.memcpyAsync(target, source, count, runtime.memcpyDeviceToHost, stream)

    def copy_within(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy within the device, in stream order."""
        runtime = self._runtime
        runtime.memcpyAsync(target, source, count, runtime.memcpyDeviceToDevice, stream)

    def copy_peer(self, target: int, other: CupyApi, source: int, count: int, stream: int) -> None:
        """Copy from another GPU, in stream order; directly if the GPUs allow peer access."""
        if other.number not in self._tried_peers:
            self._enable_peer_access(other.number)
        runtime = self._runtime
        runtime.memcpyPeerAsync(target, self.number, source, other.number, count, stream)

    def _enable_peer_access(self, number: int) -> None:
        """Enable peer access to a device if possible; else CUDA copies through the host."""
        runtime = self._runtime
        if runtime.deviceCanAccessPeer(self.number, number):
            try:
                runtime.deviceEnablePeerAccess(number)
            except runtime.CUDARuntimeError as error:
                if _HAS_ACCESS not in str(error):
                    raise
        self._tried_peers.add(number)

    def clear(self, target: int, count: int, stream: int) -> None:
        """Write zeros, in stream order."""
        self._runtime.memsetAsync(target, 0, count, stream)

    def load(self, kernel: BuiltKernel) -> LoadedKernel:
        """Load a kernel's cubin."""
        module = self._driver.moduleLoadData(kernel.built.cubin)
        function = self._driver.moduleGetFunction(module, kernel.built.entry)
        return LoadedKernel(function, module)

    def unload(self, module: int) -> None:
        """Unload a cubin."""
        self._driver.moduleUnload(module)

    def allow_shared(self, kernel: LoadedKernel, count: int) -> None:
        """Set the limit of dynamic shared memory; the default is 48 KB minus static memory."""
        self._driver.funcSetAttribute(kernel.function, _MAX_DYNAMIC_SHARED, count)

    def bind(
        self,
        kernel: LoadedKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        stream: int,
        shared_bytes: int = 0,
        array_accesses: Sequence[KernelArrayAccess] | None = None,
    ) -> Callable[[], None]:
        """Bind a launch; CUDA reads the parameters during each call."""
        del array_accesses  # only the simulator checks accesses
        launch = self._driver.launchKernel
        return bind_driver_launch(launch, kernel, grid, block, slots, stream, shared_bytes)

    def record(
        self, stream: int, work: Sequence[Callable[[], Any] | LibraryWork]
    ) -> LaunchGraph | None:
        """Build a CUDA graph of the work; None if that fails.

        Calls of libraries are captured on a separate stream, because all work that any thread adds
        to a stream during capture becomes part of the graph.
        """
        with self._lock:
            try:
                if self._capture_stream is None:
                    self._capture_stream = self.stream()
                if self._blas is not None:
                    self._blas.prepare(self._capture_stream)
                return LaunchGraph(
                    _graph_calls(), stream, self._capture_stream, cast(Any, work), self._lock
                )
            except Exception as error:
                if is_fault(error):
                    raise
                show(1, "graph", lambda error=error: f"not recorded: {error}")
                return None

    def library(self, stream: int) -> AbstractContextManager[Any]:
        """Make the stream CuPy's current one."""
        return self._streams[stream]

    def view(self, data: DeviceArray) -> Any:
        """A CuPy array on the same memory."""
        cuda = self._cuda
        # CuPy uses the size only for copies. The block, as its owner, stays alive.
        memory = cuda.UnownedMemory(data.block.address, data.block.count, data.block, self.number)
        pointer = cuda.MemoryPointer(memory, data.address - data.block.address)
        return self.xp.ndarray(data.shape, data.dtype, pointer, data.strides)

    def gemm(self, gemm: Gemm, stream: int) -> Callable[..., None] | None:
        """Bind a GEMM of cuBLAS; None if it is not installed."""
        with self._lock:
            if self._blas is None and not self._has_no_blas:
                try:
                    library = load_cublas(find_cublas())
                except (OSError, AttributeError):
                    self._has_no_blas = True
                else:
                    major = self.compute_capability[0]
                    self._blas = CuBlas(library, stream, self.pool(), major, self._lock)
        return None if self._blas is None else self._blas.gemm(gemm)

    def gemm_with(self, gemm: Gemm, epilogue: Epilogue, stream: int) -> Callable[..., None] | None:
        """Bind a GEMM with an epilogue of cublasLt; None if it is missing or lacks the product."""
        with self._lock:
            if self._lt is None and not self._has_no_lt:
                try:
                    count = workspace_bytes(self.compute_capability[0])
                    self._lt_workspace = self.pool().malloc(count)
                    workspace = self._lt_workspace.ptr, count
                    self._lt = CuBlasLt(load_cublaslt(), workspace, self._lock)
                except (OSError, AttributeError, RuntimeError):
                    self._has_no_lt = True
            return None if self._lt is None else self._lt.gemm_with(gemm, epilogue, stream)

    def free_library_memory(self) -> None:
        """Free unused memory of CuPy's default pool."""
        self.xp.get_default_memory_pool().free_all_blocks()

    def free_bytes(self) -> int:
        """The free memory of the device."""
        return self._runtime.memGetInfo()[0]


class _Ready(threading.local):
    """Per thread: whether it has made the device current."""

    done = False


@cache
def cuda_driver(number: int) -> GpuDriver:
    """The driver of GPU ``number``."""
    return GpuDriver(CupyApi(number), config.environment.preallocate)
