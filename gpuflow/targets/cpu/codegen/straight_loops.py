"""Loop analysis: which innermost loops can be vectorized, and why not."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.text_names import Access
from gpuflow.targets.cpu.codegen.text_variables import assigned

Span = tuple[str, str]


class Share(Enum):
    """The fraction of a function's work in a loop."""

    ALL = auto()
    ROW = auto()  # it is in another loop, which is all there is
    LITTLE = auto()  # loops beside it are in more loops: it begins or ends what they do


class Unfit(Exception):
    """The loop cannot be vectorized."""


@record
class Use:
    """An access in a loop.

    Attributes:
        access: the memory access.
        pointer: the text of the pointer.
        index: the text of the index; of that of a pair, where it takes one of two neighbors.
        half: which one of the two, 0 or 1; None: none of a pair.
    """

    access: Access
    pointer: str
    index: str
    half: int | None = None

    @property
    def is_half(self) -> bool:
        """Whether it takes one of a pair."""
        return self.half is not None

    @property
    def place(self) -> tuple[str, str, bool]:
        """Key that is equal for accesses of the same element, or pair."""
        return self.pointer, self.index, self.is_half

    def meets(self, other: Use, apart: frozenset[str]) -> bool:
        """Whether it may alias the other access in another iteration of the loop.

        Args:
            apart: noalias arrays, which no other pointer points to.
        """
        if self.place == other.place:
            return self.access.storage != other.access.storage
        if self.pointer != other.pointer and not apart.isdisjoint((self.pointer, other.pointer)):
            return False
        return self.may_touch(other)

    def may_touch(self, other: Use) -> bool:
        """Whether their scopes do not exclude aliasing."""
        mine, its = self.access.scopes, other.access.scopes
        return mine is None or its is None or mine[0] == its[0]


def halved(index: ast.expr) -> tuple[ast.expr, int | None]:
    """An index ``k * 2`` or ``k * 2 + 1`` as k and 0 or 1; another one unchanged, and None.

    Complex numbers are such pairs.
    """
    match index:
        case ast.BinOp(left=ast.BinOp() as pair, op=ast.Add(), right=ast.Constant(value=1)):
            pair, half = halved(pair)
            return (pair, 1) if half == 0 else (index, None)
        case ast.BinOp(left=pair, op=ast.Mult(), right=ast.Constant(value=2)):
            return pair, 0
    return index, None


def with_pairs(uses: Mapping[int, Use], calls: Sequence[ast.Call]) -> dict[int, Use]:
    """The uses, with adjacent accesses of both elements of a pair marked as a pair.

    Args:
        uses: by the identities of the calls that make them.
        calls: those that differ from element to element, in the order in which they are made.
    """
    result = dict(uses)
    for first, second in itertools.pairwise(call for call in calls if id(call) in uses):
        one, two = uses[id(first)], uses[id(second)]
        ends = [halved(call.args[1]) for call in (first, second)]
        (place, half), (other, second_half) = [(text_of(place), half) for place, half in ends]
        is_pair = (half, second_half) == (0, 1) and place == other
        if is_pair and replace(one, index=two.index) == two:
            for call, part in ((first, 0), (second, 1)):
                result[id(call)] = replace(one, index=place, half=part)
    return result


class Arrays:
    """The arrays that a function has on the stack.

    Attributes:
        apart: noalias arrays, which are accessed by their own names alone.
        lines: arrays of which each loop over elements takes element k in iteration k, with the same
            bounds. A vector may write past the required elements, which are not read; ``local_``
            allocates room. The contents are valid for fixed bounds: printers recompute them for
            others, in the next iteration of the strip.

    Args:
        once: the names that the function assigns once.
    """

    def __init__(self, function: ast.FunctionDef, once: frozenset[str]) -> None:
        every = once.intersection(_locals(function.body))
        self._apart, self._spans = every, dict[str, set[Span | None]]()
        if every:
            self._visit(function.body, {})
        self.apart = self._apart
        self.lines = frozenset(
            array
            for array, spans in self._spans.items()
            if array in self.apart and len(spans) == 1 and None not in spans
        )

    def _visit(self, body: Sequence[ast.stmt], loops: Mapping[str, Span]) -> None:
        for node in body:
            match node:
                case ast.For(target=ast.Name(id=name), iter=ast.Call(args=bounds), body=inner):
                    for bound in bounds:
                        self._visit_value(bound, loops)
                    self._visit(inner, {**loops, name: span_of(bounds)})
                case ast.While(body=inner):
                    self._visit(inner, loops)
                case ast.If(test=test, body=inner, orelse=other):
                    self._visit_value(test, loops)
                    self._visit([*inner, *other], loops)
                case ast.Assign(value=value) | ast.Expr(value=value):
                    self._visit_value(value, loops)

    def _visit_value(self, node: ast.expr, loops: Mapping[str, Span]) -> None:
        parts = parts_of(node)
        match node:
            case ast.Call(func=ast.Name(id=verb), args=[ast.Name(id=array), index, *_]):
                if verb.startswith(("load_", "store_")):
                    self._spans.setdefault(array, set()).add(_span_of_turn(index, loops))
                    parts = parts[1:]
            case ast.Name(id=array):
                self._apart -= {array}
        for part in parts:
            self._visit_value(part, loops)


