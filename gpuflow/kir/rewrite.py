"""Copies of statements with other values and operands, for rewrites of kernels.

Tests: tests/kir/test_copies.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Statement, Value
from gpuflow.kir.scalar import compute_dtype
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of

COPY_LOOP_VALUES = 3  # values that the loops of ``copy_loops`` define


def defined_values(items: Iterable[Statement]) -> set[Value]:
    """All values that statements and their blocks define."""
    values: set[Value] = set()
    for statement in statements(Block(body=tuple(items))):
        values.update(results_of(statement))
        for owned in owned_blocks(statement):
            values.update(owned.params)
    return values


def free_values(items: Sequence[Statement]) -> tuple[Value, ...]:
    """The external values that statements and their blocks use, in order of use."""
    used_values: dict[Value, None] = {}
    for statement in statements(Block(body=tuple(items))):
        used_values.update(dict.fromkeys(uses_of(statement)))
        for owned in owned_blocks(statement):
            used_values.update(dict.fromkeys(owned.results))
    defined_here = defined_values(items)
    return tuple([value for value in used_values if value not in defined_here])


def numbered_from_zero(block: Block) -> Block:
    """A block without external values, with its values numbered in order.

    Those that it computes are numbered from 0, its params below. So two blocks are equal if they
    compute the same.
    """
    num_params = len(block.params)
    new_value_of = {v: Value(k - num_params, v.dtype) for k, v in enumerate(block.params)}
    computed = dict.fromkeys(v for s in statements(block) for v in results_of(s))
    new_value_of.update({value: Value(k, value.dtype) for k, value in enumerate(computed)})
    return substituted(block, new_value_of, {})


def substituted(block: Block, values: Mapping[Value, Value], operands: Mapping[str, str]) -> Block:
    """A block with values and operands replaced, in definitions and uses.

    Args:
        block: any block.
        values: new values by old ones, of the same dtypes; the others stay.
        operands: new names by old ones, of local arrays too, in loads, stores and copies.
    """

    def renamed(old: Value) -> Value:
        return values.get(old, old)

    def new_operand(name: str) -> str:
        return operands.get(name, name)

    return _substituted(block, renamed, new_operand)


def _substituted(
    block: Block, renamed: Callable[[Value], Value], new_operand: Callable[[str], str]
) -> Block:
    """``substituted`` with functions instead of mappings."""

    def new_field(field: Any) -> Any:
        if isinstance(field, Value):
            return renamed(field)
        if isinstance(field, Block):
            return _substituted(field, renamed, new_operand)
        if isinstance(field, tuple) and field and isinstance(field[0], Value):
            return tuple(map(renamed, field))
        return field

    body = []
    for statement in block.body:
        new_fields = {f.name: new_field(getattr(statement, f.name)) for f in fields(statement)}
        if isinstance(statement, nodes.Load | nodes.Store):
            new_fields["operand"] = new_operand(statement.operand)
        if isinstance(statement, nodes.Copy):
            new_fields["source"] = new_operand(statement.source)
            new_fields["target"] = new_operand(statement.target)
        body.append(type(statement)(**new_fields))
    return Block(tuple(map(renamed, block.params)), tuple(body), tuple(map(renamed, block.results)))


def copy_loops(copy: nodes.Copy, local: nodes.Local, first_free_number: int) -> nodes.For:
    """The definition of a Copy, as loops in the operand's order.

    Args:
        copy: between an operand and ``local``.
        local: the array.
        first_free_number: the new values have numbers from here on, ``COPY_LOOP_VALUES`` of them,
            none of which the kernel may use.
    """
    value = Value(first_free_number, compute_dtype(local.dtype))
    pitch, row = Value(first_free_number + 1, "int64"), Value(first_free_number + 2, "int64")
    body_statements: list[Statement] = []
    offset_of: dict[str, Value] = {}
    if copy.count is not None:
        rows = copy.row_offsets
        (row_number,), (offset_of[_memory_operand(copy, local)],) = rows.params, rows.results
        row_start = nodes.Apply((row,), "mul", (row_number, pitch))
        body_statements = [*copy.row_offsets.body, nodes.Const(pitch, local.axes[0][1]), row_start]
        offset_of[local.name] = row
    component = {_memory_operand(copy, local): copy.component}
    source, target = copy.source, copy.target
    body_statements += [
        nodes.Load(value, source, offset_of.get(source), component=component.get(source)),
        nodes.Store(target, value, offset_of.get(target), component=component.get(target)),
    ]
    body = Block(body=tuple(body_statements))
    if copy.count is not None:
        row_loop = nodes.For(None, replace(body, params=copy.row_offsets.params), copy.count)
        return nodes.For(local.axes[0][0], Block(body=(row_loop,)))
    for axis, _ in local.axes:
        body = Block(body=(nodes.For(axis, body),))
    (loop,) = body.body
    assert isinstance(loop, nodes.For)
    return loop


def _memory_operand(copy: nodes.Copy, local: nodes.Local) -> str:
    """The operand in memory of a Copy, which is not the local array."""
    return copy.target if copy.source == local.name else copy.source
