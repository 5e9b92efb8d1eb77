"""Traces read back, as by jax.profiler.ProfileData: processes, their rows, and events.

Tests: tests/profiler/test_trace_files.py, tests/test_profiler.py.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from typing import Any

from gpuflow.base.private_files import open_regular, parse_json
from gpuflow.base.records import record

_COUNTERS = -1  # the row of counters
# Errors of reading events from JSON of another form.
_OTHER_FORMS = (AttributeError, KeyError, TypeError, ValueError)


@record
class ProfileEvent:
    """An event with a duration.

    Attributes:
        name: name of the event.
        start_ns: start time in nanoseconds since the start of the trace.
        duration_ns: duration in nanoseconds.
        stats: pairs of the names and values of further data.
    """

    name: str
    start_ns: float
    duration_ns: float
    stats: tuple[tuple[str, Any], ...]

    @property
    def end_ns(self) -> float:
        """End time in nanoseconds."""
        return self.start_ns + self.duration_ns


@record
class ProfileLine:
    """One row of a trace, in order of time."""

    name: str
    events: tuple[ProfileEvent, ...]


@record
class ProfilePlane:
    """One process of a trace."""

    name: str
    lines: tuple[ProfileLine, ...]
    stats: tuple[tuple[str, Any], ...] = ()


@record
class ProfileData:
    """A recorded trace."""

    _planes: tuple[ProfilePlane, ...]

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ProfileData:
        """Read a ``*.trace.json.gz`` that ``stop_trace`` wrote.

        Raises:
            OSError: if the file does not exist, or is not a regular file (such as a FIFO).
            ValueError: if the file is not a gpuflow trace.
        """
        with open_regular(path) as file:
            content = file.read()
        try:
            text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            events = parse_json(text)["traceEvents"]
            processes = dict.fromkeys(event["pid"] for event in events)
            return cls(tuple(_plane([e for e in events if e["pid"] == pid]) for pid in processes))
        except (OSError, EOFError, zlib.error, *_OTHER_FORMS) as error:
            raise ValueError(
                f"[ProfileData] the file must be a trace in the Chrome format; got {path} "
                f"({type(error).__name__}). Fix: pass a *.trace.json.gz."
            ) from None

    @property
    def planes(self) -> Iterator[ProfilePlane]:
        """The processes of the trace."""
        return iter(self._planes)

    def find_plane_with_name(self, name: str) -> ProfilePlane | None:
        """Return the process of that name, or None."""
        return next((plane for plane in self._planes if plane.name == name), None)


def _plane(events: list[dict[str, Any]]) -> ProfilePlane:
    names, rows = {}, {}
    title = ""
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            title = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X":
            rows.setdefault(event["tid"], []).append(_event(event))
        elif event["ph"] == "C":  # a value at a time, on a row of its name
            rows.setdefault(_COUNTERS, []).append(_event({**event, "dur": 0}))
            names[_COUNTERS] = event["name"]
    tracks = (
        ProfileLine(names.get(row, str(row)), tuple(sorted(row_events, key=lambda e: e.start_ns)))
        for row, row_events in sorted(rows.items())
    )
    return ProfilePlane(title, tuple(tracks))


def _event(event: dict[str, Any]) -> ProfileEvent:
    stats = tuple(event.get("args", {}).items())
    return ProfileEvent(event["name"], event["ts"] * 1e3, event["dur"] * 1e3, stats)
