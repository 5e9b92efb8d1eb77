"""Failure detector: a thread per process that sends heartbeats, and learns which rank failed first.

Rank 0 receives heartbeats from all others. If a connection ends without a goodbye, or is silent for
too long, rank 0 reports that rank to all others. Each process then ends its transfers with an error
that names the rank. A process that does not end within a grace period is ended.

Tests: tests/parallel/test_mismatches.py, tests/parallel/test_rendezvous.py,
tests/parallel/test_faults.py.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpuflow.base.spare_threads import SpareThread
from gpuflow.parallel.processes import messages
from gpuflow.parallel.processes.messages import WireError
from gpuflow.parallel.processes.rendezvous import Group

# Seconds after a failure report until this process ends itself; it may still be computing.
GRACE_SECONDS = 10.0
FAILED_STATUS = 70
_MAX_REASON = 2000


class Heartbeats:
    """The heartbeat thread of this process.

    Args:
        group: the group of processes.
        timeout: seconds without a message after which a process counts as failed.
        failed: called with the reason when a process has failed, or ranks have different
            operations.
        count: returns the number of collectives that this process has started. Heartbeats carry it.
    """

    def __init__(
        self,
        group: Group,
        timeout: float,
        failed: Callable[[str], None],
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        self._group = group
        self._timeout = timeout
        self._failed = failed
        self._count = count
        # Collectives started, by rank: of all others on rank 0, elsewhere of the slowest rank only.
        self._counts: dict[int, int] = {}
        self._others: dict[int, socket.socket] = dict(group.members)
        if group.control is not None:
            self._others[0] = group.control
        for connection in self._others.values():
            connection.settimeout(5.0)
        self._pending = {rank: bytearray() for rank in self._others}
        now = time.monotonic()
        self._last_heard = dict.fromkeys(self._others, now)
        self._left: set[int] = set()  # ranks that left regularly
        self._reason: str | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gpuflow-heartbeats", daemon=True)
        self._grace: SpareThread | None = None

    def start(self) -> None:
        self._grace = SpareThread("gpuflow-grace")
        self._thread.start()

    def tell_error(self, error: str) -> None:
        """Send the error that ends this process."""
        self._tell({"failed": self._group.rank, "reason": f"raised {error}"})

    def leave(self, wait: float, failed: bool = False) -> None:
        """Send a goodbye. Rank 0 waits for those of the others, to report failures until then.

        Args:
            wait: maximum wait in seconds.
            failed: whether this process has sent an error. Then it neither sends nor waits.
        """
        if not failed:
            self._tell({"left": self._group.rank})
        until = time.monotonic() + wait
        while self._group.rank == 0 and not failed and self._reason is None:
            if self._left >= set(self._others) or time.monotonic() > until:
                break
            time.sleep(0.01)
        self._stopping.set()
        if self._grace is not None:
            self._grace.drop()
        self._thread.join(2.0)
        for connection in self._others.values():
            connection.close()

    def behind(self, count: int) -> tuple[int, int] | None:
        """The rank that has started the fewest collectives, and their number; None if not behind.

        Args:
            count: number of collectives that this process has started.
        """
        slow = min(self._counts.items(), key=lambda item: item[1], default=None)
        return slow if slow is not None and slow[1] < count else None

    def _beat(self) -> dict[str, Any]:
        rank, count = self._group.rank, self._count()
        message: dict[str, Any] = {"beat": rank, "count": count}
        if rank == 0:
            message["slowest"] = list(self.behind(count) or (0, count))
        return message

    def _tell(self, message: dict[str, Any], besides: int = -1) -> None:
        with self._lock:
            for rank, connection in self._others.items():
                if rank != besides and rank not in self._left:
                    with suppress(WireError, OSError):
                        messages.send_message(connection, message)

    def _run(self) -> None:
        interval = max(0.05, min(self._timeout / 4, 5.0))
        next_beat = time.monotonic()
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= next_beat:
                self._tell(self._beat())
                next_beat = now + interval
            self._listen(min(interval, 0.2))
            if self._reason is None:
                self._look_for_silence()

    def _listen(self, seconds: float) -> None:
        """Receive messages for some seconds, and detect closed connections."""
        poll = select.poll()
        ranks = {}
        for rank, connection in self._others.items():
            if rank not in self._left and connection.fileno() >= 0:
                ranks[connection.fileno()] = rank
                poll.register(connection.fileno(), select.POLLIN)
        if not ranks:
            self._stopping.wait(seconds)
            return
        for fd, _ in poll.poll(1000 * seconds):
            rank = ranks[fd]
            try:
                data = self._others[rank].recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._left.add(rank)
                self._fail(rank, "ended without a goodbye (killed, or crashed)")
                continue
            self._last_heard[rank] = time.monotonic()
            self._pending[rank] += data
            try:
                for message in messages.take_messages(self._pending[rank]):
                    self._understand(rank, message)
            except WireError:
                self._pending[rank].clear()
                self._fail(rank, "sent what is no message")

    def _understand(self, sender: int, message: dict[str, Any]) -> None:
        """Handle a message.

        Raises:
            WireError: if it is malformed.
        """
        size = self._group.size
        if "left" in message:
            self._left.add(sender)
        elif "failed" in message:
            reason = messages.text_of(message, "reason", _MAX_REASON)
            self._fail(messages.number_of(message, "failed", below=size), reason)
        elif "differs" in message:
            self._differ(messages.text_of(message, "differs", _MAX_REASON), besides=sender)
        elif "beat" in message:
            slowest = message.get("slowest", [sender, message.get("count", 0)])
            if not isinstance(slowest, list) or len(slowest) != 2:
                raise WireError("the slowest must be a rank and its count")
            about = {"rank": slowest[0], "count": slowest[1]}
            self._counts = {} if sender == 0 else self._counts
            rank = messages.number_of(about, "rank", below=size)
            self._counts[rank] = messages.number_of(about, "count")

    def differ(self, reason: str) -> None:
        """Report to the others that ranks have different operations, which ends collectives."""
        self._tell({"differs": reason[:_MAX_REASON]})

    def _differ(self, reason: str, besides: int) -> None:
        # Unlike a failed process, this ends no process: transfers raise, and programs may continue.
        self._failed(reason)
        if self._group.rank == 0:
            self._tell({"differs": reason}, besides)

    def _look_for_silence(self) -> None:
        for rank, heard in self._last_heard.items():
            silent = time.monotonic() - heard
            if rank not in self._left and silent > self._timeout:
                self._fail(rank, f"has shown no life for {silent:.0f} s (stopped, or out of reach)")

    def _fail(self, rank: int, what: str) -> None:
        if self._reason is not None or self._stopping.is_set():
            return
        self._reason = f"rank {rank} {what}"
        if self._group.rank == 0:
            self._tell({"failed": rank, "reason": what}, besides=rank)
        self._failed(self._reason)
        if self._grace is not None:
            self._grace.begin(self._end_after_grace)

    def _end_after_grace(self) -> None:
        if self._stopping.wait(GRACE_SECONDS):
            return
        print(
            f"[distributed] rank {self._group.rank} ends because {self._reason}.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(FAILED_STATUS)
