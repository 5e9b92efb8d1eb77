"""Authentication of incoming connections: many callers concurrently, each with a deadline.

The receiver never waits for a single connection. A caller that is silent, slow, or sends malformed
messages delays no other, and is disconnected after a few seconds. Until a caller has proven that it
knows the token, it gets at most 64 KB of memory and nothing else.

Tests: tests/parallel/test_rendezvous.py.
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from contextlib import suppress
from dataclasses import field
from typing import Any

from gpuflow.base.records import record
from gpuflow.parallel.processes import messages
from gpuflow.parallel.processes.messages import WireError

CALLER_SECONDS = 5.0
MAX_CALLERS = 256  # unauthenticated callers; the oldest is dropped first, as members are quick
_MAX_LENGTH = 1 << 16
_AT_ONCE = 64  # connections accepted between checks of present callers
_SLICE = 0.2  # seconds between checks of deadlines


@record(frozen=False)
class _Caller:
    """A caller that is not authenticated yet.

    Attributes:
        connection: the socket.
        asked: the challenge that was sent.
        until: the deadline, at which the connection is closed.
        pending: received data.
    """

    connection: socket.socket
    asked: str
    until: float
    pending: bytearray = field(default_factory=bytearray)


class Reception:
    """Accepts and authenticates connections.

    Args:
        doors: listening sockets, which the caller closes.
        token: the token of the group.
        most: maximum number of unauthenticated callers.
    """

    def __init__(self, doors: list[socket.socket], token: str, most: int = MAX_CALLERS) -> None:
        self._doors = {door.fileno(): door for door in doors if door.fileno() >= 0}
        for door in self._doors.values():
            door.setblocking(False)
        self._token, self._most = token, most
        self._callers: dict[int, _Caller] = {}
        self.refused = ""  # why the last refused caller was refused

    def next(self, deadline: float) -> tuple[socket.socket, dict[str, Any]] | None:
        """The next authenticated caller: its connection and its message.

        The connection has a timeout of CALLER_SECONDS.

        Args:
            deadline: time of ``time.monotonic`` at which to give up.

        Returns:
            None at the deadline, or if the listening sockets are closed.
        """
        while self._doors and (now := time.monotonic()) < deadline:
            for fd in self._ready(min(_SLICE, deadline - now)):
                if fd in self._doors:
                    self._admit(fd)
                elif (arrival := self._hear(fd)) is not None:
                    return arrival
            self._refuse_late()
        return None

    def close(self) -> None:
        """Refuse all callers that are not authenticated."""
        for fd in list(self._callers):
            self._refuse(fd, "the group is complete, or has failed")

    def _ready(self, seconds: float) -> list[int]:
        poll = select.poll()
        for fd in (*self._doors, *self._callers):
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(1000 * seconds)]

    def _admit(self, fd: int) -> None:
        door = self._doors[fd]
        if door.fileno() != fd:
            del self._doors[fd]
            return
        for _ in range(_AT_ONCE):
            try:
                connection, _ = door.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the caller has ended, or no file descriptors are left
                if self._callers:
                    self._refuse(next(iter(self._callers)), str(error))
                time.sleep(0.001)
                return
            caller = _Caller(connection, secrets.token_hex(16), time.monotonic() + CALLER_SECONDS)
            connection.setblocking(False)
            self._callers[connection.fileno()] = caller
            try:
                messages.send_message(connection, messages.question(caller.asked))
            except WireError as error:
                self._refuse(connection.fileno(), str(error))
            if len(self._callers) > self._most:
                self._refuse(next(iter(self._callers)), "too many called at once")

    def _hear(self, fd: int) -> tuple[socket.socket, dict[str, Any]] | None:
        """Read from a caller; return its connection and message once they are authenticated."""
        caller = self._callers.get(fd)
        if caller is None:  # refused since the poll
            return None
        try:
            data = caller.connection.recv(_MAX_LENGTH)
            if not data:
                raise WireError("the connection was closed")
            caller.pending += data
            received = messages.take_messages(caller.pending, _MAX_LENGTH)
            if not received:
                return None
            about = messages.proven(received[0], self._token, caller.asked)
            if len(received) > 1 or caller.pending:
                raise WireError("it said more than it was asked")
        except BlockingIOError:
            return None
        except (WireError, OSError) as error:
            self._refuse(fd, str(error))
            return None
        del self._callers[fd]
        caller.connection.settimeout(CALLER_SECONDS)
        return caller.connection, about

    def _refuse_late(self) -> None:
        now = time.monotonic()
        for fd, caller in list(self._callers.items()):
            if now > caller.until:
                self._refuse(fd, f"it did not introduce itself within {CALLER_SECONDS:g} s")

    def _refuse(self, fd: int, why: str) -> None:
        caller = self._callers.pop(fd)
        self.refused = why
        with suppress(OSError):
            messages.refuse(caller.connection, why)
            caller.connection.close()
