"""Builder of the statements of one segment in a block of lanes (``lane_blocks``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
)
from gpuflow.kir.rewrite import renamed, taken
from gpuflow.kir.walk import results_of, statements


class Lanes(Protocol):
    """Data that all segments of a block of lanes share; ``lane_blocks._Blocks`` implements it."""

    axis: str
    arrays: dict[Value, Local]
    cheap: dict[Value, Const | Load]
    uniform: dict[Value, Value]
    in_memory: set[str]
    broadcast: set[str]
    is_padded: bool
    size: int

    def fresh(self, dtype: str) -> Value:
        """A new value."""
        ...

    def array(self, dtype: str, rows: int = 1) -> Local:
        """A new array with an element for each lane of a block, or ``rows`` rows of them."""
        ...

    def is_uniform(self, value: Value) -> bool:
        """Whether a value is uniform over the lanes of a block."""
        ...


class Code:
    """Builder of the statements of one segment.

    It maps values of the original kernel to values of the segment (``value``). Values from other
    segments are loaded from their arrays, and cheap ones are computed again, at their first use.

    Args:
        lanes: the block.
        out: the list of statements to extend. None: a new list, the body of ``loop``.
    """

    def __init__(self, lanes: Lanes, out: list[Statement] | None = None) -> None:
        self._of = lanes
        self._statements: list[Statement] = [] if out is None else out
        self._names: dict[Value, Value] = {}

    def loop(self) -> For:
        """Return the loop over the lanes of a block, whose body is this segment."""
        body = Block(body=tuple(self._statements))
        accessed = {s.operand for s in statements(body) if isinstance(s, Load | Store)}
        padded = self._of.is_padded and accessed.isdisjoint(self._of.in_memory)
        return For(self._of.axis, body, padded=padded)

    @property
    def is_empty(self) -> bool:
        """Whether the segment has no statements."""
        return not self._statements

    def value(self, value: Value) -> Value:
        """The value in this segment of a value of the original kernel."""
        of = self._of
        if value in self._names:
            return self._names[value]
        if value in of.cheap:
            copy = replace(of.cheap[value], out=of.fresh(value.dtype))
            self._statements.append(copy)
            self._names[value] = copy.out
        elif value in of.uniform:
            return of.uniform[value]
        elif value in of.arrays:
            self._names[value] = self.load(of.arrays[value])
        else:
            return value  # defined by the enclosing code
        return self._names[value]

    def call(self, values: Sequence[Value], names: Sequence[Value]) -> None:
        """Map values of the original kernel to values of this segment."""
        self._names.update(zip(values, names, strict=True))

    def load(self, array: Local, offset: Value | None = None) -> Value:
        out = self._of.fresh(array.dtype)
        self._statements.append(Load(out, array.name, offset))
        return out

    def store(self, array: Local, value: Value, offset: Value | None = None) -> None:
        self._statements.append(Store(array.name, value, offset))

    def read(self, access: Load) -> Value:
        """Append a copy of a load; returns its new result."""
        out = self._of.fresh(access.out.dtype)
        self._statements.append(replace(access, out=out))
        return out

    def write(self, access: Store) -> None:
        """Append a store unmodified."""
        self._statements.append(access)

    def number(self, dtype: str, number: float) -> Value:
        out = self._of.fresh(dtype)
        self._statements.append(Const(out, number))
        return out

    def zero(self, dtype: str) -> Value:
        return self.number(dtype, {"bool": False, "floa": 0.0}.get(dtype[:4], 0))

    def apply(self, fn: str, *arguments: Value, dtype: str = "") -> Value:
        out = self._of.fresh(dtype or arguments[0].dtype)
        self._statements.append(Apply((out,), fn, arguments))
        return out

    def both(self, first: Value, second: Value) -> Value:
        return self.apply("and", first, second)

    def cast(self, value: Value, dtype: str) -> Value:
        out = self._of.fresh(dtype)
        self._statements.append(Cast(out, value))
        return out

    def times(
        self,
        count: Value,
        init: Sequence[Value],
        iteration: Callable[[Code, Value, Sequence[Value]], Sequence[Value]],
    ) -> tuple[Value, ...]:
        """Append a loop of ``count`` iterations; returns its results.

        Args:
            count: the trip count, an int64.
            init: initial values of the carries.
            iteration: writes the body, given its builder, the counter and the carries; returns the
                next carries.
        """
        index, *carry = (self._of.fresh(v.dtype) for v in (count, *init))
        outs = tuple(self._of.fresh(v.dtype) for v in init)
        inner: list[Statement] = []
        code = Code(self._of, inner)
        code._names = dict(self._names)
        results = tuple(iteration(code, index, carry))
        body = Block((index, *carry), tuple(inner), results)
        self._statements.append(For(None, body, count, outs, tuple(init)))
        return outs

    def branch(self, outs: Sequence[Value], predicate: Value, then: Block, orelse: Block) -> None:
        self._statements.append(If(tuple(outs), predicate, then, orelse))

    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value:
        if on_true == on_false:
            return on_true
        out = self._of.fresh(on_true.dtype)
        self._statements.append(Select(out, predicate, on_true, on_false))
        return out

    def block(
        self, block: Block, arguments: Sequence[Value], guard: Value | None = None
    ) -> list[Value]:
        """Inline a block without loops, for some arguments; returns its results.

        A block may be inlined several times. ``guard`` masks its memory accesses.
        """
        outer = dict(self._names)
        self._names.update(zip(block.params, arguments, strict=True))
        self.run(block.body, guard)
        results = [self.value(value) for value in block.results]
        self._names = outer
        return results

    def run(self, items: Sequence[Statement], guard: Value | None = None) -> None:
        """Append statements without loops. Branches become selects.

        Args:
            items: statements of the original kernel.
            guard: the mask of memory accesses; None: all lanes run them.
        """
        for s in items:
            if isinstance(s, If):
                self._select_between(s, guard)
                continue
            values = {value: self.value(value) for value in taken([s])}
            outs = {value: self._of.fresh(value.dtype) for value in results_of(s)}
            (copy,) = renamed(Block(body=(s,)), {**values, **outs}, {}).body
            reads = isinstance(copy, Load) and copy.offset is not None
            is_access = reads or isinstance(copy, Store)
            if guard is not None and is_access and copy.operand in self._of.in_memory:
                where = guard if copy.where is None else self.both(guard, copy.where)
                copy = replace(copy, where=where)
            self._statements.append(copy)
            self._names.update(outs)

    def _select_between(self, s: If, guard: Value | None) -> None:
        predicate = self.value(s.predicate)
        sides = []
        for block, holds in ((s.then, True), (s.orelse, False)):
            inner = guard
            if any(isinstance(i, Load | Store) for i in statements(block)):
                taken_ = predicate if holds else self.apply("not", predicate)
                inner = taken_ if guard is None else self.both(guard, taken_)
            sides.append(self.block(block, (), inner))
        for out, on_true, on_false in zip(s.outs, *sides, strict=True):
            self._names[out] = self.select(predicate, on_true, on_false)
