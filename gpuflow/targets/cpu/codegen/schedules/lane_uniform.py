"""Uniformity analysis: While loops that all lanes of a block leave in the same iteration.

A value is uniform if it is equal for all lanes of a block. If the condition of a loop is uniform,
``lane_blocks`` writes the loop without masks.

Tests: tests/compiler/test_lanes.py.
"""

from __future__ import annotations

from typing import Protocol

from gpuflow.kir.nodes import Block, For, If, Statement, While
from gpuflow.kir.walk import results_of
from gpuflow.targets.cpu.codegen.schedules.lane_code import Lanes


class AnalyzedLanes(Lanes, Protocol):
    """A block of lanes that records which values are uniform; see ``lane_blocks``."""

    def is_cheap(self, s: Statement) -> bool:
        """Whether each segment recomputes a statement."""
        ...

    def note_uniform(self, s: Statement) -> bool:
        """Whether a statement is uniform; records constants, scalars and indices as cheap."""
        ...


def find_uniform_loops(lanes: AnalyzedLanes, block: Block) -> dict[int, tuple[int, ...]]:
    """Find the loops that need no masks.

    Args:
        lanes: the block of lanes. The analysis leaves its results in ``uniform`` and ``cheap``,
            which the caller must reset.
        block: the body of the kernel.

    Returns:
        By the ``id`` of each such loop, the indices of its uniform carries. The ids are valid while
            the caller has the kernel.
    """
    uniform_loops: dict[int, tuple[int, ...]] = {}
    _find_in_block(lanes, uniform_loops, block, False)
    return uniform_loops


def _find_in_block(
    lanes: AnalyzedLanes,
    uniform_loops: dict[int, tuple[int, ...]],
    block: Block,
    inside_lane_loop: bool,
) -> None:
    """Add the loops of a block to ``uniform_loops``.

    If the block is not inside the loop over lanes, all its values are uniform.
    """
    for s in block.body:
        if not inside_lane_loop or lanes.note_uniform(s):
            lanes.uniform.update({value: value for value in results_of(s)})
        if isinstance(s, While):
            positions = _uniform_carries(lanes, s)
            if positions:
                uniform_loops[id(s)] = positions
            for k in positions:
                lanes.uniform[s.outs[k]] = s.outs[k]
                lanes.uniform[s.body.params[k]] = s.body.params[k]
            _find_in_block(lanes, uniform_loops, s.body, inside_lane_loop)
        elif isinstance(s, For):
            if s.count is not None and lanes.is_uniform(s.count):
                lanes.uniform[s.body.params[0]] = s.body.params[0]
            _find_in_block(lanes, uniform_loops, s.body, inside_lane_loop or s.axis == lanes.axis)
        elif isinstance(s, If):
            _find_in_block(lanes, uniform_loops, s.then, inside_lane_loop)
            _find_in_block(lanes, uniform_loops, s.orelse, inside_lane_loop)


def _uniform_carries(lanes: AnalyzedLanes, s: While) -> tuple[int, ...]:
    """The indices of the uniform carries if the condition depends on them alone, else ().

    Greatest fixed point: it assumes that carries with uniform initial values are uniform, and drops
    those whose next values are not, until nothing changes.
    """
    positions = [k for k, value in enumerate(s.init) if lanes.is_uniform(value)]
    saved = dict(lanes.uniform)

    def mark_uniform(block: Block) -> bool:
        """Whether all statements of a block are uniform, if the carries at ``positions`` are."""
        lanes.uniform = {**saved, **{block.params[k]: block.params[k] for k in positions}}
        all_uniform = True
        for inner in block.body:
            if lanes.note_uniform(inner):
                lanes.uniform.update({value: value for value in results_of(inner)})
            else:
                all_uniform = all_uniform and lanes.is_cheap(inner)
        return all_uniform

    while positions:
        mark_uniform(s.body)
        stable = [k for k in positions if lanes.is_uniform(s.body.results[k])]
        if stable == positions:
            break
        positions = stable
    is_uniform = bool(positions) and mark_uniform(s.cond) and lanes.is_uniform(s.cond.results[0])
    lanes.uniform = saved
    return tuple(positions) if is_uniform else ()
