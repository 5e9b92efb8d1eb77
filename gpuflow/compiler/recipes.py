"""Recipes: how the argument blocks of a template's kernels follow from the sizes of a program.

Lowering a group for one set of sizes leaves a recipe: the kernel, and for each word where it comes
from. For other sizes the words are looked up and the conditions are checked under which the kernel
would be the same; nothing is scheduled or emitted again. A group whose words do not all come from
sizes, views and numbers of the program has no recipe and is lowered each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import prod
from operator import itemgetter
from typing import Any

from gpuflow.compiler.index_sizes import Asked, ask_sizes
from gpuflow.compiler.lower import KernelCall, Word
from gpuflow.compiler.schedule import LONGEST_EXACT
from gpuflow.core.jaxpr import Eqn, Jaxpr, Var
from gpuflow.core.views import View
from gpuflow.kir.interpret import scalar_to_word
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.text import kernel_text

# Where a number comes from; an operand is named by its equation's position and its own.
#   ("constant", number)
#   ("product", *symbols)                   sizes multiplied
#   ("stride", position, operand, dim)      of the view through which the operand is read
#   ("size", position, number)              that an Indexed op passes, see index_sizes
#   ("literal", position, operand, dtype)   a scalar of the program
#   ("pointer", buffer, position, operand, itemsize)   the buffer, from the view's offset on; from
#                                           its start if there is no operand
Source = tuple[Any, ...]


@dataclass(frozen=True)
class Symbols:
    """What a program's key says of it: the distinct sizes but 1, and all variables, in order."""

    sizes: tuple[int, ...]
    variables: tuple[Var, ...]


_NO_WORD = Word(None, 0)


@dataclass(frozen=True)
class _Tables:
    """Sources by kind, each with its number.

    Attributes:
        count: of the sources that are here.
        fixed: the words that are constants, and places for all others.
        sizes: one size each.
        others: all that are looked up one by one.
    """

    count: int
    fixed: list[Word]
    sizes: list[tuple[int, int]]
    products: list[tuple[int, tuple[int, ...]]]
    literals: list[tuple[int, int, int, str]]
    others: list[tuple[int, Source]]


@dataclass
class Sources:
    """The sources of all recipes of a template; recipes refer to them by number."""

    numbers: dict[Source, int] = field(default_factory=dict)
    literals: dict[int, tuple[Any, Word]] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)
    tables: _Tables = field(default_factory=lambda: _Tables(0, [], [], [], [], []))

    def number(self, source: Source) -> int:
        """The number of a source; threads may ask at once, and some numbers stand for none."""
        found = self.numbers.get(source)
        return self.numbers.setdefault(source, next(self.counter)) if found is None else found

    def words(self, bound: BoundSizes) -> list[Word]:
        """The value of every source, by its number."""
        tables = self.tables
        if tables.count != len(self.numbers):
            tables = self.tables = _tables(tuple(self.numbers.items()))
        words = tables.fixed.copy()
        sizes = bound.symbols.sizes
        for number, symbol in tables.sizes:
            words[number] = Word(None, sizes[symbol])
        for number, symbols in tables.products:
            words[number] = Word(None, prod([sizes[k] for k in symbols]))
        self._literals(tables, words, bound.jaxpr.eqns)
        for number, source in tables.others:
            words[number] = _word(source, bound)
        return words

    def _literals(self, tables: _Tables, words: list[Word], eqns: Sequence[Eqn]) -> None:
        known = self.literals
        for number, position, operand, dtype in tables.literals:
            value = eqns[position].inputs[operand].value
            last, word = known.get(number, (None, _NO_WORD))
            # Zeros and nans stand in the text: what is equal has equal bits.
            if last != value or type(last) is not type(value):
                word = Word(None, scalar_to_word(dtype, value))
                known[number] = value, word
            words[number] = word


def _tables(sources: Sequence[tuple[Source, int]]) -> _Tables:
    """The sources by kind."""
    fixed = [_NO_WORD] * (1 + max([number for _, number in sources], default=-1))
    tables = _Tables(len(sources), fixed, [], [], [], [])
    for source, number in sources:
        kind, *rest = source
        if kind == "constant":
            fixed[number] = Word(None, rest[0])
        elif kind == "product" and len(rest) == 1:
            tables.sizes.append((number, rest[0]))
        elif kind == "product":
            tables.products.append((number, tuple(rest)))
        elif kind == "literal":
            position, operand, dtype = rest
            tables.literals.append((number, position, operand, dtype))
        else:
            tables.others.append((number, source))
    return tables


