"""CPU allocators: a pool of blocks for large results, and arenas for temporaries of plans.

A large ``np.empty`` is new memory from the system, whose page faults cost more than filling it.
The pool therefore reuses blocks. A block returns to the pool when the last array on it is freed.

Tests: tests/runtime/test_memory.py, tests/runtime/test_memory_analysis.py.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.errors import OutOfMemoryError
from gpuflow.runtime.origins import MIN_RECORDED_BYTES, origins

MIN_POOLED = MIN_RECORDED_BYTES  # bytes of an array; smaller ones are allocated by NumPy
MAX_POOLED_BYTES = 1 << 30  # bytes of all free blocks
ALIGNMENT = 64  # bytes of a cache line, and of an AVX-512 vector
_PAGE = 4096  # sizes of blocks are multiples of it, so that similar arrays share blocks

_size_t = ctypes.c_size_t


def _data_offset() -> int:
    """The offset of the data pointer in an ndarray object; 0 if the layout is unexpected."""
    probe = np.empty(3)
    try:
        data_address = _size_t.from_address(id(probe) + 16).value
    except ValueError:
        return 0
    return 16 if data_address == probe.ctypes.data else 0


_OFFSET = _data_offset()


def address(array: np.ndarray) -> int:
    """The address of an array's first element, four times as fast as ``array.ctypes.data``."""
    if _OFFSET:
        return _size_t.from_address(id(array) + _OFFSET).value
    return array.ctypes.data


def has_known_layout() -> bool:
    """Whether ndarray objects are laid out as the native runtime expects."""
    return _OFFSET == 16


