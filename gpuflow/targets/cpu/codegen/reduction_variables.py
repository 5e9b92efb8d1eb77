"""Vectorization of reduction variables, such as sums and maxima, as vectors of partial results.

    for i in range(n):                              sums = vectors of 0
        t = accumulate_add_float32(t, x[i])         for each vector of i: sums = sums + x[i]
                                                    t = t + the sum of the vectors' elements

This reassociates the reduction. Only functions that allow it are recognized: operations of
integers, maxima and minima of integers, and ``accumulate_`` functions of floats.
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
    Call,
    Convert,
    Expression,
    Name,
    Operation,
    Run,
    Statement,
    expressions_in,
    values_of,
)
from gpuflow.targets.cpu.codegen.vector_blocks import half
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, Number, splat

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

Values = Mapping[str, IRValue]

_FUNCTION = re.compile(r"(max|min)_u?int\d+|accumulate_(add|mul)_float\d+")
# Neutral elements. Idempotent functions, such as a maximum, need none: they may repeat a value.
_NEUTRAL: Mapping[str, Number] = {"add": -0.0, "mul": 1.0, "+": 0, "*": 1}
_OF_INTEGERS = ("+", "*")
_OF_BITS = ("&", "|")


@record
class Reduction:
    """A reduction variable of a loop.

    Attributes:
        operation: the function or operator that combines two values.
        neutral: initial value of the vectors; the variable's initial value is combined at the end.
            None: the vectors start with the variable's initial value.
    """

    operation: str
    neutral: Number | None


def reductions_of(body: Sequence[Statement], names: Collection[str]) -> dict[str, Reduction] | None:
    """Find the reduction variables of a straight loop.

    None: the loop is not straight, or has a loop-carried variable that is not a reduction.

    Args:
        body: statements of the loop.
        names: loop-carried variables, and those that are read after the loop.
    """
    if not all(isinstance(statement, Assign | Run) for statement in body):
        return None
    if not names:
        return {}
    values = (value for statement in body for value in values_of(statement))
    read = Counter(
        one.name for value in values for one in expressions_in(value) if isinstance(one, Name)
    )
    reductions = {}
    for statement in body:
        match statement:
            case Assign((name,), value) if name in names:
                reduction = _reduction(name, value)
                if reduction is None or read[name] != 1:
                    return None
                reductions[name] = reduction
    return reductions if len(reductions) == len(names) else None


def _reduction(name: str, value: Expression) -> Reduction | None:
    match value:
        case Call(function, (Name(first), _)):
            match_ = _FUNCTION.fullmatch(function)
            if match_ is None or first != name:
                return None
            return Reduction(function, _NEUTRAL.get(match_[2]))
        case Convert(dtype, Operation(operator, Name(first))):
            applies = dtype.lstrip("u").startswith("int") and operator in (*_OF_INTEGERS, *_OF_BITS)
            applies = applies and first == name
            return Reduction(operator, _NEUTRAL.get(operator)) if applies else None
        case Operation(operator, Name(first)) if first == name:
            return Reduction(operator, None) if operator in _OF_BITS else None
    return None


class Accumulators:
    """The vectors of a loop's reduction variables.

    Args:
        text: the writer of the loop.
        reductions: reduction variables by name.

    Attributes:
        firsts: initial values of the vectors.
        now: values of the vectors at the current position of the body.
    """

    def __init__(self, text: Expressions, reductions: Mapping[str, Reduction]) -> None:
        self._text, self._reductions = text, reductions
        self._singles: Values = {}
        self.firsts: Values = {}
        self.now: dict[str, IRValue] = {}
        self._exits: list[tuple[ir.Block, Values]] = []

    def begin(self, singles: Values, width: int) -> None:
        """Set the initial vectors, from the variables' initial values ``singles``."""
        self._singles = singles
        neutral = {name: reduction.neutral for name, reduction in self._reductions.items()}
        self.firsts = {
            name: splat(one if neutral[name] is None else one.constant(neutral[name]), width)
            for name, one in singles.items()
        }

    def phis(self) -> Values:
        """Emit phi nodes of the vectors; the caller adds their incoming values."""
        builder = self._text.builder
        return {name: x.like(builder.phi(x.value.type)) for name, x in self.firsts.items()}

    def update(self, name: str, new: IRValue, mask: Instruction | None) -> None:
        """Update a variable's vector; masked-out elements are unchanged."""
        if mask is not None:
            unchanged = self.now[name].value
            new = new.like(self._text.builder.select(mask, new.value, unchanged))
        self.now[name] = new

    def combined(self, several: Sequence[Values]) -> Values:
        """Combine the vectors of an unrolled loop into one for each variable."""
        return {
            name: reduce(partial(self._combined, name), [each[name] for each in several])
            for name in self._reductions
        }

    def add_exit(self, block: ir.Block, values: Values) -> None:
        """Record that a block leaves the loop with these values."""
        self._exits.append((block, values))

    def results(self) -> dict[str, IRValue]:
        """Emit phi nodes and horizontal reductions after the loop; returns the final values."""
        vectors = self.phis()
        for block, values in self._exits:
            add_incoming_to(vectors, block, values)
        return {name: self._single(name, vector) for name, vector in vectors.items()}

    def _single(self, name: str, vector: IRValue) -> IRValue:
        while vector.width > 1:
            vector = self._combined(name, half(vector, 0), half(vector, 1))
        if self._reductions[name].neutral is None:
            return vector
        return self._combined(name, self._singles[name], vector)

    def _combined(self, name: str, a: IRValue, b: IRValue) -> IRValue:
        operation = self._reductions[name].operation
        if operation in ARITHMETIC:
            return self._text.arithmetic(operation, a, b)
        meaning = self._text.meaning(operation)
        assert meaning is not None  # the loop has called it
        (result,) = self._text.emitted(meaning, [a, b])
        return result


def add_incoming_to(phis: Values, block: ir.Block, values: Values) -> None:
    """Add incoming values from a block to phi nodes."""
    for name, phi in phis.items():
        phi.value.add_incoming(values[name].value, block)
