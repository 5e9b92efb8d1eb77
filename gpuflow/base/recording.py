"""Recording of the profiler: spans of time on named rows.

Code that runs for a long time (a build, a transfer) is wrapped in a ``span``. Code in loops is not:
programs are printed again when a recording starts or ends, with or without events.

Tests: tests/test_profiler.py, tests/parallel/test_overlap.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuflow.base.records import record

clock = time.perf_counter_ns


@dataclass(frozen=True, slots=True)
class Event:
    """An event with a duration.

    Attributes:
        row: the row that shows it: "kernels", "copies", "builds", "libraries", "loops",
            "eager ops", "host".
        name: name of the event.
        start: nanoseconds of ``clock``.
        duration: nanoseconds.
        thread: the thread's identifier.
        details: further data.
        step: the step of the plan; None: it was not a step.
    """

    row: str
    name: str
    start: int
    duration: int
    thread: int
    details: Mapping[str, Any]
    step: Any = None


@record(frozen=False)
class Recording:
    """All events since it was started; any thread appends.

    Attributes:
        start: nanoseconds of ``clock``.
        wall_start: seconds of the day.
        events: the recorded events.
        memory: pairs of nanoseconds of ``clock`` and the bytes that were in use.
    """

    start: int = field(default_factory=clock)
    wall_start: float = field(default_factory=time.time)
    events: list[Event] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)

    def add(
        self, row: str, name: str, start: int, details: Mapping[str, Any], step: Any = None
    ) -> int:
        """Record an event from ``start`` until now, and return the current time."""
        now, thread = clock(), threading.get_ident()
        self.events.append(Event(row, name, start, now - start, thread, details, step))
        return now


class _State:
    """The current recording, if there is one."""

    recording: Recording | None = None


state = _State()


class span:
    """``with span("builds", name):`` records the block, if the profiler is recording.

    Args:
        row: the row that shows it.
        name: name of the span.
        details: further data.
    """

    __slots__ = ("_details", "_name", "_recording", "_row", "_start")

    def __init__(self, row: str, name: str, **details: Any) -> None:
        self._row, self._name, self._details = row, name, details
        self._recording: Recording | None = None

    def __enter__(self) -> span:
        self._recording = state.recording
        self._start = clock()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._recording is not None:
            self._recording.add(self._row, self._name, self._start, self._details)
