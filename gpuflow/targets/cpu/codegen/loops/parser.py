"""Parser of loop programs that are written as text: matrix products, and programs in tests.

Tests: tests/targets/cpu/test_loop_programs.py.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from gpuflow.targets.cpu.codegen.loops.nodes import (
    PARAMETERS,
    ZERO,
    Accessor,
    Assign,
    BinaryOperation,
    BoolLiteral,
    Branch,
    Break,
    Call,
    CallStatement,
    Convert,
    Expression,
    InfiniteLoop,
    IntLiteral,
    InvalidProgram,
    Loop,
    Name,
    Program,
    Return,
    Statement,
    TypedLiteral,
    UnaryOperation,
)
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.parsing import parsed

_BINARY_OPERATORS: dict[type, str] = {
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
_UNARY_OPERATORS: dict[type, str] = {ast.Not: "not", ast.Invert: "~", ast.USub: "-"}
_ACCESSORS = ("reader", "guarded_reader", "writer")


def parsed_source(text: str, entry: str) -> LoopSource:
    """Parse a text, and return the program with it; arguments and errors as ``program_of``."""
    return LoopSource(program_of(text, entry), text)


def program_of(text: str, entry: str) -> Program:
    """Parse the text of a loop program.

    Args:
        text: a text in the form that ``text.program_text`` prints, with one function.
        entry: name of its function. Types of names and calls are not checked here.

    Raises:
        InvalidProgram: if the text has a construct that loop programs do not have.
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
                    raise InvalidProgram(ast.unparse(node.args))
                body = _block(node.body)
            case _:
                raise InvalidProgram(ast.unparse(node))
    comment = [row[2:] for row in text.splitlines() if row.startswith("# ")]
    return Program(entry, tuple(accessors), body, tuple(comment))


def _accessor(name: str, call: ast.Call) -> Accessor:
    match call:
        case ast.Call(func=ast.Name(id=kind), args=arguments) if kind in _ACCESSORS:
            return Accessor(name, kind, *map(ast.literal_eval, arguments))
    raise InvalidProgram(ast.unparse(call))


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
                return CallStatement(called)
        case ast.For(target=ast.Name(id=name), iter=ast.Call() as range_call, orelse=[]):
            return _loop(name, range_call, node.body)
        case ast.While(test=ast.Constant(value=True), orelse=[]):
            return InfiniteLoop(_block(node.body))
        case ast.If(test=test, body=then, orelse=otherwise):
            return Branch(_expression(test), _block(then), _block(otherwise))
        case ast.Break():
            return Break()
        case ast.Return(value=None):
            return Return()
    raise InvalidProgram(ast.unparse(node))


def _loop(counter: str, range_call: ast.Call, body: Sequence[ast.stmt]) -> Loop:
    match range_call:
        case ast.Call(func=ast.Name(id=("range" | "short_range") as name), args=[*first, end]):
            if len(first) < 2:
                start = _expression(first[0]) if first else ZERO
                return Loop(counter, start, _expression(end), name != "range", _block(body))
    raise InvalidProgram(ast.unparse(range_call))


def _expression(node: ast.expr) -> Expression:
    match node:
        case ast.Name(id=name):
            return Name(name)
        case ast.Constant(value=bool() as truth):
            return BoolLiteral(truth)
        case ast.Constant(value=int() as integer):
            return IntLiteral(integer)
        case (
            ast.BinOp(left=left, op=operator, right=right)
            | ast.Compare(left=left, ops=[operator], comparators=[right])
        ) if type(operator) in _BINARY_OPERATORS:
            return BinaryOperation(
                _BINARY_OPERATORS[type(operator)], _expression(left), _expression(right)
            )
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as integer)):
            return IntLiteral(-integer)
        case ast.UnaryOp(op=operator, operand=operand) if type(operator) in _UNARY_OPERATORS:
            return UnaryOperation(_UNARY_OPERATORS[type(operator)], _expression(operand))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr=dtype), args=[argument]):
            literal = _number_value(argument)
            if literal is None:
                return Convert(dtype, _expression(argument))
            return TypedLiteral(literal, dtype)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return Call(name, tuple(map(_expression, arguments)))
    raise InvalidProgram(ast.unparse(node))


def _number_value(node: ast.expr) -> float | int | None:
    """The value of a number, also negative, nan or inf; None for other expressions."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            magnitude = _number_value(operand)
            return None if magnitude is None else -magnitude
        case ast.Attribute(value=ast.Name(id="np"), attr="nan"):
            return math.nan
        case ast.Attribute(value=ast.Name(id="np"), attr="inf"):
            return math.inf
    return None
