"""Recipes: how the argument blocks of a template's kernels follow from the sizes of a program.

Lowering a group for one set of sizes leaves a recipe: the kernel, and for each word where it comes
from. For other sizes the words are looked up and the conditions are checked under which the kernel
would be the same; nothing is scheduled or emitted again. A group whose words do not all come from
sizes, views and numbers of the program has no recipe and is lowered each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

from gpuflow.compiler.index_sizes import Asked, ask_sizes
from gpuflow.compiler.lower import KernelCall, Word
from gpuflow.compiler.schedule import LONGEST_EXACT
from gpuflow.core.jaxpr import Jaxpr, Var
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


@dataclass
class Sources:
    """The sources of all recipes of a template; recipes refer to them by number."""

    numbers: dict[Source, int] = field(default_factory=dict)
    literals: dict[int, tuple[Any, Word]] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)

    def number(self, source: Source) -> int:
        """The number of a source; threads may ask at once, and some numbers stand for none."""
        found = self.numbers.get(source)
        return self.numbers.setdefault(source, next(self.counter)) if found is None else found

    def words(self, bound: BoundSizes) -> list[Word]:
        """The value of every source, by its number."""
        sources = tuple(self.numbers.items())
        words = [Word(None, 0)] * (1 + max([number for _, number in sources], default=-1))
        for source, number in sources:
            kind = source[0]
            if kind == "product":
                word = Word(None, prod([bound.symbols.sizes[k] for k in source[1:]]))
            elif kind == "constant":
                word = Word(None, source[1])
            elif kind == "literal":
                word = self._literal(number, source, bound.jaxpr)
            elif kind == "size":
                sizes = bound.asked(source[1]).sizes
                # Fewer than there were: then the trace differs, and the recipe does not fit.
                word = Word(None, sizes[source[2]] if source[2] < len(sizes) else 0)
            elif kind == "stride":
                word = Word(None, bound.view(source[1], source[2]).strides[source[3]])
            else:
                _, buffer, position, operand, itemsize = source
                offset = 0 if position is None else bound.view(position, operand).offset
                word = Word(bound.symbols.variables[buffer], offset * itemsize)
            words[number] = word
        return words

    def _literal(self, number: int, source: Source, jaxpr: Jaxpr) -> Word:
        _, position, operand, dtype = source
        value = jaxpr.eqns[position].inputs[operand].value
        known = self.literals.get(number)
        # Zeros and nans stand in the text: what is equal has equal bits.
        if known is not None and type(known[0]) is type(value) and known[0] == value:
            return known[1]
        word = Word(None, scalar_to_word(dtype, value))
        self.literals[number] = value, word
        return word


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
        return KernelCall(
            self.kernel,
            tuple([words[k] for k in self.words]),
            words[self.extent].value,
            words[self.points].value,
            tuple([variables[k] for k in self.reads]),
            tuple([variables[k] for k in self.writes]),
            tuple([variables[k] for k in self.overwrites]),
        )


def check_same(made: KernelCall, lowered: KernelCall) -> None:
    """Check that a recipe gives what lowering does: for tests, GPUFLOW_CHECK=1.

    Raises:
        AssertionError: they differ, a bug.
    """
    texts = kernel_text(made.kernel), kernel_text(lowered.kernel)
    assert texts[0] == texts[1], "\n".join(["[recipe] another kernel:", *texts])
    same = replace(made, kernel=lowered.kernel)
    assert same == lowered, f"[recipe] other arguments: {same.words}, lowered {lowered.words}"
