"""Batched loops with a uniform trip count: their counters are uniform."""

from __future__ import annotations

from typing import Protocol

from gpuflow.kir.nodes import Block, For, If, Statement, While
from gpuflow.kir.walk import results_of
from gpuflow.targets.cpu.codegen.schedules.lane_code import Lanes


class Counting(Lanes, Protocol):
    """A batched block with known results of statements; see ``lane_blocks.py``."""

    def is_cheap(self, s: Statement) -> bool:
        """Whether each part writes a statement again."""
        ...

    def looks_same(self, s: Statement) -> bool:
        """Whether a statement is uniform; notes constants and similar ones."""
        ...


def alike_loops(lanes: Counting, block: Block) -> dict[int, tuple[int, ...]]:
    """Loops that need no masks, by their identity, with the carries that all lanes have alike.

    Args:
        lanes: its ``same`` and ``cheap`` contain the results of the analysis afterwards.
        block: of the kernel.
    """
    found: dict[int, tuple[int, ...]] = {}
    _find(lanes, found, block, False)
    return found


def _find(
    lanes: Counting, found: dict[int, tuple[int, ...]], block: Block, in_lanes: bool
) -> None:
    """Add the loops of a block; uniform values are in ``same`` and ``cheap``."""
    for s in block.body:
        if not in_lanes or lanes.looks_same(s):
            lanes.same.update({value: value for value in results_of(s)})
        if isinstance(s, While):
            places = _alike_carries(lanes, s)
            if places:
                found[id(s)] = places
            for k in places:
                lanes.same[s.outs[k]] = s.outs[k]
                lanes.same[s.body.params[k]] = s.body.params[k]
            _find(lanes, found, s.body, in_lanes)
        elif isinstance(s, For):
            if s.count is not None and lanes.is_same(s.count):
                lanes.same[s.body.params[0]] = s.body.params[0]
            _find(lanes, found, s.body, in_lanes or s.axis == lanes.axis)
        elif isinstance(s, If):
            _find(lanes, found, s.then, in_lanes)
            _find(lanes, found, s.orelse, in_lanes)


def _alike_carries(lanes: Counting, s: While) -> tuple[int, ...]:
    """The carries that all lanes have alike, if the condition follows from them."""
    places = [k for k, value in enumerate(s.init) if lanes.is_same(value)]
    before = dict(lanes.same)

    def follow(block: Block) -> bool:
        """Whether all statements of a block give all lanes the same."""
        lanes.same = {**before, **{block.params[k]: block.params[k] for k in places}}
        whole = True
        for inner in block.body:
            if lanes.looks_same(inner):
                lanes.same.update({value: value for value in results_of(inner)})
            else:
                whole = whole and lanes.is_cheap(inner)
        return whole

    while places:
        follow(s.body)
        kept = [k for k in places if lanes.is_same(s.body.results[k])]
        if kept == places:
            break
        places = kept
    is_alike = bool(places) and follow(s.cond) and lanes.is_same(s.cond.results[0])
    lanes.same = before
    return tuple(places) if is_alike else ()
