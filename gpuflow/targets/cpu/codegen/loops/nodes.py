"""Loop programs: the imperative IR of CPU kernels, between KernelIR and LLVM IR.

A program is one function of scalar statements and loops, with pointers and 64-bit indices. Python
operators on expressions build expressions. ``==`` compares records; ``equals`` builds a comparison.

    Expression = Name | Literal | Truth | Number | Operation | Prefix | Convert | Call
    Statement = Assign | Run | Loop | Forever | Branch | Break | Return

docs/loop_programs.md describes the language, ``text`` renders it and ``parser`` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuflow.base.records import record

ARITHMETIC = ("+", "-", "*", "/", "&", "|", "^", "<<", ">>")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
PARAMETERS = ("words", "lo", "hi")  # parameters of the function, see Program


class Unsupported(Exception):
    """A program is invalid: its author made an error."""


class Expression:
    """A value. In arithmetic with expressions, a Python int becomes an int64 literal."""

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
    """A constant of a compute dtype other than bool. Two are equal if their bits are equal."""

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
    """A conversion to another compute dtype, which must be at least as exact."""

    dtype: str
    operand: Expression


@record
class Call(Expression):
    """A call of a builtin (``codegen.functions``), or of an accessor of the program."""

    function: str
    arguments: tuple[Expression, ...]


@record
class Assign:
    """The assignment of a value to a variable, or of all results of a call to several."""

    targets: tuple[str, ...]
    value: Expression


@record
class Run:
    """A call for its effect."""

    call: Call


@record
class Loop:
    """A counted loop over the half-open range from ``first`` to ``end``.

    Attributes:
        counter: name of the induction variable, an int64.
        first: its first value.
        end: its exclusive end.
        is_short: the trip count is small, so that an iteration should be one vector at most.
        body: the statements.
    """

    counter: str
    first: Expression
    end: Expression
    is_short: bool
    body: Sequence[Statement]


@record
class Forever:
    """A loop without a condition, which a ``Break`` exits."""

    body: Sequence[Statement]


@record
class Branch:
    """An if statement with both sides."""

    test: Expression
    then: Sequence[Statement]
    otherwise: Sequence[Statement]


@record
class Break:
    """Exit the innermost loop."""


@record
class Return:
    """Leave the function."""


Statement = Assign | Run | Loop | Forever | Branch | Break | Return
ZERO = Literal(0)


@record
class Accessor:
    """A function that loads or stores the elements of one operand.

    Attributes:
        name: name by which the program calls it.
        kind: "reader", "guarded_reader" or "writer" (``codegen.functions``).
        storage: storage dtype of the operand.
        scope: the operand's alias scope; operands in different scopes must not overlap.
        scopes: number of alias scopes.
    """

    name: str
    kind: str
    storage: str
    scope: int
    scopes: int


@record
class Program:
    """A kernel ``void entry(words, lo, hi)``: argument block, and range of the split axis.

    Attributes:
        entry: name of the function.
        accessors: functions for accesses of the operands.
        body: statements of the function.
        comment: comment lines of the text.
    """

    entry: str
    accessors: tuple[Accessor, ...]
    body: Sequence[Statement]
    comment: tuple[str, ...] = ()


def expression(value: Expression | int) -> Expression:
    """Convert an int to a literal; an expression is returned unchanged."""
    return Literal(value) if isinstance(value, int) else value


def call(function: str, *arguments: Expression | int) -> Call:
    """Build a call; ints among the arguments become literals."""
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
    """The direct expressions of a statement, without those of nested statements."""
    match statement:
        case Assign(_, value) | Run(value) | Branch(value):
            return (value,)
        case Loop(_, first, end):
            return first, end
    return ()


def blocks_of(statement: Statement) -> Sequence[Sequence[Statement]]:
    """The nested lists of statements of a statement."""
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
