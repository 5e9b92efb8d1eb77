"""What a kernel's text says about its loops: by it, ``text_vectors`` knows which to write."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.text_names import Access
from gpuflow.targets.cpu.codegen.text_variables import assigned


class Share(Enum):
    """What part of a function's work a loop does. Its value: how many vectors a turn may take."""

    ALL = 4
    ROW = 2  # it is in another loop, which is all there is
    LITTLE = 0  # loops beside it are in more loops


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
            self._visit(function, {})
        self.lines = self.all - self._broken

    def _visit(self, node: ast.AST, starts: Mapping[str, str]) -> None:
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=span), body=body):
                begin = ast.unparse(span[0]) if len(span) > 1 else ""
                for inner in body:
                    self._visit(inner, {**starts, name: begin})
                return
            case ast.Call(func=ast.Name(id=verb), args=[ast.Name(id=array), index, *others]):
                if array in self.all:
                    is_access = verb.startswith(("load_", "store_"))
                    if not is_access or not _is_turn(index, starts):
                        self._broken.add(array)
                for inner in (index, *others):
                    self._visit(inner, starts)
                return
            case ast.Name(id=array, ctx=ast.Load()) if array in self.all:
                self._broken.add(array)
        for inner in ast.iter_child_nodes(node):
            self._visit(inner, starts)


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
            return name in starts and starts[name] == ast.unparse(start)
    return False


def varying(body: Sequence[ast.stmt], counter: str) -> set[int]:
    """The expressions that differ from element to element, by identity."""
    names = {counter}
    found: set[int] = set()

    def visit(node: ast.AST) -> bool:
        # All parts are visited: each has to be found.
        parts = [visit(part) for part in ast.iter_child_nodes(node)]
        differs = any(parts) or (isinstance(node, ast.Name) and node.id in names)
        if differs:
            found.add(id(node))
        return differs

    for statement in body:
        if isinstance(statement, ast.Assign) and visit(statement.value):
            names.update(assigned([statement]))
        elif isinstance(statement, ast.Expr):
            visit(statement.value)
    return found


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
