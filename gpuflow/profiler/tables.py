"""Tables of a trace: time by operation and by source line, and memory.

Tests: tests/test_profiler.py.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.tables import Table, scaled
from gpuflow.profiler.data import ProfileData, ProfileEvent, ProfileLine
from gpuflow.profiler.traces import last_trace
from gpuflow.timing import format_seconds, three_digits

# Rows without time of their own.
_NO_WORK = ("host", "memory")
_CONCURRENT = "collectives"  # runs in a separate stream
_THREAD = re.compile(r"(.*) \(thread (\d+)\)")
_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60
_NANOSECOND = 1.0


@record
class OpTime:
    """An operation with all its calls.

    Attributes:
        name: name of the kernel, call or operation.
        row: row of the trace: "kernels", "libraries", "loops", "eager ops", "builds" and so on.
        calls: number of calls.
        seconds: time in seconds, without nested calls.
        share: fraction of the time of all.
        bytes: bytes read and written by steps of programs.
        flops: floating-point operations of these steps.
    """

    name: str
    row: str
    calls: int
    seconds: float
    share: float
    bytes: int
    flops: int


@record
class LineTime:
    """The time of the steps of one source line.

    Attributes:
        line: ``file:line (function)``; "" for steps without a source line.
        calls: number of steps.
        seconds: time of these steps; a step of several lines is divided equally among them.
        share: fraction of the time of all.
    """

    line: str
    calls: int
    seconds: float
    share: float


@record
class MemorySample:
    """A sample of the memory use of devices.

    Attributes:
        seconds: time since the start of the trace.
        bytes: memory in use on all devices; on CPUs that of the process.
    """

    seconds: float
    bytes: int


@record(repr=False)
class TraceTable:
    """A trace as tables, returned by ``profiler.table``. Print it, or show it in a notebook.

    Attributes:
        path: path of the trace.
        seconds: total time of all operations, on all threads.
        ops: operations, the slowest first.
        lines: source lines, the slowest first.
        memory: samples of memory use during the trace, every 10 ms.
        top: number of rows of each table that ``str`` shows.
    """

    path: Path
    seconds: float
    ops: tuple[OpTime, ...]
    lines: tuple[LineTime, ...]
    memory: tuple[MemorySample, ...]
    top: int | None = 10

    def tables(self) -> tuple[Table, Table]:
        """Format the tables of operations and source lines, ``top`` rows each."""
        ops = [
            (
                _shortened(op.name),
                op.row,
                str(op.calls),
                format_seconds(op.seconds),
                f"{op.share:.1%}",
                _rate(op.bytes, op.seconds),
                _rate(op.flops, op.seconds),
            )
            for op in self.ops[: self.top]
        ]
        source_rows = [
            (
                entry.line.rpartition("/")[2] or "not known",
                str(entry.calls),
                format_seconds(entry.seconds),
                f"{entry.share:.1%}",
            )
            for entry in self.lines[: self.top]
        ]
        return (
            Table(
                f"{format_seconds(self.seconds)} of work by operation{self._of(self.ops)}",
                ("operation", "row", "calls", "time", "share", "GB/s", "GFLOP/s"),
                tuple(ops),
                (0, 1),
            ),
            Table(
                f"by line, equal parts for each line of a step{self._of(self.lines)}",
                ("line", "steps", "time", "share"),
                tuple(source_rows),
            ),
        )

    def _of(self, rows: Sequence[Any]) -> str:
        count = len(rows)
        return f", {self.top} of {count}" if self.top is not None and self.top < count else ""

    def _memory_text(self) -> str:
        if not self.memory:
            return "memory: the trace was too short for a sample"
        sizes = [sample.bytes for sample in self.memory]
        seconds = self.memory[-1].seconds
        return (
            f"memory over {format_seconds(seconds)}, {scaled(min(sizes), 'B')} to "
            f"{scaled(max(sizes), 'B')}\n|{_bars(self.memory)}|"
        )

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.tables()), self._memory_text()])

    __repr__ = __str__

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        del console, options
        import rich.text

        yield from self.tables()
        yield rich.text.Text(self._memory_text())

    def _repr_html_(self) -> str:
        texts = [table._repr_html_() for table in self.tables()]
        return "".join([*texts, f"<pre>{html.escape(self._memory_text())}</pre>"])


def table(path: str | os.PathLike[str] | None = None, top: int | None = 10) -> TraceTable:
    """Summarize a trace: time by operation and by source line, and memory.

    Args:
        path: a ``*.trace.json.gz`` file, or a folder, of which the newest trace is used; by default
            the last trace of this process.
        top: number of rows of each table to show; None shows all.

    Returns:
        TraceTable: print it; ``ops``, ``lines`` and ``memory`` are records.

    Raises:
        ValueError: if there is no trace.

    Example:
        >>> import tempfile
        >>> with gf.profiler.trace(tempfile.mkdtemp()):
        ...     y = gf.jit(lambda x: jnp.sort(x * 2))(jnp.ones(1000))
        >>> found = gf.profiler.table()
        >>> "sort" in [op.name for op in found.ops]
        True
    """
    file = _file_of(path)
    tracks = [
        (*_row_and_thread(track), track)
        for plane in ProfileData.from_file(file).planes
        for track in plane.lines
    ]
    works: list[_Work] = []
    for thread in dict.fromkeys(thread for _, thread, _ in tracks):
        events = [
            (row, event)
            for row, of, track in tracks
            if of == thread and row not in _NO_WORK
            for event in track.events
        ]
        works += [
            _Work(row, event, event.duration_ns) for row, event in events if row == _CONCURRENT
        ]
        works += own_times([pair for pair in events if pair[0] != _CONCURRENT])
    total = sum(work.nanoseconds for work in works) or 1.0
    memory = [
        MemorySample(event.start_ns / 1e9, dict(event.stats)["bytes"])
        for row, _, track in tracks
        if row == "memory"
        for event in track.events
    ]
    return TraceTable(
        file,
        total / 1e9 if works else 0.0,
        _by_op(works, total),
        _by_source(works, total),
        tuple(memory),
        top,
    )


@record
class _Work:
    """An event, and the nanoseconds that nothing inside of it took."""

    row: str
    event: ProfileEvent
    nanoseconds: float


def own_times(events: Sequence[tuple[str, ProfileEvent]]) -> list[_Work]:
    """Events of one thread with their rows: for each the time without events inside of it."""
    ordered = sorted(events, key=lambda pair: (pair[1].start_ns, -pair[1].duration_ns))
    times = [event.duration_ns for _, event in ordered]
    around: list[int] = []
    for number, (_, event) in enumerate(ordered):
        # Times in the file are rounded to a nanosecond.
        while around and ordered[around[-1]][1].end_ns <= event.start_ns + _NANOSECOND:
            around.pop()
        if around:
            times[around[-1]] -= event.duration_ns
        around.append(number)
    pairs = zip(ordered, times, strict=True)
    return [_Work(row, event, max(0.0, time)) for (row, event), time in pairs]


def _by_op(works: Sequence[_Work], total: float) -> tuple[OpTime, ...]:
    groups: dict[tuple[str, str], list[_Work]] = {}
    for work in works:
        groups.setdefault((work.event.name, work.row), []).append(work)
    ops = [
        OpTime(
            name,
            row,
            len(group),
            sum(work.nanoseconds for work in group) / 1e9,
            sum(work.nanoseconds for work in group) / total,
            *(
                sum(dict(work.event.stats).get(key, 0) for work in group)
                for key in ("bytes", "flops")
            ),
        )
        for (name, row), group in groups.items()
    ]
    return tuple(sorted(ops, key=lambda op: -op.seconds))


def _by_source(works: Sequence[_Work], total: float) -> tuple[LineTime, ...]:
    times: dict[str, float] = {}
    calls: dict[str, int] = {}
    for work in works:
        sources = dict(work.event.stats).get("lines") or [""]
        for source in sources:
            times[source] = times.get(source, 0.0) + work.nanoseconds / len(sources)
            calls[source] = calls.get(source, 0) + 1
    rows = [LineTime(source, calls[source], ns / 1e9, ns / total) for source, ns in times.items()]
    return tuple(sorted(rows, key=lambda source: -source.seconds))


def _row_and_thread(track: ProfileLine) -> tuple[str, str]:
    match = _THREAD.fullmatch(track.name)
    return (match[1], match[2]) if match else (track.name, "0")


def _file_of(path: str | os.PathLike[str] | None) -> Path:
    file = last_trace() if path is None else Path(path)
    if file is not None and file.is_dir():
        files = file.rglob("*.trace.json.gz")
        file = max(files, key=lambda one: one.stat().st_mtime_ns, default=None)
    if file is None or not file.is_file():
        raise ValueError(
            f"[table] there must be a trace; got {'none' if path is None else os.fspath(path)}. "
            "Fix: with gpuflow.profiler.trace(folder): ..., then gpuflow.profiler.table()."
        )
    return file


def _rate(amount: int, seconds: float) -> str:
    """Billions per second; blank if nothing was counted."""
    return three_digits(amount / seconds / 1e9) if amount and seconds else ""


def _shortened(name: str) -> str:
    return name if len(name) <= 44 else f"{name[:41]}..."


def _bars(samples: Sequence[MemorySample]) -> str:
    """The maximum of each interval of time, as a row of bars."""
    end, most = samples[-1].seconds or 1.0, max(sample.bytes for sample in samples) or 1
    width = min(_WIDTH, len(samples))
    heights = [0] * width
    for sample in samples:
        index = min(int(sample.seconds / end * width), width - 1)
        heights[index] = max(heights[index], sample.bytes)
    heights[0] = heights[0] or samples[0].bytes
    for index in range(1, width):  # an interval without a sample is as the one before
        heights[index] = heights[index] or heights[index - 1]
    return "".join(_BARS[round(height / most * (len(_BARS) - 1))] for height in heights)
