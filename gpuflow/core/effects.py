"""Effects: what an equation does besides computing its outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """A kind of side effect.

    DCE keeps equations with effects and CSE never merges them. ``ordered`` effects of one name
    happen in program order; others happen in any order, but happen once.
    """

    name: str
    ordered: bool = False

    def __repr__(self) -> str:
        return f"{self.name}{'(ordered)' if self.ordered else ''}"


DEBUG = Effect("debug")
ORDERED_DEBUG = Effect("debug", ordered=True)
