"""The global memory of a simulated device: one span of addresses, backed by NumPy.

Addresses are those of real memory, so that a view of an allocation is an ordinary array. A freed
block is not reused for a while, so that a kernel that still uses it is detected.

Tests: tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ptxsim.allocation import LEAST_RESERVED, RESERVED, Allocation, reserve
from ptxsim.types import U8, Array

ALIGNMENT = 256
_PAGE = 1 << 12
_LEAST_RETURNED = 1 << 20  # freed blocks of this size return their pages at once
_QUARANTINE = 32  # freed blocks of one size before the first is used again


class DeviceMemoryError(MemoryError):
    """The device has not enough memory, or an address is not one of its."""


class DeviceMemory:
    """Memory that is allocated and freed by address; any thread may use it."""

    def __init__(self, capacity: int | None = None) -> None:
        """Reserve address space; ``images`` has the addresses of a module's variables.

        Args:
            capacity: maximum size of all allocations; None for the reservation limit.
        """
        requested = RESERVED if capacity is None else max(4 * capacity, LEAST_RESERVED)
        self._map, reserved = reserve(requested)
        self._bytes = np.frombuffer(self._map, U8)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._end = reserved
        self.capacity = reserved if capacity is None else capacity
        self._cursor = 0
        self._free: dict[int, deque[int]] = defaultdict(deque)
        self._starts: list[int] = []
        self._allocations: dict[int, Allocation] = {}
        self._adopted: dict[int, Array] = {}
        self._freed: deque[tuple[int, int]] = deque(maxlen=4096)
        self._lock, self._depth = threading.RLock(), 0
        self._to_free: deque[int] = deque()
        self._used = self._peak = 0
        self.tracks_writes = False
        self.images: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()

    # --- for the driver ---

    @property
    def used(self) -> int:
        """Bytes that are allocated."""
        return self._used

    @property
    def peak(self) -> int:
        """The most bytes that were allocated at once."""
        return self._peak

    def allocate(self, nbytes: int, counted: bool = True) -> int:
        """The address of new uninitialized memory, a multiple of 256.

        Args:
            nbytes: size in bytes; 0 gives an address that no kernel may access.
            counted: whether it is user memory: included in ``used`` and limited by ``capacity``.

        Raises:
            DeviceMemoryError: if the device memory is full.
        """
        room = _room(nbytes)
        with self._holding():
            if nbytes < 0 or (counted and self._used + nbytes > self.capacity):
                raise self._full(nbytes)
            offset = self._take_space(room)
            if offset is None:
                raise self._full(nbytes)
            start = self._base + offset
            allocation = Allocation(start, nbytes, self._bytes[offset : offset + room], counted)
            if self.tracks_writes:
                allocation.written = np.zeros(nbytes, bool)
            self._allocations[start] = allocation
            insort(self._starts, start)
            self._used += nbytes if counted else 0
            self._peak = max(self._peak, self._used)
            return start

    def free(self, address: int) -> None:
        """Give memory back.

        Raises:
            DeviceMemoryError: the address is not the start of an allocation.
        """
        with self._holding():
            self._to_free.append(address)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the lock; the outermost holder frees at its end.

        Garbage collection may free an array between any two lines, while tables are searched.
        """
        with self._lock:
            self._depth += 1
            try:
                yield
                while self._depth == 1 and self._to_free:
                    self._free_one(self._to_free.popleft())
            finally:
                self._depth -= 1

    def _free_one(self, address: int) -> None:
        allocation = self._allocations.pop(address, None)
        if allocation is None:
            reason = "was freed already" if self.was_freed(address) else "was never allocated"
            raise DeviceMemoryError(
                f"[device memory] an address that is freed must be allocated; {address:#x} "
                f"{reason}. Fix: free each allocation once."
            )
        del self._starts[bisect_right(self._starts, address) - 1]
        if self._adopted.pop(address, None) is not None:
            return
        self._used -= allocation.size if allocation.counted else 0
        offset, room = address - self._base, len(allocation.room)
        self._freed.append((address, allocation.size))
        self._free[room].append(offset)
        if room >= _LEAST_RETURNED and hasattr(self._map, "madvise"):
            first = -(-offset // _PAGE) * _PAGE
            whole = (offset + room) // _PAGE * _PAGE - first
            if sys.platform == "linux":
                self._map.madvise(mmap.MADV_DONTNEED, first, whole)

    def view(self, address: int, nbytes: int, writes: bool = True) -> Array:
        """Bytes of an allocation as an array on the memory itself.

        Args:
            address: anywhere in an allocation.
            nbytes: how many bytes.
            writes: whether the caller will write them: they then count as initialized.

        Raises:
            DeviceMemoryError: they are not inside one allocation.
        """
        allocation = self.find(address)
        first = address - allocation.start if allocation else 0
        if allocation is None or first + nbytes > allocation.size:
            raise DeviceMemoryError(
                f"[device memory] a view must be within one allocation; got {nbytes} bytes at "
                f"{address:#x}, which {self.describe(address)}. Fix: pass an address of an "
                "allocation, and at most its size."
            )
        if writes and allocation.written is not None:
            allocation.written[first : first + nbytes] = True
        return allocation.room[first : first + nbytes]

    def copy_in(self, address: int, array: Array) -> None:
        """Copy an array's elements, row-major, to an address."""
        data = np.ascontiguousarray(array)
        self.view(address, data.nbytes)[:] = data.reshape(-1).view(U8)

    def copy_out(self, address: int, array: Array) -> None:
        """Copy from an address into a contiguous array."""
        if not array.flags.c_contiguous:
            raise ValueError(
                "[device memory] copy_out must have a contiguous array; got one with strides "
                f"{array.strides}. Fix: pass np.empty of the shape."
            )
        array.reshape(-1).view(U8)[:] = self.view(address, array.nbytes, writes=False)

    # --- for kernels and tests ---

    def adopt(self, array: Array, read_only: bool = False) -> int:
        """Let kernels reach the memory of a contiguous array, until its address is freed.

        Args:
            array: kept alive until then.
            read_only: whether stores to it are an error.

        Returns:
            The address of its first element.
        """
        if not array.flags.c_contiguous:
            raise ValueError(
                "[device memory] an array that is adopted must be contiguous; got strides "
                f"{array.strides}. Fix: pass np.ascontiguousarray(array)."
            )
        address = array.ctypes.data
        start, end = address // ALIGNMENT * ALIGNMENT, address + array.nbytes
        room = -(-(end - start) // ALIGNMENT) * ALIGNMENT or ALIGNMENT
        # Bytes of the same pages: they exist, and no access reaches them.
        around = (ctypes.c_uint8 * room).from_address(start)
        allocation = Allocation(start, end - start, np.ctypeslib.as_array(around), False)
        allocation.low, allocation.read_only = address - start, read_only
        with self._holding():
            self._adopted[address] = array
            self._allocations[address] = allocation
            insort(self._starts, address)
        return address

    def lock(self, address: int, read_only: bool = True) -> None:
        """Make stores of kernels to the allocation at an address an error."""
        allocation = self.find(address)
        if allocation is not None:
            allocation.read_only = read_only

    def track_writes(self) -> None:
        """Start to track the bytes that are initialized; current allocations count as written."""
        with self._holding():
            self.tracks_writes = True

    def find(self, address: int) -> Allocation | None:
        """The allocation that contains an address."""
        with self._holding():
            index = bisect_right(self._starts, address) - 1
            if index < 0:
                return None
            allocation = self._allocations[self._starts[index]]
        in_bounds = address < allocation.start + max(allocation.size, allocation.low + 1)
        return allocation if in_bounds else None

    def snapshot(self) -> tuple[Array, list[Allocation]]:
        """All allocations, by ascending start."""
        with self._holding():
            return np.array(self._starts, np.uint64), [self._allocations[s] for s in self._starts]

    def was_freed(self, address: int) -> bool:
        """Whether an address is in recently freed memory."""
        return any(start <= address < start + max(size, 1) for start, size in self._freed)

    def describe(self, address: int) -> str:
        """Describe the location of an address that no kernel may touch."""
        if self.was_freed(address):
            return "is in freed memory"
        with self._holding():
            index = bisect_right(self._starts, address) - 1
            below = self._allocations[self._starts[index]] if index >= 0 else None
        if below is not None and address - below.start < len(below.room) + 65536:
            first = below.start + below.low
            return f"is byte {address - first} of an allocation of {below.size - below.low}"
        return "is in no allocation"

    # --- address space ---

    def _take_space(self, room: int) -> int | None:
        """The offset of free address space of a size, least recently freed first."""
        waiting = self._free[room]
        if len(waiting) > _QUARANTINE:
            return waiting.popleft()
        if self._cursor + room <= self._end:
            self._cursor += room
            return self._cursor - room
        if waiting:
            return waiting.popleft()
        larger = [size for size, offsets in self._free.items() if size > room and offsets]
        if not larger:
            return None
        size = min(larger)
        offset = self._free[size].popleft()
        self._free[size - room].append(offset + room)
        return offset

    def _full(self, nbytes: int) -> DeviceMemoryError:
        return DeviceMemoryError(
            f"[device memory] an allocation must fit; got {nbytes} bytes with {self._used} of "
            f"{self.capacity} in use. Fix: free arrays, or use a device with more memory."
        )


def _room(nbytes: int) -> int:
    """Address space for an allocation: few different sizes, so that freed ones fit again."""
    room = -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT  # what runs over the end hits nothing
    step = max(ALIGNMENT, (1 << (room - 1).bit_length()) // 8)
    return -(-room // step) * step
