"""Code for Copy statements: transposed copies between memory and local arrays, in blocks.

    is_run = (step is 1 or -1) and both axes have at least the 16 elements of a block
    if is_run:
        for i0_group in range((n + 15) >> 4):         16 lanes: as many streams in memory
            for rows_group in range((count + 15) >> 4):
                transpose_float32(...)                  16 x 16 elements, in registers
    else:
        ...                                             one element at a time

The last block along an axis starts earlier if the remainder is shorter, and copies some elements
again. If a local array has rows, the generated code checks at run time whether they are contiguous
in memory, because their offsets may follow any formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuflow.kir.nodes import Copy, Local, Operand, Stride
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, Literal, Name, call
from gpuflow.targets.cpu.codegen.transposes import block_side

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter


def copy(printer: CpuPrinter, s: Copy, one_by_one: Callable[[], None]) -> None:
    """Emit a Copy.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        s: the statement.
        one_by_one: emits the copy as a loop nest, for any strides.
    """
    if s.component is not None:
        one_by_one()
        return
    into_local = s.target in printer.locals
    local = printer.locals[s.target if into_local else s.source]
    _CopyWriter(printer, s, local, printer.operands[s.source if into_local else s.target]).write(
        one_by_one
    )


class _CopyWriter:
    """Writer of one copy.

    Attributes:
        axis, pitch: innermost axis of the local array, and its row stride.
        side: rows and columns of a transposed block.
    """

    def __init__(self, printer: CpuPrinter, s: Copy, local: Local, operand: Operand) -> None:
        self.printer, self.s, self.local, self.operand = printer, s, local, operand
        self.axis, self.pitch = local.axes[-1]
        self.name = f"{local.name}_{operand.name}"
        self.side = block_side(local.dtype)

    def _own(self, name: str) -> Name:
        """A variable that only this copy uses."""
        return Name(f"{self.name}_{name}")

    def write(self, one_by_one: Callable[[], None]) -> None:
        printer, side, own = self.printer, self.side, self._own
        start, end = printer.strip_bounds(self.axis)
        count, points, step, is_run = self._rows(), own("points"), own("step"), own("is_run")
        printer.set(points.name, end - start)
        printer.set(own("fewest").name, call("min_int64", points, count))
        is_next = (step * step).equals(1)
        printer.set(is_run.name, is_next & (own("fewest") >= side))
        self._check_contiguity(count)
        bits = side.bit_length() - 1
        groups, row_groups = ((n + (side - 1)) >> bits for n in (points, count))
        with printer.when(is_run), printer.loop_over(own("group").name, (ZERO, groups)):
            printer.set(own("point").name, self._begin("group", points))
            with printer.loop_over(own("row_group").name, (ZERO, row_groups)):
                printer.set(own("row").name, self._begin("row_group", count))
                self._block(start)
        with printer.otherwise():
            one_by_one()

    def _begin(self, group: str, count: Expression) -> Expression:
        bits = self.side.bit_length() - 1
        return call("min_int64", self._own(group) << bits, count - self.side)

    def _rows(self) -> Expression:
        """Emit the offset of the first row and the row stride; returns the number of rows."""
        printer, first, step = self.printer, self._own("first"), self._own("step")
        if self.s.count is not None:
            printer.set(first.name, self._offset(Literal(0)))
            printer.set(step.name, self._offset(Literal(1)) - first)
            return printer.value(self.s.count)
        start, end = printer.strip_bounds(self.local.axes[0][0])
        printer.set(step.name, self._stride(self.local.axes[0][0]))
        printer.set(first.name, printer.offsets[self.operand.name] + start * step)
        printer.set(self._own("rows").name, end - start)
        return self._own("rows")

    def _offset(self, row: Expression) -> Expression:
        """The offset of a row in memory, without that of the innermost axis."""
        offsets, base = self.s.row_offsets, self.printer.offsets[self.operand.name]
        self.printer.bind(offsets.params, [row])
        self.printer.block(offsets)
        return base + self.printer.value(offsets.results[0])

    def _check_contiguity(self, count: Expression) -> None:
        """Emit the check that the stride between all rows is that of the first two."""
        if self.s.count is None:
            return
        row, is_run = self._own("place"), self._own("is_run")
        with self.printer.loop_over(row.name, (ZERO, count), is_short=True):
            expected = self._own("first") + row * self._own("step")
            self.printer.set(is_run.name, is_run & self._offset(row).equals(expected))

    def _stride(self, axis: str) -> Expression:
        position = [a.name for a in self.printer.kernel.axes].index(axis)
        stride = self.operand.strides[position]
        if stride is Stride.ANY:
            return Name(self.printer.names.stride(self.operand.name, axis))
        return Literal(int(stride.value))

    def _block(self, start: Expression) -> None:
        """Emit the transpose of one block, which starts at the row with the lowest address."""
        printer, own, stride = self.printer, self._own, self._stride(self.axis)
        row, low, step, point = own("row"), own("low"), own("step"), own("point")
        printer.set(low.name, call("select_int64", step.equals(1), row, row + (self.side - 1)))
        here = own("first") + low * step + (start + point) * stride
        memory = printer.pointer(self.operand.name), here, stride
        array = Name(self.local.name), low * self.pitch + point, step * self.pitch
        sides = (*memory, *array) if self.s.target == self.local.name else (*array, *memory)
        printer.run(f"transpose_{self.local.dtype}", *sides)
