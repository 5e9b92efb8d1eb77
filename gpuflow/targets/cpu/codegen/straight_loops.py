"""What a kernel's text says about its loops: by it, ``text_vectors`` knows which to write."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.text_names import Access
from gpuflow.targets.cpu.codegen.text_variables import assigned


class Share(Enum):
    """What part of a function's work a loop does."""

    ALL = auto()
    ROW = auto()  # it is in another loop, which is all there is
    LITTLE = auto()  # loops beside it are in more loops: it begins or ends what they do


class Unfit(Exception):
    """The loop is none that is written as vectors."""


@record
class Use:
    """An access in a loop: what it accesses, and the texts of its pointer and of its index."""

    access: Access
    pointer: str
    index: str

    def meets(self, other: Use, local: frozenset[str]) -> bool:
        """Whether it may touch what the other one touches in another turn of the loop."""
        if (self.pointer, self.index) == (other.pointer, other.index):
            return False
        if self.pointer != other.pointer and (self.pointer in local or other.pointer in local):
            return False
        mine, its = self.access.scopes, other.access.scopes
        return mine is None or its is None or mine[0] == its[0]


class Arrays:
    """The arrays that a function has on the stack.

    Attributes:
        all: their names.
        lines: those of which each loop over elements takes element k in turn k. A vector may write
            behind what is needed of them, where nobody reads; ``local_`` makes room.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self.all = frozenset(_locals(function.body))
        self._broken: set[str] = set()
        if self.all:
            self._visit(function.body, {})
        self.lines = self.all - self._broken

    def _visit(self, body: Sequence[ast.stmt], starts: Mapping[str, str]) -> None:
        for node in body:
            match node:
                case ast.For(target=ast.Name(id=name), iter=ast.Call(args=span), body=inner):
                    begin = text_of(span[0]) if len(span) > 1 else ""
                    self._visit(inner, {**starts, name: begin})
                case ast.While(body=inner):
                    self._visit(inner, starts)
                case ast.If(test=test, body=inner, orelse=other):
                    self._visit_value(test, starts)
                    self._visit([*inner, *other], starts)
                case ast.Assign(value=value) | ast.Expr(value=value):
                    self._visit_value(value, starts)

    def _visit_value(self, node: ast.expr, starts: Mapping[str, str]) -> None:
        parts = parts_of(node)
        match node:
            case ast.Call(func=ast.Name(id=verb), args=[ast.Name(id=array), index, *_]):
                if array in self.all and verb.startswith(("load_", "store_")):
                    if not _is_turn(index, starts):
                        self._broken.add(array)
                    parts = parts[1:]
            case ast.Name(id=array) if array in self.all:
                self._broken.add(array)
        for part in parts:
            self._visit_value(part, starts)


def _locals(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=maker))
            ) if maker.startswith("local_"):
                yield name


def _is_turn(index: ast.expr, starts: Mapping[str, str]) -> bool:
    """Whether an index is the number of the turn of a loop around it."""
    match index:
        case ast.Name(id=name):
            return starts.get(name) == ""
        case ast.BinOp(left=ast.Name(id=name), op=ast.Sub(), right=start):
            return name in starts and starts[name] == text_of(start)
    return False


def parts_of(node: ast.expr) -> Sequence[ast.expr]:
    """The expressions that an expression is made of; a call's name is none."""
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
    """An expression's text: two expressions in a loop's turn that have the same are the same."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=operator, right=right):
            return f"({text_of(left)} {type(operator).__name__} {text_of(right)})"
    return ast.unparse(node)


def expressions_of(body: Sequence[ast.stmt], counter: str) -> tuple[set[int], list[ast.Call]]:
    """Of a straight loop: the expressions that differ from element to element, and the calls.

    Args:
        body: its statements.
        counter: the name that counts elements.

    Returns:
        The identities of the former, and the latter in their order.
    """
    names, differ, calls = {counter}, set[int](), list[ast.Call]()

    def visit(node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            differs = node.id in names
        else:
            if isinstance(node, ast.Call):
                calls.append(node)
            # All parts are visited: each has to be found.
            differs = any([visit(part) for part in parts_of(node)])
        if differs:
            differ.add(id(node))
        return differs

    for statement in body:
        if isinstance(statement, ast.Assign) and visit(statement.value):
            names.update(assigned([statement]))
        elif isinstance(statement, ast.Expr):
            visit(statement.value)
    return differ, calls


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
