"""The rendezvous against callers who send what is no message, little by little, or nothing."""

import json
import random
import socket
import struct
import threading
import time
from contextlib import closing, suppress

import pytest
from process_groups import free_port

from gpuflow.base.errors import CommunicationError
from gpuflow.parallel.processes import messages, reception
from gpuflow.parallel.processes.connections import connect_peers, listen_for_peers
from gpuflow.parallel.processes.heartbeats import Heartbeats
from gpuflow.parallel.processes.messages import WireError
from gpuflow.parallel.processes.reception import Reception
from gpuflow.parallel.processes.rendezvous import Group, join

TOKEN = "secret"
ABOUT = {
    "rank": 1,
    "size": 2,
    "devices": {"cpu": 1},
    "places": {"host": "127.0.0.1", "port": 9, "machine": "", "name": ""},
    "proof": "00",
    "challenge": "11",
}
# Once each of these ended rank 0, though it had a token.
DEADLY = [
    '{"proof": "é"}'.encode(),
    b'{"proof": "\\ud800"}',
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b'{"proof":' + b"[" * 1000 + b"]" * 1000 + b"}",
    b"1" * 5000,
    "{}".encode("utf-16"),
]
VALUES = [
    None, True, -1, 0, 1, 2, 1.0, float("nan"), 10**30, "", "1", "é", "\ud800", "x" * 3000, [], {},
    [[]], {"a": {}}, {"cpu": "many"}, {"cpu": -1}, {"host": 1},
]  # fmt: skip


def message(text):
    return struct.pack("<I", len(text)) + text


def malformed(chosen):
    """Bytes that are no introduction, chosen by a generator of random numbers."""
    kind = chosen.randrange(8)
    if kind == 0:
        return message(chosen.choice(DEADLY))
    if kind == 1:
        return chosen.randbytes(chosen.randrange(1, 300))
    if kind == 2:
        return struct.pack("<I", chosen.choice([0, 1, 1 << 16, (1 << 16) + 1, 1 << 31, 2**32 - 1]))
    text = bytearray(json.dumps(ABOUT).encode())
    if kind == 3:
        for _ in range(chosen.randrange(1, 5)):
            text[chosen.randrange(len(text))] = chosen.randrange(256)
    elif kind == 4:
        text = text[: chosen.randrange(len(text))]
    elif kind == 5:
        name = chosen.choice([*ABOUT, "more"])
        text = json.dumps({**ABOUT, name: chosen.choice(VALUES)}).encode()
    elif kind == 6:
        return message(bytes(text)) * 3
    else:
        return message(bytes(text))[: chosen.randrange(len(text))]
    return message(bytes(text))


# Seconds. Nothing takes as many, but on a busy machine; what held a group up took more.
SOON = 30


class Meeting:
    """``join`` of rank 0 of two in a thread."""

    def __init__(self, timeout):
        self.port = free_port()
        self.found = None
        self.thread = threading.Thread(target=self.run, args=(0, timeout))
        self.thread.start()

    def run(self, rank, timeout):
        try:
            answer = join(f"127.0.0.1:{self.port}", rank, 2, TOKEN, {"cpu": 1}, timeout)
        except BaseException as error:
            answer = error
        if rank == 0:
            self.found = answer
        else:
            self.other = answer

    def call(self):
        for _ in range(6000):
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", self.port), timeout=10)
            time.sleep(0.01)
        raise AssertionError("rank 0 does not listen")

    def finish(self, timeout=60.0):
        """Let rank 1 come: seconds until all have met."""
        begin = time.monotonic()
        self.run(1, timeout)
        self.thread.join(60)
        for group in (self.found, self.other):
            assert isinstance(group, Group), group
            for connection in [*group.peers.values(), *group.members.values(), group.control]:
                if connection is not None:
                    connection.close()
        return time.monotonic() - begin


