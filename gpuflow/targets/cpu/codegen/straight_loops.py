"""Loop analysis: which innermost loops can be vectorized, and why not."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.functions import Access
from gpuflow.targets.cpu.codegen.loops.nodes import (
    Assign,
    Call,
    Expression,
    Forever,
    Literal,
    Loop,
    Name,
    Operation,
    Program,
    Run,
    Statement,
    blocks_of,
    operands_of,
    statements_in,
    values_of,
)
from gpuflow.targets.cpu.codegen.variables import assigned

Span = tuple[Expression, Expression]


class Share(Enum):
    """The share of a function's work that a loop has, estimated from the nesting."""

    ALL = auto()  # no loop encloses it
    ROW = auto()  # a loop encloses it, and no loop next to it is nested deeper
    LITTLE = auto()  # loops next to it are nested deeper, so it is their prologue or epilogue


class NotVectorizable(Exception):
    """The loop cannot be vectorized here, or LLVM does it better; the message has the reason."""


class Gather(NotVectorizable):
    """The loop accesses elements at an index that is not affine."""


@record
class Use:
    """One access of memory in a loop.

    Attributes:
        access: storage dtype, alias scope, load or store.
        pointer: pointer of the operand.
        index: index of the element, or of the pair that contains it.
        half: index of the element in its pair, 0 or 1; None: it is not one of a pair.
    """

    access: Access
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

    def may_alias(self, other: Use, noalias: frozenset[str]) -> bool:
        """Whether it may alias the other access in a different iteration of the loop.

        Args:
            other: the other access.
            noalias: arrays that no other pointer points to.
        """
        if self.location == other.location:
            return self.access.storage != other.access.storage
        names = {one.name for one in (self.pointer, other.pointer) if isinstance(one, Name)}
        if self.pointer != other.pointer and not noalias.isdisjoint(names):
            return False
        return self.scopes_may_alias(other)

    def scopes_may_alias(self, other: Use) -> bool:
        """Whether the alias scopes of both accesses permit aliasing."""
        mine, its = self.access.scopes, other.access.scopes
        return mine is None or its is None or mine[0] == its[0]


def halved(index: Expression) -> tuple[Expression, int | None]:
    """Split an index ``k * 2`` or ``k * 2 + 1`` into k and 0 or 1; else return it and None.

    Components of complex numbers have such indices.
    """
    match index:
        case Operation("+", Operation() as pair, Literal(1)):
            pair, half = halved(pair)
            return (pair, 1) if half == 0 else (index, None)
        case Operation("*", pair, Literal(2)):
            return pair, 0
    return index, None


def with_pairs(uses: Mapping[int, Use], calls: Sequence[Call]) -> dict[int, Use]:
    """Mark consecutive accesses of both elements of a pair, which become one vector access.

    Args:
        uses: accesses, by the ``id`` of their calls.
        calls: calls that vary with the iteration, in program order.
    """
    result = dict(uses)
    for first, second in itertools.pairwise(call for call in calls if id(call) in uses):
        one, two = uses[id(first)], uses[id(second)]
        (pair, half), (other, second_half) = (halved(call.arguments[1]) for call in (first, second))
        is_pair = (half, second_half) == (0, 1) and pair == other
        if is_pair and replace(one, index=two.index) == two:
            for call, component in ((first, 0), (second, 1)):
                result[id(call)] = replace(one, index=pair, half=component)
    return result


