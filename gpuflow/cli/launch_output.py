"""The output of a group's processes: each line prefixed by its rank, and stored per rank.

Tests: tests/cli/test_launch.py.
"""

from __future__ import annotations

import re
import selectors
import sys
import threading
import time
from collections import deque
from dataclasses import field
from pathlib import Path
from typing import IO, TextIO

from gpuflow.base.records import record
from gpuflow.cli.problems import CommandError

TAIL_LENGTH = 200
HELD_SECONDS = 3.0  # for which a traceback is held back: its process may be about to end
_RANKED = re.compile(r"^\[(\d+)\] ?")
_TRACEBACK = "Traceback (most recent call last):"


@record(frozen=False)
class Held:
    """Lines of a rank from a traceback on, not printed yet, with their target streams."""

    since: float
    entries: list[tuple[str, TextIO]] = field(default_factory=list)


class Output:
    """Reads pipes of processes in a thread, line by line.

    A traceback is printed once: with the reason why a group ended, or, if its process goes on,
    after a while.

    Args:
        folder: where ``rank-K.log`` is written, or None.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._logs: dict[int, TextIO] = {}
        self._tails: dict[int, deque[str]] = {}
        self._tracebacks: dict[int, int] = {}  # the line number at which each rank's last one began
        self._held: dict[int, Held] = {}
        self._total = 0
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="gpuflow-output", daemon=True)
        if folder is not None:
            make_folder(folder)

    def add(self, rank: int | None, pipe: IO[bytes], target: TextIO) -> None:
        """Read a pipe of a rank; for None, each line has a prefix with its rank (mpiexec)."""
        self._selector.register(pipe, selectors.EVENT_READ, (rank, target, bytearray()))

    def start(self) -> None:
        self._thread.start()

    def count(self) -> int:
        """Number of lines so far."""
        return self._total

    def tail(self, rank: int) -> list[str]:
        """The last lines of a rank."""
        with self._lock:
            return list(self._tails.get(rank, ()))

    def tracebacks(self) -> dict[int, int]:
        """For each rank that printed a traceback, the line number at which it began."""
        with self._lock:
            return dict(self._tracebacks)

    def take(self, rank: int) -> bool:
        """Drop a held traceback of a rank; returns whether there was one."""
        with self._lock:
            return self._held.pop(rank, None) is not None

    def release(self, age: float = 0.0) -> None:
        """Print output that has been held back for so many seconds."""
        until = time.monotonic() - age
        with self._lock:
            due = [rank for rank, held in self._held.items() if held.since <= until]
            for rank, held in [(rank, self._held.pop(rank)) for rank in due]:
                for text, target in held.entries:
                    print(f"[{rank}] {text}", file=target)

    def close(self, seconds: float) -> None:
        """Read the remaining output, for a limited time: a grandchild may keep a pipe open."""
        self._thread.join(seconds)
        self._stopping = True
        self._thread.join(1.0)
        for log in self._logs.values():
            log.close()

    def note(self, rank: int, text: str) -> None:
        """Write a message of the launcher into a rank's log."""
        log = self._log(rank)
        if log is not None:
            log.write(f"{text}\n")
            log.flush()

    def _run(self) -> None:
        while self._selector.get_map() and not self._stopping:
            self.release(HELD_SECONDS)
            for key, _ in self._selector.select(0.2):
                rank, target, pending = key.data
                data = key.fileobj.read1(1 << 16)  # type: ignore[union-attr]
                pending += data
                *complete, remainder = pending.split(b"\n")
                pending[:] = remainder
                if not data:
                    self._selector.unregister(key.fileobj)
                    complete = [*complete, remainder] if remainder else complete
                for encoded in complete:
                    self._handle(rank, encoded.decode(errors="replace"), target)
                target.flush()

    def _handle(self, rank: int | None, text: str, target: TextIO) -> None:
        if rank is None:
            match = _RANKED.match(text)
            if match is None:
                print(text, file=target)
                return
            rank, text = int(match[1]), text[match.end() :]
        with self._lock:
            self._total += 1
            self._tails.setdefault(rank, deque(maxlen=TAIL_LENGTH)).append(text)
            if text.startswith(_TRACEBACK):
                self._tracebacks[rank] = self._total
                self._held.setdefault(rank, Held(time.monotonic()))
            if rank in self._held:
                self._held[rank].entries.append((text, target))
            else:
                print(f"[{rank}] {text}", file=target)
        log = self._log(rank)
        if log is not None:
            log.write(f"{text}\n")
            log.flush()

    def _log(self, rank: int) -> TextIO | None:
        if self._folder is None:
            return None
        if rank not in self._logs:
            self._logs[rank] = (self._folder / f"rank-{rank}.log").open("a")
        return self._logs[rank]


def last_traceback(output: list[str]) -> list[str]:
    """The last traceback of a rank's output, from the first of a chain; else its last lines."""
    starts = [k for k, text in enumerate(output) if text.startswith(_TRACEBACK)]
    if not starts:
        return output[-10:]
    first = starts[-1]
    for start in reversed(starts[:-1]):
        between = "\n".join(output[start:first])
        chained = "direct cause of the following" in between or "another exception" in between
        if not chained:
            break
        first = start
    return output[first:]


def is_consequence(output: list[str]) -> bool:
    """Whether a rank failed because another one did."""
    return any("CommunicationError" in text for text in last_traceback(output))


def is_cut(output: list[str]) -> bool:
    """Whether a traceback lacks the exception, because its process was killed."""
    return output[-1].startswith((" ", _TRACEBACK))


def make_folder(folder: Path) -> None:
    """Create the folder of logs.

    Raises:
        CommandError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"--log-dir must be a folder that can be written; got {folder} ({error.strerror}). "
            "Fix: name another one"
        ) from None


def say(text: str) -> None:
    """Print a message of the launcher."""
    sys.stdout.flush()
    print(f"[launch] {text}", file=sys.stderr, flush=True)
