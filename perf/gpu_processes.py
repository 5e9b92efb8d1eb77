"""Processes of the GPU acceptance: each has a time limit, and none takes the others with it.

A process that does tasks one by one says which it begins and has done (``{"begin": NAME}`` and
``{"end": NAME}``), and between what came out (``{"row": NAME, ...}``, or ``"program"`` for
``"row"``). If it dies, or a task takes too long, the task is entered as failed, and another process
goes on behind it; also where it exits with DEVICE_LOST.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEVICE_LOST = 70  # exit status: the device is of no use to this process any more
_POLL = 0.1
_KILL_SECONDS = 3.0
# What NVIDIA's tools say where a machine does not let them look at its GPU.
_REFUSALS = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded", "Device not supported")


@dataclass
class Section:
    """One process, or several one after the other.

    Attributes:
        name: in the report.
        command: arguments behind the interpreter, or behind ``tool``.
        seconds: it may take.
        environment: variables besides.
        task_seconds: each task of it may take so long; 0: it has no tasks.
        task_key: what its records call a task.
        tool: the program, if it is not this interpreter.
        absent: why it cannot run here; "" if it can. It is then entered as skipped.
    """

    name: str
    command: list[str]
    seconds: float
    environment: dict[str, str] = field(default_factory=dict)
    task_seconds: float = 0.0
    task_key: str = "row"
    tool: str = ""
    absent: str = ""


class Running:
    """A section that was started.

    Args:
        section: what to run.
        seconds: left for everything.
        folder: what it prints goes to files there.
        earlier: records of an earlier run that did not end: it goes on behind their last task.
    """

    def __init__(
        self,
        section: Section,
        seconds: float,
        folder: Path,
        earlier: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.section, self._start = section, time.perf_counter()
        self._limit = self._start + min(section.seconds, seconds)
        stem = "".join(c if c.isalnum() else "-" for c in section.name)
        self._out, self._errors = folder / f"{stem}.out", folder / f"{stem}.err"
        done = [record for record in earlier if section.task_key in record]
        self._out.write_text("".join(json.dumps(record) + "\n" for record in done))
        self._errors.write_text("")
        self._restarts = 0
        self._process = self._begin(["--after", done[-1][section.task_key]] if done else [])
        self._seen, self._last_news = -1, time.perf_counter()

    def _begin(self, more: list[str]) -> subprocess.Popen[bytes]:
        section = self.section
        environment = {**os.environ, **section.environment, "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment.pop("OPENBLAS_CORETYPE", None)
        command = [section.tool or sys.executable, *section.command, *more]
        with self._out.open("ab") as out, self._errors.open("ab") as errors:
            return subprocess.Popen(
                command,
                stdout=out,
                stderr=errors,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )

    def poll(self) -> dict[str, Any] | None:
        """The section's entry in the report, once it has ended."""
        status, now = self._process.poll(), time.perf_counter()
        if status is None and now > self._limit:
            return self.stop()
        task, is_done = self._task() if self.section.task_seconds else ("", True)
        if status is None:
            if not is_done and now - self._last_news > self.section.task_seconds:
                self._kill()
                reason = f"no result within {self.section.task_seconds:.0f} s"
                return self._go_on(None, task, reason)
            return None
        if not is_done:
            return self._go_on(status, task, f"the process died of it, with status {status}")
        return self._go_on(status, task) if status == DEVICE_LOST else self._entry(status)

    def _task(self) -> tuple[str, bool]:
        """The task that was announced last, and whether it is done; keeps the time of the news."""
        if (size := self._out.stat().st_size) != self._seen:
            self._seen, self._last_news = size, time.perf_counter()
        said = [record for record in self._records() if "begin" in record or "end" in record]
        if not said:
            return "", True
        return said[-1].get("begin") or said[-1]["end"], "end" in said[-1]

    def _go_on(self, status: int | None, task: str, reason: str = "") -> dict[str, Any] | None:
        """Enter a task as failed, if there is a reason, and begin again behind it."""
        with self._out.open("a") as out:
            if reason:
                failed = {self.section.task_key: task, "error": reason, "passed": False}
                out.write("\n" + json.dumps(failed))
            out.write("\n" + json.dumps({"end": task}) + "\n")
        if self._limit - time.perf_counter() < 3:
            return self._entry(status)
        self._restarts += 1
        self._process = self._begin(["--after", task])
        self._last_news = time.perf_counter()
        return None

    def stop(self) -> dict[str, Any]:
        """End it; its entry, with the records so far."""
        self._kill()
        return self._entry(None)

    def _kill(self) -> None:
        """End the process and those that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        wait_for(self._process)

    def _records(self) -> list[dict[str, Any]]:
        return records_of(self._out.read_text(errors="replace"))

    def _entry(self, status: int | None) -> dict[str, Any]:
        records = [r for r in self._records() if "begin" not in r and "end" not in r]
        said, errors = (path.read_text(errors="replace") for path in (self._out, self._errors))
        entry = {
            "name": self.section.name,
            "status": status,
            "seconds": time.perf_counter() - self._start,
            "records": records,
            "note": f"began again {self._restarts} times" if self._restarts else "",
            "tail": said[-3000:],
            "errors": errors[-3000:],
        }
        refusal = [text for text in _REFUSALS if text in said + errors]
        if self.section.tool and status and refusal:
            entry |= {"status": "skipped", "note": f"not allowed on this machine: {refusal[0]}"}
        return entry


def wait_for(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that was killed, but not for one that hangs in the driver."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def answer(command: Sequence[str]) -> str:
    """What a command prints; empty where it cannot be run."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit of the tree, and whether it was changed."""
    head = answer(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown"
    return head + (" with changes" if answer(["git", "status", "--porcelain"]) else "")


def run(
    sections: Sequence[Section],
    seconds: float,
    folder: Path,
    most: int = 64,
    note: Callable[[dict[str, Any]], None] = lambda entry: None,
    earlier: Mapping[str, Sequence[dict[str, Any]]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Runs sections at the same time; returns their entries in the report, in order.

    Args:
        sections: what to run.
        seconds: for all of them; those that have not begun by then are entered as that.
        folder: for what they print.
        most: how many run at once.
        note: is told each entry when it is there, also when this process is interrupted.
        earlier: by name, the records of sections that did not end in an earlier run.
    """
    until = time.perf_counter() + seconds
    waiting, running = list(enumerate(sections)), dict[int, Running]()
    entries: dict[int, dict[str, Any]] = {}

    def enter(number: int, entry: dict[str, Any]) -> None:
        entries[number] = entry
        note(entry)

    try:
        while waiting or running:
            while waiting and len(running) < most:
                number, section = waiting.pop(0)
                left = until - time.perf_counter()
                if section.absent or left < 3:
                    enter(number, _not_run(section))
                else:
                    found = earlier.get(section.name, ())
                    running[number] = Running(section, left, folder, found)
            for number, one in list(running.items()):
                entry = one.poll()
                if entry is not None:
                    del running[number]
                    enter(number, entry)
            time.sleep(_POLL)
    finally:
        for number, one in running.items():
            enter(number, one.stop())
    return [entries[number] for number in range(len(sections))]


def _not_run(section: Section) -> dict[str, Any]:
    """The entry of a section that cannot run here, or has no time left."""
    status = "skipped" if section.absent else "out of time"
    return {"name": section.name, "status": status, "seconds": 0.0, "note": section.absent}


def records_of(text: str) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # a process that was killed while it wrote
    return found
