"""Recipes: how the argument blocks of a template's kernels follow from the sizes of a program.

Lowering a group for one set of sizes leaves a recipe: the kernel, and for each argument slot its
source. For other sizes the values are looked up and the conditions are checked under which the
kernel would be the same; nothing is scheduled or emitted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import KernelCall, Lowered, Use
from gpuflow.compiler.lowering.symbols import LONGEST_EXACT, Number
from gpuflow.compiler.lowering.word_sources import Sources
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.text import kernel_text

Calls = dict[int, KernelCall]  # by group


class Conditions(NamedTuple):
    """When lowering gives the same kernel; numbers are those of sources.

    Attributes:
        short: sizes that are written in the text if they are short; None: it is longer.
        written: other numbers that are written in the text.
        equal: pairs that are equal, or that are not.
    """

    short: tuple[tuple[int, int | None], ...]
    written: tuple[tuple[int, int], ...]
    equal: tuple[tuple[int, int, bool], ...]

    def hold(self, values: Sequence[int]) -> bool:
        """Whether they hold for the values of all sources."""
        for number, wanted in self.short:
            size = values[number]
            if (size if size <= LONGEST_EXACT else None) != wanted:
                return False
        for number, wanted in self.written:
            if values[number] != wanted:
                return False
        return all([(values[a] == values[b]) is answer for a, b, answer in self.equal])


@record(eq=False)
class Recipe:
    """A kernel and where its arguments come from; numbers are those of sources.

    Attributes:
        use: the kernel, and its use of buffers.
        words, extent, points: of the call; size expressions.
        buffers: of the call.
        conditions: whether it fits.
    """

    use: Use
    words: tuple[int, ...]
    buffers: tuple[int, ...]
    extent: int
    points: int
    conditions: Conditions

    def call(self, values: Sequence[int]) -> KernelCall:
        """The kernel with its arguments."""
        words = tuple([values[number] for number in self.words])
        extent, points = values[self.extent], values[self.points]
        return KernelCall(self.use.kernel, words, self.buffers, extent, points)


def make_recipe(
    lowered: Lowered, use: Use, call: KernelCall, sources: Sources
) -> Recipe:
    """Make the recipe of a lowered group from its ``use`` and ``call``."""

    def number(of: Number) -> int:
        return sources.number(of.source)

    facts = lowered.facts
    return Recipe(
        use, tuple([number(word) for word in lowered.words]), call.buffers,
        number(lowered.extent), number(lowered.points),
        Conditions(
            tuple([(number(size), value) for size, value in facts.short.items()]),
            tuple([(number(of), value) for of, value in facts.written.items()]),
            tuple([(number(a), number(b), answer) for (a, b), answer in facts.equal.items()]),
        ),
    )  # fmt: skip


@record
class Choice:
    """Recipes for all kernels of a program, taken together.

    Attributes:
        conditions: of all recipes, each once.
        take: takes the arguments of all calls out of the values of sources.
        parts: of each call the group, kernel and buffers, the range of its arguments, and the
            sources of its extent and points.
    """

    conditions: Conditions
    take: Callable[[Sequence[int]], tuple[int, ...]]
    parts: tuple[tuple[int, Kernel, tuple[int, ...], int, int, int, int], ...]

    def calls(self, values: Sequence[int]) -> Calls:
        """The kernels with their arguments."""
        words = self.take(values)
        return {
            group: KernelCall(kernel, words[start:stop], buffers, values[extent], values[points])
            for group, kernel, buffers, start, stop, extent, points in self.parts
        }


def chosen(recipes: Sequence[Recipe | None]) -> Choice:
    """The choice of a recipe for each group that has a kernel."""
    parts, words = [], []
    for group, recipe in enumerate(recipes):
        if recipe is not None:
            start = len(words)
            words += recipe.words
            parts.append((group, recipe.use.kernel, recipe.buffers, start, len(words),
                          recipe.extent, recipe.points))  # fmt: skip
    tables = zip(*[recipe.conditions for recipe in recipes if recipe is not None], strict=True)
    together = [tuple(dict.fromkeys(chain.from_iterable(table))) for table in tables]
    return Choice(
        Conditions(*together) if together else NO_CONDITIONS,
        taker(words),
        tuple(parts),
    )


NO_CONDITIONS = Conditions((), (), ())


def taker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that takes the values at some indices, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])


def check_same(recalled: tuple[Use, KernelCall], lowered: tuple[Use, KernelCall]) -> None:
    """Check that a recipe gives the result of lowering: for tests, GPUFLOW_CHECK=1.

    Raises:
        AssertionError: they differ, a bug.
    """
    texts = [kernel_text(use.kernel) for use, _ in (recalled, lowered)]
    assert texts[0] == texts[1], "\n".join(["[recipe] another kernel:", *texts])
    calls = [
        (call[1:], use.reads, use.writes, use.overwrites, set(use.in_place))
        for use, call in (recalled, lowered)
    ]
    assert calls[0] == calls[1], f"[recipe] other arguments: {calls[0]}, lowered {calls[1]}"
