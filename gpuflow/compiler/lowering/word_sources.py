"""Sources: where the numbers in the argument blocks of a template's kernels come from.

Recipes refer to sources by number. For a new size all of them are looked up at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import count
from math import prod
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.views import View
from gpuflow.kir.interpret import scalar_to_word

# Where a number comes from; an equation is named by its position.
#   ("constant", number)
#   ("product", *symbols)           sizes multiplied
#   ("multiple", factor, *symbols)  a multiple of that: a stride
#   ("offset", position, itemsize)  of a view that an equation is, in units of that size
#   ("number", position, k)         that an Indexed op declares
#   ("literal", number, dtype)      a scalar of the program
#   ("part", number, dtype, part)   the real part of one (0), or the imaginary part (1)
Source = tuple[Any, ...]


@record
class Symbols:
    """The result of erasing the sizes of a program.

    Attributes:
        sizes: the distinct sizes but 0 and 1, in order of appearance.
        variables: all variables in that order, inputs first: the index of a variable is the id of
            its buffer.
        literals: the values of all literals, in order.
    """

    sizes: tuple[int, ...]
    variables: tuple[Var, ...]
    literals: tuple[Any, ...]


@record
class _Tables:
    """Sources by kind, each with its number.

    Attributes:
        count: of the sources that are here.
        fixed: the numbers that are constants, and places for all others.
        sizes: one size each.
    """

    count: int
    fixed: list[int]
    sizes: list[tuple[int, int]]
    products: list[tuple[int, int, tuple[int, ...]]]
    literals: list[tuple[int, int, str]]
    parts: list[tuple[int, int, str, int]]
    offsets: list[tuple[int, int, int]]
    declared: list[tuple[int, int, int]]


def _no_tables() -> _Tables:
    return _Tables(0, [], [], [], [], [], [], [])


@record(frozen=False)
class Sources:
    """The sources of all recipes of a template; recipes refer to them by number."""

    numbers: dict[Source, int] = field(default_factory=dict)
    literals: dict[int, tuple[Any, int]] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)
    tables: _Tables = field(default_factory=_no_tables)

    def number(self, source: Source) -> int:
        """The ordinal of a source; it is thread-safe, and some ordinals are unused."""
        number = self.numbers.get(source)
        return self.numbers.setdefault(source, next(self.counter)) if number is None else number

    def values(self, bound: BoundSizes) -> list[int]:
        """The value of every source, by its number."""
        tables = self.tables
        if tables.count != len(self.numbers):
            tables = self.tables = _tables(tuple(self.numbers.items()))
        values = tables.fixed.copy()
        sizes = bound.symbols.sizes
        for number, symbol in tables.sizes:
            values[number] = sizes[symbol]
        for number, factor, symbols in tables.products:
            values[number] = prod([sizes[k] for k in symbols], start=factor)
        self._literals(tables, values, bound.symbols.literals)
        for number, position, itemsize in tables.offsets:
            values[number] = bound.offset(position) * itemsize
        for number, position, k in tables.declared:
            values[number] = bound.declared(position)[k]
        return values

    def _literals(self, tables: _Tables, values: list[int], literals: Sequence[Any]) -> None:
        known = self.literals
        for number, place, dtype in tables.literals:
            value = literals[place]
            last, word = known.get(number, (None, 0))
            # Zeros and nans stand in the text: what is equal has equal bits.
            if last != value or type(last) is not type(value):
                word = scalar_to_word(dtype, value)
                known[number] = value, word
            values[number] = word
        for number, place, dtype, part in tables.parts:
            value = literals[place]
            values[number] = scalar_to_word(dtype, value.imag if part else value.real)


def _tables(sources: Sequence[tuple[Source, int]]) -> _Tables:
    """The sources by kind."""
    fixed = [0] * (1 + max([number for _, number in sources], default=-1))
    tables = _Tables(len(sources), fixed, [], [], [], [], [], [])
    by_kind: dict[str, list[Any]] = {
        "literal": tables.literals, "part": tables.parts, "offset": tables.offsets,
        "number": tables.declared,
    }  # fmt: skip
    for source, number in sources:
        kind, *rest = source
        if kind == "constant":
            fixed[number] = rest[0]
        elif kind == "product" and len(rest) == 1:
            tables.sizes.append((number, rest[0]))
        elif kind == "product":
            tables.products.append((number, 1, tuple(rest)))
        elif kind == "multiple":
            tables.products.append((number, rest[0], tuple(rest[1:])))
        else:
            by_kind[kind].append((number, *rest))
    return tables


@record
class BoundSizes:
    """One program, as far as recipes need it."""

    jaxpr: Jaxpr
    symbols: Symbols
    views: Mapping[Var, tuple[Var, View]]
    known: dict[int, list[int]] = field(default_factory=dict)

    def declared(self, position: int) -> list[int]:
        """The numbers that an Indexed op passes to its kernel."""
        if position not in self.known:
            self.known[position] = declared_numbers(self.jaxpr.eqns[position])
        return self.known[position]

    def offset(self, position: int) -> int:
        """The first element of a view that an equation is."""
        return self.views[self.jaxpr.eqns[position].outputs[0]][1].offset


def declared_numbers(eqn: Eqn) -> list[int]:
    """The numbers that an ``Indexed`` op passes to its kernel."""
    declare = eqn.primitive.lower.numbers
    if declare is None:
        return []
    return [int(number) for number in declare([atom.aval for atom in eqn.inputs], eqn.params)]
