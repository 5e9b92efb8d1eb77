"""Loop analysis: which innermost loops can be vectorized, and why not.

A straight loop is an innermost loop without branches. Expressions are named by their ``id``, which
is valid while the caller has the loop program.

Tests: tests/targets/cpu/test_cpu_vectors.py, tests/targets/cpu/test_short_vectors.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.functions import Access
from gpuflow.targets.cpu.codegen.loops.nodes import (
    Assign,
    BinaryOperation,
    Call,
    CallStatement,
    Expression,
    InfiniteLoop,
    IntLiteral,
    Loop,
    Name,
    Program,
    Statement,
    blocks_of,
    operands_of,
    statements_in,
    values_of,
)
from gpuflow.targets.cpu.codegen.variables import assigned_names

# The first value of a loop's counter, and its exclusive end.
LoopBounds = tuple[Expression, Expression]


class WorkShare(Enum):
    """The share of a function's work that a loop has, estimated from the nesting."""

    ALL = auto()  # no loop encloses it
    ROW = auto()  # a loop encloses it, and no loop next to it is nested deeper
    LITTLE = auto()  # loops next to it are nested deeper, so it is their prologue or epilogue


class NotVectorizable(Exception):
    """The loop cannot be vectorized here, or LLVM does it better; the message has the reason."""


class Gather(NotVectorizable):
    """The loop accesses elements at an index that is not affine."""


@record
class MemoryAccess:
    """One access of memory in a loop.

    Attributes:
        accessor: storage dtype, alias scope, load or store.
        pointer: pointer to the first element of the operand or array.
        index: index of the element, or of the pair that contains it.
        half: index of the element in its pair, 0 or 1; None: it is not one of a pair.
    """

    accessor: Access
    pointer: Expression
    index: Expression
    half: int | None = None

    @property
    def is_half(self) -> bool:
        """Whether it accesses one element of a pair."""
        return self.half is not None

    @property
    def location(self) -> tuple[Expression, Expression, bool]:
        """A key that is equal for accesses of the same element or pair."""
        return self.pointer, self.index, self.is_half

    def may_alias(self, other: MemoryAccess, noalias: frozenset[str]) -> bool:
        """Whether it may alias the other access in a different iteration of the loop.

        The index of one of them must differ between iterations.

        Args:
            other: the other access.
            noalias: arrays that no other pointer points to.
        """
        if self.location == other.location:
            return self.accessor.storage != other.accessor.storage
        pointers = self.pointer, other.pointer
        names = {pointer.name for pointer in pointers if isinstance(pointer, Name)}
        if self.pointer != other.pointer and not noalias.isdisjoint(names):
            return False
        return self.scopes_may_alias(other)

    def scopes_may_alias(self, other: MemoryAccess) -> bool:
        """Whether the alias scopes of both accesses permit aliasing."""
        own, others = self.accessor.alias_scope, other.accessor.alias_scope
        return own is None or others is None or own.index == others.index


def halved(index: Expression) -> tuple[Expression, int | None]:
    """Split an index ``k * 2`` or ``k * 2 + 1`` into k and 0 or 1; else return it and None.

    Components of complex numbers have such indices.
    """
    match index:
        case BinaryOperation("+", BinaryOperation() as pair, IntLiteral(1)):
            pair, half = halved(pair)
            return (pair, 1) if half == 0 else (index, None)
        case BinaryOperation("*", pair, IntLiteral(2)):
            return pair, 0
    return index, None


def with_pairs(
    accesses: Mapping[int, MemoryAccess], calls: Sequence[Call]
) -> dict[int, MemoryAccess]:
    """Mark consecutive accesses of both elements of a pair, which become one vector access.

    Args:
        accesses: accesses, by the ``id`` of their calls.
        calls: calls that vary with the iteration, in program order.

    Returns:
        The accesses. Those of a pair have the pair's index, and the first precedes the second.
    """
    result = dict(accesses)
    for first, second in itertools.pairwise(call for call in calls if id(call) in accesses):
        first_access, second_access = accesses[id(first)], accesses[id(second)]
        pair, first_half = halved(first.arguments[1])
        other_pair, second_half = halved(second.arguments[1])
        is_pair = (first_half, second_half) == (0, 1) and pair == other_pair
        if is_pair and replace(first_access, index=second_access.index) == second_access:
            for call, component in ((first, 0), (second, 1)):
                result[id(call)] = replace(first_access, index=pair, half=component)
    return result


