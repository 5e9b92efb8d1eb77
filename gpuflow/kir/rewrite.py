"""Copies of statements with other values and operands, which rewrites of kernels are made of."""

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
    """The values that statements and their blocks take from outside, in order of use."""
    used: dict[Value, None] = {}
    for statement in statements(Block(body=tuple(items))):
        used.update(dict.fromkeys(uses_of(statement)))
        for owned in owned_blocks(statement):
            used.update(dict.fromkeys(owned.results))
    own = defined(items)
    return tuple([value for value in used if value not in own])


def numbered_from_zero(block: Block) -> Block:
    """A block that takes nothing from outside, with its values numbered in order.

    Those that it computes have the numbers from 0 on, its params those below. So two blocks are
    equal if they compute the same.
    """
    count = len(block.params)
    values = {v: Value(k - count, v.dtype) for k, v in enumerate(block.params)}
    inside = dict.fromkeys(v for s in statements(block) for v in results_of(s))
    values.update({value: Value(k, value.dtype) for k, value in enumerate(inside)})
    return renamed(block, values, {})


def renamed(block: Block, values: Mapping[Value, Value], operands: Mapping[str, str]) -> Block:
    """A block with values and operands replaced, where they are defined and where they are used.

    Args:
        block: any block.
        values: by those that they replace.
        operands: names, of local arrays too, by those that they replace in loads and stores.
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
        parts = {f.name: changed(getattr(statement, f.name)) for f in fields(statement)}
        if isinstance(statement, nodes.Load | nodes.Store):
            parts["operand"] = accessed(statement.operand)
        if isinstance(statement, nodes.Copy):
            parts["source"] = accessed(statement.source)
            parts["target"] = accessed(statement.target)
        body.append(type(statement)(**parts))
    return Block(tuple(map(value, block.params)), tuple(body), tuple(map(value, block.results)))


def as_loops(copy: nodes.Copy, local: nodes.Local, first_free: int) -> nodes.For:
    """The meaning of a Copy, as loops in the operand's order.

    Args:
        copy: between an operand and ``local``.
        local: the array.
        first_free: new values have numbers from here on, ``LOOP_VALUES`` of them.
    """
    value = Value(first_free, compute_dtype(local.dtype))
    pitch, row = Value(first_free + 1, "int64"), Value(first_free + 2, "int64")
    steps: list[Statement] = []
    places: dict[str, Value] = {}
    if copy.count is not None:
        (number,), (places[_other(copy, local)],) = copy.places.params, copy.places.results
        start = nodes.Apply((row,), "mul", (number, pitch))
        steps = [*copy.places.body, nodes.Const(pitch, local.axes[0][1]), start]
        places[local.name] = row
    part = {_other(copy, local): copy.part}
    source, target = copy.source, copy.target
    steps += [
        nodes.Load(value, source, places.get(source), part=part.get(source)),
        nodes.Store(target, value, places.get(target), part=part.get(target)),
    ]
    body = Block(body=tuple(steps))
    if copy.count is not None:
        turns = nodes.For(None, replace(body, params=copy.places.params), copy.count)
        return nodes.For(local.axes[0][0], Block(body=(turns,)))
    for axis, _ in local.axes:
        body = Block(body=(nodes.For(axis, body),))
    (loop,) = body.body
    assert isinstance(loop, nodes.For)
    return loop


LOOP_VALUES = 3


def _other(copy: nodes.Copy, local: nodes.Local) -> str:
    return copy.target if copy.source == local.name else copy.source
