"""Effects: side effects of an equation besides its outputs."""

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
    """The equation communicates over the mapped axis ``name``; that shows in its outputs only."""

    @property
    def is_observable(self) -> bool:
        return False


@record(repr=False)
class Communication(Effect):
    """The equation waits for its neighbors, who must get there in the same order."""

    name: Any = "communication"
    ordered: bool = True

    @property
    def is_observable(self) -> bool:
        return False


COMMUNICATION = Communication()


def is_observable(effects: Iterable[Effect]) -> bool:
    """Whether an equation with these effects must happen though nobody reads its outputs."""
    return any(effect.is_observable for effect in effects)


DEBUG = Effect("debug")
ORDERED_DEBUG = Effect("debug", ordered=True)
IO = Effect("io")
ORDERED_IO = Effect("io", ordered=True)
RANDOM = Effect("random")
USE = Effect("use")