def test_ten_thousand_malformed_messages_do_not_keep_the_group_from_meeting():
    meeting, chosen = Meeting(timeout=120), random.Random(5)
    waiting, silent = [], []
    for number in range(10_000):
        connection = meeting.call()
        if number % 500 == 0:
            silent.append(connection)
            continue
        with suppress(ConnectionError):  # it may have been sent away already
            connection.sendall(malformed(chosen))
        waiting.append(connection)
        if len(waiting) > 50:
            waiting.pop(0).close()
    assert meeting.thread.is_alive()
    assert meeting.finish() < SOON
    for connection in waiting + silent:
        connection.close()


@pytest.mark.parametrize("text", DEADLY, ids=range(len(DEADLY)))
def test_each_of_them_is_told_that_it_is_refused(text):
    meeting = Meeting(timeout=60)
    with closing(meeting.call()) as connection:
        until = time.monotonic() + SOON
        messages.receive_message(connection, until)
        connection.sendall(message(text))
        answer = messages.receive_message(connection, until)
        assert answer["refused"] in ("that is no message", "the token must be that of the group")
    assert meeting.finish() < SOON


def test_silence_and_trickles_hold_nobody(monkeypatch):
    """Each such caller once held rank 0 for 5 s for each byte, one after the other."""
    meeting, done = Meeting(timeout=60), threading.Event()
    callers = [meeting.call() for _ in range(40)]

    def trickle():
        text = message(json.dumps(ABOUT).encode())
        for byte in text:
            for caller in callers[:20]:
                with suppress(OSError):
                    caller.sendall(bytes([byte]))
            if done.wait(0.05):
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    assert meeting.finish() < SOON
    done.set()
    thread.join()
    for caller in callers:
        caller.close()


def doors():
    door = messages.listen("127.0.0.1", 0, 128)
    return door, door.getsockname()


def test_a_caller_has_one_deadline_whatever_it_sends(monkeypatch):
    monkeypatch.setattr(reception, "CALLER_SECONDS", 0.5)
    door, place = doors()
    with closing(door), socket.create_connection(place) as caller:
        waiting, ended = Reception([door], TOKEN), []
        thread = threading.Thread(target=lambda: ended.append(waiting.next(time.monotonic() + 4)))
        thread.start()
        begin = time.monotonic()
        with suppress(OSError):
            for byte in message(b" " * 100):
                caller.sendall(bytes([byte]))
                time.sleep(0.05)
                if waiting.refused:
                    break
        assert "did not introduce itself within 0.5 s" in waiting.refused
        assert 0.3 < time.monotonic() - begin < 4  # 5 s, were each byte a new start
        thread.join()
        assert ended == [None]


def test_the_oldest_of_too_many_callers_go(monkeypatch):
    door, place = doors()
    with closing(door):
        waiting = Reception([door], TOKEN, most=5)
        callers = [socket.create_connection(place) for _ in range(30)]
        result = []
        about = {"rank": 7}
        until = time.monotonic() + SOON
        thread = threading.Thread(target=lambda: result.append(waiting.next(until)))
        thread.start()
        with socket.create_connection(place) as honest:
            asked = messages.receive_message(honest, until)
            answer = messages.proof(TOKEN, asked["challenge"], "caller")
            messages.send_message(honest, {**about, "proof": answer, "challenge": "1"})
            thread.join()
        assert result[0][1]["rank"] == 7 and waiting.refused == "too many called at once"
        assert len(waiting._callers) <= 5
        waiting.close()
        result[0][0].close()
        for caller in callers:
            caller.close()


def test_a_door_that_is_closed_ends_the_wait():
    door, _ = doors()
    door.close()
    begin = time.monotonic()
    assert Reception([door], TOKEN).next(begin + 60) is None and time.monotonic() - begin < SOON


@pytest.mark.parametrize("name", [*ABOUT])
def test_who_knows_the_token_must_say_what_it_has(name):
    """A member that says nonsense is refused, as is a stranger; rank 0 waits for a better one."""
    meeting = Meeting(timeout=60)
    for value in VALUES:
        said = {**ABOUT, name: value}
        if name in ("rank", "size") and said[name] is (1 if name == "rank" else 2):
            continue
        if name == "devices" and value in ({}, {"host": 1}):
            continue  # names of platforms are free
        with closing(meeting.call()) as connection:
            until = time.monotonic() + SOON
            asked = messages.receive_message(connection, until)
            proof = messages.proof(TOKEN, asked["challenge"], "caller")
            if name == "challenge" and isinstance(value, str) and len(value) < 500:
                continue  # any text is one
            sent = {**said, "proof": value if name == "proof" else proof}
            messages.send_message(connection, sent)
            assert messages.receive_message(connection, until)["refused"], value
    assert meeting.finish() < SOON


