"""Memory of a GPU: blocks from a pool, guarded against use by several streams, and counted.

Work on a stream runs in order, so memory that one stream alone uses may be reused as soon as Python
releases it: later launches wait anyway. Memory that another stream still reads must not; such
blocks wait for an event of that stream first.
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

# Blocks from this size on have a source location: finding it takes less time than writing them.
LARGE = 1 << 24
_MOST_LISTED = 8
_UNITS = ("bytes", "KiB", "MiB", "GiB")


class Block:
    """Device memory, returned to its pool when nothing refers to it."""

    __slots__ = ("_memory", "address", "count", "handle", "readers")

    def __init__(self, memory: Memory, handle: PoolMemory, count: int) -> None:
        self.handle, self.count = handle, count
        self.address: int = handle.ptr
        self.readers: set[int] | None = None
        self._memory = memory  # last: until then it does not count

    def __del__(
        self, large: int = LARGE, is_finalizing: Callable[[], bool] = sys.is_finalizing
    ) -> None:  # modules may be empty by then
        try:
            memory, count = self._memory, self.count
        except AttributeError:
            return  # interrupted before it was complete
        if is_finalizing():
            return  # the memory goes with the process
        memory.used -= count
        if count >= large or self.readers is not None:
            memory.dropped(self)


class Memory:
    """The memory of one device for gpuflow.

    Args:
        api: of the device.
        forget: frees caches; called when memory runs out.

    Attributes:
        used: bytes of blocks in use.
        peak: the most that were in use at once.
        count: blocks that were allocated so far.
        largest: bytes of the largest of them.
    """

    def __init__(self, api: GpuApi, forget: Callable[[], None]) -> None:
        self._api, self._forget = api, forget
        self._pools: dict[int, Pool] = {}
        self._waiting: deque[tuple[list[DeviceEvent], PoolMemory]] = deque()
        self._large: dict[int, tuple[int, str, SourceLocation | None]] = {}
        # Reentrant: garbage collection meanwhile adds blocks to those that wait.
        self._lock = threading.RLock()
        # Changed without a lock: a thread is never switched between the steps of += .
        self.used = self.peak = self.count = self.largest = 0

    def pool_of(self, stream: int) -> Pool:
        """The pool of memory that a stream writes first."""
        pool = self._pools.get(stream)
        if pool is None:
            pool = self._pools[stream] = self._api.pool()
        return pool

    def allocate(self, count: int, stream: int, what: Callable[[], str] | None = None) -> Block:
        """Allocate an uninitialized block of at least ``count`` bytes.

        Args:
            count: bytes.
            stream: that writes it first.
            what: description for messages.

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
            handle = self._once_more(pool, count, error)
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
        """Record that another stream uses the block: it must not be reused before that is done.

        Call it before or after that stream was given its work, while the block is in use.
        """
        if block.readers is None:
            block.readers = set()
        block.readers.add(stream)

    def dropped(self, block: Block) -> None:
        """Drop a block: forget its source, and hold its memory until its other streams are done."""
        if block.count >= LARGE:
            self._large.pop(block.address, None)
        if block.readers:
            try:
                events = [self._api.event(stream) for stream in block.readers]
            except RuntimeError:
                return  # a kernel failed: nothing runs on this device any more
            self._waiting.append((events, block.handle))

    def _release_finished(self) -> None:
        is_done, waiting = self._api.is_done, self._waiting
        with self._lock:  # or another thread would take the first one, and this one the next
            while waiting and all(is_done(event) for event in waiting[0][0]):
                waiting.popleft()

    def _once_more(self, pool: Pool, count: int, error: MemoryError) -> PoolMemory:
        """Free all unused memory and try again."""
        self.free_unused()
        try:
            return pool.malloc(count)
        except MemoryError:
            raise MemoryError(self._full(count)) from error

    def free_unused(self) -> None:
        """Return memory that no array uses, from all pools, to CUDA."""
        self._forget()
        collect_garbage()
        with self._lock:
            while self._waiting:
                for event in self._waiting[0][0]:
                    self._api.synchronize_event(event)
                self._waiting.popleft()  # no name may hold it: it goes back to its pool here
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
    """Format a number of bytes."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"
