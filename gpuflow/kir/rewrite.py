"""Copies of statements with other values and operands, for rewrites of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Statement, Value
from gpuflow.kir.scalar import compute_dtype
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of


def defined(items: Iterable[Statement]) -> set[Value]:
    """All values that statements and their blocks define."""
    values: set[Value] = set()
    for statement in statements(Block(body=tuple(items))):
        values.update(results_of(statement))
        for owned in owned_blocks(statement):
            values.update(owned.params)
    return values


def taken(items: Sequence[Statement]) -> tuple[Value, ...]:
    """The external values that statements and their blocks use, in order of use."""
    used: dict[Value, None] = {}
    for statement in statements(Block(body=tuple(items))):
        used.update(dict.fromkeys(uses_of(statement)))
        for owned in owned_blocks(statement):
            used.update(dict.fromkeys(owned.results))
    own = defined(items)
    return tuple([value for value in used if value not in own])


def numbered_from_zero(block: Block) -> Block:
    """A block without external values, with its values numbered in order.

    Those that it computes are numbered from 0, its params below. So two blocks are equal if they
    compute the same.
    """
    count = len(block.params)
    values = {v: Value(k - count, v.dtype) for k, v in enumerate(block.params)}
    computed = dict.fromkeys(v for s in statements(block) for v in results_of(s))
    values.update({value: Value(k, value.dtype) for k, value in enumerate(computed)})
    return renamed(block, values, {})


def renamed(block: Block, values: Mapping[Value, Value], operands: Mapping[str, str]) -> Block:
    """A block with values and operands replaced, in definitions and uses.

    Args:
        block: any block.
        values: new values by old ones.
        operands: new names by old ones, of local arrays too, in loads and stores.
    """

    def value(old: Value) -> Value:
        return values.get(old, old)

    def accessed(name: str) -> str:
        return operands.get(name, name)

    return _changed(block, value, accessed)


def _changed(
    block: Block, value: Callable[[Value], Value], accessed: Callable[[str], str]
) -> Block:
    def changed(field: Any) -> Any:
        if isinstance(field, Value):
            return value(field)
        if isinstance(field, Block):
            return _changed(field, value, accessed)
        if isinstance(field, tuple) and field and isinstance(field[0], Value):
            return tuple(map(value, field))
        return field

    body = []
    for statement in block.body:
        changed_fields = {f.name: changed(getattr(statement, f.name)) for f in fields(statement)}
        if isinstance(statement, nodes.Load | nodes.Store):
            changed_fields["operand"] = accessed(statement.operand)
        if isinstance(statement, nodes.Copy):
            changed_fields["source"] = accessed(statement.source)
            changed_fields["target"] = accessed(statement.target)
        body.append(type(statement)(**changed_fields))
    return Block(tuple(map(value, block.params)), tuple(body), tuple(map(value, block.results)))


def as_loops(copy: nodes.Copy, local: nodes.Local, first_free: int) -> nodes.For:
    """The definition of a Copy, as loops in the operand's order.

    Args:
        copy: between an operand and ``local``.
        local: the array.
        first_free: new values have numbers from here on, ``LOOP_VALUES`` of them.
    """
    value = Value(first_free, compute_dtype(local.dtype))
    pitch, row = Value(first_free + 1, "int64"), Value(first_free + 2, "int64")
    steps: list[Statement] = []
    offsets: dict[str, Value] = {}
    if copy.count is not None:
        rows = copy.row_offsets
        (number,), (offsets[_other(copy, local)],) = rows.params, rows.results
        start = nodes.Apply((row,), "mul", (number, pitch))
        steps = [*copy.row_offsets.body, nodes.Const(pitch, local.axes[0][1]), start]
        offsets[local.name] = row
    component = {_other(copy, local): copy.component}
    source, target = copy.source, copy.target
    steps += [
        nodes.Load(value, source, offsets.get(source), component=component.get(source)),
        nodes.Store(target, value, offsets.get(target), component=component.get(target)),
    ]
    body = Block(body=tuple(steps))
    if copy.count is not None:
        row_loop = nodes.For(None, replace(body, params=copy.row_offsets.params), copy.count)
        return nodes.For(local.axes[0][0], Block(body=(row_loop,)))
    for axis, _ in local.axes:
        body = Block(body=(nodes.For(axis, body),))
    (loop,) = body.body
    assert isinstance(loop, nodes.For)
    return loop


LOOP_VALUES = 3


def _other(copy: nodes.Copy, local: nodes.Local) -> str:
    return copy.target if copy.source == local.name else copy.source
