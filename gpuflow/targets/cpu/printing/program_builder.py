"""Builds the statements and expressions of loop programs, for the walk over a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from gpuflow.kir.nodes import Axis, Kernel, Stride, Value
from gpuflow.targets.cpu.loops.nodes import (
    ZERO,
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
    Return,
    Run,
    Statement,
    Truth,
    call,
)
from gpuflow.targets.kernel_walk import FLOATS, KernelWalk

# The operators of loop programs, of functions of KernelIR.
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# The first index of a loop, and its exclusive end.
Span = tuple[Expression, Expression]


class ProgramBuilder(KernelWalk[Expression]):
    """Hooks of the walk that make records.

    Attributes:
        statements: of the program.
    """

    zero = ZERO

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.statements: list[Statement] = []
        self._body = self.statements  # to which others are added

    # Statements of the program

    def emit(self, statement: Statement) -> None:
        """Add a statement."""
        self._body.append(statement)

    def run(self, function: str, *arguments: Expression | int) -> None:
        """Add a call for its effect."""
        self.emit(Run(call(function, *arguments)))

    @contextmanager
    def inside(self, body: list[Statement]) -> Iterator[None]:
        """Add the statements that follow to another list."""
        outer, self._body = self._body, body
        yield
        self._body = outer

    def loop_over(
        self, counter: str, span: Span, is_short: bool = False
    ) -> AbstractContextManager[None]:
        """Add a loop; what follows inside is its body."""
        body: list[Statement] = []
        self.emit(Loop(counter, *span, is_short, body))
        return self.inside(body)

    def set(self, target: str, value: Expression | int) -> None:
        self.emit(Assign((target,), Literal(value) if isinstance(value, int) else value))

    def set_all(self, targets: Sequence[str], value: Expression) -> None:
        self.emit(Assign(tuple(targets), value))

    def when(self, test: Expression) -> AbstractContextManager[None]:
        branch = Branch(test, [], [])
        self.emit(branch)
        assert isinstance(branch.then, list)
        return self.inside(branch.then)

    def otherwise(self) -> AbstractContextManager[None]:
        branch = self._body[-1]
        assert isinstance(branch, Branch) and isinstance(branch.otherwise, list)
        return self.inside(branch.otherwise)

    def forever(self) -> AbstractContextManager[None]:
        body: list[Statement] = []
        self.emit(Forever(body))
        return self.inside(body)

    def leave(self) -> None:
        self.emit(Break())

    def leave_function(self) -> None:
        """Add the function's end."""
        self.emit(Return())

    # Names and numbers

    def name(self, name: str) -> Expression:
        return Name(name)

    def target(self, value: Value) -> str:
        known = self.value(value)
        assert isinstance(known, Name), "only variables are assigned"
        return known.name

    def pointer(self, operand: str) -> Name:
        """The pointer of an operand."""
        return Name(self.names.operand(operand))

    def extent(self, axis: Axis) -> Expression:
        """The number of points of an axis."""
        return Name(self.names.extent(axis)) if axis.exact is None else Literal(axis.exact)

    def constant(self, value: bool | int | float, dtype: str) -> Expression:
        if dtype == "bool":
            return Truth(bool(value))
        return Number(float(value) if dtype in FLOATS else int(value), dtype)

    def constant_stride(self, stride: Stride) -> Expression:
        return Literal(int(stride.value))

    def as_int64(self, address: Expression) -> Expression:
        return address if self.kernel.index_bits == 64 else Convert("int64", address)

    def within(self, address: Expression, component: int | None) -> Expression:
        if component is None:
            return address
        real = address if address == ZERO else address * 2
        return real + 1 if component else real

    # Expressions

    def inverse(self, test: Expression) -> Expression:
        return Prefix("not", test)

    def call(self, fn: str, arguments: Sequence[Expression], dtype: str) -> Expression:
        if fn in _COMPARISONS:
            return Operation(_COMPARISONS[fn], *arguments)
        if fn in _ARITHMETIC:
            return _typed(Operation(_ARITHMETIC[fn], *arguments), dtype)
        if fn == "div" and dtype in FLOATS:
            return Operation("/", *arguments)
        if fn == "neg":
            return _typed(Prefix("-", *arguments), dtype)
        if fn == "not":
            return _typed(Prefix("not" if dtype == "bool" else "~", *arguments), dtype)
        return Call(f"{fn}_{dtype}", tuple(arguments))

    def select(
        self, predicate: Expression, on_true: Expression, on_false: Expression, dtype: str
    ) -> Expression:
        return call(f"select_{dtype}", predicate, on_true, on_false)

    def cast(self, argument: Expression, source: str, dtype: str) -> Expression:
        if source == "index" and not dtype.startswith("float"):
            source = "int64"
        return argument if source == dtype else call(f"cast_{source}_{dtype}", argument)

    def offset_sum(self, base: Expression, extra: Expression) -> Expression:
        return base + extra

    def index_sum(self, left: Expression, right: Expression) -> Expression:
        return left + right

    def index_product(self, index: Expression, stride: Expression) -> Expression:
        return index * stride


def _typed(expression: Expression, dtype: str) -> Expression:
    """Arithmetic in integers says its dtype, as in Numba's text, where it widens to 64 bits."""
    return expression if dtype in FLOATS or dtype == "bool" else Convert(dtype, expression)
