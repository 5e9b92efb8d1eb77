"""Printer of loop programs: readable Python text, which ``parser`` can read.

Equal programs have equal texts, which are keys of the kernel cache.

Tests: tests/targets/cpu/test_loop_programs.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.loops.nodes import (
    PARAMETERS,
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
    Loop,
    Name,
    Program,
    Return,
    Statement,
    TypedLiteral,
    UnaryOperation,
)

# Precedence of Python's operators; operators of one level are left-associative.
_PRECEDENCE = {
    "==": 1,
    "!=": 1,
    "<": 1,
    "<=": 1,
    ">": 1,
    ">=": 1,
    "|": 2,
    "^": 3,
    "&": 4,
    "<<": 5,
    ">>": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
}
_UNARY_PRECEDENCE = {"not": 0, "-": 8, "~": 8}
_ATOM_PRECEDENCE = 9


def program_text(program: Program) -> str:
    """Print a program as a module: comments, accessors and the function."""
    lines = [f"# {comment_line}".rstrip() for comment_line in program.comment]
    lines += ["import numpy as np", "", *map(_accessor, program.accessors), "", ""]
    lines.append(f"def {program.entry}({', '.join(PARAMETERS)}):")
    lines += _block(program.body, 1)
    return "\n".join(lines) + "\n"


def _accessor(accessor: Accessor) -> str:
    operands = f'"{accessor.storage}", {accessor.scope}, {accessor.scope_count}'
    return f"{accessor.name} = {accessor.kind}({operands})"


def _block(statements: Sequence[Statement], depth: int) -> Iterator[str]:
    if not statements:
        yield "    " * depth + "pass"
    for statement in statements:
        yield from _statement(statement, depth)


def _statement(statement: Statement, depth: int) -> Iterator[str]:
    indentation = "    " * depth
    match statement:
        case Assign(targets, value):
            yield f"{indentation}{', '.join(targets)} = {expression_text(value)}"
        case CallStatement(call):
            yield indentation + expression_text(call)
        case Loop(counter, first, end, is_short, body):
            bounds = [end] if first == IntLiteral(0) and not is_short else [first, end]
            span = ", ".join(map(expression_text, bounds))
            yield f"{indentation}for {counter} in {'short_' if is_short else ''}range({span}):"
            yield from _block(body, depth + 1)
        case InfiniteLoop(body):
            yield f"{indentation}while True:"
            yield from _block(body, depth + 1)
        case Branch(test, then, otherwise):
            yield f"{indentation}if {expression_text(test)}:"
            yield from _block(then, depth + 1)
            if otherwise:
                yield f"{indentation}else:"
                yield from _block(otherwise, depth + 1)
        case Break():
            yield indentation + "break"
        case Return():
            yield indentation + "return"


def expression_text(value: Expression) -> str:
    """The text of an expression."""
    return _text_and_precedence(value)[0]


def _text_and_precedence(value: Expression) -> tuple[str, int]:
    """The text of an expression, and the precedence of its outermost operator."""
    match value:
        case Name(name):
            return name, _ATOM_PRECEDENCE
        case IntLiteral(literal) | BoolLiteral(literal):
            precedence = _ATOM_PRECEDENCE if literal >= 0 else _UNARY_PRECEDENCE["-"]
            return str(literal), precedence
        case TypedLiteral(literal, dtype):
            return f"np.{dtype}({_number_text(literal)})", _ATOM_PRECEDENCE
        case BinaryOperation(operator, left, right):
            precedence = _PRECEDENCE[operator]
            # Python would chain nested comparisons, so they need parentheses.
            left_least = precedence + 1 if precedence == 1 else precedence
            left_text = _parenthesized(left, left_least)
            right_text = _parenthesized(right, precedence + 1)
            return f"{left_text} {operator} {right_text}", precedence
        case UnaryOperation(operator, operand):
            precedence = _UNARY_PRECEDENCE[operator]
            space = " " if operator == "not" else ""
            return f"{operator}{space}{_parenthesized(operand, precedence)}", precedence
        case Convert(dtype, operand):
            return f"np.{dtype}({_text_and_precedence(operand)[0]})", _ATOM_PRECEDENCE
        case Call(function, arguments):
            return f"{function}({', '.join(map(expression_text, arguments))})", _ATOM_PRECEDENCE
    raise TypeError(f"[loops] an expression must be a record of nodes; got {value!r}.")


def _parenthesized(value: Expression, min_precedence: int) -> str:
    """The text of an operand, in parentheses if its operator binds less than a precedence."""
    text, precedence = _text_and_precedence(value)
    return text if precedence >= min_precedence else f"({text})"


def _number_text(number: int | float) -> str:
    """A text from which the parser reads the same value; nans have no sign and no payload."""
    if isinstance(number, int):
        return str(number)
    if math.isnan(number):
        return "np.nan"
    if math.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    return repr(number)


@record
class LoopSource:
    """A loop program and its text.

    Attributes:
        program: the program.
        text: a text that ``parser.program_of`` reads as the program.
    """

    program: Program
    text: str

    @property
    def entry(self) -> str:
        """The name of the program's function."""
        return self.program.entry


def source_of(program: Program) -> LoopSource:
    """A program with its text."""
    return LoopSource(program, program_text(program))
