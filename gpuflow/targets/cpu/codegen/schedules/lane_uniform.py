"""Uniformity analysis: While loops that all lanes of a block leave in the same iteration."""

from __future__ import annotations

from typing import Protocol

from gpuflow.kir.nodes import Block, For, If, Statement, While
from gpuflow.kir.walk import results_of
from gpuflow.targets.cpu.codegen.schedules.lane_code import Lanes


class Counting(Lanes, Protocol):
    """A block of lanes that knows which values are uniform; see ``lane_blocks``."""

    def is_cheap(self, s: Statement) -> bool:
        """Whether each segment recomputes a statement."""
        ...

    def note_uniform(self, s: Statement) -> bool:
        """Whether a statement is uniform; notes constants and similar ones."""
        ...


def find_uniform_loops(lanes: Counting, block: Block) -> dict[int, tuple[int, ...]]:
    """Find the loops that need no masks.

    Args:
        lanes: the block of lanes. The analysis leaves its results in ``uniform`` and ``cheap``,
            which the caller must reset.
        block: the body of the kernel.

    Returns:
        By the ``id`` of each such loop, the indices of its uniform carries.
    """
    uniform_loops: dict[int, tuple[int, ...]] = {}
    _find(lanes, uniform_loops, block, False)
    return uniform_loops


def _find(
    lanes: Counting, uniform_loops: dict[int, tuple[int, ...]], block: Block, in_lanes: bool
) -> None:
    """Add the loops of a block to ``found``; ``in_lanes``: the loop over lanes encloses it."""
    for s in block.body:
        if not in_lanes or lanes.note_uniform(s):
            lanes.uniform.update({value: value for value in results_of(s)})
        if isinstance(s, While):
            positions = _uniform_carries(lanes, s)
            if positions:
                uniform_loops[id(s)] = positions
            for k in positions:
                lanes.uniform[s.outs[k]] = s.outs[k]
                lanes.uniform[s.body.params[k]] = s.body.params[k]
            _find(lanes, uniform_loops, s.body, in_lanes)
        elif isinstance(s, For):
            if s.count is not None and lanes.is_uniform(s.count):
                lanes.uniform[s.body.params[0]] = s.body.params[0]
            _find(lanes, uniform_loops, s.body, in_lanes or s.axis == lanes.axis)
        elif isinstance(s, If):
            _find(lanes, uniform_loops, s.then, in_lanes)
            _find(lanes, uniform_loops, s.orelse, in_lanes)


def _uniform_carries(lanes: Counting, s: While) -> tuple[int, ...]:
    """The indices of the uniform carries if the condition depends on them alone, else ().

    Greatest fixed point: it assumes that carries with uniform initial values are uniform, and drops
    those whose next values are not, until nothing changes.
    """
    positions = [k for k, value in enumerate(s.init) if lanes.is_uniform(value)]
    before = dict(lanes.uniform)

    def follow(block: Block) -> bool:
        """Whether all statements of a block are uniform, if the carries at ``positions`` are."""
        lanes.uniform = {**before, **{block.params[k]: block.params[k] for k in positions}}
        all_uniform = True
        for inner in block.body:
            if lanes.note_uniform(inner):
                lanes.uniform.update({value: value for value in results_of(inner)})
            else:
                all_uniform = all_uniform and lanes.is_cheap(inner)
        return all_uniform

    while positions:
        follow(s.body)
        stable = [k for k in positions if lanes.is_uniform(s.body.results[k])]
        if stable == positions:
            break
        positions = stable
    is_uniform = bool(positions) and follow(s.cond) and lanes.is_uniform(s.cond.results[0])
    lanes.uniform = before
    return tuple(positions) if is_uniform else ()
