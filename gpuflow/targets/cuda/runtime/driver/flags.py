"""Read bools from device memory while kernels that were launched later still run.

Conditions of loops that Python drives are read in this way: the next iteration starts meanwhile.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_gpu_loops.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.runtime.driver.api import GpuApi


class Flags:
    """Creates readers of flags on one device, and recycles their pinned memory.

    Args:
        api: the device.
        compute: the compute stream.
    """

    def __init__(self, api: GpuApi, compute: int) -> None:
        self._api, self._compute = api, compute
        # Never freed, as a pending copy may still write to a buffer. A recycled buffer is safe: the
        # stream orders later copies after it.
        self._free: list[np.ndarray] = []

    def reader(self) -> FlagReader:
        """A new reader."""
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = self._api.pinned(2)
        reader = FlagReader(self._api, self._compute, buffer)
        weakref.finalize(reader, self._free.append, buffer)
        return reader


class FlagReader:
    """Reads flags one after the other; at most two reads may be pending.

    Args:
        api: the device.
        compute: the compute stream.
        buffer: two bytes of pinned memory, used by this reader only: one for each pending read.
    """

    def __init__(self, api: GpuApi, compute: int, buffer: np.ndarray) -> None:
        self._api, self._compute, self._buffer = api, compute, buffer
        self._next = 0

    def begin(self, source: int) -> Callable[[], bool]:
        """Start to copy the flag at the address ``source``, after the current launches.

        Returns:
            A function that waits for the flag and returns it.
        """
        api, buffer, slot = self._api, self._buffer, self._next
        self._next = 1 - slot
        api.copy_out(address(buffer) + slot, source, 1, self._compute)
        event = api.event(self._compute)

        def read() -> bool:
            api.synchronize_event(event)
            return bool(buffer[slot])

        return read
