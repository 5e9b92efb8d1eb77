"""Shared memory of the blocks of a run, and its race check since the last barrier.

Every granule (the smallest access of the kernel) remembers its last writer and reader as a stamp:

    barriers passed by the lane << 32 | warp barriers passed << 12 | who

``who`` is a thread of the block, or marks several. Two lanes of which one writes must have a
barrier between them: their stamps must differ in the barriers, or, in one warp, in the warp
barriers. A barrier of some of a block's threads counts for the whole block, so that a race may be
missed, but there are no false reports.
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
    """Kind of access; atomic ones of several threads never race."""

    reads: bool
    writes: bool
    atomic: bool


READ, WRITE = Kind(True, False, False), Kind(False, True, False)
RELAXED_READ, RELAXED_WRITE = Kind(True, False, True), Kind(False, True, True)
ATOMIC = Kind(True, True, True)

_BARRIER = 1 << 32
_WARP_BARRIER = 1 << 12
_WHO = (1 << 12) - 1
_OF_WARP = 1024  # + warp: several lanes of one warp
_MANY = 4094
_ATOMIC = 4095


class Shared:
    """The shared memory of some blocks."""

    def __init__(
        self, geometry: Geometry, size: int, granule: int, races: bool, uninitialized: bool
    ) -> None:
        self.geometry = geometry
        self.size = size
        self.stride = -(-size // 64) * 64
        self.flat = np.zeros(self.stride * geometry.blocks, U8)
        self._views: dict[tuple[np.dtype, int], Array] = {}
        self._shift = granule.bit_length() - 1
        granules = len(self.flat) >> self._shift
        self.written = np.zeros(granules, bool) if uninitialized and size else None
        self.pending: Array | None = None  # granules that an unfinished copy will set
        self.races = bool(races and size)
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
            offsets: the result of ``flat_offsets``.
            size: bytes of each access.
            kind: the kind of access.
            unchanged: for a write, the lanes that write the current value; such a write after
                another lane's write is not a race.

        Returns:
            For a write, the lanes that share a granule with another lane of the same instruction;
            None where no two do.
        """
        spots = self.granules(offsets, size)
        if self.pending is not None and self.pending[spots].any():
            frame.fail(
                "shared memory that cp.async fills must not be touched before the copy is waited "
                "for",
                "wait with cp.async.wait_group or wait_all, then pass a barrier",
                _first(self.pending[spots]),
            )
        if self.written is not None:
            if kind.reads and not self.written[spots].all():
                frame.fail(
                    "shared memory must be set before it is read; got a read of bytes that "
                    "nobody has written",
                    "store to it, and pass a barrier, before the load",
                    _first(~self.written[spots]),
                )
            if kind.writes:
                self.written[spots] = True
        return self._race(frame, spots, kind, unchanged) if self.races else None

    def granules(self, offsets: Array, size: int) -> Array:
        """The granule indices of accesses; as many rows as one access has granules."""
        first = offsets >> self._shift
        each = size >> self._shift
        return first if each <= 1 else first + np.arange(each)[:, None]

    def _race(
        self, frame: Frame, spots: Array, kind: Kind, unchanged: Array | None
    ) -> Array | None:
        mine = frame.of_lanes(self.stamp)
        spots = np.broadcast_to(spots, (*spots.shape[:-1], frame.count))
        clash = self._clash(self.writer[spots], mine, kind.atomic)
        if clash is not None and unchanged is not None:
            clash = clash & ~unchanged
        if clash is not None and clash.any():
            self.report_race(frame, clash, "written", "written" if kind.writes else "read")
        if not kind.writes:
            if not kind.atomic:
                self._remember_readers(spots, mine)
            return None
        clash = self._clash(self.reader[spots], mine, False)
        if clash is not None:
            self.report_race(frame, clash, "read", "written")
        if kind.atomic:
            self.writer[spots] = mine | _ATOMIC
            return None
        self.writer[spots] = mine
        several = self.writer[spots] != mine
        if not several.any():
            return None
        return np.asarray(np.atleast_2d(several).any(axis=0))

    @staticmethod
    def _clash(last: Array, mine: Array, atomic: bool) -> Array | None:
        """Mask of other lanes' accesses with no barrier before this one; None if there are none."""
        clash = (last >> 32) == (mine >> 32)
        if not clash.any():
            return None
        who, me = last & _WHO, mine & _WHO
        clash &= who != me
        if atomic:
            clash &= who != _ATOMIC
        if not clash.any():
            return None
        clash &= ~((_warp_of(who) == me // WARP) & ((last ^ mine) >> 12 << 12 != 0))
        return clash if clash.any() else None

    def _remember_readers(self, spots: Array, mine: Array) -> None:
        """Record the readers; several lanes are recorded as their warp, or as many.

        A read of the same warp before a warp barrier is forgotten: whoever must come after it
        must come after this one too.
        """
        last = self.reader[spots]
        self.reader[spots] = mine
        now = self.reader[spots]
        other = np.where(now != mine, now, last)
        several = ((other >> 32) == (mine >> 32)) & ((other & _WHO) != (mine & _WHO))
        if not several.any():
            return
        warp = _warp_of(other & _WHO)
        several &= ~((warp == (mine & _WHO) // WARP) & ((other ^ mine) >> 12 << 12 != 0))
        mine = np.broadcast_to(mine, spots.shape)
        same_warp = several & (warp == (mine & _WHO) // WARP)
        several_warps = several & ~same_warp
        self.reader[spots[same_warp]] = (mine[same_warp] & ~_WHO) | (_OF_WARP + warp[same_warp])
        self.reader[spots[several_warps]] = mine[several_warps] | _MANY

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


def _warp_of(who: Array) -> Array:
    """The warp that a stamp names."""
    return np.where(who >= _OF_WARP, who - _OF_WARP, who // WARP)


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
