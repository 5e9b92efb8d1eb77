"""Reuse of expensive values between two loops over a row, through the row of the output.

KernelIR recomputes the values of a row in every loop over it, which suits a GPU. On CPUs, exp or
tanh cost more than accesses of cached memory. So the last reduction stores such a value in the
output's row, and the final loop, which overwrites that row, loads it first. The value must already
be rounded to the row's dtype, so that the store loses nothing.

Tests: tests/targets/cpu/test_cpu_row_kernels.py, tests/compiler/test_donation.py.
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
from gpuflow.kir.walk import live_statements, results_of, statements, value_numbers_used


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
    rewritten = _rewrite_row(kernel, kernel.body, parallel)
    if rewritten is None:
        return kernel
    body, operand = rewritten
    operands = tuple(
        replace(o, mode=Mode.INOUT) if o.name == operand else o for o in kernel.operands
    )
    return replace(kernel, body=body, operands=operands)


def _rewrite_row(kernel: Kernel, block: Block, parallel: set[str]) -> tuple[Block, str] | None:
    """Rewrite the statements of a row, inside the loops over rows.

    Returns:
        The block, and the name of the operand that holds the value; None if nothing changes.
    """
    last = block.body[-1] if block.body else None
    if isinstance(last, For) and last.axis in parallel:
        rewritten = _rewrite_row(kernel, last.body, parallel)
        if rewritten is None:
            return None
        loop = replace(last, body=rewritten[0])
        return replace(block, body=(*block.body[:-1], loop)), rewritten[1]
    cached = _cache_one_value(kernel, block.body)
    return None if cached is None else (replace(block, body=cached[0]), cached[1])


def _cache_one_value(
    kernel: Kernel, items: tuple[Statement, ...]
) -> tuple[tuple[Statement, ...], str] | None:
    """The statements of a row with one cached value, and the operand that holds it; or None.

    ``reduced`` is the value in the last reduction over the row, ``final`` the equal one in the
    final loop over it.
    """
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
    reduced, final = pair
    loop = replace(last, body=_without_definition(last.body, final))
    dtypes = {
        final.dtype,
        *(fn.removeprefix("round_") for fn in _defining_functions(last.body, final)),
    }
    operand = _operand_for(kernel, last, dtypes, (*items[positions[-1] + 1 : -1], loop))
    if operand is None:
        return None
    body = reduce.body
    reduce = replace(reduce, body=replace(body, body=(*body.body, Store(operand, reduced))))
    # The load comes first, before the iteration overwrites the element.
    loop = replace(loop, body=replace(loop.body, body=(Load(final, operand), *loop.body.body)))
    return (*items[: positions[-1]], reduce, *items[positions[-1] + 1 : -1], loop), operand


def _defining_functions(block: Block, value: Value) -> list[str]:
    """The name of the function whose result a value is, in a list; empty if there is none."""
    return [s.fn for s in block.body if isinstance(s, Apply) and value in s.outs]


def _operand_for(
    kernel: Kernel, loop: For, dtypes: set[str], later: tuple[Statement, ...]
) -> str | None:
    """An output whose contiguous row can hold the value; None if there is none.

    Args:
        kernel: the kernel.
        loop: the final loop over the row, which must store the output at its own index.
        dtypes: storage dtypes that hold the value exactly.
        later: the statements after the reduction, which must not load the output.
    """
    axis_index = [axis.name for axis in kernel.axes].index(loop.axis or "")
    stored = {s.operand for s in loop.body.body if isinstance(s, Store) and s.offset is None}
    read = {s.operand for s in statements(Block(body=later)) if isinstance(s, Load)}
    for operand in kernel.operands:
        is_row = operand.strides[axis_index : axis_index + 1] == (Stride.UNIT,)
        is_usable = operand.mode in (Mode.OUT, Mode.INOUT) and operand.name not in read
        if operand.name in stored and is_row and is_usable and operand.dtype in dtypes:
            return operand.name
    return None


def _common_value(reduce_body: Block, final_body: Block) -> tuple[Value, Value] | None:
    """The last expensive value of the final loop that the reduction computes too.

    Returns:
        The value in each of the two blocks; None if there is none.
    """
    value_of_key: dict[int, Value] = {}
    expression_ids: dict[Any, int] = {}
    numbering = _ValueNumbering(reduce_body.body, expression_ids)
    for statement in reduce_body.body:
        for value in results_of(statement):
            value_of_key[numbering.key_of(value.number)] = value
    numbering = _ValueNumbering(final_body.body, expression_ids)
    for statement in reversed(final_body.body):
        for value in results_of(statement):
            key = numbering.key_of(value.number)
            if key in value_of_key and numbering.is_expensive(value.number):
                return value_of_key[key], value
    return None


class _ValueNumbering:
    """Value numbering: equal keys for equal expressions of two blocks.

    Memory must not change between the blocks: loads of one element have equal keys.

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
            inherits = bool(value_numbers_used(statement) & self._expensive)
            for index, value in enumerate(results_of(statement)):
                key = (*signature, index)
                self._keys[value.number] = expression_ids.setdefault(key, -1 - len(expression_ids))
                if inherits or is_expensive:
                    self._expensive.add(value.number)

    def key_of(self, number: int) -> int:
        """The key of a value. An external value is its own key."""
        return self._keys.get(number, number)

    def is_expensive(self, number: int) -> bool:
        """Whether the value, or one of its operands, is expensive."""
        return number in self._expensive

    def _signature(self, statement: Statement) -> tuple[Any, ...]:
        """The function or kind of a statement, and the keys of its operands."""
        match statement:
            case Const(out, value):
                return ("const", out.dtype, str(value))
            case Load(out, operand, offset, mask, component):
                masked_offset = [v if v is None else self.key_of(v.number) for v in (offset, mask)]
                return ("load", operand, out.dtype, *masked_offset, component)
            case Apply(_, fn, args):
                return (fn, *[self.key_of(a.number) for a in args])
            case Select(_, predicate, on_true, on_false):
                values = (predicate, on_true, on_false)
                return ("select", *[self.key_of(v.number) for v in values])
            case Cast(out, arg):
                return ("cast", out.dtype, self.key_of(arg.number))
        return ("other", id(statement))


def _without_definition(block: Block, value: Value) -> Block:
    """Remove the statement that defines a value, and the statements that are dead then."""
    items = [s for s in block.body if value not in results_of(s)]
    return replace(block, body=live_statements(items))
