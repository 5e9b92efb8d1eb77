"""Hooks of ``KernelWalk`` that build statements and expressions of a loop program.

Tests: tests/targets/cpu/test_cpu_kernels.py, tests/targets/cpu/test_loop_programs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from gpuflow.kir.nodes import Axis, Kernel, Stride, Value
from gpuflow.targets.cpu.codegen.loops.nodes import (
    ZERO,
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
    Return,
    Statement,
    TypedLiteral,
    UnaryOperation,
    call,
    expression,
)
from gpuflow.targets.kernel_walk import FLOATS, KernelWalk


class Span(NamedTuple):
    """The range of a loop: its first index, and its exclusive end, both int64."""

    first: Expression
    end: Expression


class ProgramBuilder(KernelWalk[Expression]):
    """A kernel walk whose expressions are records of a loop program.

    Attributes:
        statements: statements of the program; complete after the walk.
    """

    zero = ZERO

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.statements: list[Statement] = []
        self._body = self.statements  # the list that ``emit`` appends to

    # Statements of the program

    def emit(self, statement: Statement) -> None:
        """Append a statement to the current list."""
        self._body.append(statement)

    def run(self, function: str, *arguments: Expression | int) -> None:
        """Append a call for its effect."""
        self.emit(CallStatement(call(function, *arguments)))

    @contextmanager
    def nested(self, body: list[Statement]) -> Iterator[None]:
        """Within the context, append statements to another list."""
        outer, self._body = self._body, body
        yield
        self._body = outer

    def loop_over(
        self, counter: str, span: Span, is_short: bool = False
    ) -> AbstractContextManager[None]:
        """Append a loop; statements that are emitted in the context are its body.

        Args:
            counter: name of its induction variable.
            span: its range.
            is_short: whether an iteration should be one vector at most, see ``loops.nodes.Loop``.
        """
        body: list[Statement] = []
        self.emit(Loop(counter, *span, is_short, body))
        return self.nested(body)

    def set(self, target: str, value: Expression | int) -> None:
        self.emit(Assign((target,), expression(value)))

    def set_all(self, targets: Sequence[str], value: Expression) -> None:
        self.emit(Assign(tuple(targets), value))

    def when(self, test: Expression) -> AbstractContextManager[None]:
        then: list[Statement] = []
        self.emit(Branch(test, then, []))
        return self.nested(then)

    def otherwise(self) -> AbstractContextManager[None]:
        branch = self._body[-1]
        assert isinstance(branch, Branch) and isinstance(branch.otherwise, list)
        return self.nested(branch.otherwise)

    def forever(self) -> AbstractContextManager[None]:
        body: list[Statement] = []
        self.emit(InfiniteLoop(body))
        return self.nested(body)

    def leave(self) -> None:
        self.emit(Break())

    def leave_function(self) -> None:
        """Append a return from the function."""
        self.emit(Return())

    # Names and numbers

    def name(self, name: str) -> Expression:
        return Name(name)

    def target(self, value: Value) -> str:
        variable = self.value(value)
        assert isinstance(variable, Name), "only variables are assigned"
        return variable.name

    def pointer(self, operand: str) -> Name:
        """The pointer of an operand."""
        return Name(self.names.operand(operand))

    def extent(self, axis: Axis) -> Expression:
        """The number of points of an axis."""
        return Name(self.names.extent(axis)) if axis.exact is None else IntLiteral(axis.exact)

    def constant(self, value: bool | int | float, dtype: str) -> Expression:
        if dtype == "bool":
            return BoolLiteral(bool(value))
        return TypedLiteral(float(value) if dtype in FLOATS else int(value), dtype)

    def constant_stride(self, stride: Stride) -> Expression:
        return IntLiteral(int(stride.value))

    def element_index(self, address: Expression, component: int | None) -> Expression:
        if component is None:
            return address
        real = address if address == ZERO else address * 2
        return real + 1 if component else real

    # Expressions

    def operation(self, operator: str, left: Expression, right: Expression) -> Expression:
        return BinaryOperation(operator, left, right)

    def prefix(self, operator: str, operand: Expression) -> Expression:
        return UnaryOperation(operator, operand)

    def converted(self, value: Expression, dtype: str) -> Expression:
        return Convert(dtype, value)

    def function(self, fn: str, arguments: Sequence[Expression], dtype: str) -> Expression:
        return Call(f"{fn}_{dtype}", tuple(arguments))

    def select(
        self, predicate: Expression, on_true: Expression, on_false: Expression, dtype: str
    ) -> Expression:
        return call(f"select_{dtype}", predicate, on_true, on_false)

    def cast(self, argument: Expression, source: str, dtype: str) -> Expression:
        if source == "index" and not dtype.startswith("float"):
            source = "int64"
        return argument if source == dtype else call(f"cast_{source}_{dtype}", argument)
