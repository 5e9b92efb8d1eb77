"""Device interface of GPU programs; ``driver/driver.py`` is the only implementation."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from gpuflow.runtime.device_array import DeviceArray
from gpuflow.runtime.driver import Driver
from gpuflow.targets.cuda.codegen.build import Touched
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.runtime.driver.api import BuiltKernel, GpuApi

if TYPE_CHECKING:
    from gpuflow.targets.cuda.runtime.driver.arena import DeviceArena
    from gpuflow.targets.cuda.runtime.driver.device_memory import Block
    from gpuflow.targets.cuda.runtime.driver.side_stream import SideWork
    from gpuflow.targets.cuda.runtime.program.program import GpuProgram


class GpuDevice(Driver, Protocol):
    """A driver that launches kernels in the order of calls.

    Attributes:
        api: CuPy and CUDA, or a simulation of them.
        compute_capability: of the device, as (9, 0).
        processors: its number of multiprocessors.
        compute: the stream that kernels and libraries run on.
        allocate: allocates a block of memory for that stream; the device is the current one. Its
            arguments are the size in bytes and a description.
        host_calls: why library calls ran on the host, by the op and its operands' dtypes.
        broken: the reason that all results are invalid; None otherwise.
        side_work: the work of streams other than the compute stream during a trace.
    """

    api: GpuApi
    compute_capability: tuple[int, int]
    processors: int
    compute: int
    allocate: Callable[[int, Callable[[], str]], Block]
    host_calls: dict[str, str]
    broken: str | None
    side_work: list[SideWork]

    def upload(self, data: DeviceArray, slots: array[int]) -> None:
        """Copy 8-byte slots, before later launches."""
        ...

    def prepare(
        self,
        kernel: BuiltKernel,
        grid: Dim,
        block: Dim,
        slots: array[int],
        shared_bytes: int = 0,
        touches: Sequence[Touched] | None = None,
    ) -> Callable[[], None]:
        """A launch with the parameters in ``slots`` at the time of a call.

        Args:
            kernel: It stays loaded as long as the launch.
            grid, block: Blocks, and threads of a block.
            slots: The parameters.
            shared_bytes: Dynamic shared memory of each block.
            touches: The arrays of a user's kernel; None: the kernel is ours.
        """
        ...

    def scratch(self, count: int) -> int:
        """The address of ``count`` scratch bytes of one launch."""
        ...

    def counters(self, count: int) -> int:
        """The address of ``count`` uint32 that are 0 before and after every launch."""
        ...

    def copy_into(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy elements between arrays of one shape and dtype, whatever their strides."""
        ...

    def fault_of(self, error: BaseException) -> BaseException:
        """The error that replaces one: a GpuFault, once, if a kernel failed."""
        ...

    def free_unused(self) -> None:
        """Give back all memory that no array uses."""
        ...

    def synchronize(self) -> None:
        """Return when everything that was launched is done."""
        ...

    def acquire(self, program: GpuProgram) -> DeviceArena:
        """An arena that no running program uses, for a program that will run."""
        ...

    def release(self, arena: DeviceArena) -> None:
        """Give back an arena."""
        ...
