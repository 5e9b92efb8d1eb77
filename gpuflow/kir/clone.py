"""Emit an existing block into a builder.

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_tiles.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.kir import nodes
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Block, Load, Store, Value

AccessCallback = Callable[..., Any]


class BlockCloner:
    """Emits existing blocks with replaced values.

    The blocks must hold no loops over axes, reductions, strips or copies, and no external values
    but those that an earlier block defined.

    Args:
        builder: the builder to emit into.
        load: ``(load statement, offset, where) -> value``, with values of the builder.
        store: ``(store statement, value, offset, where)``.
    """

    def __init__(self, builder: Builder, load: AccessCallback, store: AccessCallback) -> None:
        self._builder, self._load, self._store = builder, load, store
        self._new_value: dict[Value, Value] = {}

    def block(self, block: Block, arguments: Sequence[Value]) -> list[Value]:
        """Emit the statements of a block; return its results."""
        self._new_value.update(zip(block.params, arguments, strict=True))
        for statement in block.body:
            self._statement(statement)
        return self._values_for(block.results)

    def _values_for(self, values: Sequence[Value]) -> list[Value]:
        return [self._new_value[value] for value in values]

    def _optional(self, value: Value | None) -> Value | None:
        return None if value is None else self._new_value[value]

    def _define(self, outs: Sequence[Value], values: Sequence[Value]) -> None:
        self._new_value.update(zip(outs, values, strict=True))

    def _statement(self, s: nodes.Statement) -> None:
        builder = self._builder
        match s:
            case nodes.Const(out, value):
                self._define((out,), (builder.const(out.dtype, value),))
            case Load(out, _, offset, where):
                loaded = self._load(s, self._optional(offset), self._optional(where))
                self._define((out,), (loaded,))
            case Store(_, value, offset, where):
                self._store(
                    s, self._new_value[value], self._optional(offset), self._optional(where)
                )
            case nodes.Apply(outs, fn, args):
                results = builder.apply(fn, *self._values_for(args))
                self._define(outs, (results,) if isinstance(results, Value) else results)
            case nodes.Select(out, predicate, on_true, on_false):
                selected = builder.select(*self._values_for((predicate, on_true, on_false)))
                self._define((out,), (selected,))
            case nodes.Cast(out, arg):
                self._define((out,), (builder.cast(self._new_value[arg], out.dtype),))
            case nodes.For(None, body, count, outs, init):
                assert count is not None
                results = builder.for_count(
                    self._new_value[count],
                    self._values_for(init),
                    lambda *v: self.block(body, v),
                    s.is_long,
                )
                self._define(outs, results)
            case nodes.While(outs, init, cond, body):
                results = builder.while_loop(
                    self._values_for(init),
                    lambda *v: self.block(cond, v)[0],
                    lambda *v: self.block(body, v),
                )
                self._define(outs, results)
            case nodes.If(outs, predicate, then, orelse):
                results = builder.if_(
                    self._new_value[predicate],
                    lambda: self.block(then, ()),
                    lambda: self.block(orelse, ()),
                )
                self._define(outs, results)
            case _:
                raise TypeError(f"[kir] a block of one lane must not hold {type(s).__name__}.")
