"""Ranks that call different collectives: an error on each that names both sides, over any wires."""

import importlib.util
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from process_groups import finish, free_port, mpiexec, start

from gpuflow.base.errors import CommunicationError
from gpuflow.parallel.collectives.checked import CheckedCommunicator, shortened
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator, Meeting
from gpuflow.parallel.collectives.multiprocess_meeting import MultiprocessMeeting
from gpuflow.parallel.collectives.sockets import SocketCommunicator
from gpuflow.parallel.processes.heartbeats import Heartbeats
from gpuflow.parallel.processes.rendezvous import join
from gpuflow.parallel.processes.transfers import Links

PROGRAM = Path(__file__).with_name("mismatched_program.py")
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and mpiexec() is not None
SIZE = 3
LONG = 50_000  # elements: sums of so many go around a ring


def ones(shape, dtype="float32"):
    return np.ones(shape, dtype)


# What most ranks do, what the odd one does, and what the errors name.
CASES = {
    # Equal-sized sums of float32 and int32 were combined: the header had no dtype.
    "dtype": (lambda c: c.all_reduce(ones(4), "sum"),
              lambda c: c.all_reduce(ones(4, "int32"), "sum"),
              "float32[4]", "int32[4]"),
    "long dtype": (lambda c: c.all_reduce(ones(LONG), "sum"),
                   lambda c: c.all_reduce(ones(LONG, "int32"), "sum"), "float32[50000]", "int32["),
    "shape": (lambda c: c.all_reduce(ones((2, 3)), "sum"),
              lambda c: c.all_reduce(ones((3, 2)), "sum"), "float32[2, 3]", "float32[3, 2]"),
    "size": (lambda c: c.all_reduce(ones(4), "sum"), lambda c: c.all_reduce(ones(5), "sum"),
             "float32[4]", "float32[5]"),
    "ring or not": (lambda c: c.all_reduce(ones(LONG), "sum"),
                    lambda c: c.all_reduce(ones(5), "sum"), "float32[50000]", "float32[5]"),
    "op": (lambda c: c.all_reduce(ones(4), "sum"), lambda c: c.all_reduce(ones(4), "max"),
           "sum", "max"),
    "operation": (lambda c: c.all_gather(ones(3)), lambda c: c.all_to_all(ones(3)),
                  "all_gather", "all_to_all"),
    "gathered dtype": (lambda c: c.all_gather(ones(3)), lambda c: c.all_gather(ones(3, "uint32")),
                       "float32[3]", "uint32[3]"),
    "scattered dtype": (lambda c: c.reduce_scatter(ones((3, 2))),
                        lambda c: c.reduce_scatter(ones((3, 2), "int32")),
                        "float32[3, 2]", "int32[3, 2]"),
    "exchanged dtype": (lambda c: c.all_to_all(ones((3, 2))),
                        lambda c: c.all_to_all(ones((3, 2), "int32")),
                        "float32[3, 2]", "int32[3, 2]"),
    "broadcast dtype": (lambda c: c.broadcast(ones(3), 1),
                        lambda c: c.broadcast(ones(3, "int32"), 1),
                        "float32[3]", "int32[3]"),
    "permuted dtype": (lambda c: c.permute(ones(3), [(0, 1), (1, 2), (2, 0)]),
                       lambda c: c.permute(ones(3, "int32"), [(0, 1), (1, 2), (2, 0)]),
                       "float32[3]", "int32[3]"),
    # Ranks of which nobody reads what another sends find out by what comes next.
    "pairs": (lambda c: c.permute(ones(3), [(0, 1), (1, 2), (2, 0)]),
              lambda c: c.permute(ones(3), [(1, 0), (2, 1), (0, 2)]), "permute", "number 2"),
    "barrier": (lambda c: c.barrier(), lambda c: c.all_reduce(ones(4), "sum"),
                "barrier", "all_reduce"),
}  # fmt: skip


def together(works, timeout=20):
    """What each function returned or raised, run in threads at once."""
    results = [None] * len(works)

    def run(number):
        try:
            results[number] = works[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), "it hangs"
    return results


