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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
from gpuflow.kir.rewrite import defined, renamed, taken
from gpuflow.kir.walk import results_of, statements, unused_number
from gpuflow.targets.cpu.codegen.printing.loop_printer import ORDERED, is_ordered
from gpuflow.targets.kernel_walk import FLOATS, combine_functions

COLUMN_BLOCK = 1024  # columns of a strip

# Rows between two additions to the float64 totals. Fewer than for sums along a row: a column is
# added in order, and not in several vector lanes.
ROW_BLOCK = 64

_MANTISSA = {"float32": 23, "float64": 52}  # bits


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
    if isinstance(statement, Reduce):
        return statement.axes
    if isinstance(statement, For) and statement.axis is not None:
        return (statement.axis,)
    return ()


def merged(items: Sequence[Statement], axis: str) -> list[Statement]:
    """Merge adjacent loops over the columns of a strip."""
    result: list[Statement] = []
    for item in items:
        last = result[-1] if result else None
        if isinstance(item, For) and isinstance(last, For) and item.axis == last.axis == axis:
            result[-1] = replace(last, body=Block(body=(*last.body.body, *item.body.body)))
        else:
            result.append(item)
    return result


def with_forwarded_stores(
    items: Sequence[Statement], axis: str, arrays: set[str]
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
    for position, item in enumerate(items):
        if isinstance(item, For) and item.axis == axis:
            later = _read(items[position + 1 :])
            body = _forwarded(item.body, arrays)
            own = _read(body.body)
            remaining = [
                s
                for s in body.body
                if not (isinstance(s, Store) and s.operand in arrays - later - own)
            ]
            item = replace(item, body=Block(body=tuple(remaining)))
        result.append(item)
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
    return renamed(Block(body=tuple(remaining)), forwarded, {})


def _read(items: Sequence[Statement]) -> set[str]:
    """Names of the arrays and operands that statements read."""
    return {s.operand for s in statements(Block(body=tuple(items))) if isinstance(s, Load)}


class Interchange:
    """Rewrites the loops over columns of one kernel.

    Args:
        kernel: the kernel.
        size: columns of a strip.

    Attributes:
        locals: local arrays of the rewritten loops.
        axis: the axis of the column loop that is being rewritten.
        arrays: the local arrays of its values that several segments use.
        constants: its constants and scalars, which every segment recomputes.
    """

    def __init__(self, kernel: Kernel, size: int) -> None:
        self.size = size
        self.locals: list[Local] = []
        self._order = {axis.name: position for position, axis in enumerate(kernel.axes)}
        self._roles = {axis.name: axis.role for axis in kernel.axes}
        self._exact = {axis.name: axis.exact for axis in kernel.axes}
        self._scalars = {o.name for o in kernel.operands if o.mode is Mode.SCALAR}
        self._free = unused_number(kernel.body)
        self.axis = ""
        self.arrays: dict[Value, Local] = {}
        self.constants: dict[Value, Const | Load] = {}

    def rewritten(self, block: Block) -> Block:
        """Rewrite all loops over columns of a block that can be interchanged."""
        body: list[Statement] = []
        for statement in block.body:
            if isinstance(statement, For) and statement.axis is not None:
                if self._can_interchange(statement.axis, statement.body):
                    statement = Strip(
                        statement.axis, self.size, self.strip_body(statement.axis, statement.body)
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
        self.axis, self.arrays, self.constants = axis, {}, {}
        segments, before = split_segments(body), len(self.locals)
        self._find_arrays(segments)
        items = merged([s for segment in segments for s in self._segment(segment)], axis)
        own = {local.name for local in self.locals[before:]}
        items = with_forwarded_stores(items, axis, own)
        unread = own - _read(items)
        self.locals = [local for local in self.locals if local.name not in unread]
        return Block(body=tuple(items))

    def _can_interchange(self, axis: str, body: Block) -> bool:
        """Whether the loops in a loop over columns are over outer axes, and are not nested."""
        inner = [_axes_of(item) for item in statements(body) if _crosses_rows(item)]
        direct = [item for item in body.body if _crosses_rows(item)]
        names = [name for axes in inner for name in axes]
        is_outer = all(
            self._order[name] < self._order[axis] and self._roles[name] is not Role.PARALLEL
            for name in names
        )
        is_parallel = self._roles[axis] in (Role.PARALLEL, Role.VECTOR)
        return is_parallel and is_outer and 0 < len(direct) == len(inner)

    def _find_arrays(self, segments: Sequence[Segment]) -> None:
        """Allocate arrays for results of reductions and operands of later segments."""
        for position, segment in enumerate(segments):
            later = {v for other in segments[position + 1 :] for v in taken(other.statements)}
            for statement in segment.statements:
                if isinstance(statement, Const) or (
                    isinstance(statement, Load) and statement.operand in self._scalars
                ):
                    self.constants[statement.out] = statement
                    continue
                for value in results_of(statement):
                    if segment.crosses_rows or value in later:
                        self.arrays[value] = self._array(value, "column", value.dtype)

    def _array(self, value: Value, role: str, dtype: str) -> Local:
        local = Local(f"t{value.number}_{role}", dtype, ((self.axis, self.size),))
        self.locals.append(local)
        return local

    def fresh(self, dtype: str) -> Value:
        """A new value."""
        self._free += 1
        return Value(self._free - 1, dtype)

    def _segment(self, segment: Segment) -> list[Statement]:
        statement = segment.statements[0]
        if isinstance(statement, Reduce):
            return self._reduce_rows(statement)
        if isinstance(statement, For) and segment.crosses_rows:
            return [For(statement.axis, Block(body=(self._columns(statement.body.body),)))]
        stored = [v for s in segment.statements for v in results_of(s) if v in self.arrays]
        stores = any(isinstance(s, Store) for s in statements(Block(body=segment.statements)))
        return [self._columns(segment.statements, stored)] if stored or stores else []

    # Loops over the columns of a strip

    def _columns(self, items: Sequence[Statement], stored: Sequence[Value] = ()) -> For:
        """A loop over columns with these statements, which stores ``stored`` in their arrays."""
        column = _Column(self, items, stored)
        column.store([(self.arrays[value], column.value(value)) for value in stored])
        return column.loop()

    def _reduce_rows(self, s: Reduce) -> list[Statement]:
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
        keys = {
            out: (fn, self._array(out, "key", ORDERED[out.dtype]))
            for fn, out in pairs
            if is_ordered(fn, out)
        }
        first = _Column(self, (), s.init)
        for out, init in zip(s.outs, s.init, strict=True):
            value = first.value(init)
            if out in keys:
                fn, array = keys[out]
                first.store([(array, first.key(value, fn))])
                continue
            if out in totals:
                first.store([(totals[out], first.cast(value, "float64"))])
            else:
                first.store([(self.arrays[out], value)])
        rows = self._rows(s, functions, totals, keys)
        if not totals and not keys:
            return [first.loop(), *rows]
        last = _Column(self, ())
        for out, array in totals.items():
            last.store([(self.arrays[out], last.cast(last.load(array), out.dtype))])
        for out, (fn, array) in keys.items():
            last.store([(self.arrays[out], last.unkeyed(last.load(array), fn, out.dtype))])
        return [first.loop(), *rows, last.loop()]

    def _rows(
        self,
        s: Reduce,
        functions: Sequence[str],
        totals: dict[Value, Local],
        keys: dict[Value, tuple[str, Local]],
    ) -> tuple[Statement, ...]:
        """The loops over rows; if there are totals, the last axis is cut into blocks."""
        *outer, last = s.axes
        rows = For(last, Block(body=(self._row(s, functions, keys),)))
        every: tuple[Statement, ...] = (rows,)
        if totals:
            begin, end = _Column(self, ()), _Column(self, ())
            for out, total in totals.items():
                begin.store([(self.arrays[out], begin.constant(0.0, out.dtype))])
                partial = end.cast(end.load(self.arrays[out]), "float64")
                end.store([(total, end.apply("add", end.load(total), partial))])
            block = begin.loop(), rows, end.loop()
            exact = self._exact[last]
            is_one = exact is not None and exact <= ROW_BLOCK
            every = block if is_one else (Strip(last, ROW_BLOCK, Block(body=block)),)
        for axis in reversed(outer):
            every = (For(axis, Block(body=every)),)
        return every

    def _row(
        self, s: Reduce, functions: Sequence[str], keys: dict[Value, tuple[str, Local]]
    ) -> For:
        """The loop over columns that combines a row with the running values."""
        arrays = [keys[out][1] if out in keys else self.arrays[out] for out in s.outs]
        row = _Column(self, s.body.body, s.body.results)
        running = [row.load(array) for array in arrays]
        row.body()
        elements = [row.value(value) for value in s.body.results]
        if combine_functions(s) is None:
            combined = row.combined(s.combine, (*running, *elements))
        else:
            combined = []
            for out, fn, old, new in zip(s.outs, functions, running, elements, strict=True):
                element = row.key(new, fn) if out in keys else new
                combined.append(row.apply(fn, old, element))
        row.store(list(zip(arrays, combined, strict=True)))
        return row.loop()


class _Column:
    """Builder of one loop over the columns of a strip. All its values get new numbers.

    Args:
        interchange: the rewrite.
        items: statements of the column loop, which ``body`` and ``value`` add.
        results: further values that the loop uses.
    """

    def __init__(
        self, interchange: Interchange, items: Sequence[Statement], results: Iterable[Value] = ()
    ) -> None:
        self._of = interchange
        self._items: Sequence[Statement] | None = items
        self._statements: list[Statement] = []
        self._values: dict[Value, Value] = {}
        own = defined(items)
        external = {*taken(items), *[value for value in results if value not in own]}
        for value in sorted(external, key=lambda v: v.number):
            constant = interchange.constants.get(value)
            if constant is not None:
                self._values[value] = self._add(replace(constant, out=self._new(value.dtype)))
            elif value in interchange.arrays:
                self._values[value] = self.load(interchange.arrays[value])

    def loop(self) -> For:
        """The finished loop."""
        self.body()
        return For(self._of.axis, Block(body=tuple(self._statements)))

    def body(self) -> None:
        """Add ``items``, if they are not added yet."""
        if self._items is None:
            return
        items, self._items = self._items, None
        numbered = sorted(defined(items), key=lambda value: value.number)
        self._values.update({value: self._new(value.dtype) for value in numbered})
        self._statements += renamed(Block(body=tuple(items)), self._values, {}).body

    def value(self, value: Value) -> Value:
        """The value in this loop of a value of the column loop."""
        self.body()
        return self._values.get(value, value)

    def combined(self, combine: Block, values: Sequence[Value]) -> list[Value]:
        """Inline a combine block for some arguments; returns its results."""
        names = dict(zip(combine.params, values, strict=True))
        numbered = sorted(defined(combine.body), key=lambda value: value.number)
        names.update({value: self._new(value.dtype) for value in numbered})
        block = renamed(combine, names, {})
        self._statements += block.body
        return list(block.results)

    def load(self, local: Local) -> Value:
        return self._add(Load(self._new(local.dtype), local.name))

    def store(self, pairs: Sequence[tuple[Local, Value]]) -> None:
        self._statements += [Store(local.name, value) for local, value in pairs]

    def constant(self, value: int | float, dtype: str) -> Value:
        return self._add(Const(self._new(dtype), value))

    def cast(self, value: Value, dtype: str) -> Value:
        return value if value.dtype == dtype else self._add(Cast(self._new(dtype), value))

    def apply(self, fn: str, *arguments: Value, dtype: str = "") -> Value:
        out = self._new(dtype or arguments[0].dtype)
        self._statements.append(Apply((out,), fn, arguments))
        return out

    def key(self, value: Value, fn: str) -> Value:
        """Map a float to an integer with the same order, in which nan is the extremum of ``fn``."""
        dtype = ORDERED[value.dtype]
        bits = self.apply(f"bitcast_{dtype}", value, dtype=dtype)
        return self.apply("add", self._flipped(bits), self._nan_shift(value.dtype, fn))

    def unkeyed(self, key: Value, fn: str, dtype: str) -> Value:
        """The inverse of ``key``."""
        bits = self.apply("sub", key, self._nan_shift(dtype, fn))
        return self.apply(f"bitcast_{dtype}", self._flipped(bits), dtype=dtype)

    def _nan_shift(self, dtype: str, fn: str) -> Value:
        # Nans with a sign bit come before -inf: for max, adding this wraps them around past inf.
        # For min, it wraps the other nans around to before -inf.
        shift = (1 << _MANTISSA[dtype]) - 1
        return self.constant(-shift if fn == "max" else shift, ORDERED[dtype])

    def _flipped(self, bits: Value) -> Value:
        """Reverse the order of negative floats. It is its own inverse."""
        width = int(bits.dtype.removeprefix("int"))
        sign = self.apply("shift_right_arithmetic", bits, self.constant(width - 1, bits.dtype))
        magnitude = self.constant((1 << (width - 1)) - 1, bits.dtype)
        return self.apply("xor", bits, self.apply("and", sign, magnitude))

    def _new(self, dtype: str) -> Value:
        return self._of.fresh(dtype)

    def _add(self, statement: Const | Load | Cast) -> Value:
        self._statements.append(statement)
        return statement.out
