"""Shared memory of the blocks of a run, and its race check since the last barrier.

Every granule (the smallest access of the kernel) remembers its last writer and reader as a stamp:

    barriers passed by the lane << 32 | warp barriers passed << 12 | thread

``thread`` is a thread of the block (0 to 1023), or stands for several: ``_WARP_READERS`` + warp,
``_SEVERAL_WARPS``, ``_ATOMIC_THREADS``. A lane may pass 2**20 warp barriers; more would count as a
barrier of the block. Two lanes of which one writes must have a
barrier between them: their stamps must differ in the barriers, or, in one warp, in the warp
barriers. A barrier of some of a block's threads counts for the whole block, so that a race may be
missed, but there are no false reports.

Tests: tests/ptxsim/test_ptx_memory.py, tests/ptxsim/test_ptx_thorough.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxsim.geometry import WARP, Geometry
from ptxsim.types import U8, Array

if TYPE_CHECKING:
    from ptxsim.frame import Frame


@dataclass(frozen=True)
class Kind:
    """Kind of access.

    Attributes:
        reads: whether it reads memory; then the memory must be initialized.
        writes: whether it writes memory.
        atomic: atomics, and volatile, relaxed, acquire and release accesses: those of several
            threads do not race with each other.
    """

    reads: bool
    writes: bool
    atomic: bool


READ, WRITE = Kind(True, False, False), Kind(False, True, False)
RELAXED_READ, RELAXED_WRITE = Kind(True, False, True), Kind(False, True, True)
ATOMIC = Kind(True, True, True)

_BARRIER = 1 << 32
_WARP_BARRIER = 1 << 12
_THREAD_MASK = (1 << 12) - 1
_WARP_READERS = 1024  # + warp: several lanes of one warp
_SEVERAL_WARPS = 4094
_ATOMIC_THREADS = 4095


class Shared:
    """The shared memory of the thread blocks of a run; used by one thread.

    Attributes:
        geometry: the lanes.
        size: bytes of each thread block.
        stride: bytes between thread blocks in ``flat``, a multiple of 64.
        flat: the memory of all thread blocks.
        written: for each granule whether it is initialized; None: unchecked.
        pending: for each granule whether an unfinished cp.async sets it; None: there are none.
        races: whether races are checked.
        writer, reader: the last stamp of each granule; -1: none. Only with ``races``.
        stamp: the present stamp of each lane. Only with ``races``.
        base: for each lane the start of its thread block in ``flat``; None: all are 0.

    Args:
        granule_bytes: the smallest access, a power of two; all accesses are aligned multiples.
    """

    def __init__(
        self,
        geometry: Geometry,
        size: int,
        granule_bytes: int,
        checks_races: bool,
        checks_uninitialized: bool,
    ) -> None:
        self.geometry = geometry
        self.size = size
        self.stride = -(-size // 64) * 64
        self.flat = np.zeros(self.stride * geometry.blocks, U8)
        self._views: dict[tuple[np.dtype, int], Array] = {}
        self._shift = granule_bytes.bit_length() - 1
        granules = len(self.flat) >> self._shift
        self.written = np.zeros(granules, bool) if checks_uninitialized and size else None
        self.pending: Array | None = None
        self.races = bool(checks_races and size)
        if self.races:
            self.writer = np.full(granules, -1, np.int64)
            self.reader = np.full(granules, -1, np.int64)
            self.stamp = geometry.thread.astype(np.int64)
        self.base = geometry.block_number * self.stride if geometry.blocks > 1 else None

    def elements(self, dtype: np.dtype, count: int = 1) -> Array:
        """The memory of all blocks as elements, or as rows of ``count`` elements."""
        key = dtype, count
        if key not in self._views:
            flat = self.flat.view(dtype)
            self._views[key] = flat if count == 1 else flat.reshape(-1, count)
        return self._views[key]

    def flat_offsets(self, frame: Frame, offsets: Array, size: int) -> Array:
        """Convert checked byte offsets in a lane's block to offsets in the memory of all blocks."""
        reach = int(np.bitwise_or.reduce(offsets))
        if reach & (size - 1):
            misaligned(frame, offsets, size)
        if reach + size > self.size and int(offsets.max()) + size > self.size:
            bad = int(np.argmax(offsets > max(self.size - size, -1)))
            frame.fail(
                f"a shared access must stay inside the {self.size} bytes of the block; got bytes "
                f"{int(offsets[bad])} to {int(offsets[bad]) + size}",
                "declare as much, or ask for as much dynamic shared memory at the launch",
                bad,
            )
        offsets = offsets.view(np.int64)
        return offsets if self.base is None else frame.of_lanes(self.base) + offsets

    # --- checks ---

    def check(
        self, frame: Frame, offsets: Array, size: int, kind: Kind, unchanged: Array | None = None
    ) -> Array | None:
        """Check an access of every lane, and remember it.

        Args:
            frame: the lanes.
            offsets: the result of ``flat_offsets``, so aligned and in bounds.
            size: bytes of each access.
            kind: the kind of access.
            unchanged: for a write, the lanes that write the current value; such a write after
                another lane's write is not a race.

        Returns:
            For a write, the lanes that share a granule with another lane of the same instruction;
            None where no two do.
        """
        granules = self.granules(offsets, size)
        if self.pending is not None and self.pending[granules].any():
            frame.fail(
                "shared memory that cp.async fills must not be touched before the copy is waited "
                "for",
                "wait with cp.async.wait_group or wait_all, then pass a barrier",
                _first(self.pending[granules]),
            )
        if self.written is not None:
            if kind.reads and not self.written[granules].all():
                frame.fail(
                    "shared memory must be set before it is read; got a read of bytes that "
                    "nobody has written",
                    "store to it, and pass a barrier, before the load",
                    _first(~self.written[granules]),
                )
            if kind.writes:
                self.written[granules] = True
        return self._race(frame, granules, kind, unchanged) if self.races else None

    def granules(self, offsets: Array, size: int) -> Array:
        """The granule indices of accesses; as many rows as one access has granules."""
        first = offsets >> self._shift
        each = size >> self._shift
        return first if each <= 1 else first + np.arange(each)[:, None]

    def _race(
        self, frame: Frame, granules: Array, kind: Kind, unchanged: Array | None
    ) -> Array | None:
        stamps = frame.of_lanes(self.stamp)
        granules = np.broadcast_to(granules, (*granules.shape[:-1], frame.count))
        clash = self._clash(self.writer[granules], stamps, kind.atomic)
        if clash is not None and unchanged is not None:
            clash = clash & ~unchanged
        if clash is not None and clash.any():
            self.report_race(frame, clash, "written", "written" if kind.writes else "read")
        if not kind.writes:
            if not kind.atomic:
                self._remember_readers(granules, stamps)
            return None
        clash = self._clash(self.reader[granules], stamps, False)
        if clash is not None:
            self.report_race(frame, clash, "read", "written")
        if kind.atomic:
            self.writer[granules] = stamps | _ATOMIC_THREADS
            return None
        self.writer[granules] = stamps
        shares_granule = self.writer[granules] != stamps
        if not shares_granule.any():
            return None
        return np.asarray(np.atleast_2d(shares_granule).any(axis=0))

    @staticmethod
    def _clash(last: Array, stamps: Array, atomic: bool) -> Array | None:
        """Mask of other lanes' accesses with no barrier before this one; None if there are none."""
        clash = (last >> 32) == (stamps >> 32)
        if not clash.any():
            return None
        last_thread, this_thread = last & _THREAD_MASK, stamps & _THREAD_MASK
        clash &= last_thread != this_thread
        if atomic:
            clash &= last_thread != _ATOMIC_THREADS
        if not clash.any():
            return None
        clash &= ~(
            (_warp_of(last_thread) == this_thread // WARP) & ((last ^ stamps) >> 12 << 12 != 0)
        )
        return clash if clash.any() else None

    def _remember_readers(self, granules: Array, stamps: Array) -> None:
        """Record the readers; several lanes are recorded as their warp, or as many.

        A read of the same warp before a warp barrier is forgotten: whoever must come after it
        must come after this one too.
        """
        last = self.reader[granules]
        self.reader[granules] = stamps
        stored = self.reader[granules]
        other = np.where(stored != stamps, stored, last)
        has_several = ((other >> 32) == (stamps >> 32)) & (
            (other & _THREAD_MASK) != (stamps & _THREAD_MASK)
        )
        if not has_several.any():
            return
        warp = _warp_of(other & _THREAD_MASK)
        has_several &= ~(
            (warp == (stamps & _THREAD_MASK) // WARP) & ((other ^ stamps) >> 12 << 12 != 0)
        )
        stamps = np.broadcast_to(stamps, granules.shape)
        same_warp = has_several & (warp == (stamps & _THREAD_MASK) // WARP)
        several_warps = has_several & ~same_warp
        self.reader[granules[same_warp]] = (stamps[same_warp] & ~_THREAD_MASK) | (
            _WARP_READERS + warp[same_warp]
        )
        self.reader[granules[several_warps]] = stamps[several_warps] | _SEVERAL_WARPS

    @staticmethod
    def report_race(frame: Frame, clash: Array, before: str, now: str) -> None:
        """Report that two lanes have touched an element without a barrier between them."""
        frame.fail(
            f"race in shared memory: what one thread has {before} must not be {now} by another "
            "without a barrier between",
            "put bar.sync (cuda.syncthreads) between the two accesses",
            _first(clash),
        )

    # --- barriers ---

    def pass_barrier(self, lanes: Array | slice) -> None:
        """Some lanes have passed a barrier of their block."""
        if self.races:
            self.stamp[lanes] += _BARRIER

    def pass_warp_barrier(self, lanes: Array | slice) -> None:
        """Some lanes have passed a barrier of their warp."""
        if self.races:
            self.stamp[lanes] += _WARP_BARRIER


def _first(lanes: Array) -> int:
    """The first lane with a marked granule; several granules of a lane are rows."""
    return int(np.argmax(np.atleast_2d(lanes).any(axis=0)))


def _warp_of(threads: Array) -> Array:
    """The warp that a stamp names."""
    return np.where(threads >= _WARP_READERS, threads - _WARP_READERS, threads // WARP)


def misaligned(frame: Frame, offsets: Array, size: int) -> None:
    """Report the first lane whose access is not aligned."""
    wrong = offsets & np.uint64(size - 1)
    bad = int(np.argmax(wrong != 0))
    frame.fail(
        f"a {size}-byte access must be at a multiple of {size} bytes; got one that is "
        f"{int(wrong[bad])} bytes off: misaligned {size}-byte access",
        "use narrower accesses, or align the address",
        bad,
    )
