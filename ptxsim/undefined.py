"""Values that are undefined: the quotient of an integer division by zero.

A GPU divides by zero without a fault and gives some number, so compilers divide before they know
whether the quotient is needed: the index of a loop's first iteration before the loop, for example.
Such a number must not be used: as an address, in memory, to choose a branch, by other lanes. It may
be computed with, and a ``selp`` may take the other value. Blocks of code that divide, and all
others while some lane holds such a value, are tracked; no others pay for it.

Tests: tests/ptxsim/test_ptx_arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ptxsim.types import BOOL, Array

if TYPE_CHECKING:
    from ptxsim.frame import Frame


@dataclass(frozen=True)
class Effect:
    """Effect of an instruction on undefined values in registers.

    Attributes:
        reads, writes: slots.
        uses: whether its operands must be defined; else its results are undefined, too.
        chooses: whether it gives its first operand where the third one holds, else its second.
        guard: the slot of its predicate; None for an instruction that all lanes run.
        negated: whether the lanes run it where the predicate does not hold.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    uses: bool = False
    chooses: bool = False
    guard: int | None = None
    negated: bool = False


class Undefined:
    """The undefined values of a run.

    Attributes:
        lanes: masks of the lanes that hold one, by slot; slots without any are absent.
        reason: the origin of the last one.
    """

    def __init__(self, count: int) -> None:
        self.lanes: dict[int, Array] = {}
        self.reason = ""
        self._count = count

    def note(self, frame: Frame, slot: int, bad: Array, reason: str) -> None:
        """A slot now holds an undefined value in the lanes for which ``bad`` is true."""
        if slot not in self.lanes:
            self.lanes[slot] = np.zeros(self._count, bool)
        self.lanes[slot][frame.lane_ids()] |= bad
        self.reason = reason

    def require(self, frame: Frame, slots: Iterable[int]) -> None:
        """Fail where a lane of the frame holds an undefined value in one of the slots."""
        self._refuse(frame, self._any(frame, slots))

    def follow(self, frame: Frame, effect: Effect) -> None:
        """Account for an instruction, just before the frame runs it."""
        active = None
        if effect.guard is not None:
            self.require(frame, (effect.guard,))
            active = frame.per_lane(frame.held(effect.guard).astype(BOOL)) != effect.negated
        if effect.chooses:
            bad = self._of_selection(frame, effect.reads)
        else:
            bad = self._any(frame, effect.reads)
        if active is not None:
            bad = bad & active
        if effect.uses:
            self._refuse(frame, bad)
        lane_ids = frame.lane_ids()
        for slot in effect.writes:
            mask = self.lanes.get(slot)
            if mask is None:
                if not bad.any():
                    continue
                mask = self.lanes[slot] = np.zeros(self._count, bool)
            mask[lane_ids] = bad if active is None else np.where(active, bad, mask[lane_ids])
            if not mask.any():
                del self.lanes[slot]

    def _any(self, frame: Frame, slots: Iterable[int]) -> Array:
        """Of the frame's lanes, those that hold an undefined value in some slot."""
        bad = np.zeros(frame.count, bool)
        for slot in slots:
            if slot in self.lanes:
                bad |= frame.of_lanes(self.lanes[slot])
        return bad

    def _of_selection(self, frame: Frame, reads: tuple[int, ...]) -> Array:
        first, second, condition = reads
        taken = frame.per_lane(frame.held(condition).astype(BOOL))
        bad = np.where(taken, self._any(frame, (first,)), self._any(frame, (second,)))
        return bad | self._any(frame, (condition,))

    def _refuse(self, frame: Frame, bad: Array) -> None:
        if bad.any():
            frame.fail(
                f"a value must be defined where it is used; got the result of a {self.reason}",
                "choose the divisor before the division",
                int(np.argmax(bad)),
            )
