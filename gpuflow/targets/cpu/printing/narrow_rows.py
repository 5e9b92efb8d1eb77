"""Prints kernels of short rows for the CPU: many rows at a time, each in a lane of its own.

A row of ten elements does not fill vector registers, and LLVM makes scalar code of it. Here a block
of rows is copied to the stack, turned, so that neighbours are elements of different rows; then the
rows are columns, and ``columns`` does the rest. Results are turned back at the end of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuflow.kir.nodes import (
    Apply,
    Axis,
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Store,
    Stride,
)
from gpuflow.kir.places import finds_first_largest
from gpuflow.kir.scalar import EXPENSIVE, compute_dtype
from gpuflow.kir.walk import is_whole, statements
from gpuflow.targets.cpu.codegen.text_names import COLUMN_BLOCK
from gpuflow.targets.cpu.printing.columns import ColumnPrinter
from gpuflow.targets.cpu.printing.loop_printer import is_ordered
from gpuflow.targets.printer import combine_functions

LONGEST_ROW = 16  # and of such rows a block fills an array on the stack


def is_narrow(kernel: Kernel) -> bool:
    """Whether the rows of a kernel are short, and what it computes is worth turning them."""
    if kernel.kind != "row" or len(kernel.axes) < 2:
        return False
    *outer, last = kernel.axes
    is_nest = all(axis.role is Role.PARALLEL for axis in outer)
    if not is_nest or last.role is not Role.ROW or last.exact is None:
        return False
    if last.exact > LONGEST_ROW:
        return False
    loops = [
        s
        for s in statements(kernel.body)
        if (isinstance(s, Reduce) and s.axes == (last.name,))
        or (isinstance(s, For) and s.axis == last.name)
    ]
    return any(_is_worth_it(loop) for loop in loops)


def _is_worth_it(loop: Reduce | For) -> bool:
    """Whether a loop over a row takes longer than to turn the row; additions alone do not."""
    if isinstance(loop, Reduce):
        pairs = zip(combine_functions(loop) or (), loop.outs, strict=False)
        if finds_first_largest(loop) or any(is_ordered(fn, out) for fn, out in pairs):
            return True
    return any(isinstance(s, Apply) and s.fn in EXPENSIVE for s in statements(loop.body))


class NarrowRowPrinter(ColumnPrinter):
    """A ColumnPrinter whose columns are the rows of a row kernel.

    Args:
        kernel: ``is_narrow`` accepts it.
        fresh: operands that are written before they are read.
    """

    block_columns = COLUMN_BLOCK // LONGEST_ROW

    def __init__(self, kernel: Kernel, fresh: frozenset[str]) -> None:
        super().__init__(kernel)
        self._rows_axis, self._row = kernel.axes[-2], kernel.axes[-1]
        self._fresh = fresh
        self._tiles = {o.name: f"{o.name}_tile" for o in self._turned_operands()}
        self._is_open = False

    def _turned_operands(self) -> list[Operand]:
        """Arrays that change along rows and columns, and are accessed nowhere else."""
        accesses = [s for s in statements(self.kernel.body) if isinstance(s, Load | Store)]
        elsewhere = {s.operand for s in accesses if not is_whole(s)}
        return [
            operand
            for operand in self.kernel.operands
            if operand.name not in elsewhere
            and operand.mode in (Mode.IN, Mode.OUT, Mode.INOUT)
            and len(operand.strides) == len(self.kernel.axes)
            and Stride.ZERO not in operand.strides[-2:]
        ]

    def _can_interchange(self, axis: str, body: Block) -> bool:
        return axis == self._rows_axis.name

    @contextmanager
    def _column_blocks(self, axis: Axis) -> Iterator[None]:
        tiles = [o for o in self.kernel.operands if o.name in self._tiles]
        for operand in tiles:
            self.emit(f"{self._tiles[operand.name]} = column_{compute_dtype(operand.dtype)}()")
        with super()._column_blocks(axis):
            for operand in tiles:
                if operand.mode is not Mode.OUT and operand.name not in self._fresh:
                    self._turn(axis, operand, into_tile=True)
            self._is_open = True
            yield
            self._is_open = False
            for operand in tiles:
                if operand.mode is not Mode.IN:
                    self._turn(axis, operand, into_tile=False)

    def _turn(self, axis: Axis, operand: Operand, into_tile: bool) -> None:
        """Copy a block of rows to the stack, or back."""
        access = Block(body=(self._access_of(operand),))
        head = f"for {axis.name} in range({axis.name}_start, {axis.name}_end):"
        with (
            self.indented(head),
            self.at_point(axis, access),
            self.axis_loop(self._row.name, access),
        ):
            offset, dtype = self.offsets[operand.name], compute_dtype(operand.dtype)
            if into_tile:
                element = super().load(operand, offset)
                self.emit(f"store_{dtype}({self._place(operand)}, {element})")
            else:
                element = f"load_{dtype}({self._place(operand)})"
                self.emit(super().store(operand, offset, element))

    def _access_of(self, operand: Operand) -> Load | Store:
        accesses = [s for s in statements(self.kernel.body) if isinstance(s, Load | Store)]
        return next(s for s in accesses if s.operand == operand.name)

    def _place(self, operand: Operand) -> str:
        """The tile and the index in it, as arguments."""
        axis = self._rows_axis.name
        lane = f"({axis} - {axis}_start)"
        return f"{self._tiles[operand.name]}, {self._row.name} * {self.block_columns} + {lane}"

    def load(self, operand: Operand, offset: str) -> str:
        if self._is_open and operand.name in self._tiles:
            return f"load_{compute_dtype(operand.dtype)}({self._place(operand)})"
        return super().load(operand, offset)

    def store(self, operand: Operand, offset: str, value: str) -> str:
        if self._is_open and operand.name in self._tiles:
            return f"store_{compute_dtype(operand.dtype)}({self._place(operand)}, {value})"
        return super().store(operand, offset, value)
