"""Builder of the statements of one segment in a block of lanes (``lane_blocks``).

A segment is a run of statements without loops: the body of one loop over the lanes of a block.
Values of the original kernel have other values in each segment, because a loop over lanes cannot
use values of another loop; ``SegmentBuilder.value`` translates.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_tiles.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from gpuflow.kir.nodes import (
    Apply,
    Block,
    Cast,
    Const,
    For,
    If,
    Load,
    Local,
    Select,
    Statement,
    Store,
    Value,
    While,
)
from gpuflow.kir.rewrite import free_values, substituted
from gpuflow.kir.walk import results_of, statements


def is_loop(statement: Statement) -> bool:
    """Whether a statement is a loop of one lane, and not one over an axis."""
    return isinstance(statement, While) or (isinstance(statement, For) and statement.axis is None)


def has_loop(items: Iterable[Statement]) -> bool:
    """Whether statements, or blocks inside them, are loops of one lane."""
    return any(is_loop(s) for s in statements(Block(body=tuple(items))))


class Lanes(Protocol):
    """Data that all segments of a block of lanes share, see ``lane_blocks._LaneBlockRewriter``.

    Attributes:
        axis: name of the axis of the lanes.
        arrays: the local array of each value that several segments use.
        cheap: statements of values that each segment recomputes: constants, scalars and indices.
        uniform: uniform values of the original kernel, with their values in the rewritten one.
        in_memory: names of the operands that are not scalars.
        broadcast: names of the operands that do not vary along the lanes.
        is_padded: whether loops over local arrays may run over all lanes of a shorter last block.
        size: lanes of a block, a power of two.
    """

    axis: str
    arrays: dict[Value, Local]
    cheap: dict[Value, Const | Load]
    uniform: dict[Value, Value]
    in_memory: set[str]
    broadcast: set[str]
    is_padded: bool
    size: int

    def fresh(self, dtype: str) -> Value:
        """A value with a number that the kernel does not use yet."""
        ...

    def array(self, dtype: str, rows: int = 1) -> Local:
        """A new array with an element for each lane of a block, or ``rows`` rows of them."""
        ...

    def is_uniform(self, value: Value) -> bool:
        """Whether a value is uniform over the lanes of a block."""
        ...


class SegmentBuilder:
    """Builder of the statements of one segment.

    It maps values of the original kernel to values of the segment (``value``). Values from other
    segments are loaded from their arrays, and cheap ones are computed again, at their first use.
    Methods that return a Value append the statement that defines it.

    Args:
        lanes: the block.
        out: the list of statements to extend. They are outside of a loop over lanes, so accesses of
            local arrays need an explicit offset. None: a new list, the body of ``loop``.
    """

    def __init__(self, lanes: Lanes, out: list[Statement] | None = None) -> None:
        self._lanes = lanes
        self._statements: list[Statement] = [] if out is None else out
        self._segment_values: dict[Value, Value] = {}

    def loop(self) -> For:
        """Return the loop over the lanes of a block, whose body is this segment."""
        body = Block(body=tuple(self._statements))
        accessed = {s.operand for s in statements(body) if isinstance(s, Load | Store)}
        padded = self._lanes.is_padded and accessed.isdisjoint(self._lanes.in_memory)
        return For(self._lanes.axis, body, padded=padded)

    def value(self, value: Value) -> Value:
        """The value in this segment of a value of the original kernel."""
        lanes = self._lanes
        if value in self._segment_values:
            return self._segment_values[value]
        if value in lanes.cheap:
            copy = replace(lanes.cheap[value], out=lanes.fresh(value.dtype))
            self._statements.append(copy)
            self._segment_values[value] = copy.out
        elif value in lanes.uniform:
            return lanes.uniform[value]
        elif value in lanes.arrays:
            self._segment_values[value] = self.load(lanes.arrays[value])
        else:
            return value  # defined by the enclosing code
        return self._segment_values[value]

    def bind(self, values: Sequence[Value], segment_values: Sequence[Value]) -> None:
        """Map values of the original kernel to values of this segment."""
        self._segment_values.update(zip(values, segment_values, strict=True))

    def load(self, array: Local, offset: Value | None = None) -> Value:
        """Load the current lane's element, or the one at an offset (an int64)."""
        out = self._lanes.fresh(array.dtype)
        self._statements.append(Load(out, array.name, offset))
        return out

    def store(self, array: Local, value: Value, offset: Value | None = None) -> None:
        """Store the current lane's element, or the one at an offset (an int64)."""
        self._statements.append(Store(array.name, value, offset))

    def constant(self, dtype: str, number: float) -> Value:
        """A constant of this segment; ``number`` is a bool, an integer or a float, as ``dtype``."""
        out = self._lanes.fresh(dtype)
        self._statements.append(Const(out, number))
        return out

    def zero(self, dtype: str) -> Value:
        return self.constant(dtype, {"bool": False, "floa": 0.0}.get(dtype[:4], 0))

    def apply(self, fn: str, *arguments: Value, dtype: str = "") -> Value:
        """A function of ``kir.scalar``; ``dtype`` of its result, if not that of its arguments."""
        out = self._lanes.fresh(dtype or arguments[0].dtype)
        self._statements.append(Apply((out,), fn, arguments))
        return out

    def logical_and(self, first: Value, second: Value) -> Value:
        """The conjunction of two bools."""
        return self.apply("and", first, second)

    def cast(self, value: Value, dtype: str) -> Value:
        out = self._lanes.fresh(dtype)
        self._statements.append(Cast(out, value))
        return out

    def counted_loop(
        self,
        count: Value,
        init: Sequence[Value],
        iteration: Callable[[SegmentBuilder, Value, Sequence[Value]], Sequence[Value]],
    ) -> tuple[Value, ...]:
        """Append a loop of ``count`` iterations; returns its results.

        Args:
            count: the trip count, an int64.
            init: initial values of the carries.
            iteration: writes the body, given its builder, the counter and the carries; returns the
                next carries. Values that this segment has mapped before are mapped in it too.
        """
        index, *carry = (self._lanes.fresh(v.dtype) for v in (count, *init))
        outs = tuple(self._lanes.fresh(v.dtype) for v in init)
        inner: list[Statement] = []
        code = SegmentBuilder(self._lanes, inner)
        code._segment_values = dict(self._segment_values)
        results = tuple(iteration(code, index, carry))
        body = Block((index, *carry), tuple(inner), results)
        self._statements.append(For(None, body, count, outs, tuple(init)))
        return outs

    def branch(self, outs: Sequence[Value], predicate: Value, then: Block, orelse: Block) -> None:
        """Append a branch whose results are ``outs``, new values."""
        self._statements.append(If(tuple(outs), predicate, then, orelse))

    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value:
        """One of two values of equal dtype."""
        if on_true == on_false:
            return on_true
        out = self._lanes.fresh(on_true.dtype)
        self._statements.append(Select(out, predicate, on_true, on_false))
        return out

    def inline(
        self, block: Block, arguments: Sequence[Value], guard: Value | None = None
    ) -> list[Value]:
        """Inline a block without loops, for some arguments; returns its results.

        A block may be inlined several times. ``guard`` masks its memory accesses, see ``append``.
        """
        saved = dict(self._segment_values)
        self._segment_values.update(zip(block.params, arguments, strict=True))
        self.append(block.body, guard)
        results = [self.value(value) for value in block.results]
        self._segment_values = saved
        return results

    def append(self, items: Sequence[Statement], guard: Value | None = None) -> None:
        """Append statements without loops. Branches become selects.

        Args:
            items: statements of the original kernel.
            guard: the mask of memory accesses; None: all lanes run them.
        """
        for s in items:
            if isinstance(s, If):
                self._select_between(s, guard)
                continue
            values = {value: self.value(value) for value in free_values([s])}
            outs = {value: self._lanes.fresh(value.dtype) for value in results_of(s)}
            (copy,) = substituted(Block(body=(s,)), {**values, **outs}, {}).body
            is_read = isinstance(copy, Load) and copy.offset is not None
            is_access = is_read or isinstance(copy, Store)
            if guard is not None and is_access and copy.operand in self._lanes.in_memory:
                where = guard if copy.where is None else self.logical_and(guard, copy.where)
                copy = replace(copy, where=where)
            self._statements.append(copy)
            self._segment_values.update(outs)

    def _select_between(self, s: If, guard: Value | None) -> None:
        """Run both sides of a branch without loops, and select between their results."""
        predicate = self.value(s.predicate)
        results = []
        for block, is_then in ((s.then, True), (s.orelse, False)):
            side_guard = guard
            if any(isinstance(i, Load | Store) for i in statements(block)):
                side_mask = predicate if is_then else self.apply("not", predicate)
                side_guard = side_mask if guard is None else self.logical_and(guard, side_mask)
            results.append(self.inline(block, (), side_guard))
        for out, on_true, on_false in zip(s.outs, *results, strict=True):
            self._segment_values[out] = self.select(predicate, on_true, on_false)
