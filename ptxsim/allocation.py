"""Allocations of a simulated device's memory, and the reservation of its address space.

Tests: tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np

from ptxsim.types import U8, Array

RESERVED = 1 << 36  # bytes of address space; pages get memory when they are touched
LEAST_RESERVED = 1 << 26
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which module mmap does not name everywhere


class Allocation:
    """Memory that a kernel may access.

    Attributes:
        start: its address, a multiple of 256.
        size: size in bytes; memory after it is unallocated.
        low: inaccessible bytes at the start; 0 except for adopted arrays.
        read_only: whether kernels must not store to it.
        written: mask of initialized bytes; None if they are not tracked.
    """

    def __init__(self, start: int, size: int, room: Array, counted: bool) -> None:
        self.start = start
        self.size = size
        self.low = 0
        self.read_only = False
        self.written: Array | None = None
        self.counted = counted
        self.room = room
        self._views: dict[tuple[np.dtype, int], Array] = {(U8, 1): room}

    def elements(self, dtype: np.dtype, count: int = 1) -> Array:
        """The memory as elements, or as rows of ``count`` elements."""
        key = dtype, count
        if key not in self._views:
            flat = self.room.view(dtype)
            self._views[key] = flat if count == 1 else flat.reshape(-1, count)
        return self._views[key]


def reserve(size: int) -> tuple[mmap.mmap, int]:
    """Address space of at most this size."""
    while True:
        try:
            if sys.platform == "win32":
                return mmap.mmap(-1, min(size, 1 << 30)), min(size, 1 << 30)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            flags |= _NO_RESERVE if sys.platform == "linux" else 0
            return mmap.mmap(-1, size, flags=flags), size
        except (OSError, ValueError, OverflowError):
            if size <= LEAST_RESERVED:
                raise
            size //= 2
