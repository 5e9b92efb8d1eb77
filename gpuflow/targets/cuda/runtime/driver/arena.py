"""Arenas: device memory for the temporaries of programs, at offsets that the plan assigns.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_gpu_trouble.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.runtime.device_array import DeviceArray, strided
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice


class DeviceArena:
    """Device memory for temporaries; only one program at a time may run in it.

    Attributes:
        memory: the memory, as an array of bytes.
        generation: number of reallocations. Addresses in an arena are valid for one generation.
    """

    def __init__(self, device: GpuDevice) -> None:
        self.device, self.generation = device, 0
        self.memory: DeviceArray = device.empty((0,), np.dtype(np.uint8))

    def reserve(self, count: int) -> None:
        """Reallocate the arena if it is smaller than ``count`` bytes; contents are lost."""
        if self.memory.shape[0] < count:
            self.memory = self.device.empty((count,), np.dtype(np.uint8))
            self.generation += 1

    def array(self, offset: int, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """The array at a byte offset of the arena."""
        return strided(shape, dtype, self.memory, offset)

    def section(self, offset: int, count: int) -> DeviceArena:
        """A view of ``count`` bytes as an arena, for a nested program.

        It must not grow (``reserve``), and is valid only for the current generation of this arena.
        """
        inner = DeviceArena.__new__(DeviceArena)
        inner.device, inner.generation = self.device, 0
        inner.memory = strided((count,), np.dtype(np.uint8), self.memory, offset)
        return inner
