"""Collectives over NCCL that would never end: dead, stalled and failing ranks; who is named."""

import os
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from fake_nccl import FakeApi, NcclError, device, fake_cupy, wait
from late_gpu import gpu_devices
from process_groups import free_port, kill_group, run_group, start

import gpuflow as gf
from gpuflow.base.errors import CommunicationError
from gpuflow.parallel.collectives import memory_threads, nccl_connect, nccl_watch
from gpuflow.parallel.collectives.checked import CheckedCommunicator
from gpuflow.parallel.collectives.nccl_calls import Signs
from gpuflow.parallel.collectives.nccl_watch import Watch
from gpuflow.parallel.processes import distributed
from gpuflow.parallel.processes.heartbeats import Heartbeats

X = np.ones((8, 8), np.float32)
PROGRAM = Path(__file__).with_name("faulty_nccl_program.py")
LIMIT = 60.0


@pytest.fixture
def two(monkeypatch):
    """Two late devices of one process, and their communicators."""
    cupy = fake_cupy()
    monkeypatch.setattr(nccl_connect, "load_cupy", lambda: cupy)
    apis = FakeApi(), FakeApi()
    devices = gpu_devices(f"late_watch_{id(apis[0])}", *apis)
    drivers = [one.driver for one in devices]
    nccl_connect.join_group(Signs(), 0.3)
    comms = nccl_connect.connect_gpus(devices)
    drivers[0].api.activate()
    yield SimpleNamespace(devices=devices, drivers=drivers, comms=comms)
    nccl_connect.leave_group(True)


def in_time(work, seconds=30.0):
    """What ``work`` raises, which must not take longer."""
    begun = time.monotonic()
    with pytest.raises(CommunicationError) as caught:
        work()
    assert time.monotonic() - begun < seconds
    return str(caught.value)


def test_a_device_that_does_not_come_ends_the_wait_of_the_other(two):
    one, other = two.comms
    one.all_reduce(device(X), "sum")
    text = in_time(two.drivers[0].synchronize)
    assert "[all_reduce] all ranks must reach all_reduce number 1" in text
    assert f"only 0 collectives on {two.devices[1]} for 0.3 s on rank 0 of 2 (devices)" in text
    assert "Fix: look for" in text and "GPUFLOW_COLLECTIVE_TIMEOUT" in text
    assert one._comm.aborted.wait(60) and other._comm.aborted.wait(60)
    # Whoever waits later, for whatever, learns it too, and so do later collectives.
    array = gf.device_put(X, two.devices[0])
    for later in (array.block_until_ready, lambda: np.asarray(array), lambda: one.all_gather(X)):
        assert "only 0 collectives" in in_time(later)
    # Until the group is left.
    nccl_connect.leave_group(False)
    np.testing.assert_array_equal(array, X)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NcclError("NCCL_ERROR_REMOTE_ERROR: gone"), "reports NCCL_ERROR_REMOTE_ERROR: gone"),
        (KeyError(6), "reports an error of another rank"),
    ],
)
def test_errors_in_the_background_end_the_wait(two, error, text):
    """CuPy 13 has no name for remote errors, and raises a KeyError instead."""
    comm = two.comms[0]
    comm.watch.timeout = 60.0
    comm.begin(device(X), "sum", device(X))
    comm._comm.background = error
    comm.settle()
    assert f"must reach all_reduce number 1; got NCCL {text} on" in in_time(
        two.drivers[0].synchronize
    )


def test_what_nccl_has_not_finished_is_no_error(two):
    comm = two.comms[0]
    for error in (KeyError(7), NcclError("in progress")):
        error.status = 7
        comm._comm.background = error
        assert comm.watch._asynchronous() is None


def test_a_verdict_of_the_heartbeats_ends_the_wait_and_names_the_rank(two, monkeypatch):
    comm, said = two.comms[0], []
    signs = Signs(lambda: said[0] if said else None)
    monkeypatch.setattr(comm.watch, "_signs", signs)
    comm.watch.timeout = 60.0
    comm.all_gather(device(X))
    timer = threading.Timer(0.2, said.append, ["rank 3 ended without a goodbye"])
    timer.start()
    text = in_time(two.drivers[0].synchronize)
    assert "must reach all_gather number 1; got rank 3 ended without a goodbye on rank 0" in text


def test_an_error_of_nccl_waits_for_the_verdict(two, monkeypatch):
    comm, said = two.comms[0], []
    signs = Signs(lambda: said[0] if said else None, verdict=5.0)
    monkeypatch.setattr(comm.watch, "_signs", signs)
    comm._comm.error = "NCCL_ERROR_REMOTE_ERROR"
    threading.Timer(0.2, said.append, ["rank 1 raised ValueError"]).start()
    text = in_time(lambda: comm.all_reduce(device(X), "sum"), 4.0)
    assert "got rank 1 raised ValueError (NCCL_ERROR_REMOTE_ERROR)" in text


