"""Run the thread blocks (CTAs) of a launch: scheduling, divergence and reconvergence of lanes.

In this file a number is the index of a basic block in ``program.blocks``, which is all that lanes
have as a program counter. A lane is a thread of the run; its id is its index in ``geometry.lanes``.

Lanes at one instruction run together. If a branch diverges, the lanes with the lowest block of code
go first, and wait for the others there: compilers lay code out so that this reconverges as early as
possible. Lanes that spin on the progress of others yield after a while.

Tests: tests/ptxsim/test_ptx_flow.py.
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
from ptxsim.program import SPLIT, Barrier, BasicBlock, Program, WarpSync
from ptxsim.provenance import Provenance
from ptxsim.races import GlobalRaces
from ptxsim.rendezvous import Barriers, meeting
from ptxsim.shared import Shared
from ptxsim.types import U8, U32, Array
from ptxsim.undefined import Undefined

MAX_BLOCKS_WHILE_OTHERS_WAIT = 2048  # basic blocks; then lanes that may spin yield
_NO_LIMIT = 1 << 60  # more than any count of basic blocks
# In a random order (``Checks.order``):
_MAX_RANDOM_BLOCKS = 256  # basic blocks that lanes run before others may continue
_OTHER_LANES_PROBABILITY = 0.1  # of continuing at any basic block, not the lowest one
_MAX_RESIDENT = 3  # thread blocks that may have started and not ended


class Run:
    """Consecutive thread blocks of a launch, which run at the same time; used by one thread.

    Invariant: between two calls of ``_advance``, each lane that is alive is in exactly one of
    ``parked``, ``waiting_for_warp`` and ``barriers.waiting``. Its registers are in ``registers``.

    Attributes:
        program: the decoded kernel; its ``base_origins`` are filled in by the first run.
        geometry: the lanes of these thread blocks.
        memory: the device's global memory.
        shared: the shared memory of these thread blocks.
        checks: the checks of the launch.
        registers: by slot, an array with an element for each lane, or one element for all.
        local: the local memory of all lanes, ``local_stride`` bytes each.
        sites: the allocation that each memory instruction used last, by ``Access.number``.
        races: the accesses to global memory in this launch; None without that check.
        provenance: the arrays that each access may touch; None without that check.
        undefined: the lanes that hold undefined values.
        set_registers: for registers that may be unset, the lanes that set them; None: unchecked.
        launch_state: state of single instructions (clock, cp.async), by name.
        alive: a mask of the lanes that have not returned; ``alive_count`` of them.
        barriers: the lanes that wait at barriers of their thread block.
        parked: the lanes that may run, by the basic block at which they continue; the ids of each
            ascend. The first key has waited longest.
        waiting_for_warp: the lanes that wait for others in their membermask, by basic block.
        is_impatient: whether the last lanes yielded although others were not at their basic block.
        random: selects the thread block that continues; None: all of them do.
        started: the thread blocks that have run, in a random order.
        issued: instructions so far, one for any number of lanes.
        loads, stores, bytes: accesses to global memory, summed over lanes; see ``Statistics``.
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
            self.set_registers = {slot: unset.copy() for slot in program.maybe_unset}
        self.instruction_state: dict[str, Any] = {}
        self.alive = np.ones(geometry.count, bool)
        self.alive_count = geometry.count
        self.barriers = Barriers(self)
        self.parked: dict[int, Array] = {}
        self.waiting_for_warp: dict[int, Array] = {}
        self.is_impatient = False
        self.random = None if checks.order is None else np.random.default_rng(checks.order)
        self.started: set[int] = set()
        self.issued = 0
        self.loads = self.stores = self.bytes = 0

    def execute(self) -> Statistics:
        """Run until every lane has returned."""
        if self.random is None:
            self._advance(Frame(self, self.registers, None, self.geometry.count), 0, _NO_LIMIT)
        else:
            self.park(0, np.arange(self.geometry.count))
        while self.parked or self.waiting_for_warp or self.barriers.waiting:
            if not self.parked:
                self._stuck()
            number, lanes, others = self._next() if self.random is None else self._any()
            self.is_impatient = False
            self._advance(self.frame(lanes), number, others)
        return Statistics(self.issued, self.loads, self.stores, self.bytes)

    def _next(self) -> tuple[int, Array, int]:
        """The basic block that continues, its lanes, and the next basic block with other lanes."""
        if self.is_impatient:  # the lanes that wait longest run next, even if others spin
            number, others = next(iter(self.parked)), _NO_LIMIT
        else:
            number = min(self.parked)
            others = min((k for k in self.parked if k != number), default=_NO_LIMIT)
        return number, self.parked.pop(number), others

    def _any(self) -> tuple[int, Array, int]:
        """As ``_next``, for a random block of threads."""
        assert self.random is not None
        of_block = self.geometry.block_number
        waiting = {*of_block[np.concatenate(list(self.parked.values()))].tolist()}
        resident = waiting & self.started
        selected = self.random.choice(
            sorted(resident if len(resident) >= _MAX_RESIDENT else waiting)
        )
        self.started.add(int(selected))
        numbers = [k for k, lanes in self.parked.items() if (of_block[lanes] == selected).any()]
        is_fair = self.random.random() < _OTHER_LANES_PROBABILITY
        number = int(self.random.choice(numbers)) if is_fair else min(numbers)
        lanes = self.parked.pop(number)
        is_selected = of_block[lanes] == selected
        if not is_selected.all():
            self.parked[number] = lanes[~is_selected]
        others = min((k for k in numbers if k != number), default=_NO_LIMIT)
        return number, lanes[is_selected], _NO_LIMIT if is_fair else others

    def frame(self, lanes: Array) -> Frame:
        """A frame of some lanes, given by ascending ids."""
        if len(lanes) == self.geometry.count:
            return Frame(self, self.registers, None, self.geometry.count)
        return Frame(self, {}, lanes, len(lanes))

    def _advance(self, frame: Frame, number: int, others: int) -> None:
        """Run a frame from a basic block on, until its lanes diverge, return, wait or yield.

        They yield at ``others``, the next basic block with other lanes, and all later ones.
        """
        blocks, end = self.program.blocks, len(self.program.blocks)
        patience = MAX_BLOCKS_WHILE_OTHERS_WAIT if self.parked else _NO_LIMIT
        if self.random is not None:
            patience = int(self.random.integers(1, _MAX_RANDOM_BLOCKS))
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
                if block.may_make_undefined or undefined.lanes:
                    for step, effect in zip(block.steps, block.effects, strict=True):
                        if effect is not None and undefined.lanes:
                            undefined.follow(frame, effect)
                        step(frame)
                    undefined.require(frame, block.control_reads)
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
                self.is_impatient = patience < 0
                frame.dissolve(self.program.live_at(number))
                self.park(number, frame.lane_ids())
                return
        self.issued = issued
        self.retire(frame.lane_ids())

    # --- divergence, barriers, returns ---

    def park(self, number: int, lanes: Array) -> None:
        """Schedule lanes to continue at a basic block; retire them at the end of the program.

        The lanes must belong to no frame, or to one that is dissolved and not used any more.
        """
        if number >= len(self.program.blocks):
            self.retire(lanes)
            return
        there = self.parked.get(number)
        self.parked[number] = lanes if there is None else _union(there, lanes)

    def split(self, frame: Frame, groups: Mapping[int, Array]) -> None:
        """Park the lanes of a frame, given as indices of it, at several basic blocks."""
        live = 0
        for number in groups:
            live |= self.program.live_at(number)
        frame.dissolve(live)
        lanes = frame.lane_ids()
        for number, index in groups.items():
            self.park(number, lanes[index])

    def pass_barrier(self, lanes: Array | slice) -> None:
        """Some lanes have passed a barrier of their thread block."""
        self.shared.pass_barrier(lanes)
        if self.races is not None:
            self.races.pass_barrier(self.geometry.lanes[lanes])

    def retire(self, lanes: Array) -> None:
        """Retire lanes that have returned: no barrier waits for them."""
        self.alive[lanes] = False
        self.alive_count -= len(lanes)
        if self.barriers.waiting:
            self.barriers.release()
        if self.waiting_for_warp:
            by_block, self.waiting_for_warp = self.waiting_for_warp, {}
            for number, waiting in by_block.items():
                self.park(number, waiting)

    def _enter(self, frame: Frame, block: BasicBlock) -> Frame | None:
        """The lanes that may run a basic block with a gate now; the others wait.

        None: no lane may. Then the frame is dissolved and must not be used.
        """
        try:
            if isinstance(block.gate, Barrier):
                return frame if self.barriers.arrive(frame, block, block.gate) else None
            assert isinstance(block.gate, WarpSync)
            if frame.lanes is None and self.geometry.whole_warps:
                member = self.registers[block.gate.membermask]
                if len(member) == 1 and int(member.view(U32)[0]) == 0xFFFFFFFF:
                    return frame
            waiting = self.waiting_for_warp.pop(block.number, None)
            if waiting is not None:
                frame.dissolve(block.live)
                frame = self.frame(_union(waiting, frame.lane_ids()))
            if frame.lanes is not None:
                frame.load(block.number, block.reads, block.writes)
            complete = meeting(frame, frame.registers[block.gate.membermask].view(U32))
            if complete is None:
                return frame
            frame.dissolve(block.live)
            lanes = frame.lane_ids()
            self.waiting_for_warp[block.number] = lanes[~complete]
            return self.frame(lanes[complete]) if complete.any() else None
        except Fault as fault:
            raise self.located(fault, block, None) from None

    # --- errors ---

    def located(self, fault: Fault, block: BasicBlock, step: Any) -> Exception:
        """The error of a fault in a step of a basic block; None: at its gate."""
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
        if self.waiting_for_warp:
            number, lanes = next(iter(self.waiting_for_warp.items()))
            fault = Fault(
                "an instruction of a warp must be reached by all lanes in its member mask; the "
                "others wait elsewhere",
                "run it before the branch, or leave these lanes out of the mask",
                int(lanes[0]),
            )
            raise self.located(fault, self.program.blocks[number], None)
        fault, number = self.barriers.deadlock()
        raise self.located(fault, self.program.blocks[number], None)

    def _endless(self, frame: Frame, block: BasicBlock) -> None:
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
