"""Interface between the evaluator of a lane program and the ops that it emits.

Tests: tests/compiler/test_lanes.py.
"""

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
        """The index of the lane along a batch dimension, as int64; the same Value each time.

        An operand is at the lane's own element if its index is this Value.
        """
        ...

    def load(
        self,
        array: MemoryArray | ComputedArray,
        indices: Sequence[Value],
        where: Value | None = None,
    ) -> Element:
        """Load an element of an operand in memory, or of a computed value.

        Args:
            array: the array.
            indices: an int64 index for each dimension, in bounds where ``where`` is true; that of a
                batch dimension must be ``lane_index``.
            where: bool; the element is zero where it is false.

        Raises:
            NotLanesError: if the element is another lane's.
        """
        ...

    def values_of(self, array: Array) -> LaneArray:
        """Load an array into values, if it is not there yet; raises NotLanesError if too large."""
        ...

    def rounded(self, element: Element, var: Var) -> Element:
        """An element of a variable's value, rounded to its dtype."""
        ...
