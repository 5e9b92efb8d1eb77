"""The interface of a program of one lane to the ops that are emitted into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuflow.compiler.lanes.arrays import Array, ComputedArray, Element, LaneArray, MemoryArray
from gpuflow.compiler.lanes.folding import FoldingBuilder
from gpuflow.core.jaxpr import Var
from gpuflow.kir.nodes import Value


class LaneContext(Protocol):
    """The methods of ``Evaluator`` that ops use.

    Attributes:
        builder: the emitted code so far.
    """

    builder: FoldingBuilder

    def lane_index(self, lane: int) -> Value:
        """The index along a batch dimension."""
        ...

    def load(
        self,
        array: MemoryArray | ComputedArray,
        indices: Sequence[Value],
        where: Value | None = None,
    ) -> Element:
        """Load an element of an operand in memory, or of a computed value."""
        ...

    def values_of(self, array: Array) -> LaneArray:
        """An array as values; one in memory is read."""
        ...

    def rounded(self, element: Element, var: Var) -> Element:
        """An element of a variable's value, rounded to its dtype."""
        ...
