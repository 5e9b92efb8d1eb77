"""How processes find each other: rank 0 listens, the others report, and all connect to all.

The connection to rank 0 stays open. Over it processes show that they are alive, say goodbye, and
are told which of them ended first (parallel/heartbeats.py).
"""

from __future__ import annotations

import socket
import time
from typing import Any

from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record
from gpuflow.parallel import wire
from gpuflow.parallel.peers import Listener, connect_peers, listen_for_peers
from gpuflow.parallel.wire import WireError


@record
class Group:
    """A process's place in its group.

    Attributes:
        rank, size: of this process, and how many there are.
        control: the connection to rank 0; on rank 0 None.
        members: rank 0's connections to the others by rank; elsewhere empty.
        peers: a connection for data to each other rank.
        devices: for each rank, how many devices of each platform it has.
    """

    rank: int
    size: int
    control: socket.socket | None
    members: dict[int, socket.socket]
    peers: dict[int, socket.socket]
    devices: tuple[dict[str, int], ...]


def join(
    address: str,
    rank: int,
    size: int,
    token: str,
    devices: dict[str, int],
    timeout: float,
) -> Group:
    """Meet the other processes at ``address``, which is rank 0's.

    Raises:
        CommunicationError: they are not all there in time, or the token is another one.
    """
    host, port = wire.split_address(address)
    deadline = time.monotonic() + timeout
    listener: Listener | None = None
    try:
        if rank == 0:
            door = wire.listen(host, port, size)
            try:
                listener = listen_for_peers(host)
                about = {"rank": 0, "devices": devices, "places": listener.places}
                members, table = _gather(door, about, size, token, deadline, address)
            finally:
                door.close()
            control = None
        else:
            control, listener, table = _report(
                host, port, rank, size, token, devices, deadline, address
            )
            members = {}
        peers = connect_peers(rank, size, table, listener, token, deadline)
    finally:
        if listener is not None:
            listener.close()
    counts = tuple(dict(entry["devices"]) for entry in table)
    return Group(rank, size, control, members, peers, counts)


# --- rank 0 --------------------------------------------------------------------------------


def _gather(
    door: socket.socket,
    about: dict[str, Any],
    size: int,
    token: str,
    deadline: float,
    address: str,
) -> tuple[dict[int, socket.socket], list[dict[str, Any]]]:
    """Wait until all ranks have reported, and tell each where the others are."""
    members: dict[int, socket.socket] = {}
    entries = {0: about}
    refused = ""
    while len(entries) < size:
        try:
            door.settimeout(max(0.01, deadline - time.monotonic()))
            connection, _ = door.accept()
        except OSError:
            missing = ", ".join(str(k) for k in range(size) if k not in entries)
            for found in members.values():
                wire.refuse(found, f"rank {missing} did not report to {address} in time")
                found.close()
            raise CommunicationError(
                f"[distributed] all {size} processes must report to {address} in time; got none "
                f"from rank {missing}{refused}. Fix: look at the output of that rank, or use a "
                "larger initialization_timeout."
            ) from None
        try:
            # Whoever is silent must not keep the others waiting for long.
            connection.settimeout(min(5.0, max(0.1, deadline - time.monotonic())))
            entry = wire.challenge(connection, token)
            problem = _problem(entry, entries, size)
            if problem:
                wire.refuse(connection, problem)
                raise WireError(problem)
        except WireError as error:
            refused = f" (one caller was refused: {error})"
            connection.close()
            continue
        entries[entry["rank"]], members[entry["rank"]] = entry, connection
    table = [entries[k] for k in range(size)]
    for rank, connection in members.items():
        public = [{"devices": e["devices"], "places": e["places"]} for e in table]
        wire.welcome(connection, token, entries[rank], table=public)
    return members, table


def _problem(entry: dict[str, Any], entries: dict[int, Any], size: int) -> str:
    """Why a process cannot join, if so."""
    rank = entry.get("rank")
    if entry.get("size") != size:
        return f"num_processes must be equal everywhere; got {entry.get('size')}, not {size}"
    if not isinstance(rank, int) or not 0 < rank < size:
        return f"process_id must be from 1 to {size - 1}; got {rank}"
    if rank in entries:
        return f"process_id must differ; got {rank} twice"
    return ""


# --- other ranks ---------------------------------------------------------------------------


def _report(
    host: str,
    port: int,
    rank: int,
    size: int,
    token: str,
    devices: dict[str, int],
    deadline: float,
    address: str,
) -> tuple[socket.socket, Listener, list[dict[str, Any]]]:
    """Report to rank 0; returns the connection, where we listen, and where all others do."""
    listener = None
    try:
        control = wire.connect(host, port, deadline)
        listener = listen_for_peers(control.getsockname()[0])
        about = {"rank": rank, "size": size, "devices": devices, "places": listener.places}
        answer = wire.greet(control, token, about)
        return control, listener, answer["table"]
    except (WireError, KeyError) as error:
        if listener is not None:
            listener.close()
        raise CommunicationError(
            f"[distributed] rank {rank} must meet rank 0 at {address}; got: {error}. Fix: check "
            "that rank 0 runs there, that all have the same GPUFLOW_TOKEN and num_processes, and "
            "that initialization_timeout is long enough."
        ) from error
