"""Races in global memory: the accesses of each element in this launch, and their order.

Every granule (the smallest access of the kernel to global memory) remembers its last write and the
last reads of two threads, each as a stamp, an int64. 0 means no access:

    time << 34 | thread << 1 | whether it was atomic

Times are ticks of the launch, from 2 on. All lanes that run an access, barrier or fence together
have one time, which no other has. Threads are numbered over the whole grid.

Two accesses of different threads, of which one is a plain write, must have a barrier of their block
between them, a barrier of their warp, or fences and a signal (fences.py). Writing the current value
is not a race with another write. Memory that is read by ld.global.nc must not be written in the
launch at all.

Tests: tests/ptxsim/test_ptx_memory.py, tests/ptxsim/test_ptx_thorough.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxsim.allocation import Allocation
from ptxsim.fences import Fences
from ptxsim.geometry import Geometry
from ptxsim.shared import Kind
from ptxsim.types import BOOL, Array

if TYPE_CHECKING:
    from ptxsim.frame import Frame

_TIME_SHIFT = 34
_THREAD_MASK = (1 << 33) - 1  # after a shift by 1


def _packed_stamps(threads: Array, time: int, is_atomic: bool) -> Array:
    """The stamps of accesses of some threads at one time."""
    return (threads << 1) + ((time << _TIME_SHIFT) + is_atomic)


def _threads_of(stamps: Array) -> Array:
    return stamps >> 1 & _THREAD_MASK


def _times_of(stamps: Array) -> Array:
    return stamps >> _TIME_SHIFT


def _are_atomic(stamps: Array) -> Array:
    return np.asarray(stamps & 1 != 0)


def _of_other_threads(last: Array, stamps: Array) -> Array:
    """Mask of the stamps in ``last`` whose threads are not those of ``stamps``."""
    return np.asarray((last != 0) & (_threads_of(last ^ stamps) != 0))


class _Shadow:
    """Shadow memory of an allocation; each array is created on demand.

    Attributes:
        granule_count: number of granules, the length of each array.
        writer: stamp of the last write.
        readers: stamps of the last reads of two different threads, the newest first.
        constant: whether ld.global.nc has read the granule.
        logs: by index of a granule that is a flag, the index of its log of signals (fences.py).
    """

    def __init__(self, granule_count: int) -> None:
        self.granule_count = granule_count
        self.writer: Array | None = None
        self.readers: tuple[Array, Array] | None = None
        self.constant: Array | None = None
        self.logs: dict[int, int] = {}

    def writers(self) -> Array:
        if self.writer is None:
            self.writer = np.zeros(self.granule_count, np.int64)
        return self.writer

    def both_readers(self) -> tuple[Array, Array]:
        if self.readers is None:
            count = self.granule_count
            self.readers = np.zeros(count, np.int64), np.zeros(count, np.int64)
        return self.readers

    def constants(self) -> Array:
        if self.constant is None:
            self.constant = np.zeros(self.granule_count, BOOL)
        return self.constant


class GlobalRaces:
    """The order of a launch's accesses to global memory.

    Each method takes the lanes that run one instruction together. An instance belongs to one launch
    and has no locks.

    Args:
        blocks: blocks of the grid.
        threads: threads of a block.
        granule: bytes of a granule, a power of two; no access is smaller.
    """

    def __init__(self, blocks: int, threads: int, granule: int) -> None:
        self.threads = threads
        self.fences = Fences(blocks, threads)
        self._shift = granule.bit_length() - 1
        self._time = 1
        self._shadows: dict[tuple[int, int], _Shadow] = {}
        self._first = 0  # the first thread of the blocks that run now

    def begin(self, geometry: Geometry) -> None:
        """Start the next blocks of the launch."""
        self._first = geometry.first * geometry.threads

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _threads(self, frame: Frame) -> Array:
        """The thread of each lane, numbered over the whole grid."""
        return frame.lane_ids() + self._first

    # --- barriers and fences ---

    def pass_barrier(self, frame_lanes: Array) -> None:
        """Lanes (indices within the blocks that run now) have passed a barrier of their block."""
        blocks = np.unique((frame_lanes + self._first) // self.threads)
        self.fences.pass_barrier(blocks, self._tick())

    def pass_warp_barrier(self, frame: Frame) -> None:
        """Lanes have passed a barrier of their warp."""
        self.fences.warp_barrier[self._threads(frame)] = self._tick()

    def fence(
        self, frame: Frame, beyond_block: bool, release: bool = True, acquire: bool = True
    ) -> None:
        """Lanes fence; an access may be one half of a fence, before or after it."""
        if release:
            self.fences.release(self._threads(frame), self._tick(), beyond_block)
        if acquire:
            self.fences.acquire(self._threads(frame))

    # --- accesses ---

    def read(
        self,
        frame: Frame,
        allocation: Allocation,
        offsets: Array,
        size: int,
        kind: Kind,
        constant: bool,
    ) -> None:
        """Check a read of every lane, and remember it.

        Args:
            frame: the lanes.
            allocation: the allocation that all lanes access.
            offsets: byte offset of each lane's access in it, uint64, a multiple of ``size``.
            size: bytes of an access.
            kind: kind of the access.
            constant: whether the instruction is ld.global.nc.
        """
        shadow, granules = self._granules(frame, allocation, offsets, size)
        stamps = self._stamps(frame, kind)
        if constant:
            if shadow.writer is not None and shadow.writer[granules].any():
                self._fail_constant(frame, shadow.writer[granules] != 0)
            shadow.constants()[granules] = True
            return
        if shadow.writer is not None:
            self._check_order(frame, shadow.writer[granules], stamps, "written", "read")
        if not allocation.read_only:
            self._remember(shadow.both_readers(), granules, stamps)
        if kind.atomic:
            self._signals(frame, shadow, granules, is_write=False)

    def write(
        self,
        frame: Frame,
        allocation: Allocation,
        offsets: Array,
        size: int,
        kind: Kind,
        unchanged: Array | None,
    ) -> Array | None:
        """Check a write of every lane, or an atomic, and remember it.

        Args:
            frame, allocation, offsets, size, kind: as in ``read``.
            unchanged: mask of the lanes that write the current value; None: unknown.

        Returns:
            Mask of the lanes that share a granule with another lane of the same instruction; None
            for none, and for atomics.
        """
        shadow, granules = self._granules(frame, allocation, offsets, size)
        stamps = self._stamps(frame, kind)
        if shadow.constant is not None and shadow.constant[granules].any():
            self._fail_constant(frame, shadow.constant[granules])
        writer = shadow.writers()
        last = writer[granules]
        self._check_order(frame, last, stamps, "written", "written", unchanged)
        for reader in shadow.readers or ():
            self._check_order(frame, reader[granules], stamps, "read", "written")
        if unchanged is not None and last.any() and unchanged.any():
            changed = ~(unchanged & (last != 0))
            writer[granules[changed]] = np.broadcast_to(stamps, granules.shape)[changed]
        else:
            writer[granules] = stamps
        if kind.atomic:
            self._signals(frame, shadow, granules, is_write=True)
            return None
        is_overwritten = writer[granules] != stamps  # by another lane, or by an unchanged value
        if not is_overwritten.any():
            return None
        return np.asarray(np.atleast_2d(is_overwritten).any(axis=0))

    def _granules(
        self, frame: Frame, allocation: Allocation, offsets: Array, size: int
    ) -> tuple[_Shadow, Array]:
        """The shadow of an allocation, and the indices of the granules that lanes access.

        If an access has several granules, the indices have a row for each, with a column for each
        lane; else they are a vector.
        """
        # Adopted arrays whose first bytes share 256 bytes have one start.
        key = allocation.start, len(allocation.room)
        shadow = self._shadows.get(key)
        if shadow is None:
            # Inactive lanes have indices at the end, with the widest access that exists.
            count = ((len(allocation.room) + 16) >> self._shift) + 1
            shadow = self._shadows[key] = _Shadow(count)
        first, count = offsets.view(np.int64) >> self._shift, size >> self._shift
        granules = first if count <= 1 else first + np.arange(count)[:, None]
        return shadow, np.broadcast_to(granules, (*granules.shape[:-1], frame.count))

    def _stamps(self, frame: Frame, kind: Kind) -> Array:
        """The stamp of each lane's access now; advances the time."""
        return _packed_stamps(self._threads(frame), self._tick(), kind.atomic)

    @staticmethod
    def _remember(readers: tuple[Array, Array], granules: Array, stamps: Array) -> None:
        """Store the last reads of two different threads."""
        newest, older = readers
        last = newest[granules]
        newest[granules] = stamps
        is_displaced = _of_other_threads(last, stamps)
        if is_displaced.any():
            older[granules[is_displaced]] = last[is_displaced]
        is_overwritten = newest[granules] != stamps  # by another lane of this instruction
        if is_overwritten.any():
            lanes = np.broadcast_to(stamps, granules.shape)
            older[granules[is_overwritten]] = lanes[is_overwritten]

    def _signals(self, frame: Frame, shadow: _Shadow, granules: Array, *, is_write: bool) -> None:
        """Strong accesses receive the signals of a flag; writes after a fence signal themselves.

        The flag is the first granule of an access.
        """
        threads = self._threads(frame)
        fenced = self.fences.has_fenced(threads) if is_write else None
        if fenced is None and not shadow.logs:
            return
        flags = granules if granules.ndim == 1 else granules[0]
        for position, (thread, flag) in enumerate(zip(threads.tolist(), flags.tolist())):
            log = shadow.logs.get(flag)
            if log is not None:
                self.fences.see(log, thread)
            if fenced is not None and fenced[position]:
                if log is None:
                    log = shadow.logs[flag] = len(self.fences.logs)
                    self.fences.logs.append([])
                self.fences.signal(log, thread, self._time)

    # --- faults ---

    def _check_order(
        self,
        frame: Frame,
        last: Array,
        stamps: Array,
        before: str,
        now: str,
        unchanged: Array | None = None,
    ) -> None:
        """Fail if an access of another thread is not ordered before one of this instruction.

        Args:
            frame: the lanes.
            last: stamps of earlier accesses, of the shape of the lanes' granules.
            stamps: stamp of each lane's access now.
            before, now: the verbs of both accesses ("read", "written"), for the message.
            unchanged: mask of lanes that write the current value, which is not a race.
        """
        conflicts = _of_other_threads(last, stamps)
        if not conflicts.any():
            return
        conflicts &= ~_are_atomic(last & stamps)
        if unchanged is not None:
            conflicts &= ~unchanged
        unordered: Array | None = conflicts
        if conflicts.any():
            unordered = self._unordered(last, np.broadcast_to(stamps, last.shape), conflicts)
        if unordered is not None and unordered.any():
            lane = int(np.argmax(np.atleast_2d(unordered).any(axis=0)))
            row = np.argmax(np.atleast_2d(unordered)[:, lane])
            thread = int(_threads_of(np.atleast_2d(last)[row, lane]))
            self.report(frame, lane, before, now, thread)

    def _unordered(self, last: Array, stamps: Array, conflicts: Array) -> Array | None:
        """Mask of the accesses in ``conflicts`` that are not ordered; None if there are none.

        All three arrays have one shape.
        """
        index = np.nonzero(conflicts)
        last, stamps = last[index], stamps[index]
        last_threads, times, threads = _threads_of(last), _times_of(last), _threads_of(stamps)
        last_blocks, blocks = last_threads // self.threads, threads // self.threads
        fences = self.fences
        ordered = (last_blocks == blocks) & (times < fences.barrier[blocks])
        same_warp = fences.warp_of(last_threads) == fences.warp_of(threads)
        ordered |= same_warp & (times < fences.warp_barrier[threads])
        undecided = np.flatnonzero(~ordered)
        if len(undecided):
            ordered[undecided] = fences.ordered(
                last_threads[undecided],
                times[undecided],
                _are_atomic(last[undecided]),
                threads[undecided],
            )
        if ordered.all():
            return None
        result = np.zeros(conflicts.shape, BOOL)
        result[index] = ~ordered
        return result

    def report(self, frame: Frame, lane: int, before: str, now: str, other_thread: int) -> None:
        """Report that two threads have touched an element without an order between them.

        Args:
            frame: the lanes of the current instruction.
            lane: index of the failing lane in it.
            before, now: the verbs of both accesses.
            other_thread: the thread of the earlier access, numbered over the whole grid.
        """
        geometry = frame.run.geometry
        other = other_thread - self._first
        thread, block = geometry.thread_position(other), geometry.block_position(other)
        where = f"thread {thread} of block {block}"
        if other_thread // self.threads == int(self._threads(frame)[lane]) // self.threads:
            fix = "put bar.sync (cuda.syncthreads) between the two accesses"
        else:
            fix = (
                "let one block alone touch the element, use atomics, or signal: fence and atomic "
                "of the one, atomic and fence (cuda.threadfence) of the other"
            )
        frame.fail(
            f"race in global memory: what {where} has {before} must not be {now} by another thread "
            "without an order between the two",
            fix,
            lane,
        )

    @staticmethod
    def report_lanes(frame: Frame, lane: int) -> None:
        """Report that threads have stored different values to one element by one instruction."""
        frame.fail(
            "race in global memory: several threads store different values to one element by one "
            "instruction",
            "let one thread store each element, or use atomics",
            lane,
        )

    @staticmethod
    def _fail_constant(frame: Frame, is_written: Array) -> None:
        """Report that a granule is both read by ld.global.nc and written in this launch."""
        frame.fail(
            "ld.global.nc must read memory that the kernel does not write; got an element that is "
            "written in the same launch",
            "use ld.global",
            int(np.argmax(np.atleast_2d(is_written).any(axis=0))),
        )
