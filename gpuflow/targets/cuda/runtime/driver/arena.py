"""The memory of a program's temporaries on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.runtime.device_array import DeviceArray, strided
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice


class DeviceArena:
    """Device memory for the temporaries of programs; one runs in it at a time."""

    def __init__(self, device: GpuDevice) -> None:
        self.device, self.generation = device, 0
        self.memory: DeviceArray = device.empty((0,), np.dtype(np.uint8))

    def reserve(self, count: int) -> None:
        """Make the arena at least ``count`` bytes large."""
        if self.memory.shape[0] < count:
            self.memory = self.device.empty((count,), np.dtype(np.uint8))
            self.generation += 1

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """The array at ``offset`` of the arena."""
        return strided(shape, dtype, self.memory, offset)

    def section(self, offset: int, count: int) -> DeviceArena:
        """``count`` bytes of this arena, for a nested program."""
        inner = DeviceArena.__new__(DeviceArena)
        inner.device, inner.generation = self.device, 0
        inner.memory = strided((count,), np.dtype(np.uint8), self.memory, offset)
        return inner
