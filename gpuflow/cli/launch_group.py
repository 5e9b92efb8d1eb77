"""A group of processes: started, watched and ended as one.

Tests: tests/cli/test_launch.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from gpuflow.base.records import record
from gpuflow.cli.launch_keeper import kill_descendants
from gpuflow.cli.launch_output import Output, is_consequence, is_cut, last_traceback, say

POLL_SECONDS = 0.02
SETTLE_SECONDS = 0.5  # in which other ranks may end that failed at the same time, or before
GRACE_SECONDS = 3.0  # default time from the request to end until processes are killed
STALLED_STATUS = 75


@record
class Start:
    """One process to start; ``rank`` None is mpiexec, which starts all ranks."""

    rank: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str]


@record(frozen=False)
class Progress:
    """Time of the last progress of each rank, from the files that its worker writes."""

    folder: Path
    limit: float
    seen: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    output_count: int = -1
    output_time: float = 0.0

    def stalled(self, running: Sequence[int], output_count: int) -> list[int]:
        """The running ranks that hold up the others, if there was no progress for too long."""
        now = time.monotonic()
        for path in self.folder.iterdir():
            if path.name.isdigit():
                with suppress(OSError, ValueError):
                    pid, count = map(int, path.read_text().split())
                    if self.seen.get(int(path.name), (0, -1, 0.0))[:2] != (pid, count):
                        self.seen[int(path.name)] = (pid, count, now)
        if output_count != self.output_count:
            self.output_count, self.output_time = output_count, now
        ranks = [rank for rank in running if rank in self.seen]
        if not ranks or now - self.output_time < self.limit:
            return []
        if max(self.seen[rank][2] for rank in ranks) > now - self.limit:
            return []
        least = min(self.seen[rank][1] for rank in ranks)
        return [rank for rank in ranks if self.seen[rank][1] == least]

    def dump_stacks(self, running: Sequence[int]) -> None:
        """Let every running rank print the stacks of all its threads."""
        for rank in running:
            if rank in self.seen:
                with suppress(ProcessLookupError):
                    os.kill(self.seen[rank][0], signal.SIGUSR1)


class Group:
    """The processes of one attempt.

    Args:
        starts: the commands to start.
        output: collects their output.
        watchdog: seconds without progress after which the group is ended; 0: never.
        signals: the signals that the launcher received; filled elsewhere.
        grace: seconds from the request to end until processes are killed.
    """

    def __init__(
        self,
        starts: Sequence[Start],
        output: Output,
        watchdog: float,
        signals: list[int],
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._starts = starts
        self._output = output
        self._watchdog = watchdog
        self._signals = signals
        self._grace = grace
        self._parent = os.getppid()
        self._processes: dict[int | None, subprocess.Popen[bytes]] = {}

    def run(self) -> int:
        """Run until all are done; returns 0, or the status of the rank that failed first."""
        with tempfile.TemporaryDirectory(prefix="gpuflow-launch-") as folder:
            progress = Progress(Path(folder), self._watchdog)
            try:
                self._start(folder)
                return self._wait(progress)
            finally:
                self._end(signal.SIGTERM)
                self._output.close(1.0)
                self._output.release()

    def _start(self, folder: str) -> None:
        more = {"GPUFLOW_LAUNCHER_PID": str(os.getpid())}
        if self._watchdog:
            more["GPUFLOW_WATCHDOG"] = folder
        for start in self._starts:
            environment = dict(start.environment) | more
            if start.rank is None:
                del environment["GPUFLOW_LAUNCHER_PID"]  # the parent of ranks is mpiexec's
            process = subprocess.Popen(
                start.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stdout is not None and process.stderr is not None
            self._processes[start.rank] = process
            self._output.add(start.rank, process.stdout, sys.stdout)
            self._output.add(start.rank, process.stderr, sys.stderr)
        self._output.start()

    def _running(self) -> list[int | None]:
        return [rank for rank, process in self._processes.items() if process.poll() is None]

    def _wait(self, progress: Progress) -> int:
        next_look = 0.0
        while True:
            if self._signals:
                return self._interrupted()
            if os.getppid() != self._parent:  # it was killed, and would have ended us
                kill_descendants()
                return 128 + signal.SIGKILL
            running = self._running()
            if any(process.returncode for process in self._processes.values()):
                return self._failed()
            if not running:
                return 0
            if self._watchdog and time.monotonic() >= next_look:
                next_look = time.monotonic() + min(0.25, self._watchdog / 4)
                ranks = sorted(progress.seen) if None in running else running
                stalled = progress.stalled(
                    [r for r in ranks if r is not None], self._output.count()
                )
                if stalled:
                    return self._stalled(progress, stalled)
            time.sleep(POLL_SECONDS)

    def _interrupted(self) -> int:
        number = self._signals[0]
        name = signal.Signals(number).name
        say(f"{name}: ending the group.")
        self._end(number)
        return 128 + number

    def _stalled(self, progress: Progress, stalled: Sequence[int]) -> int:
        names = ", ".join(f"rank {rank}" for rank in stalled)
        say(
            f"no rank made progress for {self._watchdog:g} s; {names} started the fewest "
            "collectives. The stacks of all ranks:"
        )
        running = sorted(progress.seen)
        progress.dump_stacks(running)
        time.sleep(1.0)
        self._end(signal.SIGTERM)
        self._output.close(1.0)
        say(f"ended the group, because {names} made no progress for {self._watchdog:g} s.")
        return STALLED_STATUS

    def _failed(self) -> int:
        """Find the rank that failed first, end the others, and show its traceback last."""
        until = time.monotonic() + SETTLE_SECONDS
        while self._running() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        failed = {rank: p.returncode for rank, p in self._processes.items() if p.poll()}
        self._end(signal.SIGTERM)
        self._output.close(1.0)
        if None in failed:
            return self._mpi_failed(failed[None])
        printed = self._output.tracebacks()

        def order(rank: int | None) -> tuple[bool, bool, int, int]:
            printed_rank = rank or 0
            is_later = is_consequence(self._output.tail(printed_rank))
            return is_later, failed[rank] > 0, printed.get(printed_rank, 0), printed_rank

        rank = min(failed, key=order)
        status = failed[rank]
        how = f"status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
        self._show(rank or 0, f"rank {rank} failed first, with {how}")
        return status if status > 0 else 128 - status

    def _mpi_failed(self, status: int) -> int:
        """Find the rank that failed from the output, as mpiexec only reports that one did."""
        printed = self._output.tracebacks()

        def order(rank: int) -> tuple[bool, bool, int]:
            traceback = last_traceback(self._output.tail(rank))
            return is_cut(traceback), is_consequence(traceback), printed[rank]

        if printed:
            rank = min(printed, key=order)
            self._show(rank, f"rank {rank} failed first, mpiexec with status {status}")
        else:
            say(f"mpiexec ended with status {status}.")
        return status if status > 0 else 128 - status

    def _show(self, rank: int, what: str) -> None:
        """Report the failure that ended the group: the traceback of one rank, a line of others."""
        for other in self._output.tracebacks():
            if other != rank and self._output.take(other):
                self._print(other, last_traceback(self._output.tail(other))[-1:])
        shown: list[str] = []
        if rank in self._output.tracebacks():
            fits_kernels = self._output.take(rank)
            shown = last_traceback(self._output.tail(rank))
            shown = shown if fits_kernels else shown[-1:]  # the others were printed when they came
        say(f"{what}; ended the group.{' Its last lines:' if shown else ''}")
        self._print(rank, shown)

    def _print(self, rank: int, texts: Sequence[str]) -> None:
        for text in texts:
            print(f"[{rank}] {text}", file=sys.stderr)
        sys.stderr.flush()

    def _end(self, number: int) -> None:
        """Ask all processes to end, and kill those that do not, with their children."""
        for rank in self._running():
            self._kill(rank, number)
        until = time.monotonic() + self._grace
        while self._running() and time.monotonic() < until:
            if len(self._signals) > 1:  # a second Ctrl-C
                break
            time.sleep(POLL_SECONDS)
        for rank, process in self._processes.items():
            self._kill(rank, signal.SIGKILL)
            process.wait()

    def _kill(self, rank: int | None, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._processes[rank].pid, number)
