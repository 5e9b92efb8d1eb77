"""Garbage collection: complete runs in spite of other threads, and calls without collection.

Tests: tests/base/test_garbage.py.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, TypeVar

Result = TypeVar("Result")
# From 3.12 on the collector runs between two instructions of Python, and never inside C code.
_INTERRUPTS_C = sys.version_info < (3, 12)


def collect_garbage(timeout: float = 1.0) -> bool:
    """Collect all existing garbage; returns whether that was done.

    ``gc.collect`` returns immediately while another thread collects, which is suspended in every
    finalizer that waits for something. This function tries again.

    Args:
        timeout: seconds. The other thread may wait for a lock that the caller holds.
    """
    threads: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            threads.append(get_ident())

    deadline = time.monotonic() + timeout
    gc.callbacks.append(note)
    try:
        while not gc.collect() and get_ident() not in threads and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        gc.callbacks.remove(note)
    return get_ident() in threads


def without_collection(call: Callable[[], Result]) -> Result:
    """The result of ``call()``, during which no garbage is collected, in no thread.

    Args:
        call: C code that runs no Python and waits for no other thread.
    """
    if not _INTERRUPTS_C:
        return call()
    with _collector.lock:
        _collector.is_stopped = gc.isenabled()
        gc.disable()
        try:
            return call()
        finally:
            _collector.resume()


class _Collector:
    """The garbage collector, which one ``without_collection`` at a time stops.

    Attributes:
        is_stopped: whether it was enabled, and must be enabled again.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_stopped = False

    def resume(self) -> None:
        """Let the collector run again if a call has stopped it."""
        if self.is_stopped:
            self.is_stopped = False
            gc.enable()

    def renew(self) -> None:
        """In a forked child, the thread that held the lock is gone."""
        self.lock = Lock()
        self.resume()


_collector = _Collector()
if _INTERRUPTS_C and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_collector.renew)
