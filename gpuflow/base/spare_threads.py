"""Threads that are started before they have work: Python 3.12 starts none while a program ends.

Tests: tests/parallel/test_nccl_watch.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class SpareThread(threading.Thread):
    """A started thread that waits for one function, and ends after it.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._function: Callable[[], None] | None = None
        self._ready = threading.Event()
        self.start()

    def begin(self, function: Callable[[], None]) -> None:
        """Run a function. ``is_alive`` and ``join`` then refer to its end."""
        self._function = function
        self._ready.set()

    def drop(self) -> None:
        """Let the thread end, if it has no function."""
        self._ready.set()

    def run(self) -> None:
        self._ready.wait()
        if self._function is not None:
            self._function()
