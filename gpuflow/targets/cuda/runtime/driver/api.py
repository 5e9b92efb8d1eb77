"""Interface of GPU drivers to CuPy and CUDA's driver, or to a simulation of both.

Everything that differs between a real GPU and the simulated one is here, in calls as small as
CUDA's own. Streams, events and addresses are plain integers, as they are for CUDA.
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
from gpuflow.targets.cuda.codegen.build import CudaObject, Touched
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.library.dnn.calls import DeepLibrary

# An event of a stream, and loaded code: each device has its own classes.
DeviceEvent = Any
Module = Any


class LoadedKernel:
    """A kernel in a device's memory.

    Args:
        function: by which the device launches it.
        module: by which the device unloads it.

    Attributes:
        dynamic_bytes: the dynamic shared memory that launches were allowed so far.
    """

    __slots__ = ("__weakref__", "dynamic_bytes", "function", "module")

    def __init__(self, function: Any, module: Module) -> None:
        self.function, self.module, self.dynamic_bytes = function, module, 0


class BuiltKernel(Protocol):
    """A generated or a handwritten kernel."""

    @property
    def built(self) -> CudaObject:
        """Its code for one architecture."""
        ...


class PoolMemory(Protocol):
    """Memory of a pool, returned to it when nothing refers to it."""

    @property
    def ptr(self) -> int:
        """Its address."""
        ...


class Pool(Protocol):
    """Cached device memory."""

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
    """One stack of products of row-major matrices, ``out = left @ right``.

    Attributes:
        m, n, k: rows, columns and depth.
        left_transposed, right_transposed: whether a matrix is stored transposed.
        left_leading, right_leading: elements from one row in memory to the next.
        count: matrices in the stack.
        left_step, right_step, out_step: elements from one matrix to the next; 0 repeats it.
        dtype, out_dtype: of the operands, and of the result.
        reduced: float32 and complex64 operands may be rounded to TF32.
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

    def offers(self, epilogue: Epilogue, dtype: np.dtype, reduced: bool) -> bool:
        """Whether the library has right results; float32 may be rounded where ``reduced``."""
        ...


@record
class LibraryWork:
    """A call of a library, whose launches are not known.

    Attributes:
        run: enqueues its work on a stream, which is its argument.
    """

    run: Callable[[int], Any]


class Recorded(Protocol):
    """Recorded work, which runs once more when it is called."""

    def __call__(self) -> None:
        """Enqueue all of the work on the stream."""
        ...

    def change(self, number: int, launch: Callable[[], Any]) -> bool:
        """Replace one launch by the result of ``bind``, with its current parameters.

        Enqueued work is unchanged. False if that is impossible; the recording must not be used
        any more then.
        """
        ...


class GpuApi(Protocol):
    """One device.

    Attributes:
        name: of the device, for messages.
        compute_capability: as (9, 0).
        processors: multiprocessors.
        memory_bytes: of the device.
        xp: CuPy, or NumPy.
        synchronous: whether everything is done when a call returns.
        deep_library: of convolutions and attention on this device; None: there is none, or
            GPUFLOW_CUDNN=0.
        chooser: the same on one device of this model, so that all such devices have one plan.
        epilogues: of products on one device of this model; None: there are none.
    """

    name: str
    compute_capability: tuple[int, int]
    processors: int
    memory_bytes: int
    xp: Any
    synchronous: bool
    deep_library: DeepLibrary | None
    chooser: DeepLibrary | None
    epilogues: Epilogues | None

    def activate(self) -> None:
        """Make the device the current one of this thread."""
        ...

    def visit(self) -> None:
        """The same for a thread that enqueues no work, and only queries events."""
        ...

    def stream(self) -> int:
        """A new stream, which the default stream does not wait for."""
        ...

    def pool(self) -> Pool:
        """A new pool of device memory."""
        ...

    def pinned(self, count: int) -> np.ndarray:
        """Bytes of host memory that the device can copy at full speed."""
        ...

    def event(self, stream: int) -> DeviceEvent:
        """Record an event after the current work of the stream."""
        ...

    def timed_event(self, stream: int) -> DeviceEvent:
        """Record an event with its time after the current work of the stream."""
        ...

    def nanoseconds(self, first: DeviceEvent, second: DeviceEvent) -> int:
        """The time between two completed timed events."""
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
        """Copy bytes from host memory; pageable memory may change when the call returns."""
        ...

    def copy_out(self, target: int, source: int, count: int, stream: int) -> None:
        """Copy bytes to host memory."""
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
        """Allow launches of a kernel ``count`` bytes of dynamic shared memory.

        Raises:
            RuntimeError: with the kernel's static shared memory it is more than a block may have.
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
        touches: Sequence[Touched] | None = None,
    ) -> Callable[[], None]:
        """A launch with the parameters in ``slots`` at the time of a call; it holds ``kernel``.

        Each parameter is the low bytes of its argument slot. The array keeps its size.
        ``shared_bytes`` is the dynamic shared memory of a block, ``touches`` the arrays that a
        user's kernel may access.
        """
        ...

    def record(
        self, stream: int, work: Sequence[Callable[[], Any] | LibraryWork]
    ) -> Recorded | None:
        """Return a launcher of all of the work, without running it.

        None if that cannot be recorded: the caller runs the work itself.

        Args:
            stream: on which it runs again.
            work: results of ``bind``, and calls of libraries.
        """
        ...

    def library(self, stream: int) -> AbstractContextManager[Any]:
        """While entered, ``xp`` works on the stream."""
        ...

    def view(self, data: DeviceArray) -> Any:
        """An array of ``xp`` on the same memory.

        Raises:
            Exception: ``xp`` has no such dtype.
        """
        ...

    def gemm(self, gemm: Gemm, stream: int) -> Callable[..., None] | None:
        """A function of the addresses of left, right and out; None without such a library.

        A fourth argument is the stream that is recorded, instead of ``stream``.
        """
        ...

    def gemm_with(self, gemm: Gemm, epilogue: Epilogue, stream: int) -> Callable[..., None] | None:
        """A function of the addresses of left, right, out, bias and aux, 0 for unused ones.

        The product is one of two matrices, and ``epilogues`` offer it. None if the library has no
        algorithm for its sizes. A sixth argument is the stream that is recorded, instead of
        ``stream``.
        """
        ...

    def free_library_memory(self) -> None:
        """Return memory that ``xp`` caches to the device."""
        ...

    def free_bytes(self) -> int:
        """Free memory of the device in bytes."""
        ...
