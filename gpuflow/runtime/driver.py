"""The driver interface: what a platform does for plans. Plans never know which one runs them."""

from __future__ import annotations

from typing import Any, Protocol

from gpuflow.core.aval import ShapedArray
from gpuflow.kir.nodes import Kernel


class Driver(Protocol):
    """One device of one platform.

    Memory is given by the platform's array type (NumPy arrays on the CPU); streams and events are
    opaque to plans.
    """

    def allocate(self, aval: ShapedArray) -> Any:
        """Uninitialised memory for an array."""

    def copy_to_device(self, value: Any, aval: ShapedArray) -> Any:
        """A new device array with the values of a NumPy array."""

    def copy_to_host(self, array: Any) -> Any:
        """The values as a NumPy array; waits until they are computed."""

    def load(self, kernel: Kernel) -> Any:
        """A kernel ready to launch: from memory, from the cache or built."""

    def chunk(self, extent: int, points: int) -> int:
        """Of a launch over ``extent`` indices and ``points`` points, what one worker takes."""
        ...

    def product(self, product: Any, left: Any, right: Any, dtype: Any) -> Any:
        """How to multiply stacks of matrices that lie as two views say; None: through NumPy."""

    def new_stream(self) -> Any:
        """A queue of work that runs beside other queues."""

    def record_event(self, stream: Any) -> Any:
        """A point in a queue that others can wait for."""

    def wait_event(self, stream: Any, event: Any) -> None:
        """Let ``stream`` wait until ``event`` has happened."""

    def synchronize(self) -> None:
        """Wait until all work is done."""

    def collective(self, name: str, arrays: Any, group: Any) -> Any:
        """Run a collective over a group of devices."""
