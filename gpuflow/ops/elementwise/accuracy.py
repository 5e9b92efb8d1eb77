"""The ``accuracy=`` of elementary functions: the accepted values.

Tests: tests/test_keywords.py.
"""

from __future__ import annotations

import enum
from typing import Any

from gpuflow.base.errors import check


class AccuracyMode(enum.Enum):
    """Accuracy modes of elementary functions."""

    HIGHEST = 1
    DEFAULT = 2


class Tolerance:
    """Error tolerance of an elementary function.

    Args:
        atol: absolute tolerance.
        rtol: relative tolerance.
        ulps: tolerance in units in the last place.

    Raises:
        ValueError: if one is negative, or all are 0.
    """

    def __init__(self, atol: float = 0.0, rtol: float = 0.0, ulps: int = 0) -> None:
        check(
            min(atol, rtol, ulps) >= 0 and max(atol, rtol, ulps) > 0,
            lambda: (
                "[Tolerance] tolerances must not be negative, and one must be set; got "
                f"atol={atol}, rtol={rtol}, ulps={ulps}. Fix: Tolerance(rtol=1e-6)."
            ),
            ValueError,
        )
        self.atol, self.rtol, self.ulps = atol, rtol, ulps

    def __repr__(self) -> str:
        return f"Tolerance(atol={self.atol}, rtol={self.rtol}, ulps={self.ulps})"


def check_accuracy(op: str, accuracy: Any) -> None:
    """Reject an invalid accuracy. There is one implementation of each function, the exact one.

    Raises:
        NotImplementedError: ``accuracy`` is neither a mode, nor a Tolerance, nor None.
    """
    check(
        accuracy is None or isinstance(accuracy, AccuracyMode | Tolerance),
        lambda: (
            f"[{op}] accuracy must be a lax.AccuracyMode, a lax.Tolerance or None; got "
            f"{accuracy!r}. Fix: lax.AccuracyMode.HIGHEST."
        ),
        NotImplementedError,
    )
