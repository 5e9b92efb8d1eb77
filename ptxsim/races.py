"""Races in global memory: the accesses of each element in this launch, and their order.

Every granule (the smallest access of the kernel to global memory) remembers its last write and the
last reads of two threads, each as a stamp:

    time << 34 | thread << 1 | whether it was atomic

Two accesses of different threads, of which one is a plain write, must have a barrier of their block
between them, a barrier of their warp, or fences and a signal (fences.py). Writing the current value
is not a race with another write. Memory that is read by ld.global.nc must not be written in the
launch at all.
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

_TIME = 34
_THREAD = (1 << 33) - 1


class _Shadow:
    """Shadow memory of an allocation; each array is created on demand."""

    def __init__(self, granules: int) -> None:
        self.granules = granules
        self.writer: Array | None = None
        self.readers: tuple[Array, Array] | None = None
        self.constant: Array | None = None  # read by ld.global.nc
        self.logs: dict[int, int] = {}  # of granules that are flags

    def writers(self) -> Array:
        if self.writer is None:
            self.writer = np.zeros(self.granules, np.int64)
        return self.writer

    def both_readers(self) -> tuple[Array, Array]:
        if self.readers is None:
            self.readers = np.zeros(self.granules, np.int64), np.zeros(self.granules, np.int64)
        return self.readers

    def constants(self) -> Array:
        if self.constant is None:
            self.constant = np.zeros(self.granules, BOOL)
        return self.constant


class GlobalRaces:
    """The order of a launch's accesses to global memory."""

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
        return frame.lane_ids() + self._first

    # --- barriers and fences ---

    def pass_barrier(self, frame_lanes: Array) -> None:
        """Lanes have passed a barrier of their block."""
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
        """Check a read of every lane, and remember it."""
        shadow, spots = self._spots(frame, allocation, offsets, size)
        mine = self._stamps(frame, kind)
        if constant:
            if shadow.writer is not None and shadow.writer[spots].any():
                self._changes(frame, shadow.writer[spots] != 0)
            shadow.constants()[spots] = True
            return
        if shadow.writer is not None:
            self._refuse(frame, shadow.writer[spots], mine, "written", "read")
        if not allocation.read_only:
            self._remember(shadow.both_readers(), spots, mine)
        if kind.atomic:
            self._signals(frame, shadow, spots, False)

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
            unchanged: the lanes that write the current value.

        Returns:
            The lanes that share a granule with another lane of the same instruction; None for none.
        """
        shadow, spots = self._spots(frame, allocation, offsets, size)
        mine = self._stamps(frame, kind)
        if shadow.constant is not None and shadow.constant[spots].any():
            self._changes(frame, shadow.constant[spots])
        writer = shadow.writers()
        last = writer[spots]
        self._refuse(frame, last, mine, "written", "written", unchanged)
        for reader in shadow.readers or ():
            self._refuse(frame, reader[spots], mine, "read", "written")
        if unchanged is not None and last.any() and unchanged.any():
            changed = ~(unchanged & (last != 0))
            writer[spots[changed]] = np.broadcast_to(mine, spots.shape)[changed]
        else:
            writer[spots] = mine
        if kind.atomic:
            self._signals(frame, shadow, spots, True)
            return None
        lost = writer[spots] != mine
        return np.asarray(np.atleast_2d(lost).any(axis=0)) if lost.any() else None

    def _spots(
        self, frame: Frame, allocation: Allocation, offsets: Array, size: int
    ) -> tuple[_Shadow, Array]:
        # Adopted arrays whose first bytes share 256 bytes have one start.
        key = allocation.start, len(allocation.room)
        shadow = self._shadows.get(key)
        if shadow is None:
            # Inactive lanes have indices at the end, with the widest access that exists.
            granules = ((len(allocation.room) + 16) >> self._shift) + 1
            shadow = self._shadows[key] = _Shadow(granules)
        first, each = offsets.view(np.int64) >> self._shift, size >> self._shift
        spots = first if each <= 1 else first + np.arange(each)[:, None]
        return shadow, np.broadcast_to(spots, (*spots.shape[:-1], frame.count))

    def _stamps(self, frame: Frame, kind: Kind) -> Array:
        return (self._threads(frame) << 1) + ((self._tick() << _TIME) + kind.atomic)

    @staticmethod
    def _remember(readers: tuple[Array, Array], spots: Array, mine: Array) -> None:
        """Store the last reads of two different threads."""
        newest, other = readers
        last = newest[spots]
        newest[spots] = mine
        theirs = (last != 0) & ((last ^ mine) >> 1 & _THREAD != 0)
        if theirs.any():
            other[spots[theirs]] = last[theirs]
        lost = newest[spots] != mine
        if lost.any():
            other[spots[lost]] = np.broadcast_to(mine, spots.shape)[lost]

    def _signals(self, frame: Frame, shadow: _Shadow, spots: Array, writes: bool) -> None:
        """Strong accesses receive the signals of a flag, and signal themselves."""
        threads = self._threads(frame)
        fenced = self.fences.has_fenced(threads) if writes else None
        if fenced is None and not shadow.logs:
            return
        flags = spots if spots.ndim == 1 else spots[0]
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

    def _refuse(
        self,
        frame: Frame,
        last: Array,
        mine: Array,
        before: str,
        now: str,
        unchanged: Array | None = None,
    ) -> None:
        """Fail if an access of another thread is not ordered before one of this instruction."""
        clash = (last != 0) & ((last ^ mine) >> 1 & _THREAD != 0)
        if not clash.any():
            return
        clash &= (last & mine & 1) == 0
        if unchanged is not None:
            clash &= ~unchanged
        if clash.any():
            clash = self._unordered(last, np.broadcast_to(mine, last.shape), clash)
        if clash is not None and clash.any():
            bad = int(np.argmax(np.atleast_2d(clash).any(axis=0)))
            column = np.atleast_2d(last)[:, bad]
            thread = int(column[np.argmax(np.atleast_2d(clash)[:, bad])]) >> 1 & _THREAD
            self.report(frame, bad, before, now, thread)

    def _unordered(self, last: Array, mine: Array, clash: Array) -> Array | None:
        """Mask of the accesses in ``clash`` that are not ordered; None if there are none."""
        index = np.nonzero(clash)
        last, mine = last[index], mine[index]
        who, me, time = last >> 1 & _THREAD, mine >> 1 & _THREAD, last >> _TIME
        block, my_block, fences = who // self.threads, me // self.threads, self.fences
        ordered = (block == my_block) & (time < fences.barrier[my_block])
        same_warp = fences.warp_of(who) == fences.warp_of(me)
        ordered |= same_warp & (time < fences.warp_barrier[me])
        left = np.flatnonzero(~ordered)
        if len(left):
            ordered[left] = fences.ordered(who[left], time[left], last[left] & 1 != 0, me[left])
        if ordered.all():
            return None
        result = np.zeros(clash.shape, BOOL)
        result[index] = ~ordered
        return result

    def report(self, frame: Frame, bad: int, before: str, now: str, other: int) -> None:
        """Report that two threads have touched an element without an order between them."""
        geometry = frame.run.geometry
        lane = other - self._first
        where = f"thread {geometry.thread_position(lane)} of block {geometry.block_position(lane)}"
        if other // self.threads == int(self._threads(frame)[bad]) // self.threads:
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
            bad,
        )

    @staticmethod
    def report_lanes(frame: Frame, bad: int) -> None:
        """Report that threads have stored different values to one element by one instruction."""
        frame.fail(
            "race in global memory: several threads store different values to one element by one "
            "instruction",
            "let one thread store each element, or use atomics",
            bad,
        )

    @staticmethod
    def _changes(frame: Frame, where: Array) -> None:
        frame.fail(
            "ld.global.nc must read memory that the kernel does not write; got an element that is "
            "written in the same launch",
            "use ld.global",
            int(np.argmax(np.atleast_2d(where).any(axis=0))),
        )
