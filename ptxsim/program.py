"""A decoded kernel: basic blocks of steps over a file of register slots.

A slot is an index into the register file: a PTX register, a constant, a parameter, an address or a
temporary. Sets of slots are bit masks (bit ``s`` for slot ``s``) or tuples.

Tests: tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.syntax import Instruction, Variable
from ptxsim.types import BOOL, Array
from ptxsim.undefined import Effect

SPLIT = -1  # result of ``leave`` if the frame's lanes are parked at different basic blocks

SHARED_WINDOW = 1 << 60  # where generic addresses of shared memory start
LOCAL_WINDOW = 1 << 61

Leave = Callable[[Frame], int]
Flow = tuple[tuple[int, ...], tuple[int, ...]]  # slots that an instruction reads, and sets


@dataclass(frozen=True)
class Barrier:
    """A barrier of the thread block: ``bar``, ``barrier``.

    Attributes:
        number: the slot of the barrier's number, 0 to 15.
        expected: the slot of the count of threads that take part; None for all of the block.
        waits: False for ``arrive``.
        aligned: whether all threads must be at this very instruction.
        reduction: popc, and, or; None for a barrier without a result.
        predicate: the slot of the reduced predicate; unused without a reduction.
        negated: whether the reduction is over ``!predicate``.
        target: the slot of the result; unused without a reduction.
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
class WarpSync:
    """A warp-level instruction (shfl.sync, vote.sync, ...); ``membermask`` is the mask's slot."""

    membermask: int


@dataclass
class BasicBlock:
    """A basic block: steps without a branch. Complete once ``solve_liveness`` has run.

    Attributes:
        number: its index in the program; lower ones run first.
        gate: the condition that lanes wait for before the steps run. The block of a barrier has no
            steps.
        steps, instructions: the steps, and the instruction that each belongs to. A step sets
            registers of a frame for all of its lanes.
        reads: slots that are read before they are written (upward exposed), in order.
        kills: slots that are written in all lanes, as a bit mask: their old values are dead.
        writes: slots that are written, perhaps in some lanes only (guards), as a bit mask.
        following: the index of the next block, if known; otherwise see ``leave``.
        leave: gives the index of the next block, or SPLIT.
        targets: indices of all blocks that may follow; ``len(program.blocks)`` is the end.
        live: slots whose values are live when the block is entered, as a bit mask.
        length: the number of instructions.
        effects: for each step its instruction's effect on undefined values; None for all steps but
            an instruction's first.
        control_reads: slots that the gate or ``leave`` reads.
        may_make_undefined: whether a value may become undefined in it (division by zero).
    """

    number: int
    gate: Barrier | WarpSync | None = None
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
    control_reads: tuple[int, ...] = ()
    may_make_undefined: bool = False

    def note(self, reads: Sequence[int], writes: Sequence[int], is_partial: bool) -> None:
        """Account for the slots of an instruction, which must be noted in order.

        ``is_partial``: it may write in some lanes only, so that old values remain in the others.
        """
        for slot in (*reads, *writes) if is_partial else reads:
            if not self.kills >> slot & 1:
                self.reads[slot] = None
        for slot in writes:
            self.writes |= 1 << slot
            if not is_partial:
                self.kills |= 1 << slot


class ParameterElement(NamedTuple):
    """A slot that holds an element of the argument buffer, from ``byte`` on."""

    slot: int
    byte: int
    dtype: np.dtype


class SymbolAddress(NamedTuple):
    """A slot that holds the address of a variable plus ``offset`` bytes, as an integer dtype."""

    slot: int
    variable: str
    offset: int
    dtype: np.dtype


@dataclass
class Program:
    """A kernel that can be launched.

    Attributes:
        name: of the entry.
        blocks: all code; a branch to ``len(blocks)`` ends a lane.
        initial_values: the slots' first values, of one element each; constants are among them.
        specials: slots of special registers (%tid.x, ...), with their names.
        parameters: slots that hold elements of the kernel's parameters.
        symbols: slots that hold addresses in global and constant variables.
        parameter_slots: count of 8-byte argument slots of a launch.
        shared_bytes: bytes of static shared memory.
        dynamic_start: start of shared memory with a size from the launch.
        shared_granule: the smallest access to shared memory, in bytes.
        local_bytes: bytes of local memory, per thread.
        max_threads: the most threads of a block that it was built for; 0 for any.
        variables: the module's global and constant variables.
        global_granule: the smallest access to global memory, in bytes.
        sites: count of instructions that access memory; ``Access.number`` is below it.
        flows: slots that each instruction reads and writes, if addresses may flow through it.
        base_slots: the slots of the base addresses, by ``Access.number``.
        shared_roots: slots that hold the address of a shared variable, with its first byte and its
            exclusive end; -1 for one with a size from the launch.
        base_origins: for each access the slots that its base address is computed from; None until
            the first launch with ``Checks.arrays`` (provenance.py).
        maybe_unset: registers that some path reads before it sets them.
    """

    name: str
    blocks: list[BasicBlock] = field(default_factory=list)
    initial_values: list[Array] = field(default_factory=list)
    specials: list[tuple[int, str]] = field(default_factory=list)
    parameters: list[ParameterElement] = field(default_factory=list)
    symbols: list[SymbolAddress] = field(default_factory=list)
    parameter_slots: int = 0
    shared_bytes: int = 0
    dynamic_start: int = 0
    shared_granule: int = 4
    local_bytes: int = 0
    max_threads: int = 0
    variables: dict[str, Variable] = field(default_factory=dict)
    global_granule: int = 16
    sites: int = 0
    flows: list[Flow] = field(default_factory=list)
    base_slots: dict[int, int] = field(default_factory=dict)
    shared_roots: dict[int, tuple[int, int]] = field(default_factory=dict)
    base_origins: list[tuple[int, ...]] | None = None
    maybe_unset: frozenset[int] = frozenset()

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
    """Branch to ``target`` in lanes where the predicate holds (does not hold, if negated)."""
    if negated:
        target, otherwise = otherwise, target

    def leave(frame: Frame) -> int:
        taken_lanes = frame.registers[predicate]
        if taken_lanes.dtype is not BOOL:
            taken_lanes = taken_lanes.astype(BOOL)
        hits = np.count_nonzero(taken_lanes)
        if hits == 0:
            return otherwise
        if hits == len(taken_lanes):
            return target
        frame.run.split(
            frame, {target: np.flatnonzero(taken_lanes), otherwise: np.flatnonzero(~taken_lanes)}
        )
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
