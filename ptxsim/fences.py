"""Ordering between blocks: fences, and the values by which one thread signals another.

A thread writes, fences, and then sets a flag by a strong write (an atomic, or a relaxed or volatile
store). A thread that reads that flag by a strong read and then fences is ordered after everything
before the first fence; a barrier extends this to the whole block. Each flag keeps a log of its
signals, and the state of a warp or block is how much of which log it has seen.

Where an exact answer would cost too much, two accesses count as ordered: a race may be missed, but
none is reported where there is none.

Source: PTX ISA 9.0, Memory Consistency Model: release and acquire patterns, causality order.

Tests: tests/ptxsim/test_ptx_thorough.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxsim.geometry import WARP
from ptxsim.types import BOOL, Array

Clock = dict[int, int]  # a vector clock: the number of signals seen, by log


@dataclass(frozen=True)
class Signal:
    """A strong write of a thread that has fenced.

    Attributes:
        thread: the writer.
        time: of the write.
        barrier: time of the last barrier of its block: everything before is signalled too.
        warp: time of the thread's last warp barrier.
        fence: time of the thread's last fence beyond its block.
        clock: the signals that it had seen itself.
    """

    thread: int
    time: int
    barrier: int
    warp: int
    fence: int
    clock: Clock


class Fenced:
    """Times of fences at one scope, by thread, block and warp."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.of_thread = np.zeros(blocks * threads, np.int64)
        # The time of the newest barrier that some fence of the block, or of the warp, came after.
        self.of_block = np.zeros(blocks, np.int64)
        self.of_warp = np.zeros(blocks * -(-threads // WARP), np.int64)


class HappensBefore:
    """State of a warp: the accesses of each block that happen before it."""

    def __init__(self, blocks: int) -> None:
        self.everybody = np.zeros(blocks, np.int64)  # all accesses of the block before this time
        self.thread = np.full(blocks, -1, np.int64)  # and those of this thread up to ``time``
        self.time = np.zeros(blocks, np.int64)
        self.warp = np.zeros(blocks, np.int64)  # and those of its warp before this time
        self.fence = np.zeros(blocks, np.int64)  # until when the thread's own fences reach

    def add(self, signal: Signal, block: int) -> None:
        """Add one more signal."""
        self.everybody[block] = max(self.everybody[block], signal.barrier)
        other = self.thread[block]
        if other not in (-1, signal.thread):  # several threads' signals count for the block
            latest = max(int(self.time[block]), signal.time)
            self.everybody[block] = max(self.everybody[block], latest)
        self.thread[block] = signal.thread
        self.time[block] = max(self.time[block], signal.time)
        self.warp[block] = max(self.warp[block], signal.warp)
        self.fence[block] = max(self.fence[block], signal.fence)


class Fences:
    """Fences, signals and clocks of a launch. Threads are numbered over the whole grid."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.blocks, self.threads = blocks, threads
        self.warps = -(-threads // WARP)
        self.barrier = np.zeros(blocks, np.int64)  # when each block passed its last one
        self.warp_barrier = np.zeros(blocks * threads, np.int64)
        self.logs: list[list[Signal]] = []
        self._has_fenced = np.zeros(blocks, BOOL)
        self._scopes: dict[bool, Fenced] = {}  # False: within the block only
        self._seen: dict[int, Clock] = {}  # by warp: read, but not fenced after
        self._seen_by_block: dict[int, Clock] = {}
        self._acquired: dict[int, Clock] = {}  # by warp
        self._clocks: dict[int, Clock] = {}  # by block

    def warp_of(self, threads: Array) -> Array:
        """The warps of threads, numbered over the whole grid."""
        return threads // self.threads * self.warps + threads % self.threads // WARP

    # --- fences, barriers, signals ---

    def pass_barrier(self, blocks: Array, time: int) -> None:
        """Blocks have passed a barrier: merge the states of the warps of a block."""
        self.barrier[blocks] = time
        acquired, seen = (self._acquired, self._clocks), (self._seen, self._seen_by_block)
        for of_warps, of_blocks in (acquired, seen):
            if of_warps:
                passed = set(blocks.tolist())
                for warp in [w for w in of_warps if w // self.warps in passed]:
                    _merge(of_blocks.setdefault(warp // self.warps, {}), of_warps.pop(warp))

    def release(self, threads: Array, time: int, beyond_block: bool) -> None:
        """Later signals of threads include everything before.

        Args:
            beyond_block: whether to the device, or to the block only.
        """
        self._has_fenced[threads // self.threads] = True
        for scope in (False, True) if beyond_block else (False,):
            fenced = self._scopes.get(scope)
            if fenced is None:
                fenced = self._scopes[scope] = Fenced(self.blocks, self.threads)
            fenced.of_thread[threads] = time
            blocks = threads // self.threads
            fenced.of_block[blocks] = self.barrier[blocks]
            np.maximum.at(fenced.of_warp, self.warp_of(threads), self.warp_barrier[threads])

    def acquire(self, threads: Array) -> None:
        """Later accesses of threads are ordered after the signals that they have seen."""
        if self._seen or self._seen_by_block:
            for warp in np.unique(self.warp_of(threads)).tolist():
                acquired = self._acquired.setdefault(warp, {})
                _merge(acquired, self._seen.get(warp, {}))
                _merge(acquired, self._seen_by_block.get(warp // self.warps, {}))

    def has_fenced(self, threads: Array) -> Array | None:
        """The threads whose block has fenced, as a mask; None if there are none."""
        if not self._scopes:
            return None
        fenced = self._has_fenced[threads // self.threads]
        return fenced if fenced.any() else None

    def signal(self, log: int, thread: int, time: int) -> None:
        """A thread sets the flag of a log."""
        block, warp = thread // self.threads, int(self.warp_of(np.array([thread]))[0])
        clock = dict(self._clocks.get(block, {}))
        _merge(clock, self._acquired.get(warp, {}))
        fence = int(self._scopes[True].of_thread[thread]) if True in self._scopes else 0
        passed = int(self.barrier[block]), int(self.warp_barrier[thread])
        self.logs[log].append(Signal(thread, time, *passed, fence, clock))

    def see(self, log: int, thread: int) -> None:
        """A thread reads the flag of a log."""
        warp = int(self.warp_of(np.array([thread]))[0])
        self._seen.setdefault(warp, {})[log] = len(self.logs[log])

    # --- happens-before ---

    def ordered(self, before: Array, times: Array, is_atomic: Array, now: Array) -> Array:
        """Whether accesses of threads at some times happen before the current ones."""
        is_ordered = np.zeros(len(now), BOOL)
        if not (self._scopes and self.logs):
            return is_ordered
        warps = self.warp_of(now)
        for warp in np.unique(warps).tolist():
            clock = dict(self._clocks.get(warp // self.warps, {}))
            _merge(clock, self._acquired.get(warp, {}))
            if clock:
                index = np.flatnonzero(warps == warp)
                is_ordered[index] = self._reached(
                    self._happens_before(clock),
                    before[index],
                    times[index],
                    is_atomic[index],
                    warp // self.warps,
                )
        return is_ordered

    def _reached(
        self, prior: HappensBefore, before: Array, times: Array, is_atomic: Array, block: int
    ) -> Array:
        blocks, warps = before // self.threads, self.warp_of(before)
        signalled = times < prior.everybody[blocks]
        signalled |= (before == prior.thread[blocks]) & (times <= prior.time[blocks])
        of_signal = self.warp_of(np.maximum(prior.thread[blocks], 0)) == warps
        signalled |= of_signal & (prior.thread[blocks] >= 0) & (times < prior.warp[blocks])
        fenced = is_atomic.copy()
        for beyond, scope in self._scopes.items():
            fence_time = scope.of_thread[before]
            if beyond:
                is_signaller = before == prior.thread[blocks]
                fence_time = np.where(is_signaller, prior.fence[blocks], fence_time)
            covered = fence_time > times
            covered |= (scope.of_block[blocks] > times) | (scope.of_warp[warps] > times)
            fenced |= covered if beyond else covered & (blocks == block)
        return signalled & fenced

    def _happens_before(self, clock: Clock) -> HappensBefore:
        """The transitive closure of a clock, over any number of blocks."""
        prior, done, waiting = HappensBefore(self.blocks), {}, list(clock.items())
        while waiting:
            log, length = waiting.pop()
            start = done.get(log, 0)
            if length <= start:
                continue
            done[log] = length
            for signal in self.logs[log][start:length]:
                prior.add(signal, signal.thread // self.threads)
                waiting.extend(signal.clock.items())
        return prior


def _merge(clock: Clock, more: Clock) -> None:
    for log, length in more.items():
        clock[log] = max(clock.get(log, 0), length)