def _word(source: Source, bound: BoundSizes) -> Word:
    """The value of a source that depends on more than sizes."""
    kind, first, second, *rest = source
    if kind == "size":
        sizes = bound.asked(first).sizes
        # Fewer than there were: then the trace differs, and the recipe does not fit.
        return Word(None, sizes[second] if second < len(sizes) else 0)
    if kind == "stride":
        return Word(None, bound.view(first, second).strides[rest[0]])
    operand, itemsize = rest
    offset = 0 if second is None else bound.view(second, operand).offset
    return Word(bound.symbols.variables[first], offset * itemsize)


@dataclass(frozen=True)
class BoundSizes:
    """One program, as far as recipes need it."""

    jaxpr: Jaxpr
    symbols: Symbols
    views: Mapping[Var, tuple[Var, View]]
    known: dict[int, Asked] = field(default_factory=dict)

    def asked(self, position: int) -> Asked:
        """What an Indexed op asks for."""
        if position not in self.known:
            self.known[position] = ask_sizes(self.jaxpr, position, self.views)
        return self.known[position]

    def view(self, position: int, operand: int) -> View:
        """The view through which an operand is read."""
        atom = self.jaxpr.eqns[position].inputs[operand]
        assert type(atom) is Var
        return self.views[atom][1]


@dataclass(frozen=True)
class Recipe:
    """A kernel and where its arguments come from; numbers are those of sources and variables.

    Attributes:
        exact: the source of the innermost extent and the size that is written in the text, or None
            for a long one; no pair if there is no such axis.
        equal: pairs of sources that have to be equal.
        products: outer stride, inner stride and inner size of axes that were made one.
        units: strides of the innermost axis that are 1, or that are not.
        repeats: operands read through views, and the dimensions along which these repeat.
        traces: of Indexed ops, what they ask for.
    """

    kernel: Kernel
    words: tuple[int, ...]
    extent: int
    points: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    overwrites: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...]
    exact: tuple[int, int | None] | None
    equal: tuple[tuple[int, int], ...]
    products: tuple[tuple[int, int, int], ...]
    units: tuple[tuple[int, bool], ...]
    repeats: tuple[tuple[int, int, tuple[bool, ...]], ...]
    traces: tuple[tuple[int, tuple[Any, ...]], ...]

    def fits(self, words: Sequence[Word], bound: BoundSizes) -> bool:
        """Whether lowering would give this kernel."""
        if self.exact is not None:
            size = words[self.exact[0]].value
            if (size if size <= LONGEST_EXACT else None) != self.exact[1]:
                return False
        return not self.conditions or (
            all(words[a].value == words[b].value for a, b in self.equal)
            and all(
                words[a].value == words[b].value * words[n].value for a, b, n in self.products
            )
            and all((words[a].value == 1) is is_unit for a, is_unit in self.units)
            and all(bound.view(e, k).broadcast == flags for e, k, flags in self.repeats)
            and all(bound.asked(e).trace == trace for e, trace in self.traces)
        )

    @cached_property
    def conditions(self) -> int:
        """How many there are besides the one about the innermost extent."""
        tables = (self.equal, self.products, self.units, self.repeats, self.traces)
        return sum(map(len, tables))

    def call(self, words: Sequence[Word], variables: Sequence[Var]) -> KernelCall:
        """The kernel with its arguments."""
        own, reads, writes, overwrites = self.getters
        return KernelCall(
            self.kernel,
            own(words),
            words[self.extent].value,
            words[self.points].value,
            reads(variables),
            writes(variables),
            overwrites(variables),
        )

    @cached_property
    def getters(self) -> tuple[Callable[[Sequence[Any]], tuple[Any, ...]], ...]:
        """What takes the words, and the buffers, out of those of the program."""
        return tuple(map(_getter, (self.words, self.reads, self.writes, self.overwrites)))


def _getter(numbers: tuple[int, ...]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda values: tuple([values[k] for k in numbers])


def check_same(made: KernelCall, lowered: KernelCall) -> None:
    """Check that a recipe gives what lowering does: for tests, GPUFLOW_CHECK=1.

    Raises:
        AssertionError: they differ, a bug.
    """
    texts = kernel_text(made.kernel), kernel_text(lowered.kernel)
    assert texts[0] == texts[1], "\n".join(["[recipe] another kernel:", *texts])
    same = replace(made, kernel=lowered.kernel)
    assert same == lowered, f"[recipe] other arguments: {same.words}, lowered {lowered.words}"