class StackArrays:
    """Analysis of the arrays that a function has on the stack.

    Args:
        program: the loop program.
        once: names that the function assigns once.

    Attributes:
        noalias: names of arrays that are only accessed by their own names.
        elementwise: arrays of which every loop accesses element k in iteration k, with the same
            bounds. A full vector may be stored even if some elements are past the end: nothing
            reads them, and ``local_`` allocates spare elements. Printers must not use contents
            for other bounds: they recompute them in the next iteration of the strip.
    """

    def __init__(self, program: Program, once: frozenset[str]) -> None:
        arrays = once.intersection(
            statement.targets[0]
            for statement in statements_in(program.body)
            if isinstance(statement, Assign)
            and isinstance(statement.value, Call)
            and statement.value.function.startswith("local_")
        )
        self._noalias = arrays
        # For each array, the bounds of the loops whose iteration k accesses element k, and None if
        # there are other accesses.
        self._bounds_of_array: dict[str, set[LoopBounds | None]] = {}
        if arrays:
            self._visit(program.body, {})
        self.noalias = self._noalias
        self.elementwise = frozenset(
            array
            for array, bounds in self._bounds_of_array.items()
            if array in self.noalias and len(bounds) == 1 and None not in bounds
        )

    def _visit(self, body: Sequence[Statement], loops: Mapping[str, LoopBounds]) -> None:
        """Record accesses of statements; ``loops`` has the enclosing loops by their counters."""
        for statement in body:
            for value in values_of(statement):
                self._visit_value(value, loops)
            inner = loops
            if isinstance(statement, Loop):
                inner = {**loops, statement.counter: (statement.first, statement.end)}
            for block in blocks_of(statement):
                self._visit(block, inner)

    def _visit_value(self, node: Expression, loops: Mapping[str, LoopBounds]) -> None:
        operands = operands_of(node)
        match node:
            case Call(function, (Name(array), index, *_)):
                if function.startswith(("load_", "store_")):
                    bounds = self._bounds_of_array.setdefault(array, set())
                    bounds.add(_bounds_of_counted_loop(index, loops))
                    operands = operands[1:]
            case Name(array):
                self._noalias -= {array}
        for operand in operands:
            self._visit_value(operand, loops)


def trip_count_of(loop: Loop) -> int | None:
    """The trip count of a loop if it is static: ``range(9)`` or ``range(i, i + 9)``."""
    match loop.first, loop.end:
        case IntLiteral(first), IntLiteral(last):
            return last - first
        case first, BinaryOperation("+", same, IntLiteral(count)):
            return count if first == same else None
    return None


def _bounds_of_counted_loop(
    index: Expression, loops: Mapping[str, LoopBounds]
) -> LoopBounds | None:
    """The bounds of the loop whose iteration number the index is; None if it is another index."""
    match index:
        case Name(name) if name in loops and loops[name][0] == IntLiteral(0):
            return loops[name]
        case BinaryOperation("-", Name(name), start):
            return loops[name] if name in loops and loops[name][0] == start else None
    return None


def varying_expressions(
    body: Sequence[Statement], carried: Iterable[str]
) -> tuple[set[int], list[Call]]:
    """Find the expressions of a straight loop that vary between iterations, and all its calls.

    Args:
        body: statements of the loop.
        carried: names of the induction variable and of reduction variables.

    Returns:
        The ``id`` of each varying expression, and the calls in program order.
    """
    varying_names, varying, calls = set(carried), set[int](), list[Call]()

    def visit(node: Expression) -> bool:
        if isinstance(node, Name):
            varies = node.name in varying_names
        else:
            # A list and not a generator, because every operand must be visited.
            varies = any([visit(operand) for operand in operands_of(node)])
            if isinstance(node, Call):
                calls.append(node)
        if varies:
            varying.add(id(node))
        return varies

    for statement in body:
        if isinstance(statement, Assign) and visit(statement.value):
            varying_names.update(statement.targets)
        elif isinstance(statement, CallStatement):
            visit(statement.call)
    return varying, calls


def longest_chain(
    body: Sequence[Statement], varying: Container[int], functions: Container[str]
) -> int:
    """The length of the longest dependence chain of certain functions in a straight loop.

    Args:
        body: statements of the loop.
        varying: ``id`` of the expressions that vary between iterations; others do not count.
        functions: names of the functions that count, without dtypes.
    """
    lengths: dict[str, int] = {}

    def length(node: Expression) -> int:
        if id(node) not in varying:
            return 0
        longest = max(map(length, operands_of(node)), default=0)
        match node:
            case Name(name):
                return lengths.get(name, 0)
            case Call(name) if name.rpartition("_")[0] in functions:
                return longest + 1
        return longest

    longest = 0
    for statement in body:
        for value in values_of(statement):
            chain = length(value)
            lengths.update(dict.fromkeys(assigned_names([statement]), chain))
            longest = max(longest, chain)
    return longest


def is_innermost(body: Sequence[Statement]) -> bool:
    """Whether the body of a loop contains no loops."""
    return all(
        not isinstance(statement, Loop | InfiniteLoop)
        and all(map(is_innermost, blocks_of(statement)))
        for statement in body
    )


def depth_of(body: Sequence[Statement]) -> int:
    """The nesting depth of the loops in statements."""
    return max(map(_depth, body), default=0)


def _depth(statement: Statement) -> int:
    inner = max(map(depth_of, blocks_of(statement)), default=0)
    return inner + isinstance(statement, Loop | InfiniteLoop)
