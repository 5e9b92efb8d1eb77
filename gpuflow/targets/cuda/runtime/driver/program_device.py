"""The interface ``GpuDevice`` that programs use; ``GpuDriver`` is the only implementation.

Tests: tests/targets/cuda/test_cuda_driver.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpuflow.runtime.device_array import DeviceArray
from gpuflow.runtime.driver import Driver
from gpuflow.targets.cuda.codegen.build import KernelArrayAccess
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.runtime.driver.api import BuiltKernel, GpuApi

if TYPE_CHECKING:
    from gpuflow.targets.cuda.runtime.driver.arena import DeviceArena
    from gpuflow.targets.cuda.runtime.driver.device_memory import MemoryBlock
    from gpuflow.targets.cuda.runtime.driver.side_stream import SideWork
    from gpuflow.targets.cuda.runtime.program.program import GpuProgram


class GpuDevice(Driver, Protocol):
    """A driver of one GPU that launches kernels in the order of calls.

    Attributes:
        api: the device, real or simulated.
        compute_capability: such as (9, 0).
        processors: number of multiprocessors.
        compute: the compute stream, on which kernels and libraries run.
        allocate: allocates a block that the compute stream writes first; the device must be
            current. Arguments are the size in bytes, and a function that describes the block.
        host_calls: why library calls ran on the host, by op and dtypes of operands.
        broken: why all results are invalid; None: they are valid.
        side_work: profiler records of other streams that are not written yet.
    """

    api: GpuApi
    compute_capability: tuple[int, int]
    processors: int
    compute: int
    allocate: Callable[[int, Callable[[], str]], MemoryBlock]
    host_calls: dict[str, str]
    broken: str | None
    side_work: list[SideWork]

    def upload(self, data: DeviceArray, slots: array[int]) -> None:
        """Copy 8-byte slots to device memory, in the order of launches."""
        ...

    def prepare(
        self,
        kernel: BuiltKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        shared_bytes: int = 0,
        array_accesses: Sequence[KernelArrayAccess] | None = None,
    ) -> Callable[[], None]:
        """Bind a launch: each call enqueues it with the current contents of ``slots``.

        Args:
            kernel: the kernel, which stays loaded while the launch exists.
            grid, block: blocks, and threads of a block; at least one block.
            slots: one 8-byte slot per parameter; must keep its size.
            shared_bytes: dynamic shared memory of each block.
            array_accesses: the arrays that a user's kernel may access; None: the kernel is ours.
        """
        ...

    def scratch(self, count: int) -> int:
        """The address of ``count`` bytes of scratch memory, whose contents last for one launch."""
        ...

    def counters(self, count: int) -> int:
        """The address of ``count`` uint32 that are 0; a launch must leave them 0."""
        ...

    def copy_into(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy elements between arrays of equal shape and dtype, and any strides."""
        ...

    def fault_of(self, error: BaseException) -> BaseException:
        """The error to raise instead of ``error``: a GpuFault if a kernel has failed."""
        ...

    def free_unused(self) -> None:
        """Return memory that no array uses to CUDA."""
        ...

    def synchronize(self) -> None:
        """Wait until all launched work is done."""
        ...

    def acquire(self, program: GpuProgram) -> DeviceArena:
        """An idle arena for a program to run in; the caller must ``release`` it."""
        ...

    def release(self, arena: DeviceArena) -> None:
        """Return an arena to the idle ones."""
        ...
