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
        # Never given back: a copy that nobody waits for may still write there. What is copied
        # there next comes later in the stream.
        self._free: list[np.ndarray] = []

    def reader(self) -> FlagReader:
        """A new reader."""
        try:
            places = self._free.pop()
        except IndexError:
            places = self._api.pinned(2)
        reader = FlagReader(self._api, self._compute, places)
        weakref.finalize(reader, self._free.append, places)
        return reader


class FlagReader:
    """Reads one flag after the other; two may be under way.

    Args:
        api: of the device.
        compute: the stream that kernels run on.
        places: two bytes of exclusive pinned memory.
    """

    def __init__(self, api: GpuApi, compute: int, places: np.ndarray) -> None:
        self._api, self._compute, self._places = api, compute, places
        self._next = 0

    def begin(self, source: int) -> Callable[[], bool]:
        """Start to copy a flag, after the current launches.

        Returns:
            a function that waits until the flag is available, and returns it.
        """
        api, places, number = self._api, self._places, self._next
        self._next = 1 - number
        api.copy_out(address(places) + number, source, 1, self._compute)
        mark = api.event(self._compute)

        def read() -> bool:
            api.synchronize_event(mark)
            return bool(places[number])

        return read
