"""Run the blocks of a launch: scheduling, divergence and reconvergence of lanes.

Lanes at one instruction run together. If a branch diverges, the lanes with the lowest block of code
go first, and wait for the others there: compilers lay code out so that this reconverges as early as
possible. Lanes that spin on the progress of others yield after a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ptxsim.allocation import Allocation
from ptxsim.checks import Checks, Statistics
from ptxsim.faults import Fault, Location, located
from ptxsim.frame import Frame
from ptxsim.geometry import Geometry
from ptxsim.memory import DeviceMemory
from ptxsim.program import SPLIT, Barrier, Block, Meeting, Program
from ptxsim.provenance import Provenance
from ptxsim.races import GlobalRaces
from ptxsim.rendezvous import Barriers, meeting
from ptxsim.shared import Shared
from ptxsim.types import U8, U32, Array
from ptxsim.undefined import Undefined

PATIENCE = 2048  # blocks that lanes may run while others wait
_LAST = 1 << 60
# Of a random order: the most blocks of code at once, how often lanes of a block go on that are not
# the ones with the lowest code, and how many blocks may have begun and not ended.
_MAX_LENGTH, _FAIR, _RESIDENT = 256, 0.1, 3


class Run:
    """Consecutive blocks of a launch, which run at the same time.

    Attributes:
        program, geometry, memory, shared, checks: the state of the launch.
        registers: of all lanes, by slot.
        local: the local memory of all lanes.
        sites: the allocation that each memory instruction used last.
        races: the accesses to global memory in this launch; None without that check.
        provenance: the arrays that each access may touch; None without that check.
        undefined: the lanes that hold undefined values.
        random: selects the block that continues; None: all of them do.
        set_registers: for registers that may be unset, the lanes that set them; None: unchecked.
        alive: the lanes that have not returned.
    """

    def __init__(
        self,
        program: Program,
        geometry: Geometry,
        memory: DeviceMemory,
        registers: list[Array],
        shared_bytes: int,
        checks: Checks,
        races: GlobalRaces | None = None,
    ) -> None:
        self.program = program
        self.geometry = geometry
        self.memory = memory
        self.registers = registers
        self.checks = checks
        size = program.dynamic_start + shared_bytes if shared_bytes else program.shared_bytes
        self.shared = Shared(
            geometry, size, program.shared_granule, checks.races, checks.uninitialized_shared
        )
        self.local_stride = -(-program.local_bytes // 16) * 16
        self.local = np.zeros(self.local_stride * geometry.count, U8)
        self.sites: list[Allocation | None] = [None] * program.sites
        self.races = races
        self.provenance = Provenance(program, registers, memory, size) if checks.arrays else None
        self.undefined = Undefined(geometry.count)
        self.set_registers: dict[int, Array] | None = None
        if checks.registers:
            unset = np.zeros(geometry.count, bool)
            self.set_registers = {slot: unset.copy() for slot in program.suspects}
        self.services: dict[str, Any] = {}  # state of instructions for the launch
        self.alive = np.ones(geometry.count, bool)
        self.alive_count = geometry.count
        self.barriers = Barriers(self)
        self.parked: dict[int, Array] = {}
        self.held: dict[int, Array] = {}  # at an instruction that waits for the rest of a warp
        self.impatient = False
        self.random = None if checks.order is None else np.random.default_rng(checks.order)
        self.started: set[int] = set()  # blocks, in a random order
        self.issued = 0
        self.loads = self.stores = self.bytes = 0

    def execute(self) -> Statistics:
        """Run until every lane has returned."""
        if self.random is None:
            self._advance(Frame(self, self.registers, None, self.geometry.count), 0, _LAST)
        else:
            self.park(0, np.arange(self.geometry.count))
        while self.parked or self.held or self.barriers.waiting:
            if not self.parked:
                self._stuck()
            number, lanes, others = self._next() if self.random is None else self._any()
            self.impatient = False
            self._advance(self.frame(lanes), number, others)
        return Statistics(self.issued, self.loads, self.stores, self.bytes)

    def _next(self) -> tuple[int, Array, int]:
        """The lanes that continue, their block of code, and the next block with other lanes."""
        if self.impatient:  # the lanes that wait longest run next, even if others spin
            number, others = next(iter(self.parked)), _LAST
        else:
            number = min(self.parked)
            others = min((k for k in self.parked if k != number), default=_LAST)
        return number, self.parked.pop(number), others

    def _any(self) -> tuple[int, Array, int]:
        """As ``_next``, for a random block of threads."""
        assert self.random is not None
        of_block = self.geometry.block_number
        waiting = {*of_block[np.concatenate(list(self.parked.values()))].tolist()}
        resident = waiting & self.started
        selected = self.random.choice(sorted(resident if len(resident) >= _RESIDENT else waiting))
        self.started.add(int(selected))
        numbers = [k for k, lanes in self.parked.items() if (of_block[lanes] == selected).any()]
        is_fair = self.random.random() < _FAIR
        number = int(self.random.choice(numbers)) if is_fair else min(numbers)
        lanes = self.parked.pop(number)
        is_selected = of_block[lanes] == selected
        if not is_selected.all():
            self.parked[number] = lanes[~is_selected]
        others = min((k for k in numbers if k != number), default=_LAST)
        return number, lanes[is_selected], _LAST if is_fair else others

    def frame(self, lanes: Array) -> Frame:
        """A frame of some lanes."""
        if len(lanes) == self.geometry.count:
            return Frame(self, self.registers, None, self.geometry.count)
        return Frame(self, {}, lanes, len(lanes))

    def _advance(self, frame: Frame, number: int, others: int) -> None:
        """Run a frame until its lanes diverge, return, wait, or reach the block of others."""
        blocks, end = self.program.blocks, len(self.program.blocks)
        patience = PATIENCE if self.parked else _LAST
        if self.random is not None:
            patience = int(self.random.integers(1, _MAX_LENGTH))
        limit, issued = self.checks.instructions, self.issued
        undefined = self.undefined
        while number < end:
            block = blocks[number]
            if block.gate is not None:
                entered = self._enter(frame, block)
                if entered is None:
                    self.issued = issued
                    return
                frame = entered
            if frame.lanes is not None:
                frame.load(number, block.reads, block.writes)
            step: Any = None
            try:
                if block.careful or undefined.lanes:
                    for step, effect in zip(block.steps, block.effects, strict=True):
                        if effect is not None and undefined.lanes:
                            undefined.follow(frame, effect)
                        step(frame)
                    undefined.require(frame, block.decides)
                else:
                    for step in block.steps:
                        step(frame)
                issued += block.length
                number = block.following if block.leave is None else block.leave(frame)
            except Fault as fault:
                raise self.located(fault, block, step) from None
            if number == SPLIT:
                self.issued = issued
                return
            patience -= 1
            if issued > limit:
                self.issued = issued
                self._endless(frame, block)
            if number >= others or patience < 0:
                self.issued = issued
                self.impatient = patience < 0
                frame.dissolve(self.program.live_at(number))
                self.park(number, frame.lane_ids())
                return
        self.issued = issued
        self.retire(frame.lane_ids())

    # --- divergence, barriers, returns ---

    def park(self, number: int, lanes: Array) -> None:
        """Schedule lanes to continue at a block."""
        if number >= len(self.program.blocks):
            self.retire(lanes)
            return
        there = self.parked.get(number)
        self.parked[number] = lanes if there is None else _union(there, lanes)

    def split(self, frame: Frame, groups: Mapping[int, Array]) -> None:
        """Send the lanes of a frame, given as indices of it, to several blocks."""
        live = 0
        for number in groups:
            live |= self.program.live_at(number)
        frame.dissolve(live)
        lanes = frame.lane_ids()
        for number, index in groups.items():
            self.park(number, lanes[index])

    def pass_barrier(self, lanes: Array | slice) -> None:
        """Some lanes have passed a barrier of their block."""
        self.shared.pass_barrier(lanes)
        if self.races is not None:
            self.races.pass_barrier(self.geometry.lanes[lanes])

    def retire(self, lanes: Array) -> None:
        """Retire lanes that have returned: no barrier waits for them."""
        self.alive[lanes] = False
        self.alive_count -= len(lanes)
        if self.barriers.waiting:
            self.barriers.release()
        if self.held:
            held, self.held = self.held, {}
            for number, waiting in held.items():
                self.park(number, waiting)

    def _enter(self, frame: Frame, block: Block) -> Frame | None:
        """The lanes that may run the block now; the others are parked or held."""
        try:
            if isinstance(block.gate, Barrier):
                return frame if self.barriers.arrive(frame, block, block.gate) else None
            assert isinstance(block.gate, Meeting)
            if frame.lanes is None and self.geometry.whole_warps:
                member = self.registers[block.gate.member]
                if len(member) == 1 and int(member.view(U32)[0]) == 0xFFFFFFFF:
                    return frame
            waiting = self.held.pop(block.number, None)
            if waiting is not None:
                frame.dissolve(block.live)
                frame = self.frame(_union(waiting, frame.lane_ids()))
            if frame.lanes is not None:
                frame.load(block.number, block.reads, block.writes)
            complete = meeting(frame, frame.registers[block.gate.member].view(U32))
            if complete is None:
                return frame
            frame.dissolve(block.live)
            lanes = frame.lane_ids()
            self.held[block.number] = lanes[~complete]
            return self.frame(lanes[complete]) if complete.any() else None
        except Fault as fault:
            raise self.located(fault, block, None) from None

    # --- errors ---

    def located(self, fault: Fault, block: Block, step: Any) -> Exception:
        """The error of a fault in a step of a block, or at its gate for None."""
        where = block.steps.index(step) if step in block.steps else 0
        instructions = block.instructions[where : where + 1]
        location = Location(
            self.program.name,
            instructions[0].text if instructions else "",
            instructions[0].source if instructions else "",
            self.geometry.block_position(fault.lane),
            self.geometry.thread_position(fault.lane),
        )
        return located(fault, location)

    def _stuck(self) -> None:
        """Report a deadlock: all remaining lanes wait for others."""
        if self.held:
            number, lanes = next(iter(self.held.items()))
            fault = Fault(
                "an instruction of a warp must be reached by all lanes in its member mask; the "
                "others wait elsewhere",
                "run it before the branch, or leave these lanes out of the mask",
                int(lanes[0]),
            )
            raise self.located(fault, self.program.blocks[number], None)
        fault, number = self.barriers.deadlock()
        raise self.located(fault, self.program.blocks[number], None)

    def _endless(self, frame: Frame, block: Block) -> None:
        fault = Fault(
            f"a launch must end; got {self.checks.instructions} instructions and no end",
            "find the loop that does not stop, or raise Checks.instructions",
            int(frame.lane_ids()[0]),
        )
        raise self.located(fault, block, None)


def _union(some: Array, others: Array) -> Array:
    """The sorted union of the lanes of two groups."""
    lanes = np.concatenate((some, others))
    lanes.sort()
    return lanes
