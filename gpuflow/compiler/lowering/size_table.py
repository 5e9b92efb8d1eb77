"""Evaluation of size expressions: the table of a symbolic program, and guards on its values.

Kernel arguments and guards refer to an expression by its ordinal in a ``SizeTable``, which belongs
to a symbolic program. For new sizes, the whole table is evaluated.

Tests: tests/compiler/test_size_exprs.py, tests/compiler/test_symbolic_plans.py.
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
from gpuflow.compiler.fusion.space import BufferView
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.kir.interpret import scalar_to_slot

# The source of a size expression. Equations are named by position, sizes by symbol (ErasedSizes).
#   ("constant", value)
#   ("product", *symbols)             product of sizes
#   ("multiple", factor, *symbols)    product of sizes, times a constant: a stride
#   ("offset", position, itemsize)    offset of an equation's view, in elements times itemsize
#   ("number", position, k)           the k-th integer that an Indexed op declares
#   ("literal", index, dtype)         a literal (ErasedSizes), as the bits of an argument slot
#   ("part", index, dtype, component)  component of a complex one: 0 is real, 1 is imaginary
Source = tuple[Any, ...]
SizeValues = Mapping[int, int]  # the value of each expression of a table, by ordinal
AliasViews = Mapping[Var, BufferView]  # of variables that alias the memory of another

# The largest size that is written in a kernel's text. Each such size needs a separate kernel, 35 ms
# for log_softmax (docs/design/0009-binding.md).
MAX_EXACT = 16


@record
class ErasedSizes:
    """The sizes, variables and literals that the key of a program omits.

    Attributes:
        sizes: the distinct sizes except 0 and 1, in order of appearance. A symbol is an index here.
        variables: all variables in order of appearance, inputs first. The index of a variable is
            the id of its buffer.
        literals: the values of all literals, in order of appearance.
    """

    sizes: tuple[int, ...]
    variables: tuple[Var, ...]
    literals: tuple[Any, ...]


@record
class ConcreteProgram:
    """A program with its sizes, for which a ``SizeTable`` is evaluated.

    Attributes:
        jaxpr: a program of the key that the table belongs to.
        erased: its sizes, variables and literals.
        views: its aliases.
    """

    jaxpr: Jaxpr
    erased: ErasedSizes
    views: AliasViews
    _declared: dict[int, list[int]] = field(default_factory=dict)

    def declared_numbers(self, position: int) -> list[int]:
        """The numbers that an ``Indexed`` op passes to its kernel."""
        if position not in self._declared:
            self._declared[position] = declared_numbers(self.jaxpr.eqns[position])
        return self._declared[position]

    def offset(self, position: int) -> int:
        """The offset of an equation's view, in elements; its first output must be an alias."""
        return self.views[self.jaxpr.eqns[position].outputs[0]].layout.offset


def declared_numbers(eqn: Eqn) -> list[int]:
    """The numbers that an ``Indexed`` op passes to its kernel; none for other ops."""
    numbers_of = eqn.primitive.lower.numbers
    if numbers_of is None:
        return []
    return [int(number) for number in numbers_of([atom.aval for atom in eqn.inputs], eqn.params)]


class SizeTable:
    """The size expressions of a symbolic program, numbered by ordinal.

    Threads may add expressions at the same time, without a lock, which a fork could leave locked.
    If two threads add one expression, one of the ordinals remains unused.
    """

    def __init__(self) -> None:
        self._ordinals: dict[Source, int] = {}
        self._evaluators: dict[int, Evaluator] = {}
        self._counter = count()

    def ordinal(self, source: Source) -> int:
        """The ordinal of the expression with this source, which is added if it is new."""
        ordinal = self._ordinals.get(source)
        if ordinal is None:
            ordinal = next(self._counter)
            self._evaluators[ordinal] = _evaluator(*source)  # before others may find the ordinal
            ordinal = self._ordinals.setdefault(source, ordinal)
        return ordinal

    def evaluate(self, program: ConcreteProgram) -> SizeValues:
        """The value of every expression, by its ordinal."""
        evaluators = self._evaluators.copy()
        return {ordinal: evaluator(program) for ordinal, evaluator in evaluators.items()}


Evaluator = Callable[[ConcreteProgram], int]


def _evaluator(kind: str, *source_args: Any) -> Evaluator:
    return _EVALUATORS[kind](*source_args)


def _constant(value: int) -> Evaluator:
    return lambda program: value


def _product(*symbols: int) -> Evaluator:
    if len(symbols) == 1:
        (symbol,) = symbols
        return lambda program: program.erased.sizes[symbol]
    return _multiple(1, *symbols)


def _multiple(factor: int, *symbols: int) -> Evaluator:
    def multiple(program: ConcreteProgram) -> int:
        sizes = program.erased.sizes
        return prod([sizes[symbol] for symbol in symbols], start=factor)

    return multiple


def _offset(position: int, itemsize: int) -> Evaluator:
    return lambda program: program.offset(position) * itemsize


def _declared(position: int, k: int) -> Evaluator:
    return lambda program: program.declared_numbers(position)[k]


def _literal(index: int, dtype: str) -> Evaluator:
    return lambda program: _slot_of(dtype, program.erased.literals[index])


def _component(index: int, dtype: str, component: int) -> Evaluator:
    name = "imag" if component else "real"
    return lambda program: _slot_of(dtype, getattr(program.erased.literals[index], name))


def _slot_of(dtype: str, value: Any) -> int:
    # 0.0 and -0.0 are equal keys with different bits, and a 0-d array has no hash: do not cache.
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
    """The condition under which a symbolic plan is valid: answers to queries of sizes.

    Expressions are named by ordinal.

    Attributes:
        short: (expression, value if it is at most MAX_EXACT, else None).
        in_text: (expression, value) of other values that are in a kernel's text.
        equal: (expression, expression, whether their values are equal).
    """

    short: tuple[tuple[int, int | None], ...]
    in_text: tuple[tuple[int, int], ...]
    equal: tuple[tuple[int, int, bool], ...]

    def holds(self, values: SizeValues) -> bool:
        """Whether the condition holds; ``values`` must have all expressions of the guard.

        Evaluate the table after you read the plan: an older evaluation may lack expressions.
        """
        for ordinal, expected in self.short:
            size = values[ordinal]
            if (size if size <= MAX_EXACT else None) != expected:
                return False
        for ordinal, expected in self.in_text:
            if values[ordinal] != expected:
                return False
        return all([(values[a] == values[b]) is answer for a, b, answer in self.equal])