def aligned_bytes(count: int) -> np.ndarray:
    """New uint8 memory whose address is a multiple of 64."""
    try:
        raw = np.empty(count + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: larger than the address space
        raise OutOfMemoryError(
            f"[memory] an array must fit into memory; got one of {count:,} bytes. "
            "Fix: use a smaller shape or a narrower dtype."
        ) from error
    start = -address(raw) % ALIGNMENT
    return raw[start : start + count]


@cache
def _block_class(count: int) -> type[Any]:
    """A class of buffers of ``count`` bytes on pooled memory, which they release when freed.

    A buffer is not an ndarray: views would refer to the base of an ndarray instead of itself, so it
    would be freed while views exist.
    """

    def release(self: Any) -> None:
        try:
            _pool.release(self.memory)
        except Exception:
            # Initialization failed, or the interpreter shuts down: the memory is freed anyway.
            return

    return type("Block", (ctypes.c_char * count,), {"__del__": release})


class _Pool:
    """Free blocks by size; above the limit the least recently released ones are dropped.

    Code here must tolerate an interrupt between any two lines. At worst a block is in only one of
    the tables, which wastes it until it is the oldest. Or ``held`` is too large until the pool is
    empty.

    Thread-safe. A block of ``acquire`` belongs to the caller until ``release``, once.

    Attributes:
        held: bytes of all free blocks.
        used: bytes of all acquired blocks.
        peak: the largest ``used`` so far.
        count: blocks acquired so far.
        largest: bytes of the largest block acquired so far.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._by_age: OrderedDict[int, np.ndarray] = OrderedDict()
        # Reentrant: garbage collection may release a block while this thread holds the lock.
        self._lock = threading.RLock()
        self.held = self.used = self.peak = self.count = self.largest = 0

    def acquire(self, count: int) -> np.ndarray:
        with self._lock:
            blocks = self._free.get(count)
            if blocks:
                memory = blocks.pop()
                self._by_age.pop(id(memory), None)
                self.held -= count
                self._note(count)
                return memory
        memory = aligned_bytes(count)
        with self._lock:
            self._note(count)
        return memory

    def _note(self, count: int) -> None:
        self.count += 1
        self.largest = max(self.largest, count)
        self.used += count
        self.peak = max(self.peak, self.used)

    def release(self, memory: np.ndarray) -> None:
        with self._lock:
            self._by_age[id(memory)] = memory
            self._free.setdefault(memory.nbytes, []).append(memory)
            self.held += memory.nbytes
            self.used -= memory.nbytes
            while self.held > MAX_POOLED_BYTES:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        if not self._by_age:
            self._free.clear()
            self.held = 0
            return
        _, memory = self._by_age.popitem(last=False)
        blocks = self._free.get(memory.nbytes, [])
        self._free[memory.nbytes] = [block for block in blocks if block is not memory]
        self.held -= memory.nbytes

    def clear(self) -> None:
        with self._lock:
            self._free.clear()
            self._by_age.clear()
            self.held = 0

    def forget(self) -> None:
        """Reset in a forked child: the thread that held the lock may not exist there."""
        self._lock = threading.RLock()
        self.clear()


_pool = _Pool()


def allocate(shape: tuple[int, ...], dtype: np.dtype, count: int) -> np.ndarray:
    """An uninitialized C-contiguous array; ``count`` is its size in bytes.

    Thread-safe. The memory returns to the pool when the array and all views of it are freed.
    """
    if count < MIN_POOLED:
        return np.empty(shape, dtype)
    rounded = -(-count // _PAGE) * _PAGE
    memory = _pool.acquire(rounded)
    block = _block_class(rounded).from_buffer(memory)
    block.memory = memory
    array = np.ndarray(shape, dtype, buffer=block)
    if origins is not None:
        origins.note(array)
    return array


def allocated_bytes(count: int) -> int:
    """Size of the system allocation of ``allocate`` for ``count`` bytes, without a free block."""
    if count < MIN_POOLED:
        return max(count, 1)
    return -(-count // _PAGE) * _PAGE + ALIGNMENT


def process_memory() -> dict[str, int]:
    """Memory statistics of this process, with JAX's names.

    If the system does not report them, only large results are counted.

    Source: proc(5), of Linux.
    """
    sizes = {"VmRSS": _pool.used, "VmHWM": _pool.peak}
    with suppress(OSError):
        status = Path("/proc/self/status").read_text().splitlines()
        for name, value in (row.split(":", 1) for row in status if ":" in row):
            if name in sizes:
                sizes[name] = int(value.split()[0]) << 10
    limit = 0
    with suppress(AttributeError, ValueError, OSError):
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "num_allocs": _pool.count,
        "bytes_in_use": sizes["VmRSS"],
        "peak_bytes_in_use": max(sizes.values()),
        "largest_alloc_size": _pool.largest,
        "bytes_limit": limit,
    }


def free_cached_memory() -> None:
    """Return the pool's free blocks to the system."""
    _pool.clear()


class Arena:
    """Memory for the temporaries of plans; only one plan may run in it at a time.

    Attributes:
        memory: the memory; ``reserve`` replaces it.
        generation: a counter that invalidates drivers, which contain addresses of the arena.
    """

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)
        self.generation = 0

    def reserve(self, count: int) -> None:
        """Make the arena at least ``count`` bytes large.

        Its contents are lost if it grows, and arrays of it keep the old memory. So it must be
        called before a plan runs in the arena, not while one does.
        """
        if self.memory.nbytes < count:
            self.memory = aligned_bytes(count)
            self.generation += 1

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array at ``offset`` bytes of the arena, which must be reserved that far."""
        return np.ndarray(shape, dtype, buffer=self.memory, offset=offset)

    def section(self, offset: int, count: int) -> Arena:
        """``count`` bytes of this arena as a separate arena, for an inner program of a plan.

        It must not grow, as it would not be a section then.
        """
        inner = Arena()
        inner.memory = self.memory[offset : offset + count]
        return inner


class Arenas:
    """Free list of arenas: each running plan has one, in any thread and in nested calls.

    A single thread always gets the same arena. A call never waits for another call, so a host
    function may wait for a call in another thread.

    ``acquire`` and ``release`` need no lock, since pop and append of a list are atomic under the
    global interpreter lock, which gpuflow requires (base/system.py).
    """

    def __init__(self) -> None:
        self._idle: list[Arena] = []
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def acquire(self) -> Arena:
        """An arena that no running plan uses."""
        try:
            return self._idle.pop()
        except IndexError:
            arena = Arena()
            self.track(arena)
            return arena

    def release(self, arena: Arena) -> None:
        """Return an arena to the free list."""
        self._idle.append(arena)

    def track(self, arena: Any) -> None:
        """Register an arena of any platform, which has a ``generation``, for ``renew``."""
        with self._lock:
            self._all.add(arena)

    def renew(self) -> None:
        """Invalidate the drivers of all programs: each is printed again at its next call."""
        with self._lock:
            for arena in self._all:
                arena.generation += 1

    def forget(self) -> None:
        """Reset in a forked child: a program may have been running, and workers must be started."""
        self._idle.clear()
        self._lock = threading.Lock()


arenas = Arenas()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)
    os.register_at_fork(after_in_child=arenas.forget)
