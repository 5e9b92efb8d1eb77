"""Properties of statements, for every traversal of a kernel.

Tests: tests/kir/test_kir_verify.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Value


def statements(block: Block) -> Iterator[nodes.Statement]:
    """All statements of ``block`` and of the blocks in it, each before those that it owns."""
    for statement in block.body:
        yield statement
        for owned in owned_blocks(statement):
            yield from statements(owned)


def is_plain_access(access: nodes.Load | nodes.Store) -> bool:
    """Whether an access is of whole elements, at the current point, and unconditional."""
    return access.offset is None and access.where is None and access.component is None


def owned_blocks(statement: nodes.Statement) -> tuple[Block, ...]:
    """The blocks that a statement owns, in the order of their text."""
    match statement:
        case nodes.Reduce():
            return (statement.body, statement.combine)
        case nodes.For() | nodes.Strip():
            return (statement.body,)
        case nodes.Copy():
            return (statement.row_offsets,)
        case nodes.While():
            return (statement.cond, statement.body)
        case nodes.If():
            return (statement.then, statement.orelse)
    return ()


def is_long(statement: nodes.Statement) -> bool:
    """Whether a statement is a loop of the user's program, with any number of iterations.

    Kernels that can be interrupted poll in such loops.
    """
    if isinstance(statement, nodes.For):
        return statement.is_long
    return isinstance(statement, nodes.While)


def has_long_loops(kernel: nodes.Kernel) -> bool:
    """Whether a kernel holds a loop for which ``is_long`` is true."""
    return any(map(is_long, statements(kernel.body)))


def results_of(statement: nodes.Statement) -> tuple[Value, ...]:
    """The values that a statement defines."""
    if isinstance(statement, nodes.Store | nodes.Strip | nodes.Copy):
        return ()
    if isinstance(statement, nodes.Const | nodes.Load | nodes.Select | nodes.Cast):
        return (statement.out,)
    return statement.outs


def uses_of(statement: nodes.Statement) -> tuple[Value, ...]:
    """The values that a statement uses itself, without those of its blocks."""
    match statement:
        case nodes.Const() | nodes.Strip():
            return ()
        case nodes.Load(_, _, offset, where, _):
            return tuple(value for value in (offset, where) if value is not None)
        case nodes.Store(_, value, offset, where, _):
            return tuple(used for used in (value, offset, where) if used is not None)
        case nodes.Apply():
            return statement.args
        case nodes.Select(_, predicate, on_true, on_false):
            return (predicate, on_true, on_false)
        case nodes.Cast(_, arg):
            return (arg,)
        case nodes.For(count=count):
            return (*statement.init, count) if count is not None else statement.init
        case nodes.Copy(count=count):
            return () if count is None else (count,)
        case nodes.If():
            return (statement.predicate,)
    return statement.init


def value_numbers_used(statement: nodes.Statement) -> set[int]:
    """The numbers of all values that a statement and the blocks in it use."""
    value_numbers = {value.number for value in uses_of(statement)}
    for block in owned_blocks(statement):
        value_numbers |= {value.number for value in block.results}
        for inner in block.body:
            value_numbers |= value_numbers_used(inner)
    return value_numbers


def next_value_number(block: Block) -> int:
    """A value number above those of all values in a block."""
    largest = -1
    for statement in statements(block):
        for value in results_of(statement):
            largest = max(largest, value.number)
        for owned in owned_blocks(statement):
            for value in owned.params:
                largest = max(largest, value.number)
    return largest + 1


def live_statements(items: Sequence[nodes.Statement]) -> tuple[nodes.Statement, ...]:
    """The statements with effects among flat ones, and those that they depend on, in order.

    Every Store, For, Strip and Copy counts as an effect. A While or If is live only if a result of
    it is used: one that only stores would be dropped.
    """
    used_numbers: set[int] = set()
    live_reversed = []
    for statement in reversed(items):
        is_read = any(value.number in used_numbers for value in results_of(statement))
        if is_read or isinstance(statement, nodes.Store | nodes.For | nodes.Strip | nodes.Copy):
            live_reversed.append(statement)
            used_numbers |= value_numbers_used(statement)
    return tuple(reversed(live_reversed))


def without_dead_code(block: Block) -> Block:
    """A block without statements that neither write memory nor lead to its results.

    Bodies of loops over axes, and branches, are cleaned too; other blocks stay as they are.
    """
    used_numbers = {value.number for value in block.results}
    live_reversed: list[nodes.Statement] = []
    for statement in reversed(block.body):
        is_read = any(value.number in used_numbers for value in results_of(statement))
        if not is_read and not _writes(statement):
            continue
        match statement:
            case nodes.For(axis=str()):
                statement = replace(statement, body=without_dead_code(statement.body))
            case nodes.If():
                then = without_dead_code(statement.then)
                orelse = without_dead_code(statement.orelse)
                statement = replace(statement, then=then, orelse=orelse)
        live_reversed.append(statement)
        used_numbers |= value_numbers_used(statement)
    return replace(block, body=tuple(reversed(live_reversed)))


def _writes(statement: nodes.Statement) -> bool:
    """Whether a statement, or one in its blocks, writes to memory or a local array."""
    if isinstance(statement, nodes.Store | nodes.Copy):
        return True
    return any(_writes(inner) for block in owned_blocks(statement) for inner in block.body)
