"""Recordings of simulated GPUs (as CUDA graphs), and each thread's current device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class _Current(threading.local):
    """Per thread: the current device, and the operations of a recording in progress."""

    device: Any = None
    recording: list[Callable[[], object]] | None = None


current = _Current()


class SimGraph:
    """A recording, which each call runs once more.

    Args:
        calls: for each recorded call, its operations on the stream.
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
        """Replace call ``number`` by a launch with its current parameters."""
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