def _locals(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=maker))
            ) if maker.startswith("local_"):
                yield name
            case ast.For(body=inner) | ast.While(body=inner):
                yield from _locals(inner)


def span_of(bounds: Sequence[ast.expr]) -> Span:
    """The first value of a loop's counter and its exclusive end, as texts."""
    *first, last = map(text_of, bounds)
    return (first[0] if first else "0"), last


def turns_of(bounds: Sequence[ast.expr]) -> int | None:
    """The trip count of a loop, if its text contains it: ``range(9)`` or ``range(i, i + 9)``."""
    match bounds:
        case [ast.Constant(value=int(last))]:
            return last
        case [ast.Constant(value=int(first)), ast.Constant(value=int(last))]:
            return last - first
        case [first, ast.BinOp(left=same, op=ast.Add(), right=ast.Constant(value=int(turns)))]:
            return turns if text_of(first) == text_of(same) else None
    return None


def _span_of_turn(index: ast.expr, loops: Mapping[str, Span]) -> Span | None:
    """The span of the loop whose turn an index is the number of."""
    match index:
        case ast.Name(id=name) if name in loops and loops[name][0] == "0":
            return loops[name]
        case ast.BinOp(left=ast.Name(id=name), op=ast.Sub(), right=start):
            return loops[name] if name in loops and loops[name][0] == text_of(start) else None
    return None


def parts_of(node: ast.expr) -> Sequence[ast.expr]:
    """The subexpressions of an expression; a call's name is not one."""
    match node:
        case ast.Name() | ast.Constant():
            return ()
        case ast.Call(args=arguments):
            return arguments
        case ast.BinOp(left=left, right=right):
            return (left, right)
        case ast.Compare(left=left, comparators=others):
            return (left, *others)
        case ast.BoolOp(values=values):
            return values
        case ast.UnaryOp(operand=operand):
            return (operand,)
    return ()


def text_of(node: ast.expr) -> str:
    """An expression's text: equal texts in an iteration of a loop are equal values."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=operator, right=right):
            return f"({text_of(left)} {type(operator).__name__} {text_of(right)})"
    return ast.unparse(node)


def expressions_of(
    body: Sequence[ast.stmt], changing: Iterable[str]
) -> tuple[set[int], list[ast.Call]]:
    """Of a straight loop: the expressions that differ from element to element, and the calls.

    Args:
        body: its statements.
        changing: the name that counts elements, and those that are carried.

    Returns:
        The identities of the former, and the latter in the order in which they are made.
    """
    names, differ, calls = set(changing), set[int](), list[ast.Call]()

    def visit(node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            differs = node.id in names
        else:
            # All parts are visited: each has to be found.
            differs = any([visit(part) for part in parts_of(node)])
            if isinstance(node, ast.Call):
                calls.append(node)
        if differs:
            differ.add(id(node))
        return differs

    for statement in body:
        if isinstance(statement, ast.Assign) and visit(statement.value):
            names.update(assigned([statement]))
        elif isinstance(statement, ast.Expr):
            visit(statement.value)
    return differ, calls


def longest_chain(body: Sequence[ast.stmt], differ: Container[int], links: Container[str]) -> int:
    """How many functions of a straight loop wait for each other, at most.

    Args:
        body: its statements.
        differ: the identities of the expressions that are looked at.
        links: the names of those functions, without dtypes.
    """
    lengths: dict[str, int] = {}

    def length(node: ast.expr) -> int:
        if id(node) not in differ:
            return 0
        longest = max(map(length, parts_of(node)), default=0)
        match node:
            case ast.Name(id=name):
                return lengths.get(name, 0)
            case ast.Call(func=ast.Name(id=name)) if name.rpartition("_")[0] in links:
                return longest + 1
        return longest

    longest = 0
    for statement in body:
        if isinstance(statement, ast.Assign | ast.Expr):
            found = length(statement.value)
            lengths.update(dict.fromkeys(assigned([statement]), found))
            longest = max(longest, found)
    return longest


def is_innermost(body: Sequence[ast.stmt]) -> bool:
    """Whether there is no loop in some statements."""
    return all(
        is_innermost([*node.body, *node.orelse]) if isinstance(node, ast.If)
        else not isinstance(node, (ast.For, ast.While))
        for node in body
    )  # fmt: skip


def depth_of(body: Sequence[ast.stmt]) -> int:
    """How many loops are in one another in some statements."""
    return max(map(_depth, body), default=0)


def _depth(node: ast.stmt) -> int:
    match node:
        case ast.For(body=body) | ast.While(body=body):
            return 1 + depth_of(body)
        case ast.If(body=body, orelse=orelse):
            return depth_of([*body, *orelse])
    return 0
