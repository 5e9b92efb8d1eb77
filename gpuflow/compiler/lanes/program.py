"""Lane programs: the KernelIR of one batch element, and the primitive that maps it over a batch.

A *lane* is one element of a batch whose loops run independently of the others (docs/glossary.md).

Tests: tests/compiler/test_lanes.py, tests/compiler/test_lane_tiles.py.
"""

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
    """The computation of one batch element; ``make_lane_program`` makes it.

    Programs are equal if their text is. No size is in the block: sizes and strides are params, so
    that one program serves all sizes.

    Attributes:
        block: the code. Its params are described by ``sources``. It loads from operands m0, m1, ...
            and stores to outputs y0, y1, ... at offsets that it computes, in elements, int64. Its
            results are the outputs that it does not store, in order; a complex one has two.
        sources: the meaning of each param, in the order of ``block.params``:
            ("element", operand)          the operand's element at the batch index
            ("part", operand, component)  a component of that element, if it is complex
            ("stride", operand, dim)      stride of an operand in memory, in elements
            ("out stride", output, dim)   stride of an output that the block stores
            ("index", lane)               the index along batch dimension ``lane``
            ("number", k)                 the k-th of the equation's ``lengths``
        reads: for each of the leading operands, which are read from memory, the batch dimension of
            each of its dimensions; negative for dimensions at which the block computes offsets.
        writes: likewise for each output that the block stores; None for an output that is a result.
        text: canonical text of all fields above.
    """

    block: Block
    sources: tuple[Source, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...] | None, ...]
    text: str

    @property
    def uses_lane_index(self) -> bool:
        """Whether the program depends on the batch index."""
        return any(source[0] == "index" for source in self.sources)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaneProgram) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"<{sum(1 for _ in statements(self.block))} statements>"


def make_lane_program(
    block: Block,
    sources: tuple[Source, ...],
    reads: tuple[tuple[int, ...], ...],
    writes: tuple[tuple[int, ...] | None, ...],
) -> LaneProgram:
    """Build a lane program with its canonical text; arguments as of ``LaneProgram``."""
    return LaneProgram(block, sources, reads, writes, repr((block, sources, reads, writes)))


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
