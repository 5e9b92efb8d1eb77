"""The state that each test starts with, whatever ran before it; so do the cases of together.py."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_STATES: dict[np.random.Generator, Any] = {}


def restart_generators(names: dict[str, Any]) -> None:
    """Start a file's random generators again: a test fails alone as it fails among others."""
    for value in names.values():
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            bits.state = _STATES.setdefault(value, bits.state)


def forget_traces() -> None:
    """Let the next test trace for itself: others may have changed how functions are compiled."""
    if shared := sys.modules.get("gpuflow.control.shared_traces"):
        shared.forget()
