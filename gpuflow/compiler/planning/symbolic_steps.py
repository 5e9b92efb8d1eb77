"""Steps of symbolic plans: kernel, call and copy steps whose sizes are size expressions.

Every step has ``reads``, ``writes`` and ``overwrites``: ids of buffers. Steps are in an order in
which each buffer is written before it is read, and read before it is overwritten.

Tests: tests/compiler/test_symbolic_plans.py, tests/compiler/test_segments.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.lowering.size_table import SizeValues
from gpuflow.kir.nodes import Kernel


class SymbolicOperand(NamedTuple):
    """An operand of a step or an output of the program, and its buffer.

    Attributes:
        position: position of the equation; None for an output of the program.
        index: index of the operand or output.
        buffer: id of its buffer; NO_BUFFER for a literal.
        is_view: whether it is a view of the buffer, whose layout depends on sizes.
    """

    position: int | None
    index: int
    buffer: int
    is_view: bool


class SymbolicKernelCall(NamedTuple):
    """A kernel call whose arguments are size expressions, by ordinal in a ``SizeTable``.

    Attributes:
        group: index of the group that it computes.
        kernel: the kernel.
        slots: selects the argument block from the values of all expressions.
        buffers: the buffer id of each operand, or NO_BUFFER, as in ``KernelCall``.
        extent, points: ordinals of these size expressions, see ``KernelCall``.
    """

    group: int
    kernel: Kernel
    slots: Callable[[SizeValues], tuple[int, ...]]
    buffers: tuple[int, ...]
    extent: int
    points: int

    def bind(self, values: SizeValues) -> KernelCall:
        """The call for some sizes, given the values of all expressions of the table."""
        extent, points = values[self.extent], values[self.points]
        return KernelCall(self.kernel, self.slots(values), self.buffers, extent, points)


class SymbolicKernelStep(NamedTuple):
    """One call of a kernel, or several calls of a segmented kernel.

    Attributes:
        calls: the calls.
        kernel: the kernel to run.
        members: positions of its equations.
        reads: buffers that it loads from.
        writes: buffers that it stores to. An output that reuses memory of a donated input has its
            own id here.
        overwrites: buffers whose earlier contents the step destroys; it must run after readers.
        is_plain: whether no schedule can rewrite its calls, whatever their sizes.
    """

    calls: tuple[SymbolicKernelCall, ...]
    kernel: Kernel
    members: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: tuple[int, ...]
    is_plain: bool


class SymbolicCallStep(NamedTuple):
    """A library or host call, or a loop or branch.

    Attributes:
        group: index of the group.
        position: position of the equation.
        operands: its operands.
        writes: buffers of its outputs; for a loop or branch also the workspace, as the last one.
        kind: "library", "host" or "program".
    """

    group: int
    position: int
    operands: tuple[SymbolicOperand, ...]
    writes: tuple[int, ...]
    kind: str

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffers of its operands."""
        buffers = [operand.buffer for operand in self.operands]
        return tuple([buffer for buffer in buffers if buffer != NO_BUFFER])

    @property
    def overwrites(self) -> tuple[int, ...]:
        """Buffers whose earlier contents it destroys: operands that it updates in place."""
        return tuple([buffer for buffer in self.reads if buffer in self.writes])


class SymbolicCopyStep(NamedTuple):
    """A row-major copy of ``source`` into the buffer ``target``, which it fills."""

    source: SymbolicOperand
    target: int

    overwrites = ()

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffer that is copied; empty for a literal."""
        return () if self.source.buffer == NO_BUFFER else (self.source.buffer,)

    @property
    def writes(self) -> tuple[int, ...]:
        """The target."""
        return (self.target,)


SymbolicStep = SymbolicKernelStep | SymbolicCallStep | SymbolicCopyStep
