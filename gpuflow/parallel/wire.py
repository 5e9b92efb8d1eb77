"""What processes say to each other besides data: short structured messages, and proofs.

A message is a JSON object behind its length; nothing that comes from the network is executed. Both
ends of a connection prove that they know the group's token without sending it: each answers the
other's random challenge with a keyed hash (HMAC-SHA256, RFC 2104). Data are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from contextlib import suppress
from typing import Any

from gpuflow.base.errors import CommunicationError

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 20
PROTOCOL = "gpuflow 1"


class WireError(Exception):
    """A connection ended, or brought something that is no message."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a JSON object."""
    text = json.dumps(message).encode()
    try:
        connection.sendall(_LENGTH.pack(len(text)) + text)
    except OSError as error:
        raise WireError(str(error)) from error


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """The next JSON object; the socket's timeout holds for each part of it.

    Raises:
        WireError: the connection ended or timed out, or sent something else.
    """
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    if length > _LONGEST:
        raise WireError("that is no message")
    return parse_message(_receive_bytes(connection, length))


def parse_message(text: bytes) -> dict[str, Any]:
    """A JSON object from its text."""
    try:
        message = json.loads(text)
    except ValueError as error:
        raise WireError("that is no message") from error
    if not isinstance(message, dict):
        raise WireError("that is no message")
    return message


def take_messages(pending: bytearray) -> list[dict[str, Any]]:
    """The complete messages at the front of what has arrived so far; they are removed from it."""
    found = []
    while len(pending) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(pending)
        if length > _LONGEST:
            raise WireError("that is no message")
        end = _LENGTH.size + length
        if len(pending) < end:
            break
        found.append(parse_message(bytes(pending[_LENGTH.size : end])))
        del pending[:end]
    return found


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = connection.recv(count - len(parts))
        except OSError as error:
            raise WireError(str(error)) from error
        if not part:
            raise WireError("the connection was closed")
        parts += part
    return bytes(parts)


# --- proofs --------------------------------------------------------------------------------


def new_token() -> str:
    """A random token."""
    return secrets.token_hex(16)


def proof(token: str, challenge: str, who: str) -> str:
    """The answer to a challenge that only who knows the token can give."""
    return hmac.new(token.encode(), f"{challenge}/{who}".encode(), hashlib.sha256).hexdigest()


def greet(connection: socket.socket, token: str, about: dict[str, Any]) -> dict[str, Any]:
    """Introduce oneself to who accepted a connection; both prove that they know the token.

    Returns:
        The welcome.

    Raises:
        WireError: the connection ended, or the other side does not know the token or refuses.
    """
    challenge = receive_message(connection)
    if challenge.get("protocol") != PROTOCOL:
        raise WireError(f"the other side must speak {PROTOCOL!r}; got {challenge}")
    own = secrets.token_hex(16)
    answer = proof(token, str(challenge.get("challenge")), "caller")
    send_message(connection, {**about, "proof": answer, "challenge": own})
    welcome = receive_message(connection)
    if "refused" in welcome:
        raise WireError(str(welcome["refused"]))
    if not hmac.compare_digest(str(welcome.get("proof")), proof(token, own, "host")):
        raise WireError("the other side does not know the token")
    return welcome


def challenge(connection: socket.socket, token: str) -> dict[str, Any]:
    """Ask who connected to introduce itself; ``welcome`` or ``refuse`` must follow.

    Raises:
        WireError: the connection ended, or the other side does not know the token.
    """
    asked = secrets.token_hex(16)
    send_message(connection, {"protocol": PROTOCOL, "challenge": asked})
    about = receive_message(connection)
    if not hmac.compare_digest(str(about.get("proof")), proof(token, asked, "caller")):
        refuse(connection, "the token must be that of the group")
        raise WireError("the other side does not know the token")
    return about


def welcome(connection: socket.socket, token: str, about: dict[str, Any], **more: Any) -> None:
    """Accept who answered a challenge."""
    send_message(connection, {"proof": proof(token, str(about["challenge"]), "host"), **more})


def refuse(connection: socket.socket, why: str) -> None:
    """Refuse who answered a challenge."""
    with suppress(WireError):
        send_message(connection, {"refused": why})


# --- connections ---------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    Raises:
        ValueError: it is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"[distributed] an address must be host:port; got {address!r}. "
            "Fix: write 127.0.0.1:9871."
        )
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Whether only processes of this machine can reach an address."""
    host, _ = split_address(address)
    return host in ("localhost", "::1") or host.startswith("127.")


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        CommunicationError: the port is taken, or the host is not this one.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise CommunicationError(
            f"[distributed] rank 0 must be able to listen on {host}:{port}; got "
            f"{error.strerror or error}. Fix: choose a free port of this machine."
        ) from error
    return listener


def connect(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to who listens there, tried again until the deadline.

    Raises:
        WireError: nobody listened.
    """
    pause, last = 0.02, "no time was left"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((host, port), timeout=min(remaining, 10.0))
        except OSError as error:
            last = str(error)
        else:
            # A port of one's own choice may be that of the address: then this is oneself.
            if connection.getsockname() != connection.getpeername():
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(max(remaining, 1.0))
                return connection
            connection.close()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.5)
    raise WireError(last)
