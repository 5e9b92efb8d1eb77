"""Reduction variables of loops, such as sums and maxima, as vectors of partial results.

    for i in range(n):                              sums = vectors of 0
        t = accumulate_add_float32(t, x[i])         for each vector of i: sums = sums + x[i]
                                                    t = t + the sum of the vectors' elements

The order does not matter to these functions; ``accumulate_`` says so of those of floats.
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
from gpuflow.targets.llvm.lanes import Instruction, Lane, Number, spread

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

Values = Mapping[str, Lane]

_FUNCTION = re.compile(r"(max|min)_u?int\d+|accumulate_(add|mul)_float\d+")
# What changes nothing. A maximum or the like may take the first value as often as it wants.
_NEUTRAL: Mapping[str, Number] = {"add": -0.0, "mul": 1.0, "+": 0, "*": 1}
_OF_INTEGERS = ("+", "*")
_OF_BITS = ("&", "|")


@record
class Carry:
    """A name that a loop carries.

    Attributes:
        how: the function or operator that combines two values.
        neutral: initial value of the vectors; the first value is added at the end. None: they begin
            with the first value.
    """

    how: str
    neutral: Number | None


def carries_of(body: Sequence[Statement], names: Collection[str]) -> dict[str, Carry] | None:
    """The reduction variables of a straight loop; None if it has others.

    Args:
        body: the loop's statements.
        names: variables that are assigned, and read in later iterations or after the loop.
    """
    if not all(isinstance(statement, Assign | Run) for statement in body):
        return None
    if not names:
        return {}
    values = (value for statement in body for value in values_of(statement))
    read = Counter(
        one.name for value in values for one in expressions_in(value) if isinstance(one, Name)
    )
    found = {}
    for statement in body:
        match statement:
            case Assign((name,), value) if name in names:
                carry = _carry(name, value)
                if carry is None or read[name] != 1:
                    return None
                found[name] = carry
    return found if len(found) == len(names) else None


def _carry(name: str, value: Expression) -> Carry | None:
    match value:
        case Call(function, (Name(first), _)):
            known = _FUNCTION.fullmatch(function)
            if known is None or first != name:
                return None
            return Carry(function, _NEUTRAL.get(known[2]))
        case Convert(dtype, Operation(operator, Name(first))):
            fits = dtype.lstrip("u").startswith("int") and operator in (*_OF_INTEGERS, *_OF_BITS)
            return Carry(operator, _NEUTRAL.get(operator)) if first == name and fits else None
        case Operation(operator, Name(first)) if first == name:
            return Carry(operator, None) if operator in _OF_BITS else None
    return None


class Carried:
    """Reduction variables of a loop, as vectors.

    Args:
        text: writes the loop.
        carries: by their names.

    Attributes:
        firsts: initial values of the vectors.
        now: their values in the current iteration.
    """

    def __init__(self, text: Expressions, carries: Mapping[str, Carry]) -> None:
        self._text, self._carries = text, carries
        self._singles: Values = {}
        self.firsts: Values = {}
        self.now: dict[str, Lane] = {}
        self._exits: list[tuple[ir.Block, Values]] = []

    def begin(self, singles: Values, width: int) -> None:
        """Make the first vectors of ``width`` elements, of the values that the loop begins with."""
        self._singles = singles
        neutral = {name: carry.neutral for name, carry in self._carries.items()}
        self.firsts = {
            name: spread(one if neutral[name] is None else one.constant(neutral[name]), width)
            for name, one in singles.items()
        }

    def phis(self) -> Values:
        """Vectors where several blocks lead to this one."""
        builder = self._text.builder
        return {name: x.like(builder.phi(x.value.type)) for name, x in self.firsts.items()}

    def carry(self, name: str, new: Lane, there: Instruction | None) -> None:
        """Update the vector; elements that are masked out are unchanged."""
        if there is not None:
            kept = self.now[name].value
            new = new.like(self._text.builder.select(there, new.value, kept))
        self.now[name] = new

    def together(self, several: Sequence[Values]) -> Values:
        """One vector of each, of several."""
        return {
            name: reduce(partial(self._combined, name), [each[name] for each in several])
            for name in self._carries
        }

    def add_exit(self, block: ir.Block, values: Values) -> None:
        """Add an exit of the loop after a block, with these values."""
        self._exits.append((block, values))

    def results(self) -> dict[str, Lane]:
        """The final values of the reduction variables after the loop."""
        vectors = self.phis()
        for block, values in self._exits:
            add_incoming_to(vectors, block, values)
        return {name: self._single(name, vector) for name, vector in vectors.items()}

    def _single(self, name: str, vector: Lane) -> Lane:
        while vector.width > 1:
            vector = self._combined(name, half(vector, 0), half(vector, 1))
        if self._carries[name].neutral is None:
            return vector
        return self._combined(name, self._singles[name], vector)

    def _combined(self, name: str, a: Lane, b: Lane) -> Lane:
        how = self._carries[name].how
        if how in ARITHMETIC:
            return self._text.arithmetic(how, a, b)
        meaning = self._text.meaning(how)
        assert meaning is not None  # the loop has called it
        (result,) = self._text.emitted(meaning, [a, b])
        return result


def add_incoming_to(phis: Values, block: ir.Block, values: Values) -> None:
    """Add the incoming values of phis from a block."""
    for name, phi in phis.items():
        phi.value.add_incoming(values[name].value, block)
