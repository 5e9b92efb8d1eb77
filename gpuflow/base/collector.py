"""Python's garbage collector, which blocks of this package pause."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any


class _Pause:
    """``with paused:`` runs a block without the collector, in any number of threads.

    Attributes:
        lock: guards the other attributes; a finalizer that the collector runs may enter again.
        blocks: the number of blocks that run.
        is_stopped: whether the collector ran before them, and is to run again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.blocks = 0
        self.is_stopped = False

    def __enter__(self) -> None:
        with self.lock:
            if self.blocks == 0:
                self.is_stopped = gc.isenabled()
                gc.disable()
            self.blocks += 1

    def __exit__(self, *exception: Any) -> None:
        with self.lock:
            self.blocks = max(self.blocks - 1, 0)  # a fork within the block has left it
            if self.blocks == 0:
                self._resume()

    def renew(self) -> None:
        """In a forked child, threads that held the lock or ran a block are gone."""
        self.lock = threading.RLock()
        self.blocks = 0
        self._resume()

    def _resume(self) -> None:
        if self.is_stopped:
            self.is_stopped = False
            gc.enable()


paused = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=paused.renew)


def count_as_old() -> None:
    """Move all objects to the collector's oldest generation, without looking at them.

    After a pause, the next collection of young objects would visit all that were made in it.
    """
    if gc.get_freeze_count() == 0:  # else objects that the user froze would be released
        gc.freeze()
        gc.unfreeze()
