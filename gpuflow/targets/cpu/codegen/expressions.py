"""Compiles expressions of a loop program to LLVM instructions, and checks their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.kir.scalar import COMPUTE_DTYPES
from gpuflow.targets.cpu.codegen import functions
from gpuflow.targets.cpu.codegen.functions import POINTER, Named
from gpuflow.targets.cpu.codegen.loops.nodes import (
    Call,
    Convert,
    Expression,
    Literal,
    Name,
    Number,
    Operation,
    Prefix,
    Truth,
    Unsupported,
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
_COMPARE: dict[str, Callable[[IRValue, IRValue], IRValue]] = {
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

    All methods that emit raise Unsupported if an expression is ill-typed.

    Args:
        builder: builder of the function.
        names: accessors of the program, by name.
    """

    def __init__(self, builder: ir.IRBuilder, names: Mapping[str, Named]) -> None:
        self.builder, self.names = builder, names

    def value(self, node: Expression) -> IRValue:
        """Emit an expression."""
        match node:
            case Name(name):
                return self.variable(name)
            case Truth(truth):
                return constant(self.builder, "bool", truth)
            case Literal(number):
                return constant(self.builder, "int64", number)
            case Number(number, dtype):
                return constant(self.builder, self.compute_dtype(dtype), number)
            case Operation(operator, left, right) if operator in _COMPARE:
                a, b = self.same(self.value(left), self.value(right))
                return _COMPARE[operator](a, b)
            case Operation(operator, left, right):
                return self.arithmetic(operator, self.value(left), self.value(right))
            case Prefix("not", operand):
                inverted = self.typed(operand, "bool")
                return inverted.like(self.builder.not_(inverted.value))
            case Prefix("~", operand):
                x = self.operand(operand)
                if is_float(x.dtype) or x.dtype in (POINTER, "bool"):
                    raise Unsupported(expression_text(node))
                return x.like(self.builder.not_(x.value))
            case Prefix("-", operand):
                return -self.operand(operand)
            case Convert(dtype, operand):
                return self.as_dtype(self.value(operand), self.compute_dtype(dtype))
            case Call():
                (result,) = self.call(node)
                return result
        raise Unsupported(expression_text(node))

    def operand(self, node: Expression) -> IRValue:
        """Emit an operand of an operator or a function; a hook for affine indices."""
        return self.value(node)

    def typed(self, node: Expression, dtype: str) -> IRValue:
        """Emit an operand, which must have a dtype."""
        value = self.operand(node)
        if value.dtype != dtype:
            raise Unsupported(f"{expression_text(node)} is {value.dtype}, not {dtype}")
        return value

    def variable(self, name: str) -> IRValue:
        """The value of a variable."""
        raise NotImplementedError

    def same(self, a: IRValue, b: IRValue) -> tuple[IRValue, IRValue]:
        """Check that both operands of an operator have the same dtype."""
        if a.dtype != b.dtype or a.dtype == POINTER:
            raise Unsupported(f"{a.dtype} with {b.dtype}")
        return a, b

    def arithmetic(self, operator: str, a: IRValue, b: IRValue) -> IRValue:
        """Emit an operator of ``ARITHMETIC``."""
        a, b = self.same(a, b)
        wrong = is_float(a.dtype) if operator in _INTEGER_ONLY else a.dtype == "bool"
        if wrong or operator not in _ARITHMETIC or (operator == "/" and not is_float(a.dtype)):
            raise Unsupported(f"{operator} of {a.dtype}")
        return _ARITHMETIC[operator](a, b)

    def compute_dtype(self, dtype: str) -> str:
        """Return the dtype; raises Unsupported if it is not a compute dtype."""
        if dtype not in COMPUTE_DTYPES:
            raise Unsupported(f"np.{dtype}")
        return dtype

    def as_dtype(self, value: IRValue, dtype: str) -> IRValue:
        """Convert a value to another compute dtype, which must not need rounding."""
        if is_float(value.dtype) and not is_float(dtype):
            raise Unsupported(f"{value.dtype} to {dtype}")  # a Cast specifies the rounding
        return cast(value, dtype)

    def meaning(self, name: str) -> Named | None:
        """Return the accessor or builtin with a name; None if there is none."""
        return self.names.get(name) or functions.named(name)

    def call(self, node: Call) -> tuple[IRValue, ...]:
        """Emit a call; returns its results."""
        meaning = self.meaning(node.function)
        if meaning is None or len(node.arguments) != len(meaning.parameters):
            raise Unsupported(node.function)
        pairs = zip(node.arguments, meaning.parameters, strict=True)
        return self.emitted(meaning, [self.typed(argument, dtype) for argument, dtype in pairs])

    def emitted(self, meaning: Named, values: Sequence[IRValue]) -> tuple[IRValue, ...]:
        """Emit a function for emitted arguments; returns its results."""
        emitted = meaning.emit(self.builder, *(value.value for value in values))
        results = emitted if isinstance(emitted, tuple) else (emitted,) if meaning.results else ()
        return tuple(
            IRValue(self.builder, value, dtype)
            for value, dtype in zip(results, meaning.results, strict=True)
        )
