"""Recipes: argument blocks of a template's kernels as functions of a program's sizes.

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


class Guard(NamedTuple):
    """Conditions under which lowering gives the same kernel, on values of sources by ordinal.

    Attributes:
        short: sizes that are written in the text if they are short; None: it is longer.
        written: other size expressions that are written in the text.
        equal: pairs that are equal, or that are not.
    """

    short: tuple[tuple[int, int | None], ...]
    written: tuple[tuple[int, int], ...]
    equal: tuple[tuple[int, int, bool], ...]

    def holds(self, values: Sequence[int]) -> bool:
        """Whether they hold for the values of all sources."""
        for ordinal, expected in self.short:
            size = values[ordinal]
            if (size if size <= LONGEST_EXACT else None) != expected:
                return False
        for ordinal, expected in self.written:
            if values[ordinal] != expected:
                return False
        return all([(values[a] == values[b]) is answer for a, b, answer in self.equal])


@record(eq=False)
class Recipe:
    """A kernel and the sources of its arguments, by ordinal.

    Attributes:
        use: the kernel, and its use of buffers.
        slots, extent, points: of the call; size expressions.
        buffers: of the call.
        guard: when it applies.
    """

    use: Use
    slots: tuple[int, ...]
    buffers: tuple[int, ...]
    extent: int
    points: int
    guard: Guard

    def call(self, values: Sequence[int]) -> KernelCall:
        """The kernel with its arguments."""
        slots = tuple([values[ordinal] for ordinal in self.slots])
        extent, points = values[self.extent], values[self.points]
        return KernelCall(self.use.kernel, slots, self.buffers, extent, points)


def make_recipe(
    lowered: Lowered, use: Use, call: KernelCall, sources: Sources
) -> Recipe:
    """Make the recipe of a lowered group from its ``use`` and ``call``."""

    def ordinal(of: Number) -> int:
        return sources.number(of.source)

    facts = lowered.facts
    return Recipe(
        use, tuple([ordinal(slot) for slot in lowered.slots]), call.buffers,
        ordinal(lowered.extent), ordinal(lowered.points),
        Guard(
            tuple([(ordinal(size), value) for size, value in facts.short.items()]),
            tuple([(ordinal(of), value) for of, value in facts.written.items()]),
            tuple([(ordinal(a), ordinal(b), answer) for (a, b), answer in facts.equal.items()]),
        ),
    )  # fmt: skip


@record
class MergedRecipes:
    """The merged recipes of all kernels of a program.

    Attributes:
        guard: the conditions of all recipes, each once.
        take: selects the arguments of all calls from the values of sources.
        layout: of each call the group, kernel and buffers, the range of its arguments, and the
            sources of its extent and points.
    """

    guard: Guard
    take: Callable[[Sequence[int]], tuple[int, ...]]
    layout: tuple[tuple[int, Kernel, tuple[int, ...], int, int, int, int], ...]

    def calls(self, values: Sequence[int]) -> Calls:
        """The kernels with their arguments."""
        slots = self.take(values)
        return {
            group: KernelCall(kernel, slots[start:stop], buffers, values[extent], values[points])
            for group, kernel, buffers, start, stop, extent, points in self.layout
        }


def merge_recipes(recipes: Sequence[Recipe | None]) -> MergedRecipes:
    """Merge the recipes of all groups that have a kernel."""
    layout, slots = [], []
    for group, recipe in enumerate(recipes):
        if recipe is not None:
            start = len(slots)
            slots += recipe.slots
            layout.append((group, recipe.use.kernel, recipe.buffers, start, len(slots),
                          recipe.extent, recipe.points))  # fmt: skip
    tables = zip(*[recipe.guard for recipe in recipes if recipe is not None], strict=True)
    merged = [tuple(dict.fromkeys(chain.from_iterable(table))) for table in tables]
    return MergedRecipes(
        Guard(*merged) if merged else EMPTY_GUARD,
        selector(slots),
        tuple(layout),
    )


EMPTY_GUARD = Guard((), (), ())


def selector(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that selects the values at some indices, as a tuple."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple([values[index] for index in indices])


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
