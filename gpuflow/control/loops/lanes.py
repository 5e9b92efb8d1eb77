"""Lanes: control flow whose predicate is mapped by vmap.

A branch or loop with a mapped predicate keeps its programs for one batch element, and marks the
operands with a leading batch dimension: a vmap that is not carried out yet. All rules work on the
programs of one element; only lowering chooses the treatment of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.core.effects import AxisUse
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.rules import AxisData
from gpuflow.transforms.batching import batch_jaxpr


@record
class Lane:
    """One mapped axis; outer ones come before inner ones.

    Attributes:
        axis: name and size of the axis.
        mapped: for each operand whether it has the axis, before the axes of inner batches.
    """

    axis: AxisData
    mapped: tuple[bool, ...]

    def choose(self, flags: Sequence[bool]) -> tuple[bool, ...]:
        """``mapped`` of the operands that ``flags`` name."""
        return tuple(is_mapped for is_mapped, flag in safe_zip(self.mapped, flags) if flag)


Lanes = tuple[Lane, ...]


def communicate(programs: Sequence[ClosedJaxpr]) -> bool:
    """Whether programs hold collectives.

    The results of one batch element then reach elements that took another branch or have stopped,
    so that the vmap must be carried out immediately: derivatives of the programs for one element
    would be wrong.
    """
    return any(isinstance(effect, AxisUse) for program in programs for effect in program.effects)


def lane_shape(lanes: Lanes) -> tuple[int, ...]:
    """The sizes of all lanes, outermost first."""
    return tuple(lane.axis.size for lane in lanes)


def lane_counts(lanes: Lanes, count: int) -> list[int]:
    """For each of ``count`` operands, how many dimensions lanes give it."""
    return [sum(lane.mapped[k] for lane in lanes) for k in range(count)]


def with_operands(lanes: Lanes, mapped: Sequence[Sequence[bool]]) -> Lanes:
    """The same axes for other operands; ``mapped`` has a row of flags for each axis."""
    return tuple(Lane(lane.axis, tuple(flags)) for lane, flags in safe_zip(lanes, mapped))


def extend(lanes: Lanes, chosen: Sequence[int]) -> Lanes:
    """Lanes for operands taken from the present ones by position; -1 is one that all lanes map."""
    return with_operands(
        lanes, [[k < 0 or lane.mapped[k] for k in chosen] for lane in lanes]
    )


def over_lanes(jaxpr: ClosedJaxpr, lanes: Lanes, chosen: Sequence[int]) -> ClosedJaxpr:
    """A program of one lane, mapped over all of them; every output has all lane dimensions.

    Args:
        chosen: for each input its position in ``Lane.mapped``; -1 is one that all lanes map.
    """
    count = len(jaxpr.out_avals)
    for lane in reversed(lanes):
        flags = tuple(k < 0 or lane.mapped[k] for k in chosen)
        jaxpr, _ = batch_jaxpr(jaxpr, lane.axis, flags, (True,) * count)
    return jaxpr
