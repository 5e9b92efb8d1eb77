"""Interprets loop programs in NumPy, statement by statement: the reference of their kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping

import ml_dtypes
import numpy as np

from gpuflow.kir.scalar import FUNCTIONS, compute_dtype
from gpuflow.targets.cpu.codegen.loops.nodes import (
    Assign,
    BinaryOperation,
    BoolLiteral,
    Branch,
    Call,
    CallStatement,
    Convert,
    Expression,
    IntLiteral,
    Loop,
    Name,
    Program,
    Statement,
    TypedLiteral,
    UnaryOperation,
)

OPERATORS: Mapping[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ACCUMULATIONS = {"add": operator.add, "mul": operator.mul}


def dtype_of(storage: str) -> np.dtype:
    """The NumPy dtype of a storage dtype."""
    return np.dtype(getattr(ml_dtypes, storage, storage))


class Reference:
    """One run of a program.

    Args:
        arguments: arrays and scalars, in the order of the argument block. Arrays are changed.
        hi: the end of the range of the first axis, which begins at 0.

    Attributes:
        touched: of each array by its number, the first and the last index that was accessed.
    """

    def __init__(self, program: Program, arguments: list, hi: int) -> None:
        self._arguments = arguments
        self._accessors = {one.name: one for one in program.accessors}
        self._values: dict[str, object] = {"lo": np.int64(0), "hi": np.int64(hi)}
        self.touched: dict[int, tuple[int, int]] = {}
        with np.errstate(all="ignore"):
            self._run(program.body)

    def _run(self, body: Iterable[Statement]) -> None:
        for statement in body:
            match statement:
                case Assign((name,), value):
                    self._values[name] = self._value(value)
                case CallStatement(call):
                    self._value(call)
                case Branch(test, then, otherwise):
                    self._run(then if self._value(test) else otherwise)
                case Loop(counter, first, end, _, inner):
                    for k in range(int(self._value(first)), int(self._value(end))):
                        self._values[counter] = np.int64(k)
                        self._run(inner)
                case _:
                    raise NotImplementedError(statement)

    def _value(self, node: Expression):
        match node:
            case Name(name):
                return self._values[name]
            case IntLiteral(number):
                return np.int64(number)
            case BoolLiteral(truth):
                return np.bool_(truth)
            case TypedLiteral(number, dtype):
                return np.dtype(dtype).type(number)
            case BinaryOperation(symbol, left, right):
                a, b = self._value(left), self._value(right)
                assert a.dtype == b.dtype, (symbol, a.dtype, b.dtype)
                return OPERATORS[symbol](a, b)
            case UnaryOperation("not" | "~", operand):
                return ~self._value(operand)
            case UnaryOperation(_, operand):
                return -self._value(operand)
            case Convert(dtype, operand):
                return self._value(operand).astype(dtype)
            case Call(function, arguments):
                return self._call(function, arguments)
        raise NotImplementedError(node)

    def _call(self, function: str, nodes: tuple[Expression, ...]):
        verb, _, rest = function.partition("_")
        stem, _, dtype = function.rpartition("_")
        if verb == "word":
            slot = nodes[1].value
            return slot if rest == "pointer" else self._arguments[slot]
        if verb == "local":
            self._arguments.append(np.zeros(nodes[0].value, dtype_of(rest)))
            return len(self._arguments) - 1
        if verb == "use":  # a hint
            return None
        if verb in ("load", "store"):
            return self._access(function, rest, *map(self._value, nodes[1:]), pointer=nodes[0])
        values = list(map(self._value, nodes))
        if verb == "select":
            return values[1] if values[0] else values[2]
        if verb == "cast":
            return values[0].astype(dtype)
        if verb == "accumulate":
            return ACCUMULATIONS[stem.removeprefix("accumulate_")](*values)
        (result,) = FUNCTIONS[stem](*values)
        return result[()]

    def _access(self, function, storage, index, value=None, *, pointer):
        number, accessor = self._value(pointer), self._accessors.get(function)
        storage = accessor.storage if accessor else storage
        first, last = self.touched.get(number, (index, index))
        self.touched[number] = min(first, index), max(last, index)
        array = self._arguments[number]
        assert array.dtype == dtype_of(storage) and index >= 0, (function, index)
        if value is None:
            return array[index].astype(compute_dtype(storage))
        assert value.dtype == compute_dtype(storage)
        array[index] = value.astype(array.dtype)
        return None
