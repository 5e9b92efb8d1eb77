"""Data connections between all processes of a group: Unix sockets on one machine, otherwise TCP.

Tests: tests/parallel/test_rendezvous.py, tests/parallel/test_distributed.py.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record
from gpuflow.parallel.processes import messages
from gpuflow.parallel.processes.messages import WireError
from gpuflow.parallel.processes.reception import MAX_CALLERS, Reception


@record
class Listener:
    """Listening sockets of a process.

    Attributes:
        near: a Unix socket for processes of this machine; None if the system has none.
        far: a TCP socket for all other processes.
        addresses: the addresses of both, which are sent to the other processes.
    """

    near: socket.socket | None
    far: socket.socket
    addresses: dict[str, Any]

    def sockets(self) -> list[socket.socket]:
        return [listening for listening in (self.near, self.far) if listening is not None]

    def close(self) -> None:
        for listening in self.sockets():
            listening.close()


def _machine() -> str:
    """An id that is equal for processes that can reach each other by Unix sockets; "" if none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return ""


def listen_for_peers(host: str) -> Listener:
    """Listen for the other processes, on the interface of ``host`` and on a Unix socket."""
    far = messages.listen(host, 0, 128)
    machine, near, name = _machine(), None, ""
    if machine:
        # A name in Linux's abstract namespace: it is no file, and ends with the process.
        name = f"gpuflow-{secrets.token_hex(12)}"
        near = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        near.bind("\0" + name)
        near.listen(128)
    addresses = {"host": host, "port": far.getsockname()[1], "machine": machine, "name": name}
    return Listener(near, far, addresses)


def connect_peers(
    rank: int,
    size: int,
    table: list[dict[str, Any]],
    listener: Listener,
    token: str,
    deadline: float,
) -> dict[int, socket.socket]:
    """Connect to each other process; of two processes the one with the higher rank calls.

    Args:
        rank, size: rank of this process, and the number of processes.
        table: for each rank its entry, with the addresses of its listener.
        listener: the listening sockets of this process.
        token: the token of the group.
        deadline: time of ``time.monotonic`` at which to give up.

    Returns:
        From each other rank to its connection.

    Raises:
        CommunicationError: if a process cannot be reached, or does not call in time.
    """
    peers: dict[int, socket.socket] = {}
    accepted = threading.Thread(
        target=_accept, args=(listener, rank, size, token, deadline, peers), daemon=True
    )
    accepted.start()
    for other in range(rank):
        addresses = table[other]["places"]
        try:
            connection = _call(addresses, listener.addresses["machine"], deadline)
            messages.greet(connection, token, {"rank": rank}, deadline)
        except (WireError, OSError) as error:
            raise CommunicationError(
                f"[distributed] rank {rank} must reach rank {other} at {addresses['host']}:"
                f"{addresses['port']}; got: {error}. Fix: let the machines reach each other."
            ) from error
        connection.settimeout(None)
        peers[other] = connection
    accepted.join(max(0.1, deadline - time.monotonic()))
    missing = [other for other in range(size) if other != rank and other not in peers]
    if missing:
        raise CommunicationError(
            f"[distributed] all processes must connect to rank {rank} in time; got none from rank "
            f"{', '.join(map(str, missing))}. Fix: look at the output of that rank."
        )
    return peers


def _call(addresses: dict[str, Any], machine: str, deadline: float) -> socket.socket:
    if not machine or addresses["machine"] != machine:
        return messages.connect(str(addresses["host"]), int(addresses["port"]), deadline)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(max(0.1, deadline - time.monotonic()))
    connection.connect("\0" + str(addresses["name"]))
    return connection


def _accept(
    listener: Listener,
    rank: int,
    size: int,
    token: str,
    deadline: float,
    peers: dict[int, socket.socket],
) -> None:
    """Accept authenticated connections of all higher ranks into ``peers``."""
    expected = set(range(rank + 1, size))
    reception = Reception(listener.sockets(), token, max(MAX_CALLERS, 2 * size))
    while expected and (arrival := reception.next(deadline)) is not None:
        connection, about = arrival
        caller = about.get("rank")
        with suppress(WireError, OSError):
            if type(caller) is int and caller in expected:
                messages.welcome(connection, token, about)
                if connection.family != socket.AF_UNIX:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(None)
                peers[caller] = connection
                expected.discard(caller)
                continue
        connection.close()
    reception.close()
