"""Prints copies between memory and local arrays whose rows go in another direction.

    is_run = (step is 1 or -1) and both sides have the 16 elements of a block
    if is_run:
        for i0_group in range((n + 15) >> 4):         16 lanes: as many streams in memory
            for rows_group in range((count + 15) >> 4):
                transpose_float32(...)                  16 x 16 elements, in registers
    else:
        ...                                             element by element

The last block of a row or column begins earlier so that it ends with it: it copies some elements
again. Whether rows of an array with rows are contiguous in memory is checked at run time: whatever
the formula of their offsets is, they are as good as a slice's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuflow.kir.nodes import Copy, Local, Operand, Stride
from gpuflow.targets.cpu.codegen.transposes import block_side

if TYPE_CHECKING:
    from gpuflow.targets.cpu.printing.loop_printer import CpuPrinter


def copy(printer: CpuPrinter, s: Copy, one_by_one: Callable[[], None]) -> None:
    """Print a Copy.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        s: the statement.
        one_by_one: prints it for any strides.
    """
    if s.part is not None:
        one_by_one()
        return
    into_local = s.target in printer.locals
    local = printer.locals[s.target if into_local else s.source]
    _Copied(printer, s, local, printer.operands[s.source if into_local else s.target]).write(
        one_by_one
    )


class _Copied:
    """One copy; ``axis`` is the one along which the array's elements are neighbours."""

    def __init__(self, printer: CpuPrinter, s: Copy, local: Local, operand: Operand) -> None:
        self.printer, self.s, self.local, self.operand = printer, s, local, operand
        self.axis, self.pitch = local.axes[-1]
        self.name = f"{local.name}_{operand.name}"
        self.side = block_side(local.dtype)

    def write(self, one_by_one: Callable[[], None]) -> None:
        emit, side, name = self.printer.emit, self.side, self.name
        start, end = self.printer.piece(self.axis)
        count = self._rows()
        emit(f"{name}_points = {end} - {start}")
        emit(f"{name}_fewest = min_int64({name}_points, {count})")
        emit(f"{name}_is_run = ({name}_step * {name}_step == 1) & ({name}_fewest >= {side})")
        self._look(count)
        bits = side.bit_length() - 1
        with self.printer.indented(f"if {name}_is_run:"):
            points = f"for {name}_group in range(({name}_points + {side - 1}) >> {bits}):"
            rows = f"for {name}_row_group in range(({count} + {side - 1}) >> {bits}):"
            with self.printer.indented(points):
                emit(f"{name}_point = {self._begin('group', f'{name}_points')}")
                with self.printer.indented(rows):
                    emit(f"{name}_row = {self._begin('row_group', count)}")
                    self._block(start)
        with self.printer.indented("else:"):
            one_by_one()

    def _begin(self, group: str, count: str) -> str:
        bits = self.side.bit_length() - 1
        return f"min_int64({self.name}_{group} << {bits}, {count} - {self.side})"

    def _rows(self) -> str:
        """Assign where the first row begins, and how far rows are apart; their number."""
        emit, name = self.printer.emit, self.name
        base = self.printer.offsets[self.operand.name]
        if self.s.count is not None:
            emit(f"{name}_first = {self._place('0')}")
            emit(f"{name}_step = {self._place('1')} - {name}_first")
            return self.printer.value(self.s.count)
        start, end = self.printer.piece(self.local.axes[0][0])
        emit(f"{name}_step = {self._stride(self.local.axes[0][0])}")
        emit(f"{name}_first = {base} + {start} * {name}_step")
        emit(f"{name}_rows = {end} - {start}")
        return f"{name}_rows"

    def _place(self, row: str) -> str:
        """The place of a row's first element, besides that of the axis."""
        places, base = self.s.places, self.printer.offsets[self.operand.name]
        self.printer.bind(places.params, [row])
        self.printer.block(places)
        return f"{base} + {self.printer.value(places.results[0])}"

    def _look(self, count: str) -> None:
        """See whether all rows are as far apart as the first two."""
        if self.s.count is None:
            return
        name = self.name
        with self.printer.indented(f"for {name}_place in short_range(0, {count}):"):
            place = self._place(f"{name}_place")
            here = f"{place} == {name}_first + {name}_place * {name}_step"
            self.printer.emit(f"{name}_is_run = {name}_is_run & ({here})")

    def _stride(self, axis: str) -> str:
        place = [a.name for a in self.printer.kernel.axes].index(axis)
        stride = self.operand.strides[place]
        if stride is Stride.ANY:
            return self.printer.names.stride(self.operand.name, axis)
        return stride.value

    def _block(self, start: str) -> None:
        """Rows of memory begin with the element that comes first in it."""
        emit, name, stride = self.printer.emit, self.name, self._stride(self.axis)
        row = f"{name}_row"
        emit(f"{name}_low = select_int64({name}_step == 1, {row}, {row} + {self.side - 1})")
        here = f"{name}_first + {name}_low * {name}_step + ({start} + {name}_point) * {stride}"
        memory = f"{self.printer.names.operand(self.operand.name)}, {here}, {stride}"
        at = f"{name}_low * {self.pitch} + {name}_point"
        array = f"{self.local.name}, {at}, {name}_step * {self.pitch}"
        sides = (memory, array) if self.s.target == self.local.name else (array, memory)
        emit(f"transpose_{self.local.dtype}({', '.join(sides)})")
