"""Frames: lanes that execute in lockstep, and their registers.

Steps (one instruction each) always work on all lanes of a frame. A frame of all lanes uses the
registers of the run itself. A frame of some lanes gathers the registers that a block reads when it
enters the block, and scatters those that it wrote and that are still live when it is dissolved:
divergence costs at the edges of a block, not in every instruction.

A register that has one value for all lanes may be an array of one element.

Tests: tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptxsim.faults import Fault
from ptxsim.types import Array

if TYPE_CHECKING:
    from ptxsim.run import Run

Step = Callable[["Frame"], None]


class Frame:
    """Some lanes of a run.

    Attributes:
        run: the launch that the lanes belong to.
        registers: arrays by slot, for exactly these lanes; a list for all lanes, else a dict.
        lanes: the lanes' numbers in ascending order; None for all.
        count: the number of lanes.
        dirty: the slots that were written since the frame was made, as a bit mask.
    """

    __slots__ = ("count", "dirty", "lanes", "loaded", "registers", "run")

    def __init__(self, run: Run, registers: Any, lanes: Array | None, count: int) -> None:
        self.run = run
        self.registers = registers
        self.lanes = lanes
        self.count = count
        self.dirty = 0
        self.loaded: set[int] = set()

    def lane_ids(self) -> Array:
        """The lanes' numbers."""
        return self.run.geometry.lanes if self.lanes is None else self.lanes

    def of_lanes(self, values: Array) -> Array:
        """A property of all lanes of the run, for these."""
        return values if self.lanes is None else values[self.lanes]

    def per_lane(self, values: Array) -> Array:
        """A register's values with one element per lane."""
        return values if len(values) == self.count else np.broadcast_to(values, self.count)

    def load(self, number: int, reads: Iterable[int], writes: int) -> None:
        """Gather the registers that a block reads; a frame of all lanes has them already."""
        if number in self.loaded:
            return
        self.loaded.add(number)
        self.dirty |= writes
        registers, source, lanes = self.registers, self.run.registers, self.lanes
        for slot in reads:
            if slot not in registers:
                values = source[slot]
                registers[slot] = values if len(values) == 1 else values[lanes]

    def dissolve(self, live: int) -> None:
        """Scatter written registers in the mask ``live`` back to the run's registers."""
        if self.lanes is None:
            return
        target, remaining = self.run.registers, self.dirty & live
        while remaining:
            slot = (remaining & -remaining).bit_length() - 1
            remaining &= remaining - 1
            if slot in self.registers:  # else the block that writes it was not run to its end
                target[slot] = merged(
                    target[slot], self.registers[slot], self.lanes, self.run.geometry.count
                )

    def run_lanes(
        self, index: Array, steps: Sequence[Step], reads: Iterable[int], writes: Iterable[int]
    ) -> None:
        """Run steps on some of the frame's lanes, given as indices of the frame."""
        subset = Frame(self.run, {}, self.lane_ids()[index], len(index))
        for slot in reads:
            values = self.held(slot)
            subset.registers[slot] = values if len(values) == 1 else values[index]
        for step in steps:
            step(subset)
        for slot in writes:
            new = subset.registers[slot]
            self.registers[slot] = merged(self.held(slot), new, index, self.count)

    def held(self, slot: int) -> Array:
        """A register's values, even if no block has declared that it reads them."""
        if self.lanes is None or slot in self.registers:
            return self.registers[slot]
        values = self.run.registers[slot]
        return values if len(values) == 1 else values[self.lanes]

    def fail(self, what: str, fix: str, position: int = 0) -> NoReturn:
        """Report a fault of the lane at a position of the frame."""
        lane = int(position) if self.lanes is None else int(self.lanes[position])
        raise Fault(what, fix, lane)


def merged(old: Array, new: Array, index: Array, count: int) -> Array:
    """A copy of ``old``, which may be one value for all, with new values at an index."""
    result = np.empty(count, new.dtype)
    if old.dtype.itemsize != new.dtype.itemsize:  # a temporary, of which only the new part counts
        result[:] = 0
    else:
        result[:] = old if old.dtype == new.dtype else old.view(new.dtype)
    result[index] = new
    return result
