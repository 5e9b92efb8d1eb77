"""Full-duplex transfers over sockets to several peers at once.

A transfer sends and receives concurrently, and never waits for one peer while another is ready, so
that rings cannot deadlock. Each message has a header with the sender's operation. A rank with
another operation gets an error instead of wrong numbers.

Tests: tests/parallel/test_mismatches.py, tests/parallel/test_communicators.py.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import NoReturn

from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record

# Magic bytes, checksum of the sender's call, size of the data in bytes, and the call as text,
# truncated.
_TEXT_BYTES = 160
_HEADER = struct.Struct(f"<4sIQ{_TEXT_BYTES}s")
_MAGIC = b"gpfl"
_SLICE = 1.0  # seconds between checks for other events while waiting
VERDICT = 2.0  # seconds to wait for rank 0's report of the first failure, if a connection breaks


@record
class Call:
    """One collective of a communicator; it must be equal on all ranks.

    Attributes:
        operation: name of the collective.
        number: ordinal among the communicator's collectives.
        about: dtype, shape, reduction, and ranks, as text.
        headers: cached headers, by the size of the data in bytes.
    """

    operation: str
    number: int
    about: str = ""
    headers: dict[int, bytes] = field(default_factory=dict)

    def header(self, count: int) -> bytes:
        """The header of a message with ``count`` bytes of data."""
        header = self.headers.get(count)
        if header is None:
            text = str(self).encode()
            header = _HEADER.pack(_MAGIC, zlib.crc32(text), count, text[:_TEXT_BYTES])
            self.headers[count] = header
        return header

    def __str__(self) -> str:
        return f"{self.operation} number {self.number}{self.about}"


@record(frozen=False)
class Receipt:
    """A message to receive from one peer: a header, then data.

    Attributes:
        peer: the rank of the sender.
        target: the buffer of the data.
        arrived: called with the number of received data bytes, whenever it grows.
        header: the buffer of the header.
        count: number of received bytes, including the header.
    """

    peer: int
    target: memoryview
    arrived: Callable[[int], None] | None = None
    header: bytearray = field(default_factory=lambda: bytearray(_HEADER.size))
    count: int = 0

    @property
    def is_done(self) -> bool:
        return self.count == _HEADER.size + len(self.target)


@record(frozen=False)
class Delivery:
    """A message to send to one peer: the views of memory that remain to be sent, in order."""

    peer: int
    views: list[memoryview]


class Links:
    """The data connections of a process to all others of its group.

    Args:
        rank: the rank of this process.
        sockets: a connected socket for each other rank.
        timeout: seconds that a transfer may take without any progress.

    Attributes:
        size: number of processes.
        lock: callers of ``exchange`` must hold it: transfers of two collectives must not mix.
        calls: number of started transfers, by which a watchdog detects progress.
        differs: called with both operations if another rank has a different one, to report it to
            the other ranks.
    """

    def __init__(self, rank: int, sockets: dict[int, socket.socket], timeout: float) -> None:
        self.rank, self.size = rank, len(sockets) + 1
        self.differs: Callable[[str], None] = lambda reason: None
        self.timeout = timeout
        self.lock = threading.RLock()
        self.calls = 0
        self._sockets = sockets
        self._failure: str | None = None
        self._failed = threading.Event()
        for connection in sockets.values():
            connection.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connection.setsockopt(socket.SOL_SOCKET, option, 1 << 22)

    def fail(self, reason: str) -> None:
        """End all current and later transfers with an error; only the first reason is kept."""
        if self._failure is None:
            self._failure = reason
            self._failed.set()
        self.close(keep=True)

    @property
    def failure(self) -> str | None:
        """The reason why transfers fail; None if they do not."""
        return self._failure

    def close(self, keep: bool = False) -> None:
        """Shut down the connections; ``keep`` leaves sockets open for threads that wait on them."""
        for connection in list(self._sockets.values()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if not keep:
                connection.close()
        if not keep:
            self._sockets.clear()

    def exchange(
        self,
        call: Call,
        sends: Sequence[tuple[int, memoryview]],
        receipts: Sequence[Receipt],
    ) -> None:
        """Send to some peers while receiving from some, and return when all is done.

        Args:
            call: the collective.
            sends: pairs of a peer and data.
            receipts: the messages to receive.

        Raises:
            CommunicationError: if a peer ends, stalls, or has another operation.
        """
        self.calls += 1
        deliveries = [
            Delivery(peer, [memoryview(call.header(len(data))), data]) for peer, data in sends
        ]
        waiting: list[Receipt | Delivery] = [*deliveries, *receipts]
        deadline = time.monotonic() + self.timeout
        while waiting:
            has_progress = False
            remaining: list[Receipt | Delivery] = []
            for item in waiting:
                step = self._send if isinstance(item, Delivery) else self._receive
                progress, done = step(call, item)  # type: ignore[arg-type]
                has_progress = has_progress or progress
                if not done:
                    remaining.append(item)
            waiting = remaining
            if has_progress:
                deadline = time.monotonic() + self.timeout
            elif waiting:
                self._wait(call, waiting, deadline)

    def _send(self, call: Call, item: Delivery) -> tuple[bool, bool]:
        """Send as much as the system accepts; returns whether any and whether all was sent."""
        try:
            count = self._socket(call, item.peer).sendmsg(item.views)
        except BlockingIOError:
            return False, False
        except OSError:
            self._lost(call, item.peer)
        while item.views and count >= len(item.views[0]):
            count -= len(item.views.pop(0))
        if item.views and count:
            item.views[0] = item.views[0][count:]
        return True, not item.views

    def _receive(self, call: Call, item: Receipt) -> tuple[bool, bool]:
        size = _HEADER.size
        is_header = item.count < size
        target = (
            memoryview(item.header)[item.count :] if is_header else item.target[item.count - size :]
        )
        try:
            count = self._socket(call, item.peer).recv_into(target)
        except BlockingIOError:
            return False, False
        except OSError:
            count = 0
        if count == 0:
            self._lost(call, item.peer)
        item.count += count
        if is_header and item.count == size:
            self._check_header(call, item)
        elif not is_header and item.arrived is not None:
            item.arrived(item.count - size)
        return True, item.is_done

    def _check_header(self, call: Call, item: Receipt) -> None:
        if item.header == call.header(len(item.target)):
            return
        mark, _, count, text = _HEADER.unpack(item.header)
        other = "something unknown"
        if mark == _MAGIC:
            other = text.rstrip(b"\0").decode(errors="replace")
        differs = (
            f"{call} with {len(item.target)} bytes on rank {self.rank} and {other} with {count} "
            f"bytes on rank {item.peer}"
        )
        # Report first: ranks that wait for one of the two then get the reason before the shutdown.
        self.differs(f"ranks do different things: {differs}")
        self.fail(f"rank {item.peer} and rank {self.rank} do different things")
        raise CommunicationError(
            f"[{call.operation}] all ranks must call the same collectives in the same order, with "
            f"the same shapes and dtypes; got {differs}. Fix: let no rank skip or reorder a "
            "collective; GPUFLOW_CHECK=1 compares all ranks before each call."
        )

    def _socket(self, call: Call, peer: int) -> socket.socket:
        connection = self._sockets.get(peer)
        if connection is None:
            self._lost(call, peer)
        return connection

    def _wait(self, call: Call, waiting: Sequence[Receipt | Delivery], deadline: float) -> None:
        """Wait until one of the connections is ready.

        Raises:
            CommunicationError: if none is ready before the deadline.
        """
        poll = select.poll()
        events: dict[int, int] = {}
        for item in waiting:
            fd = self._socket(call, item.peer).fileno()
            mask = select.POLLOUT if isinstance(item, Delivery) else select.POLLIN
            events[fd] = events.get(fd, 0) | mask
        for fd, mask in events.items():
            if fd < 0:
                self._lost(call, waiting[0].peer)
            poll.register(fd, mask)
        while not poll.poll(1000 * min(_SLICE, max(0.0, deadline - time.monotonic()))):
            if self._failure is not None:
                self._lost(call, waiting[0].peer)
            if time.monotonic() >= deadline:
                peers = sorted({item.peer for item in waiting})
                reason = f"rank {', rank '.join(map(str, peers))} did not reach {call}"
                self.fail(reason)
                raise CommunicationError(
                    f"[{call.operation}] all ranks must reach {call}; got nothing from rank "
                    f"{', rank '.join(map(str, peers))} on rank {self.rank} for {self.timeout:g} "
                    "s. Fix: print the stack of that rank (gpuflow launch --watchdog), or set a "
                    "longer limit with initialize(collective_timeout=...)."
                )

    def _lost(self, call: Call, peer: int) -> NoReturn:
        """Raise the error for a broken connection, with the first failure if rank 0 reports it."""
        self._failed.wait(VERDICT)
        reason = self._failure or f"rank {peer} ended"
        self.fail(reason)
        raise CommunicationError(
            f"[{call.operation}] all ranks must reach {call}; got an end of the connection on "
            f"rank {self.rank}: {reason}. Fix: look for the first error of that rank."
        )
