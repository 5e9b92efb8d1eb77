"""Parser of loop programs that are written as text: matrix products, and programs in tests."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from gpuflow.targets.cpu.codegen.loops.nodes import (
    PARAMETERS,
    ZERO,
    Accessor,
    Assign,
    Branch,
    Break,
    Call,
    Convert,
    Expression,
    Forever,
    Literal,
    Loop,
    Name,
    Number,
    Operation,
    Prefix,
    Program,
    Return,
    Run,
    Statement,
    Truth,
    Unsupported,
)
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.parsing import parsed

_OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_PREFIXES: dict[type, str] = {ast.Not: "not", ast.Invert: "~", ast.USub: "-"}
_ACCESSORS = ("reader", "guarded_reader", "writer")


def parsed_source(text: str, entry: str) -> LoopSource:
    """Parse a text, and return the program with it; arguments and errors as ``program_of``."""
    return LoopSource(program_of(text, entry), text)


def program_of(text: str, entry: str) -> Program:
    """Parse the text of a loop program.

    Args:
        text: a text in the form that ``text.program_text`` prints.
        entry: name of its function.

    Raises:
        Unsupported: if the text has a construct that loop programs do not have.
    """
    accessors: list[Accessor] = []
    body: Sequence[Statement] = ()
    for node in parsed(text).body:
        match node:
            case ast.Import():
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                accessors.append(_accessor(name, call))
            case ast.FunctionDef(name=name) if name == entry:
                if tuple(argument.arg for argument in node.args.args) != PARAMETERS:
                    raise Unsupported(ast.unparse(node.args))
                body = _block(node.body)
            case _:
                raise Unsupported(ast.unparse(node))
    comment = [row[2:] for row in text.splitlines() if row.startswith("# ")]
    return Program(entry, tuple(accessors), body, tuple(comment))


def _accessor(name: str, call: ast.Call) -> Accessor:
    match call:
        case ast.Call(func=ast.Name(id=kind), args=arguments) if kind in _ACCESSORS:
            return Accessor(name, kind, *map(ast.literal_eval, arguments))
    raise Unsupported(ast.unparse(call))


def _block(body: Sequence[ast.stmt]) -> tuple[Statement, ...]:
    return tuple(_statement(node) for node in body if not isinstance(node, ast.Pass))


def _statement(node: ast.stmt) -> Statement:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return Assign((name,), _expression(value))
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() as call):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if len(names) == len(targets):
                return Assign(tuple(names), _expression(call))
        case ast.Expr(value=ast.Call() as call):
            called = _expression(call)
            if isinstance(called, Call):
                return Run(called)
        case ast.For(target=ast.Name(id=name), iter=ast.Call() as span, orelse=[]):
            return _loop(name, span, node.body)
        case ast.While(test=ast.Constant(value=True), orelse=[]):
            return Forever(_block(node.body))
        case ast.If(test=test, body=then, orelse=otherwise):
            return Branch(_expression(test), _block(then), _block(otherwise))
        case ast.Break():
            return Break()
        case ast.Return(value=None):
            return Return()
    raise Unsupported(ast.unparse(node))


def _loop(counter: str, span: ast.Call, body: Sequence[ast.stmt]) -> Loop:
    match span:
        case ast.Call(func=ast.Name(id=("range" | "short_range") as name), args=[*first, end]):
            if len(first) < 2:
                start = _expression(first[0]) if first else ZERO
                return Loop(counter, start, _expression(end), name != "range", _block(body))
    raise Unsupported(ast.unparse(span))


def _expression(node: ast.expr) -> Expression:
    match node:
        case ast.Name(id=name):
            return Name(name)
        case ast.Constant(value=bool() as truth):
            return Truth(truth)
        case ast.Constant(value=int() as whole):
            return Literal(whole)
        case (
            ast.BinOp(left=left, op=operator, right=right)
            | ast.Compare(left=left, ops=[operator], comparators=[right])
        ) if type(operator) in _OPERATORS:
            return Operation(_OPERATORS[type(operator)], _expression(left), _expression(right))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as whole)):
            return Literal(-whole)
        case ast.UnaryOp(op=operator, operand=operand) if type(operator) in _PREFIXES:
            return Prefix(_PREFIXES[type(operator)], _expression(operand))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr=dtype), args=[argument]):
            number = _number(argument)
            if number is None:
                return Convert(dtype, _expression(argument))
            return Number(number, dtype)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return Call(name, tuple(map(_expression, arguments)))
    raise Unsupported(ast.unparse(node))


def _number(node: ast.expr) -> float | int | None:
    """The value of a number, also negative, nan or inf; None for other expressions."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            opposite = _number(operand)
            return None if opposite is None else -opposite
        case ast.Attribute(value=ast.Name(id="np"), attr="nan"):
            return math.nan
        case ast.Attribute(value=ast.Name(id="np"), attr="inf"):
            return math.inf
    return None
