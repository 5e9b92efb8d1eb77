"""Collectives between threads of one process, and what ends threads that wait."""

import threading
import time

import numpy as np
import pytest
from communicator_suite import check_all

from gpuflow.base.errors import CommunicationError
from gpuflow.parallel.collectives import memory_threads
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator, Meeting
from gpuflow.parallel.collectives.multiprocess_meeting import MultiprocessMeeting
from gpuflow.runtime.device import Device


def together(work, size, timeout=20.0, meetings=None):
    """``work(communicator)`` in a thread for each rank; what they return or raise.

    All use one meeting, or each one of its own that belongs together with those of the others.
    """
    meetings = meetings or [Meeting(size, timeout)] * size
    results = [None] * size

    def run(rank):
        try:
            results[rank] = work(LoopbackCommunicator(meetings[rank], rank))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_suite_of_all_communicators(size):
    assert together(check_all, size) == [None] * size


def joined(processes, local):
    """Meetings of threads of what would be processes, which threads stand for."""
    between = Meeting(processes, 20.0)
    worlds = [LoopbackCommunicator(between, rank) for rank in range(processes)]
    meetings = [MultiprocessMeeting(world, Meeting(local, 20.0)) for world in worlds]
    return [meetings[rank // local] for rank in range(processes * local)]


def test_the_suite_for_several_memories_in_each_of_several_processes():
    assert together(check_all, 4, meetings=joined(2, 2)) == [None] * 4


def test_different_collectives_are_named():
    def work(c):
        return c.all_reduce(np.zeros(3 + c.rank), "sum")

    for error in together(work, 2):
        assert isinstance(error, CommunicationError)
        assert "all_reduce (sum) number 1 of float64[3] on number 0" in str(error)
        assert "float64[4] on number 1" in str(error)


def test_who_does_not_come_is_waited_for_no_longer_than_the_timeout():
    started = time.monotonic()
    first, second = together(lambda c: c.barrier() if c.rank else None, 2, timeout=0.2)
    assert first is None and "not all came within 0.2 s" in str(second)
    assert time.monotonic() - started < 10


@pytest.fixture
def two_devices(monkeypatch):
    monkeypatch.setattr(memory_threads, "_teams", {})
    return [Device("cuda_sim", 0), Device("cuda_sim", 1)]


def test_an_error_in_one_thread_ends_the_others(two_devices):
    def run(device):
        if device.id == 0:
            raise FloatingPointError("first")
        team = memory_threads._teams[tuple(two_devices)]
        team.communicators[1].barrier()

    with pytest.raises(FloatingPointError, match="first"):
        memory_threads.in_threads(run, two_devices, tuple(two_devices))
    assert not memory_threads._teams  # the next program has a meeting of its own


def test_ranks_are_those_of_the_mesh_and_not_of_the_list(two_devices):
    def run(device):
        team = memory_threads._teams[two_devices[1], two_devices[0]]
        communicator = team.communicators[1 - device.id]
        return communicator.all_gather(np.array(device.id)).tolist()

    turned = (two_devices[1], two_devices[0])
    assert memory_threads.in_threads(run, two_devices, turned) == [[1, 0]] * 2
