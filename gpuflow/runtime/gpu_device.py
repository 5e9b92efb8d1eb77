"""What GPU programs ask of a device: the real one and the simulated one are behind this."""

from __future__ import annotations

from array import array
from typing import Any, Protocol

from gpuflow.compiler.cuda_cache import CudaKernel
from gpuflow.compiler.cuda_schedule import Dim
from gpuflow.runtime.driver import Driver


class GpuDevice(Driver, Protocol):
    """A driver that launches kernels, in the order in which they are given to it.

    Attributes:
        compute_capability: of the device, as (9, 0).
        processors: its number of multiprocessors.
    """

    compute_capability: tuple[int, int]
    processors: int

    def address(self, data: Any) -> int:
        """The address of the first element."""
        ...

    def upload(self, data: Any, words: array[int]) -> None:
        """Copy 8-byte words into int64 data, before what is launched later."""
        ...

    def load(self, kernel: CudaKernel) -> Any:
        """The function of a built kernel."""
        ...

    def launch(self, function: Any, grid: Dim, block: Dim, words: array[int]) -> None:
        """Run a function; each parameter is in the low bytes of its word."""
        ...

    def scratch(self, count: int) -> int:
        """The address of ``count`` bytes that one launch may use until its end."""
        ...

    def counters(self, count: int) -> int:
        """The address of ``count`` uint32 that are 0 before and after every launch."""
        ...

    def acquire(self) -> Any:
        """An arena that no running program uses."""
        ...

    def release(self, arena: Any) -> None:
        """Give back an arena."""
        ...