def test_a_barrier_and_a_checked_call_end_as_well(two):
    """Both wait for the GPU by themselves, and must not look at what an aborted call left."""
    assert "must reach all_reduce number 1" in in_time(two.comms[0].barrier)
    checked = CheckedCommunicator(two.comms[0])
    assert "must reach all_reduce number 1" in in_time(lambda: checked.all_reduce(device(X), "sum"))


def test_a_checked_call_ends(two):
    checked = CheckedCommunicator(two.comms[0])
    text = in_time(lambda: checked.all_reduce(device(X), "sum"))
    assert "[all_gather] all ranks must reach all_gather number 1" in text


def test_a_split_that_nobody_joins_ends(two):
    text = in_time(lambda: two.comms[0].split(((0, 1),)))
    assert "[split] all ranks must reach split number 1" in text


def test_work_of_the_gpu_itself_may_take_longer(two):
    """The limit is for what a collective waits for others, not for what it waits behind."""
    one, other = two.comms
    started = threading.Event()

    def slow():
        started.wait(60)
        time.sleep(0.8)  # more than twice the limit

    two.drivers[0].api.queues[1].append(slow)
    results = []

    def run(number):
        two.drivers[number].api.activate()
        results.append(two.comms[number].all_reduce(device(X), "sum"))
        if number == 0:
            started.set()
        two.drivers[number].synchronize()

    other.watch.timeout = 60.0
    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2 and one.watch._error is None
    assert not one._comm.aborted.is_set()


