"""Stream-ordered allocation of GPU memory: blocks from one pool per stream, with statistics.

Work on a stream runs in order. So memory that only one stream uses may be reused as soon as Python
releases it, while its kernels still run. Memory that other streams use too (``guard``) is reused
only after events of these streams.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from gpuflow.base.garbage import collect_garbage
from gpuflow.base.util import SourceLocation, user_source_location
from gpuflow.targets.cuda.runtime.driver.api import DeviceEvent, GpuApi, Pool, PoolMemory

# Blocks of at least this size record the user's source line, which takes less time than writing
# such a block.
LARGE = 1 << 24
_MOST_LISTED = 8  # arrays in an out-of-memory error
_UNITS = ("bytes", "KiB", "MiB", "GiB")


class Block:
    """A block of device memory, which returns to its pool when this object dies.

    Attributes:
        address, count: address, and size in bytes.
        handle: the pool's object, which owns the memory.
        readers: further streams that use the block, see ``Memory.guard``; None: none.
    """

    __slots__ = ("_memory", "address", "count", "handle", "readers")

    def __init__(self, memory: Memory, handle: PoolMemory, count: int) -> None:
        self.handle, self.count = handle, count
        self.address: int = handle.ptr
        self.readers: set[int] | None = None
        self._memory = memory  # last, as __del__ ignores objects without it

    def __del__(
        self, large: int = LARGE, is_finalizing: Callable[[], bool] = sys.is_finalizing
    ) -> None:  # defaults, as globals may be gone at shutdown
        try:
            memory, count = self._memory, self.count
        except AttributeError:
            return  # __init__ was interrupted
        if is_finalizing():
            return  # the process frees all memory
        memory.used -= count
        if count >= large or self.readers is not None:
            memory.dropped(self)


class Memory:
    """The allocator of one device; thread-safe.

    Args:
        api: the device.
        forget: frees caches; called if memory runs out.

    Attributes:
        used: bytes in use.
        peak: most bytes that were in use at once.
        count: number of allocations so far.
        largest: bytes of the largest allocation.
    """

    def __init__(self, api: GpuApi, forget: Callable[[], None]) -> None:
        self._api, self._forget = api, forget
        self._pools: dict[int, Pool] = {}
        self._waiting: deque[tuple[list[DeviceEvent], PoolMemory]] = deque()
        self._large: dict[int, tuple[int, str, SourceLocation | None]] = {}
        # Reentrant, as garbage collection may call ``dropped`` while the lock is held.
        self._lock = threading.RLock()
        # Changed without a lock: threads are not switched within ``+=``.
        self.used = self.peak = self.count = self.largest = 0

    def pool_of(self, stream: int) -> Pool:
        """The pool for memory that ``stream`` writes first."""
        pool = self._pools.get(stream)
        if pool is None:
            pool = self._pools[stream] = self._api.pool()
        return pool

    def allocate(self, count: int, stream: int, what: Callable[[], str] | None = None) -> Block:
        """Allocate an uninitialized block of at least ``count`` bytes.

        Args:
            count: size in bytes.
            stream: stream that writes the block first.
            what: gives a description for messages.

        Raises:
            MemoryError: if the device memory is full.
        """
        return self._allocate(self.pool_of(stream), count, what)

    def allocator(self, stream: int) -> Callable[..., Block]:
        """``allocate`` for one stream."""
        return partial(self._allocate, self.pool_of(stream))

    def _allocate(self, pool: Pool, count: int, what: Callable[[], str] | None = None) -> Block:
        if self._waiting:
            self._release_finished()
        count = count or 1
        try:
            handle = pool.malloc(count)
        except MemoryError as error:
            handle = self._retry(pool, count, error)
        block = Block(self, handle, count)
        used = self.used = self.used + count
        self.count += 1
        if used > self.peak:
            self.peak = used
        if count > self.largest:
            self.largest = count
        if count >= LARGE:
            text = "memory" if what is None else what()
            self._large[block.address] = count, text, user_source_location()
        return block

    def made_at(self, address: int) -> SourceLocation | None:
        """The user's source line that allocated the block at an address, if it is large."""
        block = self._large.get(address)
        return None if block is None else block[2]

    def guard(self, block: Block, stream: int) -> None:
        """Record that another stream uses a block: its reuse waits until that stream is done.

        Callers must hold the block. They may enqueue the stream's work before or after this call.
        """
        if block.readers is None:
            block.readers = set()
        block.readers.add(stream)

    def dropped(self, block: Block) -> None:
        """Drop a dying block: forget its source, and hold its memory until readers are done."""
        if block.count >= LARGE:
            self._large.pop(block.address, None)
        if block.readers:
            try:
                events = [self._api.event(stream) for stream in block.readers]
            except RuntimeError:
                return  # a kernel has failed, so nothing runs on this device any more
            self._waiting.append((events, block.handle))

    def _release_finished(self) -> None:
        is_done, waiting = self._api.is_done, self._waiting
        with self._lock:  # another thread must not pop between the test and popleft
            while waiting and all(is_done(event) for event in waiting[0][0]):
                waiting.popleft()

    def _retry(self, pool: Pool, count: int, error: MemoryError) -> PoolMemory:
        """Free all unused memory and try again."""
        self.free_unused()
        try:
            return pool.malloc(count)
        except MemoryError:
            raise MemoryError(self._full(count)) from error

    def free_unused(self) -> None:
        """Return unused memory of all pools to CUDA; waits for the readers of dropped blocks."""
        self._forget()
        collect_garbage()
        with self._lock:
            while self._waiting:
                for event in self._waiting[0][0]:
                    self._api.synchronize_event(event)
                self._waiting.popleft()  # unnamed, so that the block returns to its pool here
        for other in self._pools.values():
            other.free_all_blocks()
        self._api.free_library_memory()

    def _full(self, count: int) -> str:
        api = self._api
        message = [
            f"[memory] {api.name} must have room for {in_units(count)}; got "
            f"{in_units(api.free_bytes())} free of {in_units(api.memory_bytes)}, with "
            f"{in_units(self.used)} in use by arrays and temporaries of this process (at most "
            f"{in_units(self.peak)} so far).",
        ]
        largest = sorted(self._large.values(), key=lambda block: -block[0])[:_MOST_LISTED]
        if largest:
            message.append("The largest arrays:")
            for size, text, source in largest:
                where = "" if source is None else f", made at {source}"
                message.append(f"  {in_units(size)}: {text}{where}")
        message.append(
            "Fix: use a smaller batch, donate arguments that are not needed again "
            "(donate_argnums), recompute instead of storing (checkpoint), or delete arrays."
        )
        return "\n".join(message)


def in_units(count: int) -> str:
    """Format a number of bytes, such as "1.5 GiB"."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"
