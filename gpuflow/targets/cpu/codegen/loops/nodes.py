"""Loop programs: the imperative IR of CPU kernels, between KernelIR and LLVM IR.

A program is one function of scalar statements and loops, with pointers and 64-bit indices. Python
operators on expressions build expressions. ``==`` compares records; ``equals`` builds a comparison.

    Expression = Name | IntLiteral | BoolLiteral | TypedLiteral
               | BinaryOperation | UnaryOperation | Convert | Call
    Statement = Assign | CallStatement | Loop | InfiniteLoop | Branch | Break | Return

docs/loop_programs.md describes the language, ``text`` renders it and ``parser`` reads it. A new
node also needs code in ``expressions`` or ``loop_compiler``, and in the walks below. The records
check no types: the compiler does, and raises InvalidProgram.

Tests: tests/targets/cpu/test_loop_programs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuflow.base.records import record

ARITHMETIC = ("+", "-", "*", "/", "&", "|", "^", "<<", ">>")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
PARAMETERS = ("words", "lo", "hi")  # parameters of the function, see Program


class InvalidProgram(Exception):
    """A program is invalid: its author made an error."""


class Expression:
    """A value. In arithmetic with expressions, a Python int becomes an int64 literal."""

    def __add__(self, other: Expression | int) -> Expression:
        return BinaryOperation("+", self, expression(other))

    def __sub__(self, other: Expression | int) -> Expression:
        return BinaryOperation("-", self, expression(other))

    def __mul__(self, other: Expression | int) -> Expression:
        return BinaryOperation("*", self, expression(other))

    def __and__(self, other: Expression | int) -> Expression:
        return BinaryOperation("&", self, expression(other))

    def __lshift__(self, other: Expression | int) -> Expression:
        return BinaryOperation("<<", self, expression(other))

    def __rshift__(self, other: Expression | int) -> Expression:
        return BinaryOperation(">>", self, expression(other))

    def __lt__(self, other: Expression | int) -> Expression:
        return BinaryOperation("<", self, expression(other))

    def __gt__(self, other: Expression | int) -> Expression:
        return BinaryOperation(">", self, expression(other))

    def __ge__(self, other: Expression | int) -> Expression:
        return BinaryOperation(">=", self, expression(other))

    def equals(self, other: Expression | int) -> Expression:
        """Whether the two values are equal."""
        return BinaryOperation("==", self, expression(other))


@record
class Name(Expression):
    """A variable, an argument of the function, or the counter of a loop."""

    name: str


@record
class IntLiteral(Expression):
    """An int64."""

    value: int


@record
class BoolLiteral(Expression):
    """A bool."""

    value: bool


@record(eq=False)
class TypedLiteral(Expression):
    """A constant of a compute dtype other than bool.

    Two are equal if their dtypes and the texts of their values are: nan equals nan, and -0.0 does
    not equal 0.0.

    Attributes:
        value: an int for integer dtypes, which must be in range; a float for floats.
        dtype: a compute dtype.
    """

    value: int | float
    dtype: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypedLiteral) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, str]:
        return repr(self.value), self.dtype


@record
class BinaryOperation(Expression):
    """An operation of ``ARITHMETIC`` or ``COMPARISONS`` on values of one dtype.

    Arithmetic has the dtype of its operands: integers wrap, and ``/`` is for floats only. A
    comparison is a bool.
    """

    operator: str
    left: Expression
    right: Expression


@record
class UnaryOperation(Expression):
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
    """The assignment of a value to a variable, or of all results of a call to several.

    All assignments of a name must have one dtype. Parameters of the function and counters of
    enclosing loops cannot be assigned.
    """

    targets: tuple[str, ...]
    value: Expression


@record
class CallStatement:
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
class InfiniteLoop:
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


Statement = Assign | CallStatement | Loop | InfiniteLoop | Branch | Break | Return
ZERO = IntLiteral(0)


@record
class Accessor:
    """A function that loads or stores the elements of one operand.

    Attributes:
        name: name by which the program calls it.
        kind: "reader", "guarded_reader" or "writer" (``codegen.functions``).
        storage: storage dtype of the operand.
        scope: index of the operand's alias scope; operands in different scopes must not overlap.
        scope_count: number of alias scopes of the program.
    """

    name: str
    kind: str
    storage: str
    scope: int
    scope_count: int


@record
class Program:
    """A kernel ``void entry(words, lo, hi)``: argument block, and range of the split axis.

    ``words`` is the address of the argument block, whose slots have 8 bytes. ``lo`` and ``hi`` are
    the half-open range of indices that a call computes.

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
    return IntLiteral(value) if isinstance(value, int) else value


def call(function: str, *arguments: Expression | int) -> Call:
    """Build a call; ints among the arguments become literals."""
    return Call(function, tuple(map(expression, arguments)))


def operands_of(value: Expression) -> Sequence[Expression]:
    """The direct operands of an expression."""
    match value:
        case BinaryOperation(_, left, right):
            return left, right
        case UnaryOperation(_, operand) | Convert(_, operand):
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
        case Assign(_, value) | CallStatement(value) | Branch(value):
            return (value,)
        case Loop(_, first, end):
            return first, end
    return ()


def blocks_of(statement: Statement) -> Sequence[Sequence[Statement]]:
    """The nested lists of statements of a statement."""
    match statement:
        case Loop(body=body) | InfiniteLoop(body=body):
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
            yield from (node.function for node in expressions_in(value) if isinstance(node, Call))