class Arrays:
    """Analysis of the arrays that a function has on the stack.

    Args:
        program: the loop program.
        once: names that the function assigns once.

    Attributes:
        noalias: arrays that are only accessed by their own names.
        elementwise: arrays of which every loop accesses element k in iteration k, with the same
            bounds. A full vector may be stored even if some elements are past the end: nothing
            reads them, and ``local_`` allocates spare elements. Printers must not use contents
            for other bounds: they recompute them in the next iteration of the strip.
    """

    def __init__(self, program: Program, once: frozenset[str]) -> None:
        every = once.intersection(
            one.targets[0]
            for one in statements_in(program.body)
            if isinstance(one, Assign)
            and isinstance(one.value, Call)
            and one.value.function.startswith("local_")
        )
        self._noalias, self._spans = every, dict[str, set[Span | None]]()
        if every:
            self._visit(program.body, {})
        self.noalias = self._noalias
        self.elementwise = frozenset(
            array
            for array, spans in self._spans.items()
            if array in self.noalias and len(spans) == 1 and None not in spans
        )

    def _visit(self, body: Sequence[Statement], loops: Mapping[str, Span]) -> None:
        for statement in body:
            for value in values_of(statement):
                self._visit_value(value, loops)
            inner = loops
            if isinstance(statement, Loop):
                inner = {**loops, statement.counter: (statement.first, statement.end)}
            for block in blocks_of(statement):
                self._visit(block, inner)

    def _visit_value(self, node: Expression, loops: Mapping[str, Span]) -> None:
        operands = operands_of(node)
        match node:
            case Call(verb, (Name(array), index, *_)):
                if verb.startswith(("load_", "store_")):
                    self._spans.setdefault(array, set()).add(_span_of_iteration(index, loops))
                    operands = operands[1:]
            case Name(array):
                self._noalias -= {array}
        for operand in operands:
            self._visit_value(operand, loops)


def trip_count_of(loop: Loop) -> int | None:
    """The trip count of a loop if it is static: ``range(9)`` or ``range(i, i + 9)``."""
    match loop.first, loop.end:
        case Literal(first), Literal(last):
            return last - first
        case first, Operation("+", same, Literal(count)):
            return count if first == same else None
    return None


def _span_of_iteration(index: Expression, loops: Mapping[str, Span]) -> Span | None:
    """The span of the loop whose iteration number the index is; None if it is another index."""
    match index:
        case Name(name) if name in loops and loops[name][0] == Literal(0):
            return loops[name]
        case Operation("-", Name(name), start):
            return loops[name] if name in loops and loops[name][0] == start else None
    return None


def expressions_of(
    body: Sequence[Statement], changing: Iterable[str]
) -> tuple[set[int], list[Call]]:
    """Find the expressions of a straight loop that vary between iterations, and all its calls.

    Args:
        body: statements of the loop.
        changing: names of the induction variable and of reduction variables.

    Returns:
        The ``id`` of each varying expression, and the calls in program order.
    """
    names, varying, calls = set(changing), set[int](), list[Call]()

    def visit(node: Expression) -> bool:
        if isinstance(node, Name):
            varies = node.name in names
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
            names.update(statement.targets)
        elif isinstance(statement, Run):
            visit(statement.call)
    return varying, calls


def longest_chain(body: Sequence[Statement], differ: Container[int], links: Container[str]) -> int:
    """The length of the longest dependence chain of certain functions in a straight loop.

    Args:
        body: statements of the loop.
        differ: ``id`` of the expressions that vary between iterations; others do not count.
        links: names of the functions that count, without dtypes.
    """
    lengths: dict[str, int] = {}

    def length(node: Expression) -> int:
        if id(node) not in differ:
            return 0
        longest = max(map(length, operands_of(node)), default=0)
        match node:
            case Name(name):
                return lengths.get(name, 0)
            case Call(name) if name.rpartition("_")[0] in links:
                return longest + 1
        return longest

    longest = 0
    for statement in body:
        for value in values_of(statement):
            chain = length(value)
            lengths.update(dict.fromkeys(assigned([statement]), chain))
            longest = max(longest, chain)
    return longest


def is_innermost(body: Sequence[Statement]) -> bool:
    """Whether the body of a loop contains no loops."""
    return all(
        not isinstance(statement, Loop | Forever) and all(map(is_innermost, blocks_of(statement)))
        for statement in body
    )


def depth_of(body: Sequence[Statement]) -> int:
    """The nesting depth of the loops in statements."""
    return max(map(_depth, body), default=0)


def _depth(statement: Statement) -> int:
    inner = max(map(depth_of, blocks_of(statement)), default=0)
    return inner + isinstance(statement, Loop | Forever)
