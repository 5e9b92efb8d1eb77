"""Lanes: deferred vmap of control flow with a mapped predicate.

A branch or loop with a mapped predicate keeps its programs for one batch element, and flags the
operands that have a leading batch dimension. All rules work on the programs of one element. Only
lowering decides how the batch is executed.

Tests: tests/compiler/test_lanes.py, tests/experimental/test_ensemble.py.
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
    """One mapped axis of a loop or branch; outer axes come before inner ones.

    Attributes:
        axis: name and size of the axis.
        mapped: for each operand whether it has the axis, in front of the axes of inner lanes.
    """

    axis: AxisData
    mapped: tuple[bool, ...]

    def choose(self, flags: Sequence[bool]) -> tuple[bool, ...]:
        """``mapped`` of the operands that ``flags`` name."""
        return tuple(is_mapped for is_mapped, flag in safe_zip(self.mapped, flags) if flag)


Lanes = tuple[Lane, ...]


def communicate(programs: Sequence[ClosedJaxpr]) -> bool:
    """Whether programs contain collectives.

    The results of one batch element then reach elements that took another branch or have stopped.
    The vmap must be applied immediately: derivatives of the programs for one element would be
    wrong.
    """
    return any(isinstance(effect, AxisUse) for program in programs for effect in program.effects)


def lane_shape(lanes: Lanes) -> tuple[int, ...]:
    """The sizes of all lanes, outermost first."""
    return tuple(lane.axis.size for lane in lanes)


def lane_counts(lanes: Lanes, count: int) -> list[int]:
    """For each of ``count`` operands the number of its lane dimensions."""
    return [sum(lane.mapped[k] for lane in lanes) for k in range(count)]


def with_operands(lanes: Lanes, mapped: Sequence[Sequence[bool]]) -> Lanes:
    """The same axes for other operands; ``mapped`` has a row of flags for each axis."""
    return tuple(Lane(lane.axis, tuple(flags)) for lane, flags in safe_zip(lanes, mapped))


def extend(lanes: Lanes, sources: Sequence[int]) -> Lanes:
    """Lanes for operands gathered by ``sources``; -1 is a new operand that all lanes map."""
    return with_operands(lanes, [[k < 0 or lane.mapped[k] for k in sources] for lane in lanes])


def over_lanes(jaxpr: ClosedJaxpr, lanes: Lanes, sources: Sequence[int]) -> ClosedJaxpr:
    """A program of one lane, mapped over all of them; every output has all lane dimensions.

    Args:
        jaxpr: the program of one batch element.
        lanes: the mapped axes.
        sources: for each input its index in ``Lane.mapped``; -1 is an input that all lanes map.
    """
    count = len(jaxpr.out_avals)
    for lane in reversed(lanes):
        flags = tuple(k < 0 or lane.mapped[k] for k in sources)
        jaxpr, _ = batch_jaxpr(jaxpr, lane.axis, flags, (True,) * count)
    return jaxpr
