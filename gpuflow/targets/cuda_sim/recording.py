"""Recordings of simulated GPUs (as CUDA graphs), and each thread's current device.

Tests: tests/targets/cuda/test_gpu_graphs.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Operation = Callable[[], object]  # work on a stream


class _Current(threading.local):
    """Per thread: the current device, and the operations of a recording in progress."""

    device: Any = None
    recording: list[Operation] | None = None


current = _Current()


class SimGraph:
    """A recording, which each call runs once more.

    Args:
        calls: for each recorded call, its operations on the stream.
        run_operation: runs an operation on the stream.
    """

    def __init__(
        self, calls: list[list[Operation]], run_operation: Callable[[Operation], None]
    ) -> None:
        self._calls, self._run_operation = calls, run_operation

    def __call__(self) -> None:
        for operations in self._calls:
            for operation in operations:
                self._run_operation(operation)

    def change_launch(self, index: int, launch: Callable[[], Any]) -> bool:
        """Replace call ``index`` by a launch with its current parameters; always True."""
        self._calls[index] = recorded_work(launch)
        return True


def recorded_work(work: Callable[[], Any]) -> list[Operation]:
    """Record the operations that ``work`` would do on a stream, without running them.

    The thread must not be recording already. The recording ends if ``work`` raises.
    """
    assert current.recording is None, "recordings do not nest"
    current.recording = operations = []
    try:
        work()
    finally:
        current.recording = None
    return operations
