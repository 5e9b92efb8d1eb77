"""Reduction variables of loops, such as sums and maxima, as vectors of partial results.

    for i in range(n):                              sums = vectors of 0
        t = accumulate_add_float32(t, x[i])         for each vector of i: sums = sums + x[i]
                                                    t = t + the sum of the vectors' elements

The order does not matter to these functions; ``accumulate_`` says so of those of floats.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.targets.cpu.codegen.text_values import Expressions
from gpuflow.targets.cpu.codegen.vector_blocks import half
from gpuflow.targets.llvm.lanes import Instruction, Lane, Number, spread

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")

Values = Mapping[str, Lane]

_FUNCTION = re.compile(r"(max|min)_u?int\d+|accumulate_(add|mul)_float\d+")
# What changes nothing. A maximum or the like may take the first value as often as it wants.
_NEUTRAL: Mapping[str | type, Number] = {"add": -0.0, "mul": 1.0, ast.Add: 0, ast.Mult: 1}
_OF_INTEGERS = (ast.Add, ast.Mult)
_OF_BITS = (ast.BitAnd, ast.BitOr)


@record
class Carry:
    """A name that a loop carries.

    Attributes:
        how: the function or operator that combines two values.
        neutral: initial value of the vectors; the first value is added at the end. None: they begin
            with the first value.
    """

    how: str | type
    neutral: Number | None


def carries_of(body: Sequence[ast.stmt], names: Collection[str]) -> dict[str, Carry] | None:
    """The reduction variables of a straight loop; None if it has others.

    Args:
        body: the loop's statements.
        names: variables that are assigned, and read in later iterations or after the loop.
    """
    if not all(isinstance(node, (ast.Assign, ast.Expr)) for node in body):
        return None
    if not names:
        return {}
    parts = (part for node in body for part in ast.walk(node))
    read = Counter(
        part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    )
    found = {}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in names:
                carry = _carry(name, value)
                if carry is None or read[name] != 1:
                    return None
                found[name] = carry
    return found if len(found) == len(names) else None


def _carry(name: str, value: ast.expr) -> Carry | None:
    match value:
        case ast.Call(func=ast.Name(id=function), args=[ast.Name(id=first), _]):
            known = _FUNCTION.fullmatch(function)
            if known is None or first != name:
                return None
            return Carry(function, _NEUTRAL.get(known[2]))
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="np"), attr=dtype),
            args=[ast.BinOp(left=ast.Name(id=first), op=operator)],
        ):
            how = type(operator)
            fits = dtype.lstrip("u").startswith("int") and how in (*_OF_INTEGERS, *_OF_BITS)
            return Carry(how, _NEUTRAL.get(how)) if first == name and fits else None
        case ast.BinOp(left=ast.Name(id=first), op=operator) if first == name:
            return Carry(type(operator), None) if isinstance(operator, _OF_BITS) else None
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
        if not isinstance(how, str):
            return self._text.arithmetic(how, a, b)
        meaning = self._text.meaning(how)
        assert meaning is not None  # the loop has called it
        (result,) = self._text.emitted(meaning, [a, b])
        return result


def add_incoming_to(phis: Values, block: ir.Block, values: Values) -> None:
    """Add the incoming values of phis from a block."""
    for name, phi in phis.items():
        phi.value.add_incoming(values[name].value, block)
