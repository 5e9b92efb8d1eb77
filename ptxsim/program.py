"""A decoded kernel: basic blocks of steps over a file of register slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.syntax import Instruction, Variable
from ptxsim.types import BOOL, Array
from ptxsim.undefined import Effect

SPLIT = -1  # what leaving a block gives when the frame's lanes went to different blocks

SHARED_WINDOW = 1 << 60  # where generic addresses of shared memory start
LOCAL_WINDOW = 1 << 61

Leave = Callable[[Frame], int]
Flow = tuple[tuple[int, ...], tuple[int, ...]]  # slots that an instruction reads, and sets


@dataclass(frozen=True)
class Barrier:
    """A barrier of the block: bar, barrier.

    Attributes:
        number: the slot of which barrier.
        expected: the slot of how many threads take part; None for all of the block.
        waits: False for ``arrive``.
        aligned: whether all threads must be at this very instruction.
        reduction: popc, and, or; None for a barrier without a result.
        predicate: the slot of the reduced predicate.
        target: the slot of the result.
    """

    number: int
    expected: int | None = None
    waits: bool = True
    aligned: bool = True
    reduction: str | None = None
    predicate: int = 0
    negated: bool = False
    target: int = 0


@dataclass(frozen=True)
class Meeting:
    """An instruction of several lanes of a warp; ``member`` is the slot of their mask."""

    member: int


@dataclass
class Block:
    """Steps without a branch.

    Attributes:
        number: its index in the program; lower ones run first.
        gate: the condition that lanes wait for before the steps run.
        steps, instructions: the steps, and the instruction that each belongs to.
        reads: slots that are read before they are written.
        writes: slots that are written, as a bit mask.
        following: the next block, if known; otherwise see ``leave``.
        leave: gives the next block, or SPLIT.
        targets: all blocks that may follow.
        live: slots whose values are live when the block is entered, as a bit mask.
        length: the number of instructions.
        effects: for each step its instruction's effect on undefined values; None for all steps but
            an instruction's first.
        decides: slots that the gate or ``leave`` reads.
        careful: whether a value may become undefined in it.
    """

    number: int
    gate: Barrier | Meeting | None = None
    steps: list[Step] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    reads: dict[int, None] = field(default_factory=dict)
    kills: int = 0
    writes: int = 0
    following: int = SPLIT
    leave: Leave | None = None
    targets: Sequence[int] = ()
    live: int = 0
    length: int = 0
    effects: list[Effect | None] = field(default_factory=list)
    decides: tuple[int, ...] = ()
    careful: bool = False

    def note(self, reads: Sequence[int], writes: Sequence[int], partial: bool) -> None:
        """Account for an instruction's registers; a guarded one keeps the old value of others."""
        for slot in (*reads, *writes) if partial else reads:
            if not self.kills >> slot & 1:
                self.reads[slot] = None
        for slot in writes:
            self.writes |= 1 << slot
            if not partial:
                self.kills |= 1 << slot


@dataclass
class Program:
    """A kernel that can be launched.

    Attributes:
        name: of the entry.
        blocks: all code; a branch to ``len(blocks)`` ends a lane.
        template: the slots' first values; constants are among them.
        specials: slots of special registers, with their names.
        parameters: slots of parameters: byte offset, and type.
        symbols: slots of addresses of global variables: name, offset and type.
        parameter_slots: number of eight-byte slots of the parameters.
        shared_bytes: of static shared memory.
        dynamic_start: start of shared memory with a size from the launch.
        shared_granule: the smallest access to shared memory, in bytes.
        local_bytes: of local memory, per thread.
        most_threads: the most threads of a block that it was built for; 0 for any.
        variables: the module's global and constant variables.
        global_granule: the smallest access to global memory, in bytes.
        sites: the number of instructions that access memory.
        flows: of each instruction that computes values from registers, which it reads and sets.
        bases: the slots of the base addresses of ``sites``.
        shared_roots: slots that hold the address of a shared variable, with its first byte and its
            exclusive end; -1 for one with a size from the launch.
        followed: for each access the origin of its address, once computed (provenance.py).
        suspects: registers that some path reads before it sets them.
    """

    name: str
    blocks: list[Block] = field(default_factory=list)
    template: list[Array] = field(default_factory=list)
    specials: list[tuple[int, str]] = field(default_factory=list)
    parameters: list[tuple[int, int, np.dtype]] = field(default_factory=list)
    symbols: list[tuple[int, str, int, np.dtype]] = field(default_factory=list)
    parameter_slots: int = 0
    shared_bytes: int = 0
    dynamic_start: int = 0
    shared_granule: int = 4
    local_bytes: int = 0
    most_threads: int = 0
    variables: dict[str, Variable] = field(default_factory=dict)
    global_granule: int = 16
    sites: int = 0
    flows: list[Flow] = field(default_factory=list)
    bases: dict[int, int] = field(default_factory=dict)
    shared_roots: dict[int, tuple[int, int]] = field(default_factory=dict)
    followed: list[tuple[int, ...]] | None = None
    suspects: frozenset[int] = frozenset()

    def solve_liveness(self) -> None:
        """Fill in every block's ``live``: a register that is not read again is dropped."""
        changed = True
        used = [sum(1 << slot for slot in block.reads) for block in self.blocks]
        while changed:
            changed = False
            for block in reversed(self.blocks):
                after = 0
                for target in block.targets:
                    if target < len(self.blocks):
                        after |= self.blocks[target].live
                live = used[block.number] | (after & ~block.kills)
                if live != block.live:
                    block.live, changed = live, True

    def live_at(self, number: int) -> int:
        """The live slots at a block; none at the end."""
        return self.blocks[number].live if number < len(self.blocks) else 0


def conditional(predicate: int, negated: bool, target: int, otherwise: int) -> Leave:
    """Branch to ``target`` where the predicate holds."""
    if negated:
        target, otherwise = otherwise, target

    def leave(frame: Frame) -> int:
        taken = frame.registers[predicate]
        if taken.dtype is not BOOL:
            taken = taken.astype(BOOL)
        hits = np.count_nonzero(taken)
        if hits == 0:
            return otherwise
        if hits == len(taken):
            return target
        frame.run.split(frame, {target: np.flatnonzero(taken), otherwise: np.flatnonzero(~taken)})
        return SPLIT

    return leave


def indexed(index: int, targets: Sequence[int]) -> Leave:
    """Branch to the target that a register selects."""

    def leave(frame: Frame) -> int:
        selection = frame.registers[index]
        invalid = selection >= len(targets)
        if invalid.any():
            frame.fail(
                f"brx.idx must choose one of {len(targets)} targets; got {selection[invalid][0]}",
                "bound the index",
                int(np.argmax(invalid)),
            )
        groups: dict[int, Array] = {}
        for value in np.unique(selection):
            lanes = np.flatnonzero(frame.per_lane(selection) == value)
            target = targets[int(value)]
            groups[target] = np.union1d(groups[target], lanes) if target in groups else lanes
        if len(groups) == 1:
            return next(iter(groups))
        frame.run.split(frame, groups)
        return SPLIT

    return leave
