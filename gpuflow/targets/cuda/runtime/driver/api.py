"""The interface ``GpuApi`` between ``GpuDriver`` and a GPU: CUDA through CuPy, or a simulation.

Everything that differs between a real GPU and the simulated one is in this interface, whose calls
are as small as CUDA's. Streams and addresses are integers; the ``count`` of memory is in bytes.
Except where a method says otherwise, the device must be the current one of the thread
(``activate``), and calls that enqueue work may return before it is done.

Tests: tests/targets/cuda/test_on_cupy.py, tests/targets/cuda_sim/test_cuda_sim.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from gpuflow.base.records import record
from gpuflow.core.epilogues import Epilogue
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.targets.cuda.codegen.build import CudaObject, KernelArrayAccess
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.library.dnn.calls import DnnLibrary

# An event of a stream, and loaded machine code; each implementation has its own classes.
DeviceEvent = Any
Module = Any


class LoadedKernel:
    """A kernel in the memory of a device.

    Args:
        function: handle for launches.
        module: handle for unloading.

    Attributes:
        dynamic_bytes: the most dynamic shared memory that ``allow_shared`` has allowed; 0: the
            default limit holds.
    """

    __slots__ = ("__weakref__", "dynamic_bytes", "function", "module")

    def __init__(self, function: Any, module: Module) -> None:
        self.function, self.module, self.dynamic_bytes = function, module, 0


class BuiltKernel(Protocol):
    """A generated or a handwritten kernel."""

    @property
    def built(self) -> CudaObject:
        """The code for one architecture."""
        ...


class PoolMemory(Protocol):
    """Memory of a pool, which returns to the pool when this object dies."""

    @property
    def ptr(self) -> int:
        """The address."""
        ...


class Pool(Protocol):
    """A caching allocator of device memory."""

    def malloc(self, count: int) -> PoolMemory:
        """Allocate ``count`` bytes.

        Raises:
            MemoryError: if the device memory is full.
        """
        ...

    def free_all_blocks(self) -> None:
        """Return unused memory to the device."""
        ...


@record
class Gemm:
    """A batch of products of row-major matrices, ``out = left @ right``.

    Attributes:
        m, n, k: rows and columns of the result, and the summed dimension.
        left_transposed, right_transposed: whether an operand is stored transposed.
        left_leading, right_leading: leading dimensions: elements from one stored row to the next.
        count: matrices in the batch.
        left_step, right_step, out_step: elements from one matrix to the next; 0 repeats it.
        dtype, out_dtype: dtype of the operands, and of the result.
        reduced: whether float32 and complex64 operands may be rounded to TF32.
    """

    m: int
    n: int
    k: int
    left_transposed: bool
    right_transposed: bool
    left_leading: int
    right_leading: int
    count: int
    left_step: int
    right_step: int
    out_step: int
    dtype: np.dtype
    out_dtype: np.dtype
    reduced: bool = False


class Epilogues(Protocol):
    """A library of products with epilogues on one device."""

    def supports(self, epilogue: Epilogue, dtype: np.dtype, reduced: bool) -> bool:
        """Whether the library has the epilogue, with right results.

        Args:
            epilogue: the epilogue.
            dtype: dtype of all matrices.
            reduced: whether float32 may be rounded to TF32.
        """
        ...


@record
class LibraryWork:
    """A call of a library, whose launches are unknown and must be captured.

    Attributes:
        run: function of a stream, on which it enqueues the call's work.
    """

    run: Callable[[int], Any]


class RecordedWork(Protocol):
    """Recorded work (a CUDA graph), which each call runs once more."""

    def __call__(self) -> None:
        """Enqueue all of the work on the stream."""
        ...

    def change_launch(self, index: int, launch: Callable[[], Any]) -> bool:
        """Replace the launch at an index of the recorded work by a result of ``bind``.

        The result's current parameters are used; work that is already enqueued does not change.
        Returns False if it is impossible; the recording must not be used afterwards.
        """
        ...


class GpuApi(Protocol):
    """One device.

    Attributes:
        name: name of the device in messages.
        compute_capability: such as (9, 0).
        processors: number of multiprocessors.
        memory_bytes: size of device memory.
        xp: the array module: CuPy, or NumPy.
        synchronous: whether work is complete when a call returns.
        dnn_library: the library of convolutions and attention on this device; None: there is
            none, or GPUFLOW_CUDNN=0.
        planning_library: that library on one device of each model, which plans calls for all
            devices of the model, so that they share programs.
        epilogues: the library of products with epilogues on one device of the model; None: there
            is none.
    """

    name: str
    compute_capability: tuple[int, int]
    processors: int
    memory_bytes: int
    xp: Any
    synchronous: bool
    dnn_library: DnnLibrary | None
    planning_library: DnnLibrary | None
    epilogues: Epilogues | None

    def activate(self) -> None:
        """Make the device the current one of this thread, before work is enqueued."""
        ...

    def visit(self) -> None:
        """``activate`` for a thread that enqueues no work and only queries events."""
        ...

    def stream(self) -> int:
        """Create a stream, for which the default stream does not wait."""
        ...

    def pool(self) -> Pool:
        """Create a pool of device memory."""
        ...

    def pinned(self, count: int) -> np.ndarray:
        """Allocate ``count`` bytes of page-locked host memory, which the device copies fast."""
        ...

    def event(self, stream: int) -> DeviceEvent:
        """Record an event after the current work of the stream; any device may be current."""
        ...

    def timed_event(self, stream: int) -> DeviceEvent:
        """Record an event with its time after the current work of the stream."""
        ...

    def nanoseconds(self, first: DeviceEvent, second: DeviceEvent) -> int:
        """The time from ``first`` to ``second``, which are completed timed events."""
        ...

    def wait_event(self, stream: int, event: DeviceEvent) -> None:
        """Let later work of the stream wait for the event."""
        ...

    def is_done(self, event: DeviceEvent) -> bool:
        """Whether the event has completed."""
        ...

    def synchronize_event(self, event: DeviceEvent) -> None:
        """Wait until the event has completed."""
        ...

    def synchronize(self, stream: int) -> None:
        """Wait until all enqueued work of the stream has completed."""
        ...

    def copy_in(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes from host memory; pageable memory may be changed after the call returns.

        Pinned memory must not be changed before the copy is done.
        """
        ...

    def copy_out(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes to host memory, which must be read only after a wait for the stream."""
        ...

    def copy_within(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes within device memory."""
        ...

    def copy_peer(self, target: int, other: Any, source: int, count: int, stream: int) -> None:
        """Copy bytes from the memory of another device of this kind, whose api is ``other``."""
        ...

    def clear(self, target: int, count: int, stream: int) -> None:
        """Write zeros."""
        ...

    def load(self, kernel: BuiltKernel) -> LoadedKernel:
        """Load a built kernel."""
        ...

    def unload(self, module: Module) -> None:
        """Unload the module of a kernel that is not launched any more."""
        ...

    def allow_shared(self, kernel: LoadedKernel, count: int) -> None:
        """Raise the limit of dynamic shared memory for a kernel's launches to ``count`` bytes.

        Raises:
            RuntimeError: if static and dynamic shared memory exceed that of a block.
        """
        ...

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
        """Bind a launch: each call enqueues it with the current contents of ``slots``.

        Args:
            kernel: the kernel; the result holds a reference to it.
            grid, block: launch configuration.
            slots: one 8-byte slot per parameter, whose low bytes are the parameter. Must keep its
                size.
            stream: stream of the launch.
            shared_bytes: dynamic shared memory of a block.
            array_accesses: the arrays that a user's kernel may access; None: do not check.
        """
        ...

    def record(
        self, stream: int, work: Sequence[Callable[[], Any] | LibraryWork]
    ) -> RecordedWork | None:
        """Record work without running it; None if it cannot be recorded.

        Args:
            stream: stream for replays.
            work: results of ``bind``, and calls of libraries, in order.
        """
        ...

    def library(self, stream: int) -> AbstractContextManager[Any]:
        """A context in which ``xp`` enqueues on the stream."""
        ...

    def view(self, data: DeviceArray) -> Any:
        """An array of ``xp`` on the same memory.

        Raises:
            Exception: if ``xp`` has no such dtype.
        """
        ...

    def gemm(self, gemm: Gemm, stream: int) -> Callable[..., None] | None:
        """Bind a GEMM: a function of the addresses of left, right and out; None without a library.

        Its optional fourth argument is a stream that records, instead of ``stream``.
        """
        ...

    def gemm_with(self, gemm: Gemm, epilogue: Epilogue, stream: int) -> Callable[..., None] | None:
        """Bind a GEMM with an epilogue that ``epilogues`` offers, of a batch of one.

        The result is a function of the addresses of left, right, out, bias and aux, 0 for unused
        ones. Its optional sixth argument is a stream that records, instead of ``stream``. None if
        the library has no algorithm for the sizes.
        """
        ...

    def free_library_memory(self) -> None:
        """Return memory that ``xp`` caches to the device."""
        ...

    def free_bytes(self) -> int:
        """Free memory of the device in bytes."""
        ...
