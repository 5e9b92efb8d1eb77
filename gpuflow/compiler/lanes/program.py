"""The primitive of a batched loop: a block of KernelIR at each index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Laned
from gpuflow.core.primitive import make_primitive
from gpuflow.kir.nodes import Block
from gpuflow.kir.walk import statements

Source = tuple[Any, ...]


@record(eq=False)
class LaneProgram:
    """The computation of one batch element.

    Attributes:
        block: its params are ``sources``; it loads from operands m0, m1, ... and stores to outputs
            y0, y1, ... with its own offsets, and its results are the other outputs.
        sources: the meaning of each param:
            ("element", operand)          the operand's element at the batch index
            ("part", operand, component)  a component of it, if it is complex
            ("stride", operand, dim)      of an operand in memory, in elements
            ("out stride", output, dim)   of an output that is stored
            ("index", lane)               the batch index
            ("number", k)                 a size expression of the equation
        reads: of the leading operands, which are read from memory, the lane of each dimension, or
            negative for dimensions of its own offsets.
        writes: the same of each output that the block stores; None: it is a result.
        text: equal for programs that do the same.
    """

    block: Block
    sources: tuple[Source, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...] | None, ...]
    text: str

    @property
    def asks_for_indices(self) -> bool:
        """Whether it depends on the index of a lane."""
        return any(source[0] == "index" for source in self.sources)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaneProgram) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<{sum(1 for _ in statements(self.block))} statements>"


def _shape(*avals: ShapedArray, outs: Sequence[ShapedArray], **params: Any) -> Sequence[Any]:
    del avals, params
    return outs


lane_program_p = make_primitive(
    "lane_loop",
    shape=_shape,
    lower=Laned(
        lambda params: params["program"],
        lambda params: params["sizes"],
        lambda in_avals, params: params["lengths"],
    ),
    multiple_results=True,
    size_params=frozenset(("sizes", "lengths", "outs")),
)
