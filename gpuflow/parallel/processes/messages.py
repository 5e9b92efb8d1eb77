"""Wire protocol of control messages: length-prefixed JSON, and mutual authentication.

Length and depth of a message are limited before it is parsed. Nothing from the network is executed;
a malformed message raises WireError. Both ends of a connection prove that they know the group's
token without sending it: each answers the other's random challenge with a keyed hash (HMAC-SHA256,
RFC 2104). Data are not encrypted.

Tests: tests/parallel/test_rendezvous.py, tests/parallel/test_distributed.py.
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
_MAX_LENGTH = 1 << 20
PROTOCOL = "gpuflow 2"


class WireError(Exception):
    """Raised if a connection ended, or a malformed message was received."""


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a JSON object."""
    text = json.dumps(message).encode()
    try:
        connection.sendall(_LENGTH.pack(len(text)) + text)
    except OSError as error:
        raise WireError(str(error)) from error


def receive_message(
    connection: socket.socket, deadline: float, longest: int = _MAX_LENGTH
) -> dict[str, Any]:
    """Receive the next JSON object.

    Args:
        connection: the socket, whose timeout is changed.
        deadline: time of ``time.monotonic`` until which the whole message must arrive.
        longest: maximum length in bytes.

    Raises:
        WireError: if the connection ends, the deadline passes, or the message is malformed.
    """
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size, deadline))
    if length > longest:
        raise WireError("that is no message")
    return parse_message(_receive_bytes(connection, length, deadline))


def parse_message(text: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        WireError: if it is malformed, or nested too deeply.
    """
    try:
        message = parse_json(text)
    except ValueError as error:
        raise WireError("that is no message") from error
    if not isinstance(message, dict):
        raise WireError("that is no message")
    return message


def take_messages(pending: bytearray, longest: int = _MAX_LENGTH) -> list[dict[str, Any]]:
    """Remove and return the complete messages at the front of the received bytes.

    Raises:
        WireError: if a message is malformed.
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
    """A text field of a message; raises WireError if it is missing or too long."""
    text = message.get(name)
    if not isinstance(text, str) or len(text) > longest:
        raise WireError(f"{name} must be a text of at most {longest} characters")
    return text


def number_of(message: dict[str, Any], name: str, least: int = 0, below: int = 1 << 62) -> int:
    """An integer field of a message; raises WireError if it is missing or out of range."""
    number = message.get(name)
    if type(number) is not int or not least <= number < below:
        raise WireError(f"{name} must be a whole number from {least} to {below - 1}")
    return number


# --- authentication ------------------------------------------------------------------------


def new_token() -> str:
    """A random token."""
    return secrets.token_hex(16)


def proof(token: str, challenge: str, who: str) -> str:
    """The response to a challenge: a keyed hash, which requires the token.

    ``who`` is "caller" or "host", so that a response cannot be reflected to its sender.
    """
    # JSON may contain lone surrogates, and so may environment variables that are not UTF-8.
    key, text = (item.encode(errors="surrogatepass") for item in (token, f"{challenge}/{who}"))
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _is_proof(message: dict[str, Any], expected: str) -> bool:
    claimed = message.get("proof")
    # Bytes: for str, compare_digest accepts only ASCII.
    return isinstance(claimed, str) and hmac.compare_digest(
        claimed.encode(errors="surrogatepass"), expected.encode()
    )


def greet(
    connection: socket.socket, token: str, about: dict[str, Any], deadline: float
) -> dict[str, Any]:
    """Authenticate as the caller of a connection; both sides prove that they know the token.

    Args:
        connection: the socket.
        token: the token of the group.
        about: the introduction of this process, which is sent with the proof.
        deadline: time of ``time.monotonic`` at which to give up.

    Returns:
        The welcome message of the host.

    Raises:
        WireError: if the connection ends, or the other side refuses or does not know the token.
    """
    hello = receive_message(connection, deadline)
    if hello.get("protocol") != PROTOCOL:
        # Also if the host refuses immediately, because too many processes call.
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
    """The first message to a caller; ``issued`` is a new random challenge."""
    return {"protocol": PROTOCOL, "challenge": issued}


def proven(about: dict[str, Any], token: str, issued: str) -> dict[str, Any]:
    """Verify and return the introduction of a caller that received ``question(issued)``.

    Raises:
        WireError: if the caller does not know the token.
    """
    if not _is_proof(about, proof(token, issued, "caller")):
        raise WireError("the token must be that of the group")
    text_of(about, "challenge")
    return about


def welcome(connection: socket.socket, token: str, about: dict[str, Any], **more: Any) -> None:
    """Accept an authenticated caller, and prove to it that this process knows the token."""
    send_message(connection, {"proof": proof(token, str(about["challenge"]), "host"), **more})


def refuse(connection: socket.socket, why: str) -> None:
    """Refuse a caller; errors are ignored, because it may have ended."""
    with suppress(WireError):
        send_message(connection, {"refused": why})


# --- connections ---------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ValueError: if the address has another form.
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
    """Open a listening TCP socket; port 0 means any free port.

    Raises:
        CommunicationError: if the port is taken, or the host is not this machine.
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
            # The system may choose the target port for this end: a TCP self-connection.
            if connection.getsockname() != connection.getpeername():
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(max(remaining, 1.0))
                return connection
            connection.close()
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 0.5)
    raise WireError(last)
