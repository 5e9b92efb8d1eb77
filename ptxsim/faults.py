"""Faults of kernels, and their locations.

Tests: tests/ptxsim/test_ptx_memory.py, tests/ptxsim/test_ptx_flow.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """The location of a kernel's failure.

    Attributes:
        kernel: name of the entry.
        instruction: its text; empty where no single instruction is to blame.
        source: file and line of the source that the instruction was made from, or of the PTX.
        block: position in the grid, x first.
        thread: position in the block, x first.
    """

    kernel: str
    instruction: str = ""
    source: str = ""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        texts = [self.source, f"`{self.instruction}`" if self.instruction else ""]
        if self.block is not None:
            texts.append(f"block {self.block}, thread {self.thread}")
        return ", ".join(text for text in texts if text)


class PtxError(RuntimeError):
    """A kernel did an operation that a GPU forbids, or that the interpreter does not support.

    Attributes:
        location: of the fault; None while a module is read.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.location = location


class Fault(Exception):
    """A fault of one instruction, before its location is known.

    Attributes:
        what: the requirement and the observed value.
        fix: the suggested replacement.
        lane: the lane that failed, as an index of the frame.
    """

    def __init__(self, what: str, fix: str, lane: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.lane = lane


def located(fault: Fault, location: Location) -> PtxError:
    """The error that a user sees."""
    text = f"[ptx {location.kernel}] {fault.what}. At {location}. Fix: {fault.fix}."
    return PtxError(text, location)


def unreadable(what: str, where: str, fix: str) -> PtxError:
    """An error in the text of a module."""
    return PtxError(f"[ptx] {what}. At {where}. Fix: {fix}.")
