"""Compiles expressions of a loop program to LLVM instructions, and checks their types.

Tests: tests/targets/cpu/test_loop_programs.py, tests/targets/cpu/test_cpu_text.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.kir.scalar import COMPUTE_DTYPES
from gpuflow.targets.cpu.codegen import functions
from gpuflow.targets.cpu.codegen.functions import POINTER, Callee
from gpuflow.targets.cpu.codegen.loops.nodes import (
    BinaryOperation,
    BoolLiteral,
    Call,
    Convert,
    Expression,
    IntLiteral,
    InvalidProgram,
    Name,
    TypedLiteral,
    UnaryOperation,
)
from gpuflow.targets.cpu.codegen.loops.text import expression_text
from gpuflow.targets.llvm.ir_values import IRValue, cast, constant, is_float

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

_ARITHMETIC: dict[str, Callable[[IRValue, IRValue], IRValue]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
_COMPARISONS: dict[str, Callable[[IRValue, IRValue], IRValue]] = {
    "==": lambda a, b: a.equals(b),
    "!=": lambda a, b: a.differs(b),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_INTEGER_ONLY = ("&", "|", "^", "<<", ">>")


class Expressions:
    """Emits expressions at the position of ``builder``. A subclass defines ``variable``.

    All methods that emit raise InvalidProgram if an expression is ill-typed.

    Args:
        builder: builder of the function.
        accessors: accessors of the program, by name; they take precedence over builtins.
    """

    def __init__(self, builder: ir.IRBuilder, accessors: Mapping[str, Callee]) -> None:
        self.builder, self.accessors = builder, accessors

    def value(self, node: Expression) -> IRValue:
        """Emit an expression."""
        match node:
            case Name(name):
                return self.variable(name)
            case BoolLiteral(truth):
                return constant(self.builder, "bool", truth)
            case IntLiteral(number):
                return constant(self.builder, "int64", number)
            case TypedLiteral(number, dtype):
                return constant(self.builder, self.checked_dtype(dtype), number)
            case BinaryOperation(operator, left, right) if operator in _COMPARISONS:
                a, b = self.checked_operands(self.value(left), self.value(right))
                return _COMPARISONS[operator](a, b)
            case BinaryOperation(operator, left, right):
                return self.arithmetic(operator, self.value(left), self.value(right))
            case UnaryOperation("not", operand):
                inverted = self.typed(operand, "bool")
                return inverted.like(self.builder.not_(inverted.value))
            case UnaryOperation("~", operand):
                x = self.operand(operand)
                if is_float(x.dtype) or x.dtype in (POINTER, "bool"):
                    raise InvalidProgram(expression_text(node))
                return x.like(self.builder.not_(x.value))
            case UnaryOperation("-", operand):
                return -self.operand(operand)
            case Convert(dtype, operand):
                return self.convert(self.value(operand), self.checked_dtype(dtype))
            case Call():
                (result,) = self.call(node)
                return result
        raise InvalidProgram(expression_text(node))

    def operand(self, node: Expression) -> IRValue:
        """Emit an operand of an operator or a function; a hook for affine indices."""
        return self.value(node)

    def typed(self, node: Expression, dtype: str) -> IRValue:
        """Emit an operand, which must have the dtype ``dtype`` (or be a pointer, for POINTER)."""
        value = self.operand(node)
        if value.dtype != dtype:
            raise InvalidProgram(f"{expression_text(node)} is {value.dtype}, not {dtype}")
        return value

    def variable(self, name: str) -> IRValue:
        """The value of a variable; raises InvalidProgram if it has none yet."""
        raise NotImplementedError

    def checked_operands(self, left: IRValue, right: IRValue) -> tuple[IRValue, IRValue]:
        """Return both operands of an operator; raises InvalidProgram if their dtypes differ."""
        if left.dtype != right.dtype or left.dtype == POINTER:
            raise InvalidProgram(f"{left.dtype} with {right.dtype}")
        return left, right

    def arithmetic(self, operator: str, a: IRValue, b: IRValue) -> IRValue:
        """Emit an operator of ``loops.nodes.ARITHMETIC``; integers wrap, ``/`` is for floats."""
        a, b = self.checked_operands(a, b)
        is_invalid = is_float(a.dtype) if operator in _INTEGER_ONLY else a.dtype == "bool"
        if is_invalid or operator not in _ARITHMETIC or (operator == "/" and not is_float(a.dtype)):
            raise InvalidProgram(f"{operator} of {a.dtype}")
        return _ARITHMETIC[operator](a, b)

    def checked_dtype(self, dtype: str) -> str:
        """Return the dtype; raises InvalidProgram if it is not a compute dtype."""
        if dtype not in COMPUTE_DTYPES:
            raise InvalidProgram(f"np.{dtype}")
        return dtype

    def convert(self, value: IRValue, dtype: str) -> IRValue:
        """Convert a value to another compute dtype, which must not need rounding."""
        if is_float(value.dtype) and not is_float(dtype):
            raise InvalidProgram(f"{value.dtype} to {dtype}")  # a Cast specifies the rounding
        return cast(value, dtype)

    def callee(self, name: str) -> Callee | None:
        """Return the accessor or builtin with a name; None if there is none."""
        return self.accessors.get(name) or functions.builtin(name)

    def call(self, node: Call) -> tuple[IRValue, ...]:
        """Emit a call; returns its results."""
        callee = self.callee(node.function)
        if callee is None or len(node.arguments) != len(callee.parameters):
            raise InvalidProgram(node.function)
        pairs = zip(node.arguments, callee.parameters, strict=True)
        return self.emit_call(callee, [self.typed(argument, dtype) for argument, dtype in pairs])

    def emit_call(self, callee: Callee, values: Sequence[IRValue]) -> tuple[IRValue, ...]:
        """Emit a call for emitted arguments, which have the parameters' types, of one width."""
        emitted = callee.emit(self.builder, *(value.value for value in values))
        results = emitted if isinstance(emitted, tuple) else (emitted,) if callee.results else ()
        return tuple(
            IRValue(self.builder, value, dtype)
            for value, dtype in zip(results, callee.results, strict=True)
        )
