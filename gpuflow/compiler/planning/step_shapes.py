"""Shapes of steps: their common data in plans of one structure."""

from __future__ import annotations

from typing import NamedTuple

from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.kir.nodes import Kernel


class Slot(NamedTuple):
    """The position of an operand in the program, and its buffer.

    Attributes:
        position: of the equation; None for an output of the program.
        number: index of the operand or output.
        buffer: its buffer; NO_BUFFER for a literal.
        is_view: whether it is a view of that.
    """

    position: int | None
    number: int
    buffer: int
    is_view: bool


class KernelShape(NamedTuple):
    """A kernel step.

    Attributes:
        groups: whose calls it makes.
        kernel: the kernel to run, a segmented one for several groups.
        members: positions of its equations.
        reads, writes: its buffers; an output in place has its own id.
        overwrites: buffers with older values.
        is_plain: whether its calls are launched unchanged, whatever their sizes.
    """

    groups: tuple[int, ...]
    kernel: Kernel
    members: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: tuple[int, ...]
    is_plain: bool


class CallShape(NamedTuple):
    """A library or host call, or a loop or branch (kind "program")."""

    group: int
    position: int
    operands: tuple[Slot, ...]
    writes: tuple[int, ...]
    kind: str

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffers of its operands."""
        return tuple([slot.buffer for slot in self.operands if slot.buffer != NO_BUFFER])

    @property
    def overwrites(self) -> tuple[int, ...]:
        """Buffers with older values: operands that its programs modify in place."""
        return tuple([buffer for buffer in self.reads if buffer in self.writes])


class CopyShape(NamedTuple):
    """A copy into a buffer."""

    source: Slot
    target: int

    overwrites = ()

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffer that is copied; none of a literal."""
        return () if self.source.buffer == NO_BUFFER else (self.source.buffer,)

    @property
    def writes(self) -> tuple[int, ...]:
        """The copy."""
        return (self.target,)


Shape = KernelShape | CallShape | CopyShape