class SocketRanks:
    """Ranks of one process that are connected as those of several are."""

    def __enter__(self):
        address = f"127.0.0.1:{free_port()}"
        self.groups = together(
            [lambda k=k: join(address, k, SIZE, "t", {"cpu": 1}, 20) for k in range(SIZE)]
        )
        self.links = [Links(group.rank, group.peers, 20) for group in self.groups]
        self.beats = [
            Heartbeats(group, 60, links.fail)
            for group, links in zip(self.groups, self.links, strict=True)
        ]
        for links, beats in zip(self.links, self.beats, strict=True):
            links.differs = beats.differ
            beats.start()
        return [SocketCommunicator(links, tuple(range(SIZE))) for links in self.links]

    def __exit__(self, *_):
        together([lambda one=one: one.leave(1.0) for one in self.beats])
        for links in self.links:
            links.close()


class ThreadRanks:
    def __enter__(self):
        meeting = Meeting(SIZE, 20)
        return [LoopbackCommunicator(meeting, rank) for rank in range(SIZE)]

    def __exit__(self, *_):
        pass


class JoinedRanks(SocketRanks):
    """Each process has one thread: the processes compare, whose threads gather whatever it is."""

    def __enter__(self):
        worlds = super().__enter__()
        return [
            LoopbackCommunicator(MultiprocessMeeting(world, Meeting(1, 20)), world.rank)
            for world in worlds
        ]


WIRES = {"sockets": SocketRanks, "threads": ThreadRanks, "processes and threads": JoinedRanks}


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wires", WIRES)
def test_all_ranks_name_both_sides(wires, case, odd):
    most, other, first, second = CASES[case]
    with WIRES[wires]() as ranks:
        assert together([lambda c=c: c.all_reduce(ones(2), "sum").tolist() for c in ranks]) == (
            [[3, 3]] * SIZE
        )
        work = [other if k == odd else most for k in range(SIZE)]
        # Who only sent, or was sent the right thing, hears of it in its next collective.
        errors = together(
            [lambda c=c, f=f: (f(c), c.barrier()) for c, f in zip(ranks, work, strict=True)]
        )
    for error in errors:
        assert isinstance(error, CommunicationError), errors
        assert first in str(error) and second in str(error), error


@pytest.mark.parametrize("odd", range(SIZE))
def test_roots_that_differ(odd):
    """Some broadcast from 0, one from 1: whoever reads finds the other's text."""
    with SocketRanks() as ranks:
        errors = together(
            [
                lambda c=c, k=k: (c.broadcast(ones(3), int(k == odd)), c.barrier())
                for k, c in enumerate(ranks)
            ]
        )
    assert all(isinstance(error, CommunicationError) for error in errors), errors
    assert all("from 0" in str(error) or "from 1" in str(error) for error in errors), errors


def test_parts_of_a_group_that_differ():
    """Rank 1 takes another part of the group for its own."""
    with SocketRanks() as ranks:
        groups = [((0, 1), (2,)), ((0,), (1, 2)), ((0, 1), (2,))]
        parts = [c.split(own) for c, own in zip(ranks, groups, strict=True)]
        errors = together(
            [
                lambda c=c, w=w: (c.all_reduce(ones(3), "sum"), w.barrier())
                for c, w in zip(parts, ranks, strict=True)
            ]
        )
    assert all(isinstance(error, CommunicationError) for error in errors), errors
    assert any("among 0, 1" in str(error) for error in errors), errors


def test_checked_ranks_see_what_does_not_fit_into_the_text():
    pairs = [(k, (k + 1) % 40) for k in range(40)]
    others = [*pairs[:-1], (39, 5)]
    assert shortened(pairs) != shortened(others) and len(shortened(pairs)) <= 60
    meeting = Meeting(2, 20)
    ranks = [CheckedCommunicator(LoopbackCommunicator(meeting, rank)) for rank in range(2)]
    shapes = [(1,) * 60 + (1, 2), (1,) * 60 + (2, 1)]  # NumPy has up to 64 dimensions
    errors = together(
        [lambda c=c, s=s: c.all_reduce(ones(s), "sum") for s, c in zip(shapes, ranks, strict=True)]
    )
    assert all(isinstance(error, CommunicationError) for error in errors), errors


@pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")
def test_over_mpi():
    """MPI takes bytes for whatever the receiver says: a checksum of each call goes before it."""
    (ended,) = finish([start([mpiexec(), "-n", str(SIZE), sys.executable, str(PROGRAM)])])
    assert ended.status == 0, ended.output
    assert all(f"rank {rank} agrees" in ended.output for rank in range(SIZE))
