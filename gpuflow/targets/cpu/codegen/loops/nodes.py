"""Loop programs: CPU kernels as records, between KernelIR and LLVM's instructions.

A program is one function of scalar statements and loops, with pointers and 64-bit indices.
Arithmetic on expressions makes expressions; ``==`` compares records, ``equals`` makes a comparison.

    Expression = Name | Literal | Truth | Number | Operation | Prefix | Convert | Call
    Statement = Assign | Run | Loop | Forever | Branch | Break | Return

docs/loop_programs.md describes the language, ``text`` renders it and ``parser`` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuflow.base.records import record

ARITHMETIC = ("+", "-", "*", "/", "&", "|", "^", "<<", ">>")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
PARAMETERS = ("words", "lo", "hi")  # of a program: see Program


class Unsupported(Exception):
    """A program uses something that the compiler does not support: an error of its author."""


class Expression:
    """A value. Ints in arithmetic with expressions are int64 literals."""

    def __add__(self, other: Expression | int) -> Expression:
        return Operation("+", self, expression(other))

    def __sub__(self, other: Expression | int) -> Expression:
        return Operation("-", self, expression(other))

    def __mul__(self, other: Expression | int) -> Expression:
        return Operation("*", self, expression(other))

    def __and__(self, other: Expression | int) -> Expression:
        return Operation("&", self, expression(other))

    def __lshift__(self, other: Expression | int) -> Expression:
        return Operation("<<", self, expression(other))

    def __rshift__(self, other: Expression | int) -> Expression:
        return Operation(">>", self, expression(other))

    def __lt__(self, other: Expression | int) -> Expression:
        return Operation("<", self, expression(other))

    def __gt__(self, other: Expression | int) -> Expression:
        return Operation(">", self, expression(other))

    def __ge__(self, other: Expression | int) -> Expression:
        return Operation(">=", self, expression(other))

    def equals(self, other: Expression | int) -> Expression:
        """Whether the two values are equal."""
        return Operation("==", self, expression(other))


@record
class Name(Expression):
    """A variable, an argument of the function, or the counter of a loop."""

    name: str


@record
class Literal(Expression):
    """An int64."""

    value: int


@record
class Truth(Expression):
    """A bool."""

    value: bool


@record(eq=False)
class Number(Expression):
    """A constant of a compute dtype other than bool; equal numbers have equal bits."""

    value: int | float
    dtype: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, str]:
        return repr(self.value), self.dtype


@record
class Operation(Expression):
    """An operation of ``ARITHMETIC`` or ``COMPARISONS`` on values of one dtype."""

    operator: str
    left: Expression
    right: Expression


@record
class Prefix(Expression):
    """``-x``, ``~x`` of an integer, or ``not x`` of a bool."""

    operator: str
    operand: Expression


@record
class Convert(Expression):
    """A conversion to another compute dtype, which may not be less exact."""

    dtype: str
    operand: Expression


@record
class Call(Expression):
    """The result of a function of ``codegen.functions``, or of one of the program's accessors."""

    function: str
    arguments: tuple[Expression, ...]


@record
class Assign:
    """The assignment of a value, or of the several results of a call, to variables."""

    targets: tuple[str, ...]
    value: Expression


@record
class Run:
    """A call for its effect."""

    call: Call


@record
class Loop:
    """Statements for each int64 from ``first`` up to, but not including, ``end``.

    Attributes:
        is_short: it takes one vector at a time.
    """

    counter: str
    first: Expression
    end: Expression
    is_short: bool
    body: Sequence[Statement]


@record
class Forever:
    """Statements that run until a ``Break``."""

    body: Sequence[Statement]


@record
class Branch:
    """Statements for both values of a bool."""

    test: Expression
    then: Sequence[Statement]
    otherwise: Sequence[Statement]


@record
class Break:
    """Leave the innermost loop."""


@record
class Return:
    """Leave the function."""


Statement = Assign | Run | Loop | Forever | Branch | Break | Return
ZERO = Literal(0)


@record
class Accessor:
    """A function of the program that accesses the elements of an operand.

    Attributes:
        name: in the program.
        kind: "reader", "guarded_reader" or "writer" (``codegen.functions``).
        storage: the operand's dtype.
        scope, scopes: operands of different scopes do not overlap; the number of scopes.
    """

    name: str
    kind: str
    storage: str
    scope: int
    scopes: int


@record
class Program:
    """A kernel ``void entry(words, lo, hi)``: the argument block, and a range of its first axis.

    Attributes:
        comment: for readers of its text.
    """

    entry: str
    accessors: tuple[Accessor, ...]
    body: Sequence[Statement]
    comment: tuple[str, ...] = ()


def expression(value: Expression | int) -> Expression:
    """An expression, or an int as one."""
    return Literal(value) if isinstance(value, int) else value


def call(function: str, *arguments: Expression | int) -> Call:
    """The call of a function."""
    return Call(function, tuple(map(expression, arguments)))


def operands_of(value: Expression) -> Sequence[Expression]:
    """The direct operands of an expression."""
    match value:
        case Operation(_, left, right):
            return left, right
        case Prefix(_, operand) | Convert(_, operand):
            return (operand,)
        case Call(_, arguments):
            return arguments
    return ()


def expressions_in(value: Expression) -> Iterator[Expression]:
    """Yield an expression and all its operands, recursively."""
    yield value
    for operand in operands_of(value):
        yield from expressions_in(operand)


def values_of(statement: Statement) -> Sequence[Expression]:
    """The expressions of a statement, without those of its blocks."""
    match statement:
        case Assign(_, value) | Run(value) | Branch(value):
            return (value,)
        case Loop(_, first, end):
            return first, end
    return ()


def blocks_of(statement: Statement) -> Sequence[Sequence[Statement]]:
    """The lists of statements in a statement."""
    match statement:
        case Loop(body=body) | Forever(body=body):
            return (body,)
        case Branch(_, then, otherwise):
            return then, otherwise
    return ()


def statements_in(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yield statements and nested ones, in the order of the text."""
    for statement in body:
        yield statement
        for block in blocks_of(statement):
            yield from statements_in(block)


def names_called(body: Iterable[Statement]) -> Iterator[str]:
    """Yield the functions that statements call, nested ones included."""
    for statement in statements_in(body):
        for value in values_of(statement):
            yield from (one.function for one in expressions_in(value) if isinstance(one, Call))
