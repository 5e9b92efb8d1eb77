"""Sources of the values in the argument blocks of a template's kernels.

Recipes refer to sources by ordinal. For a new size all of them are evaluated at once.
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
    """Sources by kind, each with its ordinal.

    Attributes:
        count: count of the sources in the tables.
        fixed: the values of constants, and zeros for all others.
        sizes: products of one size.
    """

    count: int
    fixed: list[int]
    sizes: list[tuple[int, int]]
    products: list[tuple[int, int, tuple[int, ...]]]
    literals: list[tuple[int, int, str]]
    components: list[tuple[int, int, str, int]]
    offsets: list[tuple[int, int, int]]
    declared: list[tuple[int, int, int]]


def _no_tables() -> _Tables:
    return _Tables(0, [], [], [], [], [], [], [])


@record(frozen=False)
class Sources:
    """The sources of all recipes of a template; recipes refer to them by ordinal."""

    numbers: dict[Source, int] = field(default_factory=dict)
    literals: dict[int, tuple[Any, int]] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)
    tables: _Tables = field(default_factory=_no_tables)

    def number(self, source: Source) -> int:
        """The ordinal of a source; it is thread-safe, and some ordinals are unused."""
        number = self.numbers.get(source)
        return self.numbers.setdefault(source, next(self.counter)) if number is None else number

    def values(self, bound: BoundSizes) -> list[int]:
        """The value of every source, by its ordinal."""
        tables = self.tables
        if tables.count != len(self.numbers):
            tables = self.tables = _tables(tuple(self.numbers.items()))
        values = tables.fixed.copy()
        sizes = bound.symbols.sizes
        for ordinal, symbol in tables.sizes:
            values[ordinal] = sizes[symbol]
        for ordinal, factor, symbols in tables.products:
            values[ordinal] = prod([sizes[k] for k in symbols], start=factor)
        self._literals(tables, values, bound.symbols.literals)
        for ordinal, position, itemsize in tables.offsets:
            values[ordinal] = bound.offset(position) * itemsize
        for ordinal, position, k in tables.declared:
            values[ordinal] = bound.declared(position)[k]
        return values

    def _literals(self, tables: _Tables, values: list[int], literals: Sequence[Any]) -> None:
        cached = self.literals
        for ordinal, slot, dtype in tables.literals:
            value = literals[slot]
            last, bits = cached.get(ordinal, (None, 0))
            # Zeros and nans are in the text: equal values have equal bits.
            if last != value or type(last) is not type(value):
                bits = scalar_to_slot(dtype, value)
                cached[ordinal] = value, bits
            values[ordinal] = bits
        for ordinal, slot, dtype, component in tables.components:
            value = literals[slot]
            values[ordinal] = scalar_to_slot(dtype, value.imag if component else value.real)


def _tables(sources: Sequence[tuple[Source, int]]) -> _Tables:
    """The sources by kind."""
    fixed = [0] * (1 + max([ordinal for _, ordinal in sources], default=-1))
    tables = _Tables(len(sources), fixed, [], [], [], [], [], [])
    by_kind: dict[str, list[Any]] = {
        "literal": tables.literals, "part": tables.components, "offset": tables.offsets,
        "number": tables.declared,
    }  # fmt: skip
    for source, ordinal in sources:
        kind, *rest = source
        if kind == "constant":
            fixed[ordinal] = rest[0]
        elif kind == "product" and len(rest) == 1:
            tables.sizes.append((ordinal, rest[0]))
        elif kind == "product":
            tables.products.append((ordinal, 1, tuple(rest)))
        elif kind == "multiple":
            tables.products.append((ordinal, rest[0], tuple(rest[1:])))
        else:
            by_kind[kind].append((ordinal, *rest))
    return tables


@record
class BoundSizes:
    """The sizes and views of one program."""

    jaxpr: Jaxpr
    symbols: Symbols
    views: Mapping[Var, tuple[Var, View]]
    declared_values: dict[int, list[int]] = field(default_factory=dict)

    def declared(self, position: int) -> list[int]:
        """The size expressions that an Indexed op passes to its kernel."""
        if position not in self.declared_values:
            self.declared_values[position] = declared_numbers(self.jaxpr.eqns[position])
        return self.declared_values[position]

    def offset(self, position: int) -> int:
        """The offset of an equation's view, in elements."""
        return self.views[self.jaxpr.eqns[position].outputs[0]][1].offset


def declared_numbers(eqn: Eqn) -> list[int]:
    """The size expressions that an ``Indexed`` op passes to its kernel."""
    declare = eqn.primitive.lower.numbers
    if declare is None:
        return []
    return [int(number) for number in declare([atom.aval for atom in eqn.inputs], eqn.params)]
