"""Printer of loop programs: readable Python text, which ``parser`` can read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.loops.nodes import (
    PARAMETERS,
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
)

# Precedence of Python's operators; operators of one level are left-associative.
_LEVELS = {
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
_PREFIXES = {"not": 0, "-": 8, "~": 8}
_TIGHTEST = 9


def program_text(program: Program) -> str:
    """Print a program as a module: comments, accessors and the function."""
    source = [f"# {remark}".rstrip() for remark in program.comment]
    source += ["import numpy as np", "", *map(_accessor, program.accessors), "", ""]
    source.append(f"def {program.entry}({', '.join(PARAMETERS)}):")
    source += _block(program.body, 1)
    return "\n".join(source) + "\n"


def _accessor(accessor: Accessor) -> str:
    operands = f'"{accessor.storage}", {accessor.scope}, {accessor.scopes}'
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
        case Run(call):
            yield indentation + expression_text(call)
        case Loop(counter, first, end, is_short, body):
            bounds = [end] if first == Literal(0) and not is_short else [first, end]
            span = ", ".join(map(expression_text, bounds))
            yield f"{indentation}for {counter} in {'short_' if is_short else ''}range({span}):"
            yield from _block(body, depth + 1)
        case Forever(body):
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
    return _text(value)[0]


def _text(value: Expression) -> tuple[str, int]:
    """The text of an expression, and the precedence of its outermost operator."""
    match value:
        case Name(name):
            return name, _TIGHTEST
        case Literal(number) | Truth(number):
            return str(number), _TIGHTEST if number >= 0 else _PREFIXES["-"]
        case Number(number, dtype):
            return f"np.{dtype}({_number(number)})", _TIGHTEST
        case Operation(operator, left, right):
            level = _LEVELS[operator]
            # Python would chain nested comparisons, so they need parentheses.
            least = level + 1 if level == 1 else level
            return f"{_within(left, least)} {operator} {_within(right, level + 1)}", level
        case Prefix(operator, operand):
            level = _PREFIXES[operator]
            space = " " if operator == "not" else ""
            return f"{operator}{space}{_within(operand, level)}", level
        case Convert(dtype, operand):
            return f"np.{dtype}({_text(operand)[0]})", _TIGHTEST
        case Call(function, arguments):
            return f"{function}({', '.join(_text(one)[0] for one in arguments)})", _TIGHTEST
    raise TypeError(f"[loops] an expression must be a record of nodes; got {value!r}.")


def _within(value: Expression, least: int) -> str:
    text, level = _text(value)
    return text if level >= least else f"({text})"


def _number(number: int | float) -> str:
    if isinstance(number, int):
        return str(number)
    if math.isnan(number):
        return "np.nan"
    if math.isinf(number):
        return "np.inf" if number > 0 else "-np.inf"
    return repr(number)


@record
class LoopSource:
    """A loop program and its text."""

    program: Program
    text: str

    @property
    def entry(self) -> str:
        """The name of the program's function."""
        return self.program.entry


def source_of(program: Program) -> LoopSource:
    """A program with its text."""
    return LoopSource(program, program_text(program))
