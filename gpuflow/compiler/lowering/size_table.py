"""The size expressions that kernels and guards of a program read, evaluated for given sizes.

Kernel arguments and guards refer to an expression by its ordinal in a ``SizeTable``, which belongs
to a program with its sizes erased. For new sizes the table is evaluated as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import count
from math import prod
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.views import View
from gpuflow.kir.interpret import scalar_to_slot

# The source of a size expression; an equation is named by its position.
#   ("constant", number)
#   ("product", *symbols)           sizes multiplied
#   ("multiple", factor, *symbols)  a multiple of that: a stride
#   ("offset", position, itemsize)  of a view that an equation is, in units of that size
#   ("number", position, k)         that an Indexed op declares
#   ("literal", slot, dtype)        a scalar of the program
#   ("part", slot, dtype, component)   the real component of one (0), or the imaginary one (1)
Source = tuple[Any, ...]
Values = Mapping[int, int]  # of all expressions of a table, by ordinal
Views = Mapping[Var, tuple[Var, View]]  # aliases: variable -> (buffer variable, view)

LONGEST_EXACT = 16  # of the sizes that are written in a kernel's text


@record
class ErasedSizes:
    """The sizes, variables and literals that the key of a program omits.

    Attributes:
        sizes: the distinct sizes but 0 and 1, in order of appearance. A symbol is an index of one.
        variables: all variables in that order, inputs first: the index of a variable is the id of
            its buffer.
        literals: the values of all literals, in order.
    """

    sizes: tuple[int, ...]
    variables: tuple[Var, ...]
    literals: tuple[Any, ...]


@record
class Concrete:
    """A program with its sizes, for which size expressions are evaluated."""

    jaxpr: Jaxpr
    erased: ErasedSizes
    views: Views
    _declared: dict[int, list[int]] = field(default_factory=dict)

    def declared(self, position: int) -> list[int]:
        """The numbers that an ``Indexed`` op passes to its kernel."""
        if position not in self._declared:
            self._declared[position] = declared_numbers(self.jaxpr.eqns[position])
        return self._declared[position]

    def offset(self, position: int) -> int:
        """The offset of an equation's view, in elements."""
        return self.views[self.jaxpr.eqns[position].outputs[0]][1].offset


def declared_numbers(eqn: Eqn) -> list[int]:
    """The numbers that an ``Indexed`` op passes to its kernel."""
    declare = eqn.primitive.lower.numbers
    if declare is None:
        return []
    return [int(number) for number in declare([atom.aval for atom in eqn.inputs], eqn.params)]


class SizeTable:
    """Size expressions by ordinal.

    Threads may add some at the same time; there is no lock that a fork could leave locked, and some
    ordinals are of no expression.
    """

    def __init__(self) -> None:
        self._ordinals: dict[Source, int] = {}
        self._evaluators: dict[int, Evaluator] = {}
        self._counter = count()

    def ordinal(self, source: Source) -> int:
        """The ordinal of an expression, which is added if it is new."""
        ordinal = self._ordinals.get(source)
        if ordinal is None:
            ordinal = next(self._counter)
            self._evaluators[ordinal] = _evaluator(*source)  # before others may find the ordinal
            ordinal = self._ordinals.setdefault(source, ordinal)
        return ordinal

    def evaluate(self, program: Concrete) -> Values:
        """The value of every expression, by its ordinal."""
        evaluators = self._evaluators.copy()
        return {ordinal: evaluator(program) for ordinal, evaluator in evaluators.items()}


Evaluator = Callable[[Concrete], int]


def _evaluator(kind: str, *rest: Any) -> Evaluator:
    return _EVALUATORS[kind](*rest)


def _constant(value: int) -> Evaluator:
    return lambda program: value


def _product(*symbols: int) -> Evaluator:
    if len(symbols) == 1:
        (symbol,) = symbols
        return lambda program: program.erased.sizes[symbol]
    return _multiple(1, *symbols)


def _multiple(factor: int, *symbols: int) -> Evaluator:
    def multiple(program: Concrete) -> int:
        sizes = program.erased.sizes
        return prod([sizes[symbol] for symbol in symbols], start=factor)

    return multiple


def _offset(position: int, itemsize: int) -> Evaluator:
    return lambda program: program.offset(position) * itemsize


def _declared(position: int, k: int) -> Evaluator:
    return lambda program: program.declared(position)[k]


def _literal(slot: int, dtype: str) -> Evaluator:
    return lambda program: _slot_of(dtype, program.erased.literals[slot])


def _component(slot: int, dtype: str, component: int) -> Evaluator:
    name = "imag" if component else "real"
    return lambda program: _slot_of(dtype, getattr(program.erased.literals[slot], name))


def _slot_of(dtype: str, value: Any) -> int:
    # The zeros are equal, and have different bits. A 0-d array has no hash.
    if isinstance(value, np.ndarray) or not value:
        return scalar_to_slot(dtype, value)
    return _cached_slot(dtype, value)


@lru_cache(4096, typed=True)
def _cached_slot(dtype: str, value: Any) -> int:
    return scalar_to_slot(dtype, value)


_EVALUATORS: dict[str, Callable[..., Evaluator]] = {
    "constant": _constant,
    "product": _product,
    "multiple": _multiple,
    "offset": _offset,
    "number": _declared,
    "literal": _literal,
    "part": _component,
}


class Guard(NamedTuple):
    """The sizes for which a symbolic plan holds: conditions on expressions, by ordinal.

    Attributes:
        short: sizes that are written in a kernel's text if they are short; None: it is longer.
        written: other values that are written in a text.
        equal: pairs that are equal, or that are not.
    """

    short: tuple[tuple[int, int | None], ...]
    written: tuple[tuple[int, int], ...]
    equal: tuple[tuple[int, int, bool], ...]

    def holds(self, values: Values) -> bool:
        """Whether they hold for the values of all expressions."""
        for ordinal, expected in self.short:
            size = values[ordinal]
            if (size if size <= LONGEST_EXACT else None) != expected:
                return False
        for ordinal, expected in self.written:
            if values[ordinal] != expected:
                return False
        return all([(values[a] == values[b]) is answer for a, b, answer in self.equal])
