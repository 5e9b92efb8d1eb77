"""Code of one segment of a batched block, with the names of its values."""

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
    """Common data of all segments of a batched block; see ``lane_blocks.py``."""

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
    """Statements of one segment, with the names of its values.

    Args:
        lanes: the block to which it belongs.
        out: the list of statements to extend; None: a loop over the lanes, see ``loop``.
    """

    def __init__(self, lanes: Lanes, out: list[Statement] | None = None) -> None:
        self._of = lanes
        self._statements: list[Statement] = [] if out is None else out
        self._names: dict[Value, Value] = {}

    def loop(self) -> For:
        """The loop over the lanes of a block."""
        body = Block(body=tuple(self._statements))
        accessed = {s.operand for s in statements(body) if isinstance(s, Load | Store)}
        padded = self._of.is_padded and accessed.isdisjoint(self._of.in_memory)
        return For(self._of.axis, body, padded=padded)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return not self._statements

    def value(self, value: Value) -> Value:
        """The replacement of a value in this context."""
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
            return value  # of the code around
        return self._names[value]

    def call(self, values: Sequence[Value], names: Sequence[Value]) -> None:
        """Set the names of values in this segment."""
        self._names.update(zip(values, names, strict=True))

    def load(self, array: Local, offset: Value | None = None) -> Value:
        out = self._of.fresh(array.dtype)
        self._statements.append(Load(out, array.name, offset))
        return out

    def store(self, array: Local, value: Value, offset: Value | None = None) -> None:
        self._statements.append(Store(array.name, value, offset))

    def read(self, access: Load) -> Value:
        """Write a load with a new result."""
        out = self._of.fresh(access.out.dtype)
        self._statements.append(replace(access, out=out))
        return out

    def write(self, access: Store) -> None:
        """Write a store unmodified."""
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
        """Write a loop of ``count`` iterations.

        Args:
            count: int64.
            init: initial values of the carries.
            iteration: writes one with the counter and the carries, and returns the next carries.
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
        """Write a block without loops, any number of times; return its results."""
        outer = dict(self._names)
        self._names.update(zip(block.params, arguments, strict=True))
        self.run(block.body, guard)
        results = [self.value(value) for value in block.results]
        self._names = outer
        return results

    def run(self, items: Sequence[Statement], guard: Value | None = None) -> None:
        """Write statements without loops; the guard masks their memory accesses."""
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
