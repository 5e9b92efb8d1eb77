"""Vectorization of reduction variables, such as sums and maxima, as vectors of partial results.

    for i in range(n):                              sums = vectors of 0
        t = accumulate_add_float32(t, x[i])         for each vector of i: sums = sums + x[i]
                                                    t = t + the sum of the vectors' elements

This reassociates the reduction. Only functions that allow it are recognized: operations of
integers, maxima and minima of integers, and ``accumulate_`` functions of floats.

Tests: tests/targets/cpu/test_reduction_variables.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.expressions import Expressions
from gpuflow.targets.cpu.codegen.loops.nodes import (
    ARITHMETIC,
    Assign,
    BinaryOperation,
    Call,
    CallStatement,
    Convert,
    Expression,
    Name,
    Statement,
    expressions_in,
    values_of,
)
from gpuflow.targets.cpu.codegen.vector_blocks import half_of
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, Number, splat

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

# Values of reduction variables, by the variable's name.
ValuesByName = Mapping[str, IRValue]

_REDUCTION_FUNCTION = re.compile(r"(max|min)_u?int\d+|accumulate_(add|mul)_float\d+")
# Neutral elements. Idempotent functions, such as a maximum, need none: they may repeat a value.
_NEUTRAL: Mapping[str, Number] = {"add": -0.0, "mul": 1.0, "+": 0, "*": 1}
_INTEGER_OPERATORS = ("+", "*")
_BITWISE_OPERATORS = ("&", "|")


@record
class Reduction:
    """A reduction variable of a loop.

    Attributes:
        operation: the function or operator that combines two values; it is associative and
            commutative, or may be treated so.
        neutral: initial value of the vectors; the variable's initial value is combined at the end.
            None: the vectors start with the variable's initial value.
    """

    operation: str
    neutral: Number | None


def reductions_of(body: Sequence[Statement], names: Collection[str]) -> dict[str, Reduction] | None:
    """Find the reduction variables of a straight loop.

    Args:
        body: statements of the loop.
        names: loop-carried variables, and those that are read after the loop.

    Returns:
        The reductions by name. None if the loop is not straight, or has a variable among ``names``
        that is not a reduction variable, or that is read in other statements.
    """
    if not all(isinstance(statement, Assign | CallStatement) for statement in body):
        return None
    if not names:
        return {}
    values = (value for statement in body for value in values_of(statement))
    read_counts = Counter(
        expression.name
        for value in values
        for expression in expressions_in(value)
        if isinstance(expression, Name)
    )
    reductions = {}
    for statement in body:
        match statement:
            case Assign((name,), value) if name in names:
                reduction = _reduction(name, value)
                if reduction is None or read_counts[name] != 1:
                    return None
                reductions[name] = reduction
    return reductions if len(reductions) == len(names) else None


def _reduction(name: str, value: Expression) -> Reduction | None:
    """The reduction of ``name = value``; None if it is another assignment."""
    match value:
        case Call(function, (Name(first), _)):
            function_match = _REDUCTION_FUNCTION.fullmatch(function)
            if function_match is None or first != name:
                return None
            return Reduction(function, _NEUTRAL.get(function_match[2]))
        case Convert(dtype, BinaryOperation(operator, Name(first))):
            is_integer = dtype.lstrip("u").startswith("int")
            is_supported = operator in (*_INTEGER_OPERATORS, *_BITWISE_OPERATORS)
            applies = is_integer and is_supported and first == name
            return Reduction(operator, _NEUTRAL.get(operator)) if applies else None
        case BinaryOperation(operator, Name(first)) if first == name:
            return Reduction(operator, None) if operator in _BITWISE_OPERATORS else None
    return None


class Accumulators:
    """The vectors of partial results of a loop's reduction variables.

    Call ``begin`` first. Each loop has its own ``phis``, and sets ``current`` before its body. The
    caller must record each edge that leaves the loop by ``add_exit`` before it calls ``results``.

    Args:
        expressions: the writer of the loop.
        reductions: reduction variables by name.

    Attributes:
        initial_vectors: initial values of the vectors.
        current: values of the vectors at the current position of the body.
    """

    def __init__(self, expressions: Expressions, reductions: Mapping[str, Reduction]) -> None:
        self._expressions, self._reductions = expressions, reductions
        self._initial_scalars: ValuesByName = {}
        self.initial_vectors: dict[str, IRValue] = {}
        self.current: dict[str, IRValue] = {}
        self._exits: list[tuple[ir.Block, ValuesByName]] = []

    def begin(self, initial_scalars: ValuesByName, width: int) -> None:
        """Set the initial vectors.

        Args:
            initial_scalars: values of the variables before the loop.
            width: lanes of the vectors, a power of two.
        """
        self._initial_scalars = initial_scalars
        self.initial_vectors = {}
        for name, scalar in initial_scalars.items():
            neutral = self._reductions[name].neutral
            initial = scalar if neutral is None else scalar.constant(neutral)
            self.initial_vectors[name] = splat(initial, width)

    def phis(self) -> ValuesByName:
        """Emit phi nodes of the vectors; the caller adds their incoming values."""
        builder = self._expressions.builder
        return {name: x.like(builder.phi(x.value.type)) for name, x in self.initial_vectors.items()}

    def update(self, name: str, new: IRValue, mask: LlvmValue | None) -> None:
        """Update a variable's vector; elements with a false ``mask`` are unchanged."""
        if mask is not None:
            unchanged = self.current[name].value
            new = new.like(self._expressions.builder.select(mask, new.value, unchanged))
        self.current[name] = new

    def combine_unrolled(self, copies: Sequence[ValuesByName]) -> ValuesByName:
        """Combine the vectors of the copies of an unrolled body into one for each variable."""
        return {
            name: reduce(partial(self._combine, name), [vectors[name] for vectors in copies])
            for name in self._reductions
        }

    def add_exit(self, block: ir.Block, values: ValuesByName) -> None:
        """Record that a block branches to the code after the loop with these values."""
        self._exits.append((block, values))

    def results(self) -> dict[str, IRValue]:
        """Emit phi nodes and horizontal reductions after the loop; returns the final values."""
        vectors = self.phis()
        for block, values in self._exits:
            add_incoming_to(vectors, block, values)
        return {name: self._reduce_vector(name, vector) for name, vector in vectors.items()}

    def _reduce_vector(self, name: str, vector: IRValue) -> IRValue:
        """Combine the lanes of a vector by halves, and the initial value unless they contain it."""
        while vector.width > 1:
            vector = self._combine(name, half_of(vector, 0), half_of(vector, 1))
        if self._reductions[name].neutral is None:
            return vector
        return self._combine(name, self._initial_scalars[name], vector)

    def _combine(self, name: str, left: IRValue, right: IRValue) -> IRValue:
        operation = self._reductions[name].operation
        if operation in ARITHMETIC:
            return self._expressions.arithmetic(operation, left, right)
        callee = self._expressions.callee(operation)
        assert callee is not None  # the loop has called it
        (result,) = self._expressions.emit_call(callee, [left, right])
        return result


def add_incoming_to(phis: ValuesByName, block: ir.Block, values: ValuesByName) -> None:
    """Add incoming values from a block to phi nodes; ``values`` has all names of ``phis``."""
    for name, phi in phis.items():
        phi.value.add_incoming(values[name].value, block)
