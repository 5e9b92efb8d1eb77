"""Stream-ordered allocation of GPU memory: blocks from one pool per stream, with statistics.

Work on a stream runs in order. So memory that only one stream uses may be reused as soon as Python
releases it, while its kernels still run. Memory that other streams use too (``record_stream``) is
reused only after events of these streams.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_gpu_trouble.py.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gpuflow.base.garbage import collect_garbage
from gpuflow.base.util import SourceLocation, user_source_location
from gpuflow.targets.cuda.runtime.driver.api import DeviceEvent, GpuApi, Pool, PoolMemory

# Blocks of at least so many bytes record the user's source line, which takes less time than writing
# such a block.
LARGE = 1 << 24
_MAX_LISTED = 8  # arrays in an out-of-memory error
_UNITS = ("bytes", "KiB", "MiB", "GiB")


class MemoryBlock:
    """A block of device memory, which returns to its pool when this object dies.

    Attributes:
        address, count: address, and size in bytes.
        pool_memory: the pool's object, which owns the memory.
        other_streams: further streams that use the block, see ``DeviceAllocator.record_stream``;
            None: only the stream of its pool does.
    """

    __slots__ = ("_allocator", "address", "count", "other_streams", "pool_memory")

    def __init__(self, allocator: DeviceAllocator, pool_memory: PoolMemory, count: int) -> None:
        self.pool_memory, self.count = pool_memory, count
        self.address: int = pool_memory.ptr
        self.other_streams: set[int] | None = None
        self._allocator = allocator  # last, as __del__ ignores objects without it

    def __del__(
        self, large: int = LARGE, is_finalizing: Callable[[], bool] = sys.is_finalizing
    ) -> None:  # defaults, as globals may be gone at shutdown
        try:
            allocator, count = self._allocator, self.count
        except AttributeError:
            return  # __init__ was interrupted
        if is_finalizing():
            return  # the process frees all memory
        allocator.used -= count
        if count >= large or self.other_streams is not None:
            allocator.on_drop(self)


class _LargeBlock(NamedTuple):
    """A large block that is in use, for messages: size in bytes, description, and source line."""

    count: int
    description: str
    source: SourceLocation | None


class DeviceAllocator:
    """The allocator of one device; thread-safe.

    Args:
        api: the device.
        free_caches: frees caches; called if memory runs out.

    Attributes:
        used: bytes in use.
        peak: most bytes that were in use at once.
        count: number of allocations so far.
        largest: bytes of the largest allocation.
    """

    def __init__(self, api: GpuApi, free_caches: Callable[[], None]) -> None:
        self._api, self._free_caches = api, free_caches
        self._pools: dict[int, Pool] = {}
        # Memory of dropped blocks, which returns to its pool after events of other streams.
        self._held: deque[tuple[list[DeviceEvent], PoolMemory]] = deque()
        self._large: dict[int, _LargeBlock] = {}  # by address
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

    def allocate(
        self, count: int, stream: int, describe: Callable[[], str] | None = None
    ) -> MemoryBlock:
        """Allocate an uninitialized block of at least ``count`` bytes.

        Args:
            count: size in bytes.
            stream: stream that writes the block first.
            describe: gives a description for messages.

        Raises:
            MemoryError: if the device memory is full.
        """
        return self._allocate(self.pool_of(stream), count, describe)

    def allocator(self, stream: int) -> Callable[..., MemoryBlock]:
        """``allocate`` for one stream: a function of size and description."""
        return partial(self._allocate, self.pool_of(stream))

    def _allocate(
        self, pool: Pool, count: int, describe: Callable[[], str] | None = None
    ) -> MemoryBlock:
        if self._held:
            self._release_finished()
        count = count or 1
        try:
            pool_memory = pool.malloc(count)
        except MemoryError as error:
            pool_memory = self._retry(pool, count, error)
        block = MemoryBlock(self, pool_memory, count)
        used = self.used = self.used + count
        self.count += 1
        if used > self.peak:
            self.peak = used
        if count > self.largest:
            self.largest = count
        if count >= LARGE:
            description = "memory" if describe is None else describe()
            self._large[block.address] = _LargeBlock(count, description, user_source_location())
        return block

    def allocation_source(self, address: int) -> SourceLocation | None:
        """The user's source line that allocated the block at an address, if it is large."""
        block = self._large.get(address)
        return None if block is None else block.source

    def record_stream(self, block: MemoryBlock, stream: int) -> None:
        """Record that another stream uses a block: its reuse waits until that stream is done.

        Callers must hold the block. They may enqueue the stream's work before or after this call.
        """
        if block.other_streams is None:
            block.other_streams = set()
        block.other_streams.add(stream)

    def on_drop(self, block: MemoryBlock) -> None:
        """Hold the memory of a dying block until other streams are done, and drop its source.

        Any thread may call it, as blocks die in any.
        """
        if block.count >= LARGE:
            self._large.pop(block.address, None)
        if block.other_streams:
            try:
                events = [self._api.event(stream) for stream in block.other_streams]
            except RuntimeError:
                return  # a kernel has failed, so nothing runs on this device any more
            self._held.append((events, block.pool_memory))

    def _release_finished(self) -> None:
        is_done, waiting = self._api.is_done, self._held
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
        """Return unused memory of all pools to CUDA; waits for other streams of dropped blocks."""
        self._free_caches()
        collect_garbage()
        with self._lock:
            while self._held:
                for event in self._held[0][0]:
                    self._api.synchronize_event(event)
                self._held.popleft()  # unnamed, so that the block returns to its pool here
        for pool in self._pools.values():
            pool.free_all_blocks()
        self._api.free_library_memory()

    def _full(self, count: int) -> str:
        """The text of an out-of-memory error for a request of ``count`` bytes."""
        api = self._api
        message = [
            f"[memory] {api.name} must have room for {in_units(count)}; got "
            f"{in_units(api.free_bytes())} free of {in_units(api.memory_bytes)}, with "
            f"{in_units(self.used)} in use by arrays and temporaries of this process (at most "
            f"{in_units(self.peak)} so far).",
        ]
        largest = sorted(self._large.values(), key=lambda block: -block.count)[:_MAX_LISTED]
        if largest:
            message.append("The largest arrays:")
            for block in largest:
                where = "" if block.source is None else f", made at {block.source}"
                message.append(f"  {in_units(block.count)}: {block.description}{where}")
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
