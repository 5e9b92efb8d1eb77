"""One NCCL communicator over several GPUs of each of several processes: how they are connected."""

import sys
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import HOSTS, serving
from gpuflow.parallel.collectives import memory_threads, nccl_connect
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator, Meeting
from gpuflow.runtime.device import Device, Platform, _platforms, device_counts, set_process


class FakeLibrary:
    """What of ``cupy.cuda.nccl`` makes communicators; it writes down what it is asked for."""

    NcclError = RuntimeError

    def __init__(self):
        self.log, self.device = [], None

    def get_unique_id(self):
        return bytes([7] * 128)

    def groupStart(self):
        self.log.append("start")

    def groupEnd(self):
        self.log.append("end")

    def NcclCommunicator(self, size, unique, rank):
        self.log.append((size, unique[0], rank, self.device))
        return SimpleNamespace(rank_id=lambda: rank, size=lambda: size)

    @contextmanager
    def use(self, number):
        self.device = number
        yield
        self.device = None


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()
    cupy = SimpleNamespace(cuda=SimpleNamespace(nccl=fake, Device=fake.use))
    monkeypatch.setattr(nccl_connect, "load_cupy", lambda: cupy)
    monkeypatch.setattr(nccl_connect, "SideStream", lambda device: SimpleNamespace(device=device))
    watch = SimpleNamespace(
        add=lambda *about: None,
        pending_call=lambda *about: nullcontext(),
        explained=str,
        fail=lambda reason: None,
        stop=lambda: None,
        is_stopped=False,
    )
    monkeypatch.setattr(nccl_connect, "_new_watch", lambda: watch)
    monkeypatch.setattr(memory_threads, "_teams", {})
    platform = Platform("cuda", lambda: 2, lambda number: None)
    monkeypatch.setitem(_platforms, "cuda", platform)
    counts = {**device_counts(), "cuda": 2}
    set_process(1, 2, (counts, counts))
    yield fake
    set_process(0, 1, ({},))


def test_the_gpus_of_a_process_join_as_one_group(library):
    gpus = tuple(Device("cuda", k, k // 2, k % 2) for k in range(4))
    team = (gpus[1], gpus[0], gpus[2], gpus[3])
    meeting = Meeting(2, 10.0)
    # The other process sends its name of the group, and ours is not used.
    first = LoopbackCommunicator(meeting, 0)
    other = threading.Thread(target=lambda: first.broadcast(np.full(128, 3, np.int8), 0))
    other.start()
    with serving(HOSTS, LoopbackCommunicator(meeting, 1)):
        thread_team = memory_threads._team(team)
    other.join(10)
    assert library.log == ["start", (4, 3, 2, 0), (4, 3, 3, 1), "end"]
    inner = {rank: getattr(c, "inner", c) for rank, c in thread_team.communicators.items()}
    assert {rank: (c.rank, c.size) for rank, c in inner.items()} == {2: (2, 4), 3: (3, 4)}


def test_where_cupy_has_no_nccl_the_error_names_what_to_install(monkeypatch):
    nccl = SimpleNamespace(available=False)
    cupy = SimpleNamespace(cuda=SimpleNamespace(nccl=nccl))
    for name, module in (("cupy", cupy), ("cupy.cuda", cupy.cuda), ("cupy.cuda.nccl", nccl)):
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(CommunicationError, match=r"nvidia-nccl-cu13, or nvidia-nccl-cu12"):
        nccl_connect.load_cupy()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(CommunicationError, match=r"\[cuda13\]\", or its cuda12 for CUDA 12"):
        nccl_connect.load_cupy()
