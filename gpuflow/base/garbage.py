"""Whole garbage collections, while other threads collect as well."""

from __future__ import annotations

import gc
import time
from threading import get_ident
from typing import Any


def collect_garbage(timeout: float = 1.0) -> bool:
    """Collect all garbage of before; whether that was done.

    ``gc.collect`` returns at once while another thread collects, which stops in the middle for
    every finalizer that waits for something. This function tries again.

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
