"""Side effects of equations.

Tests: tests/ops/test_between_memories.py, tests/ops/test_callbacks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuflow.base.records import record


@record
class Effect:
    """A kind of side effect.

    DCE keeps equations with observable effects and CSE never merges them. ``ordered`` effects of
    one name happen in program order; others happen in any order, but happen once.
    """

    name: Any
    ordered: bool = False

    @property
    def is_observable(self) -> bool:
        """Whether its absence would be observable outside the program."""
        return True

    def __repr__(self) -> str:
        return f"{self.name}{'(ordered)' if self.ordered else ''}"


@record(repr=False)
class AxisUse(Effect):
    """The equation communicates over the mapped axis ``name``; it only affects its outputs."""

    @property
    def is_observable(self) -> bool:
        return False


@record(repr=False)
class Communication(Effect):
    """The equation waits for its neighbors, which must run it in the same order."""

    name: Any = "communication"
    ordered: bool = True

    @property
    def is_observable(self) -> bool:
        return False


COMMUNICATION = Communication()


def is_observable(effects: Iterable[Effect]) -> bool:
    """Whether an equation with these effects must run even if its outputs are unused."""
    return any(effect.is_observable for effect in effects)


DEBUG = Effect("debug")
ORDERED_DEBUG = Effect("debug", ordered=True)
IO = Effect("io")
ORDERED_IO = Effect("io", ordered=True)
RANDOM = Effect("random")
USE = Effect("use")
