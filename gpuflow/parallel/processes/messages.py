"""Messages between processes besides data: short structured messages, and proofs.

A message is a JSON object after its length. Length and depth are limited before it is parsed;
nothing from the network is executed, and a malformed message raises a WireError. Both ends of a
connection prove that they know the group's token without sending it: each answers the other's
random challenge with a keyed hash (HMAC-SHA256, RFC 2104). Data are not encrypted.
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
from gpuflow.base.private_files import parse_json

_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 20
PROTOCOL = "gpuflow 2"


class WireError(Exception):
    """A connection ended, or a malformed message was received."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a JSON object."""
    text = json.dumps(message).encode()
    try:
        connection.sendall(_LENGTH.pack(len(text)) + text)
    except OSError as error:
        raise WireError(str(error)) from error


def receive_message(
    connection: socket.socket, deadline: float, longest: int = _LONGEST
) -> dict[str, Any]:
    """The next JSON object.

    Args:
        connection: its timeout is changed.
        deadline: of ``time.monotonic``, for all of it.
        longest: bytes.

    Raises:
        WireError: the connection ended, time was up, or something else came.
    """
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size, deadline))
    if length > longest:
        raise WireError("that is no message")
    return parse_message(_receive_bytes(connection, length, deadline))


def parse_message(text: bytes) -> dict[str, Any]:
    """A JSON object from its text.

    Raises:
        WireError: if it is malformed, or too deep.
    """
    try:
        message = parse_json(text)
    except ValueError as error:
        raise WireError("that is no message") from error
    if not isinstance(message, dict):
        raise WireError("that is no message")
    return message


def take_messages(pending: bytearray, longest: int = _LONGEST) -> list[dict[str, Any]]:
    """Remove and return the complete messages at the front of the received bytes.

    Raises:
        WireError: there is something else.
    """
    messages = []
    while len(pending) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(pending)
        if length > longest:
            raise WireError("that is no message")
        end = _LENGTH.size + length
        if len(pending) < end:
            break
        messages.append(parse_message(bytes(pending[_LENGTH.size : end])))
        del pending[:end]
    return messages


def _receive_bytes(connection: socket.socket, count: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise WireError("timed out")
        try:
            connection.settimeout(remaining)
            chunk = connection.recv(min(count - len(received), 1 << 16))
        except OSError as error:
            raise WireError(str(error)) from error
        if not chunk:
            raise WireError("the connection was closed")
        received += chunk
    return bytes(received)


def text_of(message: dict[str, Any], name: str, longest: int = 500) -> str:
    """A text in a message; WireError if there is none, or a long one."""
    text = message.get(name)
    if not isinstance(text, str) or len(text) > longest:
        raise WireError(f"{name} must be a text of at most {longest} characters")
    return text


def number_of(message: dict[str, Any], name: str, least: int = 0, below: int = 1 << 62) -> int:
    """An integer in a message; WireError if it is missing or out of range."""
    number = message.get(name)
    if type(number) is not int or not least <= number < below:
        raise WireError(f"{name} must be a whole number from {least} to {below - 1}")
    return number


# --- proofs --------------------------------------------------------------------------------


def new_token() -> str:
    """A random token."""
    return secrets.token_hex(16)


def proof(token: str, challenge: str, who: str) -> str:
    """The answer to a challenge, a keyed hash that requires the token."""
    # JSON allows lone surrogates, and so do environment variables that are not text.
    key, text = (item.encode(errors="surrogatepass") for item in (token, f"{challenge}/{who}"))
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _is_proof(message: dict[str, Any], expected: str) -> bool:
    claimed = message.get("proof")
    # For str, compare_digest accepts ASCII only.
    return isinstance(claimed, str) and hmac.compare_digest(
        claimed.encode(errors="surrogatepass"), expected.encode()
    )


def greet(
    connection: socket.socket, token: str, about: dict[str, Any], deadline: float
) -> dict[str, Any]:
    """Introduce this process to the host of a connection; both prove that they know the token.

    Returns:
        The welcome.

    Raises:
        WireError: the connection ended, or the other side does not know the token or refuses.
    """
    hello = receive_message(connection, deadline)
    if hello.get("protocol") != PROTOCOL:
        # Also a host that refuses callers at once, since too many call.
        raise WireError(f"the other side must speak {PROTOCOL!r}; got {str(hello)[:200]}")
    challenge = secrets.token_hex(16)
    answer = proof(token, text_of(hello, "challenge"), "caller")
    send_message(connection, {**about, "proof": answer, "challenge": challenge})
    welcome = receive_message(connection, deadline)
    if "refused" in welcome:
        raise WireError(str(welcome["refused"])[:500])
    if not _is_proof(welcome, proof(token, challenge, "host")):
        raise WireError("the other side does not know the token")
    return welcome


def question(issued: str) -> dict[str, Any]:
    """First message to a caller; ``issued`` is a fresh challenge."""
    return {"protocol": PROTOCOL, "challenge": issued}


def proven(about: dict[str, Any], token: str, issued: str) -> dict[str, Any]:
    """The introduction of a caller that received ``question(issued)``.

    Raises:
        WireError: it does not know the token.
    """
    if not _is_proof(about, proof(token, issued, "caller")):
        raise WireError("the token must be that of the group")
    text_of(about, "challenge")
    return about


def welcome(connection: socket.socket, token: str, about: dict[str, Any], **more: Any) -> None:
    """Accept a caller that answered a challenge."""
    send_message(connection, {"proof": proof(token, str(about["challenge"]), "host"), **more})


def refuse(connection: socket.socket, why: str) -> None:
    """Refuse a caller, which may be gone."""
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
    """Connect to a listener, with retries until the deadline.

    Raises:
        WireError: if there is no listener.
    """
    pause, last = 0.02, "no time was left"
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection((host, port), timeout=min(remaining, 10.0))
        except OSError as error:
            last = str(error)
        else:
            # The port chosen for this end may be the address itself: a self-connection.
            if connection.getsockname() != connection.getpeername():
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(max(remaining, 1.0))
                return connection
            connection.close()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.5)
    raise WireError(last)