def test_calls_that_ended_are_forgotten_and_the_thread_sleeps(two, monkeypatch):
    monkeypatch.setattr(nccl_watch, "_MAX_UNCHECKED", 4)
    watch, side = two.comms[0].watch, two.comms[0]._side
    for _ in range(20):
        call = watch.enter(side, "all_reduce", "rank 0 of 1")
        call.ready = side.follow()
        call.mark = side.mark()
        wait()
        two.drivers[0].api.synchronize(side.address)
    queue = watch._queues[side]
    assert queue.count == 20 and len(queue.calls) <= 5
    until = time.monotonic() + 60
    while (queue.calls or watch._wake.is_set()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not queue.calls and not watch._wake.is_set()
    assert nccl_connect.collectives() >= 20  # which the launcher's watchdog takes for progress
    assert distributed.progress() >= nccl_connect.collectives()


@requires_cuda_tools
def test_a_device_that_raises_ends_the_wait_of_the_other_and_is_named(two, monkeypatch):
    """Without an end the thread of the second GPU would wait in its callback forever."""
    comms, watch = dict(enumerate(two.comms)), two.comms[0].watch
    watch.timeout = 60.0
    team = memory_threads.Team(comms, watch.fail, watch.stop)
    monkeypatch.setattr(memory_threads, "_make", lambda devices: team)

    def run(own):
        if own == two.devices[0]:
            raise ValueError("of the first")
        own.driver.api.activate()
        served = memory_threads.served(memory_threads.DRIVERS)
        served.all_reduce(device(X), "sum")
        own.driver.synchronize()

    begun = time.monotonic()
    with pytest.raises(ValueError, match="of the first"):
        memory_threads.in_threads(run, two.devices, tuple(two.devices))
    assert time.monotonic() - begun < 30 and comms[1]._comm.aborted.is_set()
    assert "CudaSim" not in (watch._error or "") and "raised ValueError" in watch._error
    array = gf.device_put(X, two.devices[1])
    np.testing.assert_array_equal(array, X)  # what was there before can be read


def test_what_does_not_let_go_ends_the_process(two, monkeypatch, capsys):
    ended = threading.Event()
    monkeypatch.setattr(nccl_watch, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    one = two.comms[0]
    monkeypatch.setattr(one._comm, "abort", lambda: time.sleep(3))
    one.all_reduce(device(X), "sum")
    waiting = threading.Thread(target=in_time, args=(two.drivers[0].synchronize,), daemon=True)
    waiting.start()
    assert ended.wait(60)
    one._comm.aborted.set()
    one._comm.under._meeting.fail("over")
    waiting.join(60)


def test_the_slowest_rank_is_told_to_all():
    group = SimpleNamespace(rank=0, size=3, members={}, control=None)
    root = Heartbeats(group, 10.0, lambda reason: None, lambda: 7)
    root._understand(1, {"beat": 1, "count": 6})
    root._understand(2, {"beat": 2, "count": 7})
    assert root.behind(7) == (1, 6) and root.behind(6) is None
    assert root._beat() == {"beat": 0, "count": 7, "slowest": [1, 6]}
    other = Heartbeats(SimpleNamespace(**{**vars(group), "rank": 2}), 10.0, print, lambda: 7)
    other._understand(0, root._beat())
    assert other.behind(7) == (1, 6)
    root._understand(1, {"beat": 1, "count": 8})
    other._understand(0, root._beat())
    assert other.behind(7) is None  # rank 0 is the slowest, with as many


# --- the end of communicators --------------------------------------------------------------


def at_once(work, devices):
    """``work(number)`` in a thread for each device."""

    def run(number):
        devices[number].driver.api.activate()
        work(number)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_communicators_are_destroyed_together_when_the_group_is_left(two):
    """They were left to Python, which frees one after the other, while others are in use."""
    made, results = two.comms[0]._nccl.made, {}

    def work(number):
        comm = two.comms[number]
        inner = comm.split(((0, 1),))  # NCCL's own communicator, over the same ranks
        results[number] = inner.all_reduce(device(X), "sum")

    at_once(work, two.devices)
    assert len(made) == 4 and two.comms[0].watch._thread is not None
    begun = time.monotonic()
    leaving = threading.Thread(target=nccl_connect.leave_group, args=(False,), daemon=True)
    leaving.start()
    two.drivers[1].api.activate()
    two.drivers[1].synchronize()  # a late device does nothing while nobody waits
    leaving.join(60)
    assert not leaving.is_alive() and time.monotonic() - begun < 30
    assert all(comm.destroyed.is_set() and not comm.aborted.is_set() for comm in made)
    two.drivers[0].api.activate()
    np.testing.assert_array_equal(results[0].get(), X + 1)
    text = in_time(lambda: two.comms[0].all_gather(device(X)))
    assert "before the group is left" in text and "distributed.shutdown() last" in text
    nccl_connect.leave_group(False)  # once more does nothing


def test_communicators_that_failed_are_aborted_and_not_destroyed(two):
    two.comms[0].all_reduce(device(X), "sum")
    nccl_connect.leave_group(True)
    for comm in two.comms[0]._nccl.made:
        assert comm.aborted.wait(60) and not comm.destroyed.is_set()


@pytest.mark.parametrize("error", [None, ValueError("of the program")])
def test_at_the_end_of_a_process_communicators_are_freed(two, error, monkeypatch):
    def start(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(sys, "last_value", error, raising=False)
    monkeypatch.setattr(threading.Thread, "start", start)  # as in Python 3.12
    nccl_connect._at_exit()
    for comm in two.comms[0]._nccl.made:
        assert comm.aborted.is_set() == (error is not None)
        assert comm.destroyed.is_set() == (error is None)


def test_a_communicator_that_is_not_freed_is_warned_of(two, monkeypatch):
    monkeypatch.setattr(nccl_watch, "GRACE_SECONDS", 0.2)
    stuck = threading.Event()
    monkeypatch.setattr(two.comms[0]._comm, "destroy", lambda: stuck.wait(20))
    with pytest.warns(UserWarning, match=r"\[nccl\] communicators must be freed.*Fix: let all"):
        nccl_connect.leave_group(False)
    stuck.set()


def test_a_program_after_the_group_has_communicators_of_its_own(two, monkeypatch):
    monkeypatch.setattr(memory_threads, "_teams", {})
    teams = []

    def make(devices):
        comms = nccl_connect.connect_gpus(two.devices)
        watch = comms[0].watch
        team = memory_threads.Team(
            dict(enumerate(comms)), watch.fail, watch.stop, lambda: watch.is_stopped
        )
        teams.append(team)
        return team

    monkeypatch.setattr(memory_threads, "_make", make)
    for _ in range(2):
        assert memory_threads._team(tuple(two.devices)) is teams[0]
    nccl_connect.leave_group(False)
    assert memory_threads._team(tuple(two.devices)) is teams[1]


# --- processes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "status", "text"),
    [
        ("kill", -9, "rank 1 ended without a goodbye"),
        ("raise", 1, "rank 1 raised ValueError: the data of rank 1 are bad"),
    ],
)
def test_a_process_that_is_gone_ends_the_others(mode, status, text):
    ended = run_group(PROGRAM, 3, mode, timeout=LIMIT)
    assert ended[1].status == status
    for rank in (0, 2):
        assert ended[rank].status == 1, ended[rank].output
        # The second one may not have ended where rank 1 is gone already.
        match = re.search(
            r"\[all_reduce\] all ranks must reach all_reduce number [23]; got (.*)",
            ended[rank].output,
        )
        assert match and match[1].startswith(text), ended[rank].output
        assert "aborted True" in ended[rank].output


def test_a_process_that_stalls_ends_the_wait_of_the_others():
    processes = [
        start([sys.executable, str(PROGRAM), str(rank), "2", port, "stall"], {"GPUFLOW_TOKEN": "t"})
        for port in [str(free_port())]
        for rank in range(2)
    ]
    try:
        output, _ = processes[0].communicate(timeout=LIMIT)
        assert processes[0].returncode == 1
        assert (
            "must reach all_reduce number 3; got nothing from rank 1, which has begun 2 "
            "collectives of 3, for 2 s on rank 0 of 2 (processes)"
        ) in output
    finally:
        for process in processes:
            kill_group(process)


def test_a_watch_without_work_has_no_thread():
    watch = Watch()
    watch.stop()
    assert watch.calls == 0 and watch._thread is None
