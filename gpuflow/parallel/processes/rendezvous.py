"""Rendezvous of processes: rank 0 listens, the others report to it, and all connect to all.

The control connection to rank 0 stays open for heartbeats, goodbyes and failure reports
(parallel/processes/heartbeats.py).

Tests: tests/parallel/test_rendezvous.py, tests/parallel/test_distributed.py.
"""

from __future__ import annotations

import socket
import time
from typing import Any, NoReturn

from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record
from gpuflow.parallel.processes import messages
from gpuflow.parallel.processes.connections import Listener, connect_peers, listen_for_peers
from gpuflow.parallel.processes.messages import WireError
from gpuflow.parallel.processes.reception import MAX_CALLERS, Reception


@record
class Group:
    """A connected group of processes, from the view of one process.

    Attributes:
        rank, size: the rank of this process, and the number of processes.
        control: the control connection to rank 0; None on rank 0.
        members: on rank 0, the control connections to the others by rank; elsewhere empty.
        peers: the data connection to each other rank.
        devices: for each rank its number of devices by platform.
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
    """Connect to the other processes.

    Args:
        address: ``host:port`` at which rank 0 listens.
        rank, size: the rank of this process, and the number of processes.
        token: the token of the group.
        devices: number of this process's devices by platform.
        timeout: maximum time in seconds.

    Raises:
        CommunicationError: if a process is not ready in time, or has another token.
    """
    host, port = messages.split_address(address)
    deadline = time.monotonic() + timeout
    listener: Listener | None = None
    try:
        if rank == 0:
            listening = messages.listen(host, port, max(size, 128))
            try:
                listener = listen_for_peers(host)
                about = {"rank": 0, "devices": devices, "places": listener.addresses}
                members, table = _gather(listening, about, size, token, deadline, address)
            finally:
                listening.close()
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
    listening: socket.socket,
    about: dict[str, Any],
    size: int,
    token: str,
    deadline: float,
    address: str,
) -> tuple[dict[int, socket.socket], list[dict[str, Any]]]:
    """Wait until all ranks have reported, and send the table of all entries to each."""
    members: dict[int, socket.socket] = {}
    entries = {0: about}
    reception = Reception([listening], token, max(MAX_CALLERS, 2 * size))
    try:
        while len(entries) < size:
            arrival = reception.next(deadline)
            if arrival is None:
                _give_up(members, [k for k in range(size) if k not in entries], address, reception)
            connection, entry = arrival
            try:
                _check(entry, entries, size)
            except WireError as error:
                reception.refused = str(error)
                messages.refuse(connection, str(error))
                connection.close()
                continue
            entries[entry["rank"]], members[entry["rank"]] = entry, connection
    finally:
        reception.close()
    table = [entries[k] for k in range(size)]
    public = [{"devices": entry["devices"], "places": entry["places"]} for entry in table]
    for rank, connection in members.items():
        try:
            messages.welcome(connection, token, entries[rank], table=public)
        except WireError as error:
            _close(members, f"rank {rank} has ended")
            raise CommunicationError(
                f"[distributed] rank {rank} must stay until all have met at {address}; got: "
                f"{error}. Fix: look at the output of that rank."
            ) from error
    return members, table


def _give_up(
    members: dict[int, socket.socket], missing: list[int], address: str, reception: Reception
) -> NoReturn:
    names, size = ", ".join(map(str, missing)), 1 + len(members) + len(missing)
    _close(members, f"rank {names} did not report to {address} in time")
    refused = f" (one caller was refused: {reception.refused})" if reception.refused else ""
    raise CommunicationError(
        f"[distributed] all {size} processes must report to {address} in time; got none "
        f"from rank {names}{refused}. Fix: look at the output of that rank, or use a "
        "larger initialization_timeout."
    )


def _close(members: dict[int, socket.socket], why: str) -> None:
    for connection in members.values():
        messages.refuse(connection, why)
        connection.close()


def _check(entry: dict[str, Any], entries: dict[int, Any], size: int) -> None:
    """Check that a process may join.

    Raises:
        WireError: if size or rank do not fit the group, or a required field is missing.
    """
    if entry.get("size") != size:
        got = str(entry.get("size"))[:50]
        raise WireError(f"num_processes must be equal everywhere; got {got}, not {size}")
    rank = entry.get("rank")
    if type(rank) is not int or not 0 < rank < size:
        raise WireError(f"process_id must be from 1 to {size - 1}; got {str(rank)[:50]}")
    if rank in entries:
        raise WireError(f"process_id must differ; got {rank} twice")
    _check_entry(entry)


def _check_entry(entry: Any) -> None:
    """Check that an entry describes the devices and addresses of a process.

    Raises:
        WireError: if it does not.
    """
    if not isinstance(entry, dict):
        raise WireError("an entry must be an object")
    devices, addresses = entry.get("devices"), entry.get("places")
    if not isinstance(devices, dict) or not isinstance(addresses, dict):
        raise WireError("devices and places must be objects")
    for platform in devices:
        messages.number_of(devices, platform, below=1 << 20)
    for name in ("host", "machine", "name"):
        messages.text_of(addresses, name)
    messages.number_of(addresses, "port", 1, 1 << 16)


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
    """Report to rank 0; returns the control connection, our listener, and the table of entries."""
    listener = control = None
    try:
        control = messages.connect(host, port, deadline)
        listener = listen_for_peers(control.getsockname()[0])
        about = {"rank": rank, "size": size, "devices": devices, "places": listener.addresses}
        table = messages.greet(control, token, about, deadline).get("table")
        if not isinstance(table, list) or len(table) != size:
            raise WireError(f"the table must have an entry for each of {size} processes")
        for entry in table:
            _check_entry(entry)
        return control, listener, table
    except WireError as error:
        for opened in (listener, control):
            if opened is not None:
                opened.close()
        raise CommunicationError(
            f"[distributed] rank {rank} must connect to rank 0 at {address}; got: {error}. Fix: "
            "check that rank 0 runs there, that all have the same GPUFLOW_TOKEN and num_processes, "
            "and that initialization_timeout is long enough."
        ) from error
