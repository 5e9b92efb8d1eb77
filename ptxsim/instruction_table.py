"""The table of instructions, and the conversion of an instruction to a step.

An entry is a function from a Site (one instruction in its context) to a step. It requests the slots
of its operands from the site, each with its type, and returns a closure over them: the
instruction's text is not read at run time.

Tests: tests/ptxsim/test_ptx_data.py, tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxsim.frame import Frame, Step
from ptxsim.types import BOOL, Array

if TYPE_CHECKING:
    from ptxsim.site import Site

WHOLE_WARP = 1 << 10  # as the index of the member mask's operand: all 32 lanes


@dataclass(frozen=True)
class Entry:
    """Table entry of an opcode.

    Attributes:
        build: makes the step.
        member: for warp-collective instructions, the operand with the mask of the lanes; None for
            all others.
    """

    build: Callable[[Site], Step]
    member: int | None = None


TABLE: dict[str, Entry] = {}


def instruction(
    *opcodes: str, member: int | None = None
) -> Callable[[Callable[[Any], Step]], Callable[[Any], Step]]:
    """Enter a builder into the table under some opcodes."""

    def enter(build: Callable[[Any], Step]) -> Callable[[Any], Step]:
        for opcode in opcodes:
            if opcode in TABLE:
                raise ValueError(f"[ptx] an opcode must be entered once; got {opcode} twice.")
            TABLE[opcode] = Entry(build, member)
        return build

    return enter


# --- steps that compute a register from registers ----------------------------------------


def compute(
    site: Site,
    function: Callable[..., Array],
    sources: Sequence[np.dtype],
    target: np.dtype,
    first: int = 1,
) -> Step:
    """The step ``operand 0 = function(operands first, first + 1, ...)``, each of its type."""
    slots = [site.source(first + k, dtype) for k, dtype in enumerate(sources)]
    return apply(function, slots, sources, site.target(0, target))


def apply(
    function: Callable[..., Array],
    slots: Sequence[int],
    dtypes: Sequence[np.dtype],
    target: int,
) -> Step:
    """The step that sets a slot to a function of slots, each viewed as its type."""
    maker = {1: _unary, 2: _binary, 3: _ternary}.get(len(slots), _any)
    return maker(function, slots, dtypes, target)


def _unary(function: Any, slots: Sequence[int], dtypes: Sequence[np.dtype], d: int) -> Step:
    (a,), (t,) = slots, dtypes

    def step(frame: Frame) -> None:
        registers = frame.registers
        x = registers[a]
        if x.dtype is not t:
            x = x.view(t)
        registers[d] = function(x)

    return step


def _binary(function: Any, slots: Sequence[int], dtypes: Sequence[np.dtype], d: int) -> Step:
    (a, b), (t, u) = slots, dtypes

    def step(frame: Frame) -> None:
        registers = frame.registers
        x, y = registers[a], registers[b]
        if x.dtype is not t:
            x = x.view(t)
        if y.dtype is not u:
            y = y.view(u)
        registers[d] = function(x, y)

    return step


def _ternary(function: Any, slots: Sequence[int], dtypes: Sequence[np.dtype], d: int) -> Step:
    (a, b, c), (t, u, v) = slots, dtypes

    def step(frame: Frame) -> None:
        registers = frame.registers
        x, y, z = registers[a], registers[b], registers[c]
        if x.dtype is not t:
            x = x.view(t)
        if y.dtype is not u:
            y = y.view(u)
        if z.dtype is not v:
            z = z.view(v)
        registers[d] = function(x, y, z)

    return step


def _any(function: Any, slots: Sequence[int], dtypes: Sequence[np.dtype], d: int) -> Step:
    def step(frame: Frame) -> None:
        registers = frame.registers
        read = [registers[slot].view(dtype) for slot, dtype in zip(slots, dtypes, strict=True)]
        registers[d] = function(*read)

    return step


def guarded(
    steps: Sequence[Step],
    predicate: int,
    negated: bool,
    reads: Sequence[int],
    writes: Sequence[int],
) -> Step:
    """The step that runs steps on the lanes whose predicate holds."""

    def step(frame: Frame) -> None:
        mask = frame.registers[predicate]
        if mask.dtype is not BOOL:
            mask = mask.astype(BOOL)
        if negated:
            mask = ~mask
        hits = np.count_nonzero(mask)
        if hits == len(mask):
            for inner in steps:
                inner(frame)
        elif hits:
            frame.run_lanes(np.flatnonzero(mask), steps, reads, writes)

    return step


def watched(
    steps: list[Step], reads: Sequence[int], writes: Sequence[int], maybe_unset: frozenset[int]
) -> list[Step]:
    """Steps that first check that registers are defined, and record newly defined ones."""
    checked = tuple(slot for slot in reads if slot in maybe_unset)
    noted = tuple(slot for slot in writes if slot in maybe_unset)

    def check(frame: Frame) -> None:
        is_set = frame.run.set_registers
        if is_set is None:
            return
        for slot in checked:
            missing = ~frame.of_lanes(is_set[slot])
            if missing.any():
                frame.fail(
                    "a register must be set before it is read; on the way that this thread took, "
                    "nothing did",
                    "set the variable on every path to this place",
                    int(np.argmax(missing)),
                )

    def note(frame: Frame) -> None:
        is_set = frame.run.set_registers
        if is_set is None:
            return
        for slot in noted:
            is_set[slot][frame.lane_ids()] = True

    return [*([check] if checked else []), *steps, *([note] if noted else [])]
