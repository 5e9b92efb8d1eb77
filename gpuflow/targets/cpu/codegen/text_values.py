"""Expressions of a kernel's text, as LLVM instructions."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.kir.scalar import COMPUTE_DTYPES
from gpuflow.targets.cpu.codegen import text_names
from gpuflow.targets.cpu.codegen.text_names import POINTER, Named
from gpuflow.targets.llvm.lanes import Lane, cast, constant, is_float

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

_BINARY: dict[type, Callable[[Lane, Lane], Lane]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b,
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
}
_COMPARE: dict[type, Callable[[Lane, Lane], Lane]] = {
    ast.Eq: lambda a, b: a.equals(b),
    ast.NotEq: lambda a, b: a.differs(b),
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
_INTEGER_ONLY = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)


class Unsupported(Exception):
    """The text holds something that this compiler does not know: whoever printed it is wrong."""


class Expressions:
    """Emits expressions at the position of ``builder``.

    Args:
        builder: of the function.
        names: functions that the text calls and defined itself.
    """

    def __init__(self, builder: ir.IRBuilder, names: Mapping[str, Named]) -> None:
        self.builder, self.names = builder, names

    def value(self, node: ast.expr) -> Lane:
        match node:
            case ast.Name(id=name):
                return self.variable(name)
            case ast.Constant(value=bool() as truth):
                return constant(self.builder, "bool", truth)
            case ast.Constant(value=int() as number):
                return constant(self.builder, "int64", number)
            case ast.BinOp(left=left, op=operator, right=right):
                return self.arithmetic(type(operator), self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                a, b = self.same(self.value(left), self.value(right))
                if type(operator) not in _COMPARE:
                    raise Unsupported(ast.unparse(node))
                return _COMPARE[type(operator)](a, b)
            case ast.BoolOp(op=ast.And(), values=values):
                result, *others = [self.typed(value, "bool") for value in values]
                for other in others:
                    a, b = self.same(result, other)
                    result = a & b
                return result
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inverted = self.typed(operand, "bool")
                return inverted.like(self.builder.not_(inverted.value))
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                x = self.operand(operand)
                if is_float(x.dtype) or x.dtype in (POINTER, "bool"):
                    raise Unsupported(ast.unparse(node))
                return x.like(self.builder.not_(x.value))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.operand(operand)
            case ast.Call():
                (result,) = self.call(node)
                return result
        raise Unsupported(ast.unparse(node))

    def operand(self, node: ast.expr) -> Lane:
        """Emit an operand of an operator or a function."""
        return self.value(node)

    def typed(self, node: ast.expr, dtype: str) -> Lane:
        value = self.operand(node)
        if value.dtype != dtype:
            raise Unsupported(f"{ast.unparse(node)} is {value.dtype}, not {dtype}")
        return value

    def variable(self, name: str) -> Lane:
        """The value of a variable."""
        raise NotImplementedError

    def same(self, a: Lane, b: Lane) -> tuple[Lane, Lane]:
        if a.dtype != b.dtype or a.dtype == POINTER:
            raise Unsupported(f"{a.dtype} with {b.dtype}")
        return a, b

    def arithmetic(self, operator: type, a: Lane, b: Lane) -> Lane:
        a, b = self.same(a, b)
        wrong = is_float(a.dtype) if operator in _INTEGER_ONLY else a.dtype == "bool"
        if wrong or operator not in _BINARY or (operator is ast.Div and not is_float(a.dtype)):
            raise Unsupported(f"{operator.__name__} of {a.dtype}")
        return _BINARY[operator](a, b)

    def call(self, node: ast.Call) -> tuple[Lane, ...]:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="np"), attr=dtype), args=[argument]):
                return (self.converted(argument, dtype),)
            case ast.Call(func=ast.Name(id=name)):
                return self.named(node, name)
        raise Unsupported(ast.unparse(node))

    def converted(self, argument: ast.expr, dtype: str) -> Lane:
        """``np.float32(x)``: a constant of that dtype, or a conversion."""
        if dtype not in COMPUTE_DTYPES:
            raise Unsupported(f"np.{dtype}")
        number = _number(argument)
        if number is not None:
            return constant(self.builder, dtype, number)
        return self.as_dtype(self.value(argument), dtype)

    def as_dtype(self, value: Lane, dtype: str) -> Lane:
        """A value as one of another compute dtype."""
        if is_float(value.dtype) and not is_float(dtype):
            raise Unsupported(f"{value.dtype} to {dtype}")  # a Cast says how it rounds
        return cast(value, dtype)

    def meaning(self, name: str) -> Named | None:
        """The function of a called name; None if there is none."""
        return self.names.get(name) or text_names.named(name)

    def named(self, node: ast.Call, name: str) -> tuple[Lane, ...]:
        """The result of a call of a name."""
        meaning = self.meaning(name)
        if meaning is None or len(node.args) != len(meaning.parameters):
            raise Unsupported(name)
        pairs = zip(node.args, meaning.parameters, strict=True)
        return self.emitted(meaning, [self.typed(argument, dtype) for argument, dtype in pairs])

    def emitted(self, meaning: Named, values: Sequence[Lane]) -> tuple[Lane, ...]:
        """Emit a call of a name with its arguments."""
        emitted = meaning.emit(self.builder, *(value.value for value in values))
        results = emitted if isinstance(emitted, tuple) else (emitted,) if meaning.results else ()
        return tuple(
            Lane(self.builder, value, dtype)
            for value, dtype in zip(results, meaning.results, strict=True)
        )


def _number(node: ast.expr) -> float | int | None:
    """The value of a literal, with a sign, nan and inf; None for other expressions."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _number(operand)
            return None if number is None else -number
        case ast.Attribute(value=ast.Name(id="np"), attr="nan"):
            return math.nan
        case ast.Attribute(value=ast.Name(id="np"), attr="inf"):
            return math.inf
    return None
