"""Steps of symbolic plans: the steps of a plan, with size expressions in place of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.lowering.size_table import Values
from gpuflow.kir.nodes import Kernel


class SymbolicOperand(NamedTuple):
    """An operand of a step or an output of the program, and its buffer.

    Attributes:
        position: position of the equation; None for an output of the program.
        index: index of the operand or output.
        buffer: its buffer; NO_BUFFER for a literal.
        is_view: whether it is a view of that.
    """

    position: int | None
    index: int
    buffer: int
    is_view: bool


class SymbolicKernelCall(NamedTuple):
    """A kernel call whose arguments are size expressions, by ordinal in a ``SizeTable``.

    Attributes:
        group: the group that it computes.
        kernel: the kernel.
        slots: selects the argument block from the values of all expressions.
        buffers, extent, points: see ``KernelCall``; the last two are ordinals.
    """

    group: int
    kernel: Kernel
    slots: Callable[[Values], tuple[int, ...]]
    buffers: tuple[int, ...]
    extent: int
    points: int

    def bind(self, values: Values) -> KernelCall:
        """The call for the values of all expressions."""
        extent, points = values[self.extent], values[self.points]
        return KernelCall(self.kernel, self.slots(values), self.buffers, extent, points)


class SymbolicKernelStep(NamedTuple):
    """A kernel step.

    Attributes:
        calls: the calls that it makes.
        kernel: the kernel to run, a segmented one for several calls.
        members: positions of its equations.
        reads, writes: its buffers; an output in place has its own id.
        overwrites: buffers with older values.
        is_plain: whether its calls are launched unchanged, whatever their sizes.
    """

    calls: tuple[SymbolicKernelCall, ...]
    kernel: Kernel
    members: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: tuple[int, ...]
    is_plain: bool


class SymbolicCallStep(NamedTuple):
    """A library or host call, or a loop or branch (kind "program")."""

    group: int
    position: int
    operands: tuple[SymbolicOperand, ...]
    writes: tuple[int, ...]
    kind: str

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffers of its operands."""
        return tuple([one.buffer for one in self.operands if one.buffer != NO_BUFFER])

    @property
    def overwrites(self) -> tuple[int, ...]:
        """Buffers with older values: operands that its programs modify in place."""
        return tuple([buffer for buffer in self.reads if buffer in self.writes])


class SymbolicCopyStep(NamedTuple):
    """A copy into a buffer."""

    source: SymbolicOperand
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


SymbolicStep = SymbolicKernelStep | SymbolicCallStep | SymbolicCopyStep
