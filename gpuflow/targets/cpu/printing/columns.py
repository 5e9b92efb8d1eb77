"""Prints column kernels for the CPU: reductions over outer axes, one result per inner point.

KernelIR writes such a kernel as a loop over columns that holds a reduction over rows. Run like
that, every step would jump a row. Here the columns go in blocks, with one accumulator for each
column on the stack, and the rows outside:

    for each block of columns:
        for each column: running = init
        for each row:                       <- streams along memory, and vectorises
            for each column: running = combine(running, element)
        for each column: what follows the reduction

The body of the column loop is cut into parts: each Reduce and each loop over rows is one, and what
stands between them is one. A value that a later part needs is kept on the stack as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

from gpuflow.base.records import record
from gpuflow.kir.nodes import (
    Axis,
    Block,
    Const,
    For,
    Kernel,
    Load,
    Mode,
    Reduce,
    Role,
    Statement,
    Store,
    Value,
)
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of
from gpuflow.targets.cpu.codegen.text_names import COLUMN_BLOCK
from gpuflow.targets.cpu.printing import borders
from gpuflow.targets.cpu.printing.loop_printer import ORDERED, CpuPrinter, is_ordered, ordered_step
from gpuflow.targets.printer import combine_functions

# Rows between two additions to the float64 totals: fewer than in a row kernel, as a column is added
# in order and not in vector lanes.
ROW_BLOCK_BITS = 6


@record
class Part:
    """Statements of the column loop that share one loop over the columns of a block."""

    statements: tuple[Statement, ...]
    crosses_rows: bool


def split_parts(body: Block) -> tuple[Part, ...]:
    """Cut the body of a column loop into parts."""
    parts: list[Part] = []
    straight: list[Statement] = []
    for statement in body.body:
        if not _crosses_rows(statement):
            straight.append(statement)
            continue
        if straight:
            parts.append(Part(tuple(straight), False))
            straight = []
        parts.append(Part((statement,), True))
    if straight:
        parts.append(Part(tuple(straight), False))
    return tuple(parts)


def _crosses_rows(statement: Statement) -> bool:
    return bool(_axes_of(statement))


def _axes_of(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, Reduce):
        return statement.axes
    if isinstance(statement, For) and statement.axis is not None:
        return (statement.axis,)
    return ()


def _defined(items: Iterable[Statement]) -> set[Value]:
    """All values that statements and their blocks define."""
    defined: set[Value] = set()
    for statement in statements(Block(body=tuple(items))):
        defined.update(results_of(statement))
        for owned in owned_blocks(statement):
            defined.update(owned.params)
    return defined


def _needed(items: Sequence[Statement], results: Iterable[Value] = ()) -> set[Value]:
    """All values that statements, their blocks and ``results`` take from outside."""
    taken = set(results)
    for statement in statements(Block(body=tuple(items))):
        taken.update(uses_of(statement))
        for owned in owned_blocks(statement):
            taken.update(owned.results)
    return taken - _defined(items)


class ColumnPrinter(CpuPrinter):
    """A CpuPrinter that interchanges the loop over the columns of a column kernel."""

    block_columns = COLUMN_BLOCK  # columns at a time, at most the size of an array on the stack

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        # Of the open column loop: values on the stack with the names of their arrays, and
        # constants and scalars, which every part that uses them writes again.
        self._arrays: dict[Value, str] = {}
        self._constants: dict[Value, Const | Load] = {}
        # Of the Reduce that is printed: maxima and minima that run as ordered integers.
        self._ordered: dict[Value, str] = {}

    def loop(self, s: For) -> None:
        if s.axis is None or not self._can_interchange(s.axis, s.body):
            super().loop(s)
            return
        parts = split_parts(s.body)
        self._find_arrays(parts)
        with self._column_blocks(self.axes[s.axis]):
            for part in parts:
                self._part(self.axes[s.axis], part)
        self._arrays, self._constants = {}, {}

    def _can_interchange(self, axis: str, body: Block) -> bool:
        """Whether a loop over columns holds only loops over outer axes, and none in another."""
        order = [a.name for a in self.kernel.axes]
        inner = [_axes_of(item) for item in statements(body) if _crosses_rows(item)]
        direct = [item for item in body.body if _crosses_rows(item)]
        names = [name for axes in inner for name in axes]
        is_outer = all(
            order.index(name) < order.index(axis) and self.axes[name].role is not Role.PARALLEL
            for name in names
        )
        is_parallel = self.axes[axis].role in (Role.PARALLEL, Role.VECTOR)
        return is_parallel and is_outer and 0 < len(direct) == len(inner)

    def _find_arrays(self, parts: Sequence[Part]) -> None:
        """Results of reductions and what a later part uses live on the stack."""
        for place, part in enumerate(parts):
            later = {v for other in parts[place + 1 :] for v in _needed(other.statements)}
            for statement in part.statements:
                if self._is_constant(statement):
                    self._constants[statement.out] = statement
                    continue
                for value in results_of(statement):
                    if part.crosses_rows or value in later:
                        self._arrays[value] = f"{self.value(value)}_column"
        for value, array in self._arrays.items():
            self.emit(f"{array} = column_{value.dtype}()")

    def _is_constant(self, statement: Statement) -> TypeGuard[Const | Load]:
        if isinstance(statement, Load):
            return self.operands[statement.operand].mode is Mode.SCALAR
        return isinstance(statement, Const)

    @contextmanager
    def _column_blocks(self, axis: Axis) -> Iterator[None]:
        """A loop over blocks of columns, ``<axis>_start`` to ``<axis>_end``."""
        first, last = self.span(axis)
        name, bits = axis.name, self.block_columns.bit_length() - 1
        blocks = f"({last} - {first} + {self.block_columns - 1}) >> {bits}"
        with self.indented(f"for {name}_block in range({blocks}):"):
            self.emit(f"{name}_start = {first} + ({name}_block << {bits})")
            self.emit(f"{name}_end = min_int64({name}_start + {self.block_columns}, {last})")
            yield

    def _part(self, axis: Axis, part: Part) -> None:
        statement = part.statements[0]
        if isinstance(statement, Reduce):
            self._reduce_rows(axis, statement)
            return
        if isinstance(statement, For) and part.crosses_rows:
            assert statement.axis is not None
            with self.axis_loop(statement.axis, statement.body):
                self._columns(axis, statement.body.body)
            return
        kept = [v for s in part.statements for v in results_of(s) if v in self._arrays]
        stores = any(isinstance(s, Store) for s in statements(Block(body=part.statements)))
        if kept or stores:
            self._columns(axis, part.statements, kept)

    def _columns(
        self, axis: Axis, items: Sequence[Statement], kept: Sequence[Value] = ()
    ) -> None:
        """Statements in a loop over the columns of the block; ``kept`` values go to the stack."""
        for block, span in self._pieces_of_columns(axis, Block(body=tuple(items))):
            with self._each_column(axis, block.body, span=span):
                self.block(block)
                for value in kept:
                    self._write(axis, self._arrays[value], value.dtype, self.value(value))

    def _pieces_of_columns(
        self, axis: Axis, body: Block
    ) -> Iterator[tuple[Block, tuple[str, str]]]:
        span = (f"{axis.name}_start", f"{axis.name}_end")
        yield from borders.pieces(self, axis, span, body)

    @contextmanager
    def _each_column(
        self, axis: Axis, items: Sequence[Statement], results: Iterable[Value] = (),
        span: tuple[str, str] | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """A loop over the columns of the block that defines what ``items`` and results need."""
        block = Block(body=tuple(items))
        first, last = span or (f"{axis.name}_start", f"{axis.name}_end")
        head = f"for {axis.name} in range({first}, {last}):"
        with self.indented(head), self.at_point(axis, block):
            for value in sorted(_needed(items, results), key=lambda v: v.number):
                if value in self._constants:
                    self.statement(self._constants[value])
                elif value in self._arrays:
                    read = self._read(axis, self._arrays[value], value.dtype)
                    self.emit(f"{self.value(value)} = {read}")
            yield

    def _read(self, axis: Axis, array: str, dtype: str) -> str:
        return f"load_{dtype}({array}, {axis.name} - {axis.name}_start)"

    def _write(self, axis: Axis, array: str, dtype: str, value: str) -> None:
        self.emit(f"store_{dtype}({array}, {axis.name} - {axis.name}_start, {value})")

    def _reduce_rows(self, axis: Axis, s: Reduce) -> None:
        """Rows outside, columns inside; float sums in blocks of rows with float64 totals."""
        functions = combine_functions(s) or ("",) * len(s.outs)
        sums = self.float_sums(s, functions)
        self._ordered = {o: fn for fn, o in self.pairs(s, functions) if is_ordered(fn, o)}
        for out in sums:
            self.emit(f"{self._total(out)} = column_float64()")
        with self._each_column(axis, (), s.init):
            for out, init in zip(s.outs, s.init, strict=True):
                if out in self._ordered:
                    key = f"order_{self._ordered[out]}_{out.dtype}({self.value(init)})"
                    self._write(axis, self._arrays[out], ORDERED[out.dtype], key)
                    continue
                self._write(axis, self._arrays[out], out.dtype, self.value(init))
                if out in sums:
                    wide = f"np.float64({self.value(init)})"
                    self._write(axis, self._total(out), "float64", wide)
        if sums:
            self._row_blocks(axis, s, s.axes, sums)
        else:
            self._rows(axis, s, s.axes)
        if not sums and not self._ordered:
            return
        with self._each_column(axis, ()):
            for out in sums:
                total = self._read(axis, self._total(out), "float64")
                self._write(axis, self._arrays[out], out.dtype, f"np.{out.dtype}({total})")
            for out, fn in self._ordered.items():
                key = self._read(axis, self._arrays[out], ORDERED[out.dtype])
                result = f"unorder_{fn}_{out.dtype}({key})"
                self._write(axis, self._arrays[out], out.dtype, result)

    def _total(self, out: Value) -> str:
        return f"{self.value(out)}_total_column"

    def _row_blocks(
        self, axis: Axis, s: Reduce, axes: Sequence[str], sums: Sequence[Value]
    ) -> None:
        """Rows with the last axis in blocks: each block's sums are added to the totals."""
        row_axis = self.axes[axes[0]]
        if len(axes) > 1:
            with self.axis_loop(row_axis.name, s.body):
                self._row_blocks(axis, s, axes[1:], sums)
            return
        with self.block_loop(row_axis, self.span(row_axis), ROW_BLOCK_BITS) as span:
            with self._each_column(axis, ()):
                for out in sums:
                    self._write(axis, self._arrays[out], out.dtype, f"np.{out.dtype}(0.0)")
            head = f"for {row_axis.name} in range({span}):"
            with self.indented(head), self.at_point(row_axis, s.body):
                self._rows(axis, s, ())
            with self._each_column(axis, ()):
                for out in sums:
                    total = self._read(axis, self._total(out), "float64")
                    part = self._read(axis, self._arrays[out], out.dtype)
                    together = f"{total} + np.float64({part})"
                    self._write(axis, self._total(out), "float64", together)

    def _rows(self, axis: Axis, s: Reduce, axes: Sequence[str]) -> None:
        """Loops over rows with a loop over the columns of the block inside."""
        if axes:
            with self.axis_loop(axes[0], s.body):
                self._rows(axis, s, axes[1:])
            return
        for block, span in self._pieces_of_columns(axis, s.body):
            with self._each_column(axis, block.body, block.results, span):
                self._add_row(axis, s, block)

    def _add_row(self, axis: Axis, s: Reduce, body: Block) -> None:
        """Combine the elements of one row, as ``body`` makes them, with what is running."""
        for out in s.outs:
            dtype = ORDERED[out.dtype] if out in self._ordered else out.dtype
            running = self._read(axis, self._arrays[out], dtype)
            self.emit(f"{self._running(out)} = {running}")
        self.block(body)
        self._combine_row(s)
        for out in s.outs:
            dtype = ORDERED[out.dtype] if out in self._ordered else out.dtype
            self._write(axis, self._arrays[out], dtype, self._running(out))

    def _running(self, out: Value) -> str:
        return f"{self.value(out)}_order" if out in self._ordered else self.value(out)

    def _combine_row(self, s: Reduce) -> None:
        outs = [self.value(out) for out in s.outs]
        news = [self.value(v) for v in s.body.results]
        if not self._ordered:
            self.combine(s, outs, news)
            return
        functions = combine_functions(s)
        assert functions is not None  # or nothing would be ordered
        for (fn, out), new in zip(self.pairs(s, functions), news, strict=True):
            if out in self._ordered:
                self.emit(ordered_step(fn, out.dtype, self._running(out), new))
            else:
                combined = self.call(fn, [self.value(out), new], out.dtype)
                self.emit(f"{self.value(out)} = {combined}")
