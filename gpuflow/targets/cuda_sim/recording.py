"""State shared by simulated GPUs: the current device of a thread, and recorded work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Current(threading.local):
    """The device of this thread, and its recorded work."""

    device: Any = None
    recording: list[Callable[[], object]] | None = None


current = _Current()


class SimGraph:
    """Recorded work: the operations of each call on the stream.

    Args:
        parts: the work.
        do: gives the stream a part of it.
    """

    def __init__(
        self, parts: list[list[Callable[[], object]]], do: Callable[[Callable[[], object]], None]
    ) -> None:
        self._parts, self._do = parts, do

    def __call__(self) -> None:
        for part in self._parts:
            for one in part:
                self._do(one)

    def change(self, number: int, launch: Callable[[], Any]) -> bool:
        """Record a launch once more."""
        self._parts[number] = recorded_work(launch)
        return True


def recorded_work(work: Callable[[], Any]) -> list[Callable[[], object]]:
    """Record the operations of ``work`` on a stream, without running them."""
    assert current.recording is None, "recordings do not nest"
    current.recording = kept = []
    try:
        work()
    finally:
        current.recording = None
    return kept
