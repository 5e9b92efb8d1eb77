"""Strip-mining and loop interchange of column kernels: rows become the outer loop of a strip.

KernelIR writes a reduction over outer axes as a loop over columns around a reduction over rows. Its
innermost loop would step over a whole row of memory. This rewrite cuts the columns into strips,
with a running value for each column in a local array:

    for j:                          strip j by 1024:
        %1 = reduce i { load x }        for j: running[j] = init
        store o f(%1)                   for i:                  <- streams along memory
                                            for j: running[j] = combine(running[j], x[i, j])
                                        for j: store o f(running[j])

The body of the column loop is split into segments (loop fission): each Reduce, each loop over rows,
and the statements between them. A value that a later segment needs is stored in a local array
(scalar expansion).

Float sums are added in blocks of rows, whose sums are added in float64. Maxima and minima of floats
are reduced as integers with the order of the floats, nan beyond the extremum. That takes one
instruction per element, and not six dependent ones.

``rows_across_lanes`` uses the same rewrite for transposed strips of rows.

Tests: tests/compiler/test_schedules.py, tests/targets/cpu/test_cpu_row_kernels.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.kir.nodes import (
    Apply,
    Block,
    Cast,
    Const,
    For,
    Kernel,
    Load,
    Local,
    Mode,
    Reduce,
    Role,
    Statement,
    Store,
    Strip,
    Value,
)
from gpuflow.kir.rewrite import defined_values, free_values, substituted
from gpuflow.kir.walk import next_value_number, results_of, statements
from gpuflow.targets.cpu.codegen.printing.loop_printer import ORDERED_DTYPES, is_ordered
from gpuflow.targets.kernel_walk import FLOATS, combine_functions

COLUMN_BLOCK = 1024  # columns of a strip; a power of two

# Rows between two additions to the float64 totals; a power of two. Fewer than for sums along a row:
# a column is added in order, and not in several vector lanes.
ROW_BLOCK = 64

_MANTISSA_BITS = {"float32": 23, "float64": 52}


def columns_in_rows(kernel: Kernel) -> Kernel:
    """Interchange the loops of a column kernel: columns inside of rows.

    Args:
        kernel: any kernel; one that is not a column kernel is returned unchanged.
    """
    if kernel.kind != "column":
        return kernel
    interchange = Interchange(kernel, COLUMN_BLOCK)
    body = interchange.rewritten(kernel.body)
    return replace(kernel, body=body, locals=(*kernel.locals, *interchange.locals))


@record
class Segment:
    """Statements of the column loop that become one loop over the columns of a strip.

    Attributes:
        statements: the statements.
        crosses_rows: whether it is a Reduce, or a loop over rows.
    """

    statements: tuple[Statement, ...]
    crosses_rows: bool


def split_segments(body: Block) -> tuple[Segment, ...]:
    """Split the body of a column loop into segments."""
    segments: list[Segment] = []
    straight: list[Statement] = []
    for statement in body.body:
        if not _crosses_rows(statement):
            straight.append(statement)
            continue
        if straight:
            segments.append(Segment(tuple(straight), False))
            straight = []
        segments.append(Segment((statement,), True))
    if straight:
        segments.append(Segment(tuple(straight), False))
    return tuple(segments)


def _crosses_rows(statement: Statement) -> bool:
    return bool(_axes_of(statement))


def _axes_of(statement: Statement) -> tuple[str, ...]:
    """The axes over which a statement itself loops; empty for others."""
    if isinstance(statement, Reduce):
        return statement.axes
    if isinstance(statement, For) and statement.axis is not None:
        return (statement.axis,)
    return ()


def merged_column_loops(strip_statements: Sequence[Statement], axis: str) -> list[Statement]:
    """Merge adjacent loops over the columns of a strip."""
    result: list[Statement] = []
    for statement in strip_statements:
        last = result[-1] if result else None
        if (
            isinstance(statement, For)
            and isinstance(last, For)
            and statement.axis == last.axis == axis
        ):
            result[-1] = replace(last, body=Block(body=(*last.body.body, *statement.body.body)))
        else:
            result.append(statement)
    return result


def with_forwarded_stores(
    strip_statements: Sequence[Statement], axis: str, arrays: set[str]
) -> list[Statement]:
    """Forward stores to loads of local arrays in the same loop over columns.

    Args:
        items: the statements of a strip of columns.
        axis: the axis of the columns.
        arrays: names of local arrays. All accesses must be to the element of the current column.

    Returns:
        The items, without dead stores.
    """
    result: list[Statement] = []
    for position, statement in enumerate(strip_statements):
        if isinstance(statement, For) and statement.axis == axis:
            later_reads = _arrays_read(strip_statements[position + 1 :])
            body = _forwarded(statement.body, arrays)
            body_reads = _arrays_read(body.body)
            remaining = [
                s
                for s in body.body
                if not (isinstance(s, Store) and s.operand in arrays - later_reads - body_reads)
            ]
            statement = replace(statement, body=Block(body=tuple(remaining)))
        result.append(statement)
    return result


def _forwarded(body: Block, arrays: set[str]) -> Block:
    """Replace loads by the value that the same iteration has stored before."""
    stored: dict[str, Value] = {}
    forwarded: dict[Value, Value] = {}
    remaining: list[Statement] = []
    for s in body.body:
        if isinstance(s, Load) and s.operand in stored:
            forwarded[s.out] = stored[s.operand]
            continue
        if isinstance(s, Store) and s.operand in arrays:
            stored[s.operand] = forwarded.get(s.value, s.value)
        remaining.append(s)
    return substituted(Block(body=tuple(remaining)), forwarded, {})


def _arrays_read(items: Sequence[Statement]) -> set[str]:
    """Names of the local arrays and operands that statements and their blocks load."""
    return {s.operand for s in statements(Block(body=tuple(items))) if isinstance(s, Load)}


class _RunningArrays(NamedTuple):
    """How the results of one Reduce are combined over rows, and their arrays.

    Results that are in neither dict are combined in the arrays of their values.

    Attributes:
        functions: the scalar function of each result; "" if its combine block is inlined.
        totals: arrays of float64 totals, for results that are float sums.
        ordered: arrays of integers with the order of floats, for results that are float extrema.
    """

    functions: Sequence[str]
    totals: dict[Value, Local]
    ordered: dict[Value, Local]


class Interchange:
    """Rewrites the loops over columns of one kernel.

    Args:
        kernel: the kernel; its values must be numbered (``fresh`` continues its numbers).
        strip_size: columns of a strip, a power of two.

    Attributes:
        locals: local arrays of the rewritten loops.
        axis: the axis of the column loop that is being rewritten.
        value_arrays: the local arrays of its values that several segments use.
        constants: its constants and scalars, which every segment recomputes.
    """

    def __init__(self, kernel: Kernel, strip_size: int) -> None:
        self.strip_size = strip_size
        self.locals: list[Local] = []
        self._order = {axis.name: position for position, axis in enumerate(kernel.axes)}
        self._roles = {axis.name: axis.role for axis in kernel.axes}
        self._exact = {axis.name: axis.exact for axis in kernel.axes}
        self._scalars = {o.name for o in kernel.operands if o.mode is Mode.SCALAR}
        self._next_number = next_value_number(kernel.body)
        self.axis = ""
        self.value_arrays: dict[Value, Local] = {}
        self.constants: dict[Value, Const | Load] = {}

    def rewritten(self, block: Block) -> Block:
        """Rewrite all loops over columns of a block that can be interchanged."""
        body: list[Statement] = []
        for statement in block.body:
            if isinstance(statement, For) and statement.axis is not None:
                if self._can_interchange(statement.axis, statement.body):
                    statement = Strip(
                        statement.axis,
                        self.strip_size,
                        self.strip_body(statement.axis, statement.body),
                    )
                else:
                    statement = replace(statement, body=self.rewritten(statement.body))
            body.append(statement)
        return replace(block, body=tuple(body))

    def strip_body(self, axis: str, body: Block) -> Block:
        """Return the statements for one strip of columns.

        Args:
            axis: the axis of the columns.
            body: the body of the loop over columns. Its loops over rows must not contain loops
                over axes.
        """
        self.axis, self.value_arrays, self.constants = axis, {}, {}
        segments, outer_locals = split_segments(body), len(self.locals)
        self._find_arrays(segments)
        strip_statements = merged_column_loops(
            [s for segment in segments for s in self._rewrite_segment(segment)], axis
        )
        own_arrays = {local.name for local in self.locals[outer_locals:]}
        strip_statements = with_forwarded_stores(strip_statements, axis, own_arrays)
        unread = own_arrays - _arrays_read(strip_statements)
        self.locals = [local for local in self.locals if local.name not in unread]
        return Block(body=tuple(strip_statements))

    def _can_interchange(self, axis: str, body: Block) -> bool:
        """Whether the loops in a loop over columns are over outer axes, and are not nested."""
        nested_axes = [_axes_of(item) for item in statements(body) if _crosses_rows(item)]
        direct_loops = [item for item in body.body if _crosses_rows(item)]
        names = [name for axes in nested_axes for name in axes]
        is_outer = all(
            self._order[name] < self._order[axis] and self._roles[name] is not Role.PARALLEL
            for name in names
        )
        is_parallel = self._roles[axis] in (Role.PARALLEL, Role.VECTOR)
        return is_parallel and is_outer and 0 < len(direct_loops) == len(nested_axes)

    def _find_arrays(self, segments: Sequence[Segment]) -> None:
        """Allocate arrays for results of reductions and operands of later segments."""
        for position, segment in enumerate(segments):
            later_uses = {
                v for other in segments[position + 1 :] for v in free_values(other.statements)
            }
            for statement in segment.statements:
                if isinstance(statement, Const) or (
                    isinstance(statement, Load) and statement.operand in self._scalars
                ):
                    self.constants[statement.out] = statement
                    continue
                for value in results_of(statement):
                    if segment.crosses_rows or value in later_uses:
                        self.value_arrays[value] = self._array(value, "column", value.dtype)

    def _array(self, value: Value, role: str, dtype: str) -> Local:
        """Allocate an array with an element for each column; ``role`` is the end of its name."""
        local = Local(f"t{value.number}_{role}", dtype, ((self.axis, self.strip_size),))
        self.locals.append(local)
        return local

    def fresh(self, dtype: str) -> Value:
        """A value with a number that the kernel does not use yet."""
        self._next_number += 1
        return Value(self._next_number - 1, dtype)

    def _rewrite_segment(self, segment: Segment) -> list[Statement]:
        """The loops of one segment; none if nothing needs its values."""
        statement = segment.statements[0]
        if isinstance(statement, Reduce):
            return self._rewrite_reduce(statement)
        if isinstance(statement, For) and segment.crosses_rows:
            return [For(statement.axis, Block(body=(self._column_loop(statement.body.body),)))]
        stored = [v for s in segment.statements for v in results_of(s) if v in self.value_arrays]
        stores = any(isinstance(s, Store) for s in statements(Block(body=segment.statements)))
        return [self._column_loop(segment.statements, stored)] if stored or stores else []

    # Loops over the columns of a strip

    def _column_loop(self, items: Sequence[Statement], stored: Sequence[Value] = ()) -> For:
        """A loop over columns with these statements, which stores ``stored`` in their arrays."""
        column = _ColumnLoopBuilder(self, items, stored)
        for value in stored:
            column.store(self.value_arrays[value], column.value(value))
        return column.loop()

    def _rewrite_reduce(self, s: Reduce) -> list[Statement]:
        """Write a Reduce as a loop over rows around a loop over columns.

        Float sums are added in blocks of rows, with float64 totals.
        """
        functions = combine_functions(s) or ("",) * len(s.outs)
        pairs = list(zip(functions, s.outs, strict=True))
        totals = {
            out: self._array(out, "total", "float64")
            for fn, out in pairs
            if fn == "add" and out.dtype in FLOATS
        }
        ordered = {
            out: self._array(out, "key", ORDERED_DTYPES[out.dtype])
            for fn, out in pairs
            if is_ordered(fn, out)
        }
        init_loop = _ColumnLoopBuilder(self, (), s.init)
        for fn, out, init in zip(functions, s.outs, s.init, strict=True):
            value = init_loop.value(init)
            if out in ordered:
                init_loop.store(ordered[out], init_loop.to_ordered(value, fn))
            elif out in totals:
                init_loop.store(totals[out], init_loop.cast(value, "float64"))
            else:
                init_loop.store(self.value_arrays[out], value)
        rows = self._row_loops(s, _RunningArrays(functions, totals, ordered))
        if not totals and not ordered:
            return [init_loop.loop(), *rows]
        result_loop = _ColumnLoopBuilder(self, ())
        for out, array in totals.items():
            total = result_loop.cast(result_loop.load(array), out.dtype)
            result_loop.store(self.value_arrays[out], total)
        function_of = dict(zip(s.outs, functions, strict=True))
        for out, array in ordered.items():
            integer = result_loop.load(array)
            extremum = result_loop.from_ordered(integer, function_of[out], out.dtype)
            result_loop.store(self.value_arrays[out], extremum)
        return [init_loop.loop(), *rows, result_loop.loop()]

    def _row_loops(self, s: Reduce, running: _RunningArrays) -> tuple[Statement, ...]:
        """The loops over rows; if there are totals, the last axis is cut into blocks."""
        *outer, last_axis = s.axes
        rows = For(last_axis, Block(body=(self._row_combination(s, running),)))
        loops: tuple[Statement, ...] = (rows,)
        if running.totals:
            # For each block of rows: clear the partial sums, add the rows, add them to the totals.
            clear, add = _ColumnLoopBuilder(self, ()), _ColumnLoopBuilder(self, ())
            for out, total in running.totals.items():
                clear.store(self.value_arrays[out], clear.constant(0.0, out.dtype))
                partial = add.cast(add.load(self.value_arrays[out]), "float64")
                add.store(total, add.apply("add", add.load(total), partial))
            block = clear.loop(), rows, add.loop()
            exact = self._exact[last_axis]
            is_one_block = exact is not None and exact <= ROW_BLOCK
            loops = block if is_one_block else (Strip(last_axis, ROW_BLOCK, Block(body=block)),)
        for axis in reversed(outer):
            loops = (For(axis, Block(body=loops)),)
        return loops

    def _row_combination(self, s: Reduce, running: _RunningArrays) -> For:
        """The loop over columns that combines a row with the running values."""
        arrays = [running.ordered.get(out, self.value_arrays[out]) for out in s.outs]
        row = _ColumnLoopBuilder(self, s.body.body, s.body.results)
        old_values = [row.load(array) for array in arrays]
        row.append_items()
        elements = [row.value(value) for value in s.body.results]
        if combine_functions(s) is None:
            combined = row.inline_combine(s.combine, (*old_values, *elements))
        else:
            combined = []
            for out, fn, old, element in zip(
                s.outs, running.functions, old_values, elements, strict=True
            ):
                new = row.to_ordered(element, fn) if out in running.ordered else element
                combined.append(row.apply(fn, old, new))
        for array, value in zip(arrays, combined, strict=True):
            row.store(array, value)
        return row.loop()


class _ColumnLoopBuilder:
    """Builder of one loop over the columns of a strip. All its values get new numbers.

    Methods that return a Value append the statement that defines it.

    Args:
        interchange: the rewrite.
        items: statements of the column loop, which ``append_items``, ``value`` and ``loop`` append.
        results: further values that the loop uses.
    """

    def __init__(
        self, interchange: Interchange, items: Sequence[Statement], results: Iterable[Value] = ()
    ) -> None:
        self._interchange = interchange
        self._items: Sequence[Statement] | None = items
        self._statements: list[Statement] = []
        self._values: dict[Value, Value] = {}
        own = defined_values(items)
        external = {*free_values(items), *[value for value in results if value not in own]}
        for value in sorted(external, key=lambda v: v.number):
            constant = interchange.constants.get(value)
            if constant is not None:
                self._values[value] = self._add(replace(constant, out=self._new(value.dtype)))
            elif value in interchange.value_arrays:
                self._values[value] = self.load(interchange.value_arrays[value])

    def loop(self) -> For:
        """The finished loop."""
        self.append_items()
        return For(self._interchange.axis, Block(body=tuple(self._statements)))

    def append_items(self) -> None:
        """Append ``items``, if they are not appended yet."""
        if self._items is None:
            return
        items, self._items = self._items, None
        numbered = sorted(defined_values(items), key=lambda value: value.number)
        self._values.update({value: self._new(value.dtype) for value in numbered})
        self._statements += substituted(Block(body=tuple(items)), self._values, {}).body

    def value(self, value: Value) -> Value:
        """The value in this loop of a value of the column loop."""
        self.append_items()
        return self._values.get(value, value)

    def inline_combine(self, combine: Block, values: Sequence[Value]) -> list[Value]:
        """Inline a combine block for some arguments; returns its results."""
        names = dict(zip(combine.params, values, strict=True))
        numbered = sorted(defined_values(combine.body), key=lambda value: value.number)
        names.update({value: self._new(value.dtype) for value in numbered})
        block = substituted(combine, names, {})
        self._statements += block.body
        return list(block.results)

    def load(self, local: Local) -> Value:
        """Load the current column's element of a local array."""
        return self._add(Load(self._new(local.dtype), local.name))

    def store(self, local: Local, value: Value) -> None:
        """Store a value of this loop as the current column's element."""
        self._statements.append(Store(local.name, value))

    def constant(self, value: int | float, dtype: str) -> Value:
        return self._add(Const(self._new(dtype), value))

    def cast(self, value: Value, dtype: str) -> Value:
        return value if value.dtype == dtype else self._add(Cast(self._new(dtype), value))

    def apply(self, fn: str, *arguments: Value, dtype: str = "") -> Value:
        out = self._new(dtype or arguments[0].dtype)
        self._statements.append(Apply((out,), fn, arguments))
        return out

    def to_ordered(self, value: Value, fn: str) -> Value:
        """Map a float to an integer of equal order, with nan as extremum of ``fn`` (max, min)."""
        dtype = ORDERED_DTYPES[value.dtype]
        bits = self.apply(f"bitcast_{dtype}", value, dtype=dtype)
        return self.apply("add", self._flipped(bits), self._nan_shift(value.dtype, fn))

    def from_ordered(self, integer: Value, fn: str, dtype: str) -> Value:
        """The inverse of ``to_ordered``."""
        bits = self.apply("sub", integer, self._nan_shift(dtype, fn))
        return self.apply(f"bitcast_{dtype}", self._flipped(bits), dtype=dtype)

    def _nan_shift(self, dtype: str, fn: str) -> Value:
        # Nans with a sign bit come before -inf: for max, adding this wraps them around past inf.
        # For min, it wraps the other nans around to before -inf.
        shift = (1 << _MANTISSA_BITS[dtype]) - 1
        return self.constant(-shift if fn == "max" else shift, ORDERED_DTYPES[dtype])

    def _flipped(self, bits: Value) -> Value:
        """Reverse the order of negative floats. It is its own inverse."""
        width = int(bits.dtype.removeprefix("int"))
        sign = self.apply("shift_right_arithmetic", bits, self.constant(width - 1, bits.dtype))
        magnitude = self.constant((1 << (width - 1)) - 1, bits.dtype)
        return self.apply("xor", bits, self.apply("and", sign, magnitude))

    def _new(self, dtype: str) -> Value:
        return self._interchange.fresh(dtype)

    def _add(self, statement: Const | Load | Cast) -> Value:
        self._statements.append(statement)
        return statement.out
