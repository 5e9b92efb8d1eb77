"""Synchronization of lanes: barriers of the block, and instructions of a whole warp.

Tests: tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxsim.faults import Fault
from ptxsim.frame import Frame, merged
from ptxsim.program import Barrier, BasicBlock
from ptxsim.types import BOOL, U32, Array

if TYPE_CHECKING:
    from ptxsim.run import Run


@dataclass
class _Arrival:
    """Lanes of one thread block that have arrived at a barrier.

    Attributes:
        block: the basic block with the barrier.
        gate: the barrier.
        lanes: ids of the lanes.
        expected: threads that take part; 0: all of the thread block.
        values: for each lane the predicate of bar.red; None without a reduction.
    """

    block: BasicBlock
    gate: Barrier
    lanes: Array
    expected: int
    values: Array | None


class Barriers:
    """The lanes that wait at barriers.

    Attributes:
        waiting: arrivals by block of the grid and number of the barrier.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting: dict[tuple[int, int], list[_Arrival]] = {}

    def arrive(self, frame: Frame, block: BasicBlock, gate: Barrier) -> bool:
        """Whether the whole frame may continue at once; if not, its lanes are parked or wait."""
        run = self.run
        simple = gate.waits and gate.expected is None and gate.reduction is None
        if simple and frame.count == run.alive_count and not self.waiting:
            if gate.aligned and frame.lanes is not None:
                self._check_whole(frame.lanes)
            run.pass_barrier(slice(None) if frame.lanes is None else frame.lanes)
            return True
        if frame.lanes is not None:
            frame.load(block.number, block.reads, block.writes)
        numbers = frame.per_lane(frame.registers[gate.number].view(U32))
        expected = np.zeros(1, U32)
        if gate.expected is not None:
            expected = frame.registers[gate.expected].view(U32)
        expected, values = frame.per_lane(expected), None
        if gate.reduction is not None:
            values = frame.per_lane(frame.registers[gate.predicate].astype(BOOL)) != gate.negated
        self._check(frame, numbers, expected)
        lanes = frame.lane_ids()
        frame.dissolve(block.live)
        keys = run.geometry.block_number[lanes] * 16 + numbers
        for key in np.unique(keys):
            arrived = np.flatnonzero(keys == key)
            arrival = _Arrival(
                block,
                gate,
                lanes[arrived],
                int(expected[arrived[0]]),
                None if values is None else values[arrived],
            )
            self.waiting.setdefault((int(key) // 16, int(key) % 16), []).append(arrival)
            if not gate.waits:
                run.park(block.number + 1, lanes[arrived])
        self.release()
        return False

    @staticmethod
    def _check(frame: Frame, numbers: Array, expected: Array) -> None:
        wrong = (numbers > 15) | (expected % 32 != 0)
        if wrong.any():
            bad = int(np.argmax(wrong))
            frame.fail(
                "a barrier must have a number below 16 and take a multiple of 32 threads; got "
                f"barrier {numbers[bad]} of {expected[bad]} threads",
                "round the count up to whole warps",
                bad,
            )

    def release(self) -> None:
        """Release the lanes of each complete barrier."""
        run = self.run
        for (block_index, barrier), arrivals in list(self.waiting.items()):
            came = sum(len(arrival.lanes) for arrival in arrivals)
            expected = max(arrival.expected for arrival in arrivals)
            first = block_index * run.geometry.threads
            of_block = slice(first, first + run.geometry.threads)
            if expected == 0 and came < int(np.count_nonzero(run.alive[of_block])):
                continue
            if expected and came < expected:
                continue
            del self.waiting[block_index, barrier]
            try:
                self._check_same(arrivals)
            except Fault as fault:
                raise run.located(fault, arrivals[0].block, None) from None
            run.pass_barrier(of_block)
            self._reduce(arrivals)
            for arrival in arrivals:
                if arrival.gate.waits:
                    run.park(arrival.block.number + 1, arrival.lanes)

    def _check_same(self, arrivals: list[_Arrival]) -> None:
        """Require one instruction for all lanes of an aligned barrier; per warp if counted."""
        waiting = [a for a in arrivals if a.gate.waits and a.gate.aligned]
        if waiting:
            self._check_whole(np.concatenate([a.lanes for a in waiting]))
        warp = self.run.geometry.warp
        for arrival in waiting[1:]:
            first = waiting[0]
            if arrival.block is first.block:
                continue
            who = "threads of one block"
            if arrival.expected:
                who = "lanes of one warp"
                if not np.isin(warp[arrival.lanes], warp[first.lanes]).any():
                    continue
            raise Fault(
                f"{who} wait at different barriers: bar.sync must be reached by all of them",
                "move the barrier out of the branch",
                int(arrival.lanes[0]),
            )

    def _check_whole(self, lanes: Array) -> None:
        """Require that all lanes of a warp reach an aligned barrier."""
        geometry = self.run.geometry
        if not self.run.checks.divergence:
            return
        warps = geometry.warp[lanes]
        missing = np.bincount(warps)[warps] != geometry.warp_size[lanes]
        if missing.any():
            bad = int(lanes[np.argmax(missing)])
            raise Fault(
                "bar.sync must be reached by all lanes of a warp; the others have returned, or "
                "wait elsewhere: it is in a divergent branch",
                "move the barrier out of the branch, and let lanes return behind it",
                bad,
            )

    def _reduce(self, arrivals: list[_Arrival]) -> None:
        gate = arrivals[0].gate
        if gate.reduction is None:
            return
        votes = np.concatenate([a.values for a in arrivals if a.values is not None])
        result = {"popc": np.count_nonzero, "and": np.all, "or": np.any}[gate.reduction](votes)
        dtype = U32 if gate.reduction == "popc" else BOOL
        registers = self.run.registers
        for arrival in arrivals:
            registers[arrival.gate.target] = merged(
                registers[arrival.gate.target],
                np.full(1, result, dtype),
                arrival.lanes,
                self.run.geometry.count,
            )

    def deadlock(self) -> tuple[Fault, int]:
        """The fault of a deadlock, and a block of code at which lanes wait."""
        (_, barrier), arrivals = next(iter(self.waiting.items()))
        came = sum(len(arrival.lanes) for arrival in arrivals)
        gates = {arrivals[0].block.number for arrivals in self.waiting.values()}
        what = (
            "threads of one block wait at different barriers"
            if len(gates) > 1
            else (f"barrier {barrier} must be reached by all that it waits for; only {came} came")
        )
        fault = Fault(
            f"{what}: a part of the block never gets there",
            "move the barrier out of the branch, or correct its count of threads",
            int(arrivals[0].lanes[0]),
        )
        return fault, arrivals[0].block.number


def meeting(frame: Frame, member: Array) -> Array | None:
    """The lanes whose member mask is complete in the frame, as a mask; None for all of them.

    Raises:
        Fault: a lane executes the instruction without being in its own mask.
    """
    geometry, run = frame.run.geometry, frame.run
    lanes, member = frame.lane_ids(), frame.per_lane(member)
    lane = geometry.lane[lanes]
    missing_self = (member >> lane.astype(np.uint32)) & 1 == 0
    if missing_self.any():
        bad = int(np.argmax(missing_self))
        frame.fail(
            f"a lane must be in the member mask that it gives; got {int(member[bad]):#x} in lane "
            f"{int(lane[bad])}",
            "give the mask of the lanes that execute the instruction",
            bad,
        )
    weight = np.uint32(1) << lane.astype(np.uint32)
    warps = geometry.blocks * geometry.warps
    warp = geometry.warp[lanes]
    arrived = np.bincount(warp, weight, warps).astype(np.int64)
    alive = np.flatnonzero(run.alive)
    bits = np.left_shift(1, geometry.lane[alive])
    living = np.bincount(geometry.warp[alive], bits, warps).astype(np.int64)
    absent = member.astype(np.int64) & living[warp] & ~arrived[warp]
    if not absent.any():
        return None
    missing = np.zeros(warps, bool)
    missing[warp[absent != 0]] = True
    return ~missing[warp]
