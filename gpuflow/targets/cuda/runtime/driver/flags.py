"""Bools of a GPU that the host reads while kernels that were launched later run."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.runtime.driver.api import GpuApi


class Flags:
    """Pinned memory for flags on one device.

    Args:
        api: of the device.
        compute: the stream that kernels run on.
    """

    def __init__(self, api: GpuApi, compute: int) -> None:
        self._api, self._compute = api, compute
        # Never returned: a pending copy may still write there. Later copies to the same buffer are
        # ordered after it by the stream.
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
    """Reads one flag after the other; two may be under way.

    Args:
        api: of the device.
        compute: the stream that kernels run on.
        buffer: two bytes of exclusive pinned memory.
    """

    def __init__(self, api: GpuApi, compute: int, buffer: np.ndarray) -> None:
        self._api, self._compute, self._buffer = api, compute, buffer
        self._next = 0

    def begin(self, source: int) -> Callable[[], bool]:
        """Start to copy a flag, after the current launches.

        Returns:
            a function that waits until the flag is available, and returns it.
        """
        api, buffer, slot = self._api, self._buffer, self._next
        self._next = 1 - slot
        api.copy_out(address(buffer) + slot, source, 1, self._compute)
        event = api.event(self._compute)

        def read() -> bool:
            api.synchronize_event(event)
            return bool(buffer[slot])

        return read
