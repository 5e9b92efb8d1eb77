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

A Copy moves elements of one dtype, without conversion, between an operand and a local array.

Tests: tests/targets/cpu/test_cpu_copies.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuflow.kir.nodes import Copy, Local, Operand, Stride
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, IntLiteral, Name, call
from gpuflow.targets.cpu.codegen.printing.program_builder import Span
from gpuflow.targets.cpu.codegen.transposes import block_side

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter


def emit_copy(printer: CpuPrinter, copy: Copy, emit_elementwise: Callable[[], None]) -> None:
    """Emit a Copy.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        copy: the statement, inside of the strips of the local array's axes.
        emit_elementwise: emits the copy as a loop nest, for any strides.
    """
    if copy.component is not None:
        emit_elementwise()
        return
    is_into_local = copy.target in printer.locals
    local = printer.locals[copy.target if is_into_local else copy.source]
    operand = printer.operands[copy.source if is_into_local else copy.target]
    _CopyEmitter(printer, copy, local, operand).emit(emit_elementwise)


class _CopyEmitter:
    """Emits one copy without components.

    Offsets and strides are int64 in elements.

    Args:
        printer: printer of the kernel.
        copy: the statement.
        local: its local array.
        operand: its operand.

    Attributes:
        axis: name of the innermost axis of the local array.
        row_stride: elements from one row of the local array to the next.
        name: prefix of the variables of this copy.
        block_side: rows and columns of a transposed block, a power of two.
    """

    def __init__(self, printer: CpuPrinter, copy: Copy, local: Local, operand: Operand) -> None:
        self.printer, self.copy, self.local, self.operand = printer, copy, local, operand
        self.axis, self.row_stride = local.axes[-1]
        self.name = f"{local.name}_{operand.name}"
        self.block_side = block_side(local.dtype)

    def _variable(self, name: str) -> Name:
        """A variable that only this copy uses."""
        return Name(f"{self.name}_{name}")

    def emit(self, emit_elementwise: Callable[[], None]) -> None:
        """Emit the copy: in blocks if the strides allow it at run time, else by elements."""
        printer, block_side, variable = self.printer, self.block_side, self._variable
        start, end = printer.innermost_strip(self.axis)
        row_count = self._emit_rows()
        points, step, is_run = variable("points"), variable("step"), variable("is_run")
        printer.set(points.name, end - start)
        printer.set(variable("fewest").name, call("min_int64", points, row_count))
        is_contiguous = (step * step).equals(1)
        printer.set(is_run.name, is_contiguous & (variable("fewest") >= block_side))
        self._check_contiguity(row_count)
        block_bits = block_side.bit_length() - 1
        group_counts = [(n + (block_side - 1)) >> block_bits for n in (points, row_count)]
        point_groups, row_groups = (Span(ZERO, count) for count in group_counts)
        with printer.when(is_run), printer.loop_over(variable("group").name, point_groups):
            printer.set(variable("point").name, self._block_start("group", points))
            with printer.loop_over(variable("row_group").name, row_groups):
                printer.set(variable("row").name, self._block_start("row_group", row_count))
                self._emit_block(start)
        with printer.otherwise():
            emit_elementwise()

    def _block_start(self, group: str, count: Expression) -> Expression:
        """The first of ``count`` rows or points of a block; the last block ends with the last."""
        block_bits = self.block_side.bit_length() - 1
        return call("min_int64", self._variable(group) << block_bits, count - self.block_side)

    def _emit_rows(self) -> Expression:
        """Emit the offset of the first row and the row stride; returns the number of rows."""
        printer, first, step = self.printer, self._variable("first"), self._variable("step")
        if self.copy.count is not None:
            printer.set(first.name, self._emit_row_offset(IntLiteral(0)))
            printer.set(step.name, self._emit_row_offset(IntLiteral(1)) - first)
            return printer.value(self.copy.count)
        start, end = printer.innermost_strip(self.local.axes[0][0])
        printer.set(step.name, self._stride(self.local.axes[0][0]))
        printer.set(first.name, printer.offsets[self.operand.name] + start * step)
        printer.set(self._variable("rows").name, end - start)
        return self._variable("rows")

    def _emit_row_offset(self, row: Expression) -> Expression:
        """Emit the offset of a row in memory, without that of the innermost axis."""
        offsets, base = self.copy.row_offsets, self.printer.offsets[self.operand.name]
        self.printer.bind(offsets.params, [row])
        self.printer.block(offsets)
        return base + self.printer.value(offsets.results[0])

    def _check_contiguity(self, row_count: Expression) -> None:
        """Emit the check that the stride between all rows is that of the first two."""
        if self.copy.count is None:
            return
        row, is_run = self._variable("place"), self._variable("is_run")
        with self.printer.loop_over(row.name, Span(ZERO, row_count), is_short=True):
            expected = self._variable("first") + row * self._variable("step")
            self.printer.set(is_run.name, is_run & self._emit_row_offset(row).equals(expected))

    def _stride(self, axis: str) -> Expression:
        """The operand's stride along an axis."""
        axis_index = [a.name for a in self.printer.kernel.axes].index(axis)
        stride = self.operand.strides[axis_index]
        if stride is Stride.ANY:
            return Name(self.printer.names.stride(self.operand.name, axis))
        return IntLiteral(int(stride.value))

    def _emit_block(self, start: Expression) -> None:
        """Emit the transpose of one block, which starts at the row with the lowest address."""
        printer, variable, stride = self.printer, self._variable, self._stride(self.axis)
        row, lowest_row = variable("row"), variable("low")
        step, point = variable("step"), variable("point")
        last_row = row + (self.block_side - 1)
        printer.set(lowest_row.name, call("select_int64", step.equals(1), row, last_row))
        memory_offset = variable("first") + lowest_row * step + (start + point) * stride
        memory = printer.pointer(self.operand.name), memory_offset, stride
        array_offset = lowest_row * self.row_stride + point
        array = Name(self.local.name), array_offset, step * self.row_stride
        is_into_local = self.copy.target == self.local.name
        source_and_target = (*memory, *array) if is_into_local else (*array, *memory)
        printer.run(f"transpose_{self.local.dtype}", *source_and_target)
