"""Rows of the GPU acceptance, one after the other, in all frameworks side by side.

Each framework is a process of its own (gpu_child.py). All make a row's inputs and call it once at
the same time, since compilers need processors and not the GPU; then they are timed in turn, while
nothing else runs. A process that hangs, dies or loses its device is entered as that, and another
one takes the next row.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_processes import ROOT, wait_for
from gpu_rows import COMPILED, CUPY, JAX, MANY_SIZES, OFF, TORCH, Row

OURS = "gpuflow"
CHILD = Path(__file__).resolve().parent / "gpu_child.py"
# Seconds: an import with the first touch of a GPU, a first call, the measurement.
START, FIRST, TIME = 30.0, 20.0, 10.0
MANY_SIZES_TIME = 25.0
ROW_RESERVE = 5.0  # a row begins only if so many seconds are left
VERSION = "version"  # in place of a row's name
_POLL = 0.002
_MAX_FAILED_STARTS = 2

# Takes the name of a row and of a framework, and what came out.
Note = Callable[[str, str, dict[str, Any]], None]


def takes(framework: str, row: Row | None) -> bool:
    """Whether a row is for a framework; None: the row of many sizes."""
    if row is None:
        return framework in (OURS, JAX)
    if framework in OFF:
        return framework in row.without
    if framework == COMPILED:
        return row.torch is not None and COMPILED in row.goal.rivals
    return {TORCH: row.torch, CUPY: row.cupy}.get(framework, row) is not None


class Racer:
    """One framework's process, started again when it is gone.

    Args:
        name: of the framework.
        command: arguments behind the interpreter.
        log: what it writes to stderr goes to the end of this file.
        limits: seconds for a start, a first call, and a measurement.

    Attributes:
        until: by ``perf_counter``, when no answer is waited for any more.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        limits: tuple[float, float, float] = (START, FIRST, TIME),
    ) -> None:
        self.name, self.version, self.noted = name, "", ""
        self._command, self._log = list(command), log
        self._start_limit, self.first_limit, self.time_limit = limits
        self._process: subprocess.Popen[bytes] | None = None
        self.until = float("inf")
        self._read, self._in_vain, self._deadline = b"", 0, 0.0

    @property
    def is_out(self) -> bool:
        """Whether it does not start."""
        return self._in_vain >= _MAX_FAILED_STARTS

    @property
    def is_running(self) -> bool:
        """Whether it has a process."""
        return self._process is not None

    def start(self) -> None:
        """Start a process, unless one runs; it answers with its version first."""
        if self._process is not None or self.is_out:
            return
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment.pop("OPENBLAS_CORETYPE", None)
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._read, self.version = b"", ""
        self._in_vain += 1  # until it says its version
        self._deadline = time.perf_counter() + self._start_limit

    def ask(self, request: Mapping[str, Any], seconds: float) -> None:
        """Send a request; ``answer`` gives what comes of it within so many seconds."""
        assert self._process is not None and self._process.stdin is not None
        start = self._deadline if not self.version else time.perf_counter()
        self._deadline = max(start, time.perf_counter()) + seconds
        with suppress(OSError):  # a process that is gone: ``answer`` says so
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """The answer; None: not yet. The process is gone where it says ``gone``."""
        assert self._process is not None and self._process.stdout is not None
        with suppress(BlockingIOError):
            self._read += self._process.stdout.read() or b""
        while b"\n" in self._read:
            line, _, self._read = self._read.partition(b"\n")
            record = json.loads(line)
            if "version" not in record:
                if record.get("lost"):
                    self.end()
                return record
            self.version, self._in_vain = record["version"], 0
        status = self._process.poll()
        if status is not None:
            what = "the process died of it" if self.version else "the process did not start"
            self.end()
            return {"error": f"{what}, with status {status}: {self._last_words()}", "gone": True}
        now = time.perf_counter()
        if now > min(self._deadline, self.until):
            self.end()
            whose = "a row" if now <= self.until else "the stage"
            return {"error": f"no result within the time of {whose}", "gone": True}
        return None

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def end(self) -> None:
        """End the process and those that it started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            wait_for(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            self._process = None


def race(
    rows: Sequence[tuple[str, Row | None]],
    racers: Sequence[Racer],
    until: float,
    note: Note,
    known: Callable[[str, str], bool],
) -> bool:
    """Runs rows in order; whether all were reached.

    Args:
        rows: names and rows; None in place of the one of many sizes.
        racers: the frameworks, gpuflow first; their processes are ended.
        until: by ``perf_counter``, when it must end.
        note: is told each result as soon as it is there.
        known: whether a row of a framework need not be run.
    """
    for one in racers:
        one.until = until
    try:
        for number, (name, row) in enumerate(rows):
            if until - time.perf_counter() < ROW_RESERVE:
                return False
            wanted = [one for one in racers if takes(one.name, row) and not known(name, one.name)]
            for one in racers:
                # All at once, at the first row: an import takes long.
                if one in wanted or (number == 0 and takes_any(one.name, rows, known)):
                    one.start()
            _row(name, wanted, note)
        return True
    finally:
        for one in racers:
            one.end()


def takes_any(
    framework: str, rows: Sequence[tuple[str, Row | None]], known: Callable[[str, str], bool]
) -> bool:
    """Whether a framework has anything to run."""
    return any(takes(framework, row) and not known(name, framework) for name, row in rows)


def _row(name: str, racers: Sequence[Racer], note: Note) -> None:
    """One row: all first calls at the same time, then the measurements in turn."""
    running = []
    for one in racers:
        one.start()
        if one.is_running:
            one.ask({"do": "first", "row": name}, one.first_limit)
            running.append(one)
    first = _answers(running)
    for one in running:
        found = first[one.name]
        if one.version and one.version != one.noted:
            one.noted = one.version
            note(VERSION, one.name, {"version": one.version})
        if found.get("none"):
            continue
        if "error" not in found:
            limit = MANY_SIZES_TIME if name == MANY_SIZES else one.time_limit
            one.ask({"do": "time"}, limit)
            found = {**found, **_answers([one])[one.name]}
        note(name, one.name, found)
        one.start()  # if it is gone, so that the import goes on beside the others


def _answers(racers: Sequence[Racer]) -> dict[str, dict[str, Any]]:
    """The answers of all, by name."""
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(racers):
        for one in racers:
            if one.name not in found:
                answer = one.answer()
                if answer is not None:
                    found[one.name] = answer
        time.sleep(_POLL)
    return found
