"""Interface between the evaluator of a lane program and the ops that it emits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuflow.compiler.lanes.arrays import Array, ComputedArray, Element, LaneArray, MemoryArray
from gpuflow.compiler.lanes.folding import FoldingBuilder
from gpuflow.core.jaxpr import Var
from gpuflow.kir.nodes import Value


class LaneContext(Protocol):
    """The methods of ``evaluate.Evaluator`` that ops use.

    Attributes:
        builder: the builder of the emitted code.
    """

    builder: FoldingBuilder

    def lane_index(self, lane: int) -> Value:
        """The index of the lane along a batch dimension, as int64."""
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
        """Load an array into values, if it is not there yet."""
        ...

    def rounded(self, element: Element, var: Var) -> Element:
        """An element of a variable's value, rounded to its dtype."""
        ...
