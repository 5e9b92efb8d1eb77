"""Reuse of expensive values between two loops over a row, through the row of the output.

KernelIR recomputes the values of a row in every loop over it, which suits a GPU. On CPUs, exp or
tanh cost more than accesses of cached memory. So the last reduction stores such a value in the
output's row, and the final loop, which overwrites that row, loads it first. The value must already
be rounded to the row's dtype, so that the store loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuflow.kir.nodes import (
    Apply,
    Block,
    Cast,
    Const,
    For,
    Kernel,
    Load,
    Mode,
    Reduce,
    Role,
    Select,
    Statement,
    Store,
    Stride,
    Value,
)
from gpuflow.kir.scalar import EXPENSIVE
from gpuflow.kir.walk import all_uses, needed, results_of, statements


def cache_row_values(kernel: Kernel) -> Kernel:
    """Store a value of the last reduction that the final loop over the row needs.

    Args:
        kernel: any kernel.

    Returns:
        The same kernel if there is nothing to cache. Else one with equal operands, except that
        the mode of the operand that holds the value becomes INOUT.
    """
    if kernel.kind != "row":
        return kernel
    parallel = {axis.name for axis in kernel.axes if axis.role is Role.PARALLEL}
    rewritten = _in_nest(kernel, kernel.body, parallel)
    if rewritten is None:
        return kernel
    body, operand = rewritten
    operands = tuple(
        replace(o, mode=Mode.INOUT) if o.name == operand else o for o in kernel.operands
    )
    return replace(kernel, body=body, operands=operands)


def _in_nest(kernel: Kernel, block: Block, parallel: set[str]) -> tuple[Block, str] | None:
    """Rewrite the statements of a row, inside the loops over rows; None if nothing changes."""
    last = block.body[-1] if block.body else None
    if isinstance(last, For) and last.axis in parallel:
        rewritten = _in_nest(kernel, last.body, parallel)
        if rewritten is None:
            return None
        loop = replace(last, body=rewritten[0])
        return replace(block, body=(*block.body[:-1], loop)), rewritten[1]
    cached = _with_cached_value(kernel, block.body)
    return None if cached is None else (replace(block, body=cached[0]), cached[1])


def _with_cached_value(
    kernel: Kernel, items: tuple[Statement, ...]
) -> tuple[tuple[Statement, ...], str] | None:
    """The statements of a row with one cached value, and the operand that holds it; or None."""
    last = items[-1] if items else None
    if not isinstance(last, For) or last.axis is None:
        return None
    positions = [k for k, s in enumerate(items) if isinstance(s, Reduce) and s.axes == (last.axis,)]
    if not positions:
        return None
    reduce = items[positions[-1]]
    assert isinstance(reduce, Reduce)
    pair = _common_value(reduce.body, last.body)
    if pair is None:
        return None
    early, late = pair
    loop = replace(last, body=_without(last.body, late))
    dtypes = {
        late.dtype,
        *(fn.removeprefix("round_") for fn in _defining_functions(last.body, late)),
    }
    operand = _row_for(kernel, last, dtypes, (*items[positions[-1] + 1 : -1], loop))
    if operand is None:
        return None
    body = reduce.body
    reduce = replace(reduce, body=replace(body, body=(*body.body, Store(operand, early))))
    # The load comes first, before the iteration overwrites the element.
    loop = replace(loop, body=replace(loop.body, body=(Load(late, operand), *loop.body.body)))
    return (*items[: positions[-1]], reduce, *items[positions[-1] + 1 : -1], loop), operand


def _defining_functions(block: Block, value: Value) -> list[str]:
    """The function whose result a value is, in a list; empty if there is none."""
    return [s.fn for s in block.body if isinstance(s, Apply) and value in s.outs]


def _row_for(
    kernel: Kernel, loop: For, dtypes: set[str], later: tuple[Statement, ...]
) -> str | None:
    """An output whose contiguous row can hold the value: the loop stores it in one of ``dtypes``.

    ``later`` are the statements after the reduction, which must not load that operand.
    """
    position = [axis.name for axis in kernel.axes].index(loop.axis or "")
    stored = {s.operand for s in loop.body.body if isinstance(s, Store) and s.offset is None}
    read = {s.operand for s in statements(Block(body=later)) if isinstance(s, Load)}
    for operand in kernel.operands:
        is_row = operand.strides[position : position + 1] == (Stride.UNIT,)
        is_free = operand.mode in (Mode.OUT, Mode.INOUT) and operand.name not in read
        if operand.name in stored and is_row and is_free and operand.dtype in dtypes:
            return operand.name
    return None


def _common_value(early: Block, late: Block) -> tuple[Value, Value] | None:
    """The last expensive value of ``late`` that ``early`` computes too, as a pair; or None."""
    early_values: dict[int, Value] = {}
    expression_ids: dict[Any, int] = {}
    keys = _Keys(early.body, expression_ids)
    for statement in early.body:
        for value in results_of(statement):
            early_values[keys.of(value.number)] = value
    keys = _Keys(late.body, expression_ids)
    for statement in reversed(late.body):
        for value in results_of(statement):
            key = keys.of(value.number)
            if key in early_values and keys.is_expensive(value.number):
                return early_values[key], value
    return None


class _Keys:
    """Value numbering: equal keys for equal expressions of two blocks.

    Args:
        items: the statements of one block.
        expression_ids: table of both blocks, from expressions to negative ids. Expressions refer to
            their operands by id; nested expressions could grow exponentially.
    """

    def __init__(self, items: Sequence[Statement], expression_ids: dict[Any, int]) -> None:
        self._keys: dict[int, int] = {}
        self._expensive: set[int] = set()
        for statement in items:
            signature = self._signature(statement)
            is_expensive = isinstance(statement, Apply) and statement.fn in EXPENSIVE
            inherits = bool(all_uses(statement) & self._expensive)
            for index, value in enumerate(results_of(statement)):
                key = (*signature, index)
                self._keys[value.number] = expression_ids.setdefault(key, -1 - len(expression_ids))
                if inherits or is_expensive:
                    self._expensive.add(value.number)

    def of(self, number: int) -> int:
        """The key of a value. An external value is its own key."""
        return self._keys.get(number, number)

    def is_expensive(self, number: int) -> bool:
        """Whether the value, or one of its operands, is expensive."""
        return number in self._expensive

    def _signature(self, statement: Statement) -> tuple[Any, ...]:
        match statement:
            case Const(out, value):
                return ("const", out.dtype, str(value))
            case Load(out, operand, offset, mask, component):
                where = [v if v is None else self.of(v.number) for v in (offset, mask)]
                return ("load", operand, out.dtype, *where, component)
            case Apply(_, fn, args):
                return (fn, *[self.of(a.number) for a in args])
            case Select(_, predicate, on_true, on_false):
                values = (predicate, on_true, on_false)
                return ("select", *[self.of(v.number) for v in values])
            case Cast(out, arg):
                return ("cast", out.dtype, self.of(arg.number))
        return ("other", id(statement))


def _without(block: Block, value: Value) -> Block:
    """Remove the statement that defines a value, and the statements that are dead then."""
    items = [s for s in block.body if value not in results_of(s)]
    return replace(block, body=needed(items))