@pytest.mark.parametrize(
    "table", [None, {}, [], [1, 2], [ABOUT], [ABOUT, {**ABOUT, "places": {}}], [[[]], []]]
)
def test_a_table_that_is_none_is_refused(table):
    """Rank 0 may be another program of that token: what it says is looked at as well."""
    door, place = doors()

    def host():
        connection, _ = door.accept()
        until = time.monotonic() + SOON
        messages.send_message(connection, messages.question("22"))
        about = messages.receive_message(connection, until)
        messages.welcome(connection, TOKEN, about, table=table)
        connection.close()

    thread = threading.Thread(target=host)
    thread.start()
    with pytest.raises(CommunicationError, match=r"rank 1 must connect to rank 0.*must"):
        join(f"127.0.0.1:{place[1]}", 1, 2, TOKEN, {"cpu": 1}, SOON)
    thread.join()
    door.close()


@pytest.mark.parametrize("said", [b"", *DEADLY, b'{"protocol": "gpuflow 2", "challenge": 1}'])
def test_a_host_that_says_no_message_is_refused(said):
    near, far = socket.socketpair()
    with closing(near), closing(far):
        far.sendall(message(said))
        with pytest.raises(WireError):
            messages.greet(near, TOKEN, {}, time.monotonic() + SOON)


def test_peers_are_served_beside_strangers():
    """The same at the doors of every process, where higher ranks call for data."""
    listener = listen_for_peers("127.0.0.1")
    served, chosen, until = {}, random.Random(6), time.monotonic() + 90
    table = [{"places": listener.addresses}, {}]

    def zero():
        served.update(connect_peers(0, 2, table, listener, TOKEN, until))

    thread = threading.Thread(target=zero)
    thread.start()
    strangers = []
    for number in range(300):
        if number % 2 and listener.near is not None:
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect("\0" + listener.addresses["name"])
        else:
            stranger = socket.create_connection(("127.0.0.1", listener.addresses["port"]))
        if number % 10:
            with suppress(ConnectionError):
                stranger.sendall(malformed(chosen))
        strangers.append(stranger)
        if len(strangers) > 100:
            strangers.pop(0).close()
    begin, other = time.monotonic(), listen_for_peers("127.0.0.1")
    peers = connect_peers(1, 2, table, other, TOKEN, until)
    thread.join()
    assert set(served) == {1} and set(peers) == {0} and time.monotonic() - begin < SOON
    for one in [*strangers, *served.values(), *peers.values(), listener, other]:
        one.close()


def test_messages_are_read_or_refused():
    """Mutated messages of all kinds: read, or a WireError, and nothing else."""
    chosen = random.Random(7)
    for _ in range(10_000):
        with suppress(WireError):
            for found in messages.take_messages(bytearray(malformed(chosen)), 1 << 16):
                messages.proven(found, TOKEN, "22")
                raise AssertionError("that was no proof")


@pytest.mark.parametrize("name", ["left", "failed", "differs", "beat"])
def test_heartbeats_that_are_none_end_the_group_by_name(name):
    """Such a message ended the thread that looks after the others."""
    near, far = socket.socketpair()
    chosen = random.Random(8)
    with closing(near), closing(far):
        reasons = []
        group = Group(0, 2, None, {1: near}, {}, ({}, {}))
        beats = Heartbeats(group, 30.0, reasons.append)
        beats._stopping.wait = lambda seconds=None: True  # no grace: the process is that of pytest
        for value in VALUES:
            for more in ("slowest", "count", "reason"):
                with suppress(WireError):
                    beats._understand(1, {name: value, more: chosen.choice(VALUES)})
        reasons.clear()
        beats._reason = None
        beats._left.clear()
        far.sendall(message(b"[" * 100))
        beats._listen(1.0)
        assert reasons == ["rank 1 sent what is no message"]
