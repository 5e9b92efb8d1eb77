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
        calls: the operations of each call.
        do: runs an operation on the stream.
    """

    def __init__(
        self, calls: list[list[Callable[[], object]]], do: Callable[[Callable[[], object]], None]
    ) -> None:
        self._calls, self._do = calls, do

    def __call__(self) -> None:
        for operations in self._calls:
            for one in operations:
                self._do(one)

    def change(self, number: int, launch: Callable[[], Any]) -> bool:
        """Record a launch once more."""
        self._calls[number] = recorded_work(launch)
        return True


def recorded_work(work: Callable[[], Any]) -> list[Callable[[], object]]:
    """Record the operations of ``work`` on a stream, without running them."""
    assert current.recording is None, "recordings do not nest"
    current.recording = operations = []
    try:
        work()
    finally:
        current.recording = None
    return operations
