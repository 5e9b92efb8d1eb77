"""A library with the functions of ``cupy.cuda.nccl`` that works on host memory, as late as it may.

It sees what NCCL would see, addresses, counts, codes and streams, and so tests what
parallel/collectives/nccl.py makes of arrays and streams. Between processes data go over sockets;
started as ``fake_nccl.py rank size port`` it runs the suite of all communicators. Between threads
of one process they meet in memory.
"""

import ctypes
import queue
import sys
import threading
import weakref
from collections import defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from communicator_suite import check_all

from gpuflow.base.errors import CommunicationError
from gpuflow.parallel.collectives.loopback import LoopbackCommunicator, Meeting
from gpuflow.parallel.collectives.nccl import NcclCommunicator
from gpuflow.parallel.processes import distributed
from gpuflow.parallel.processes.transfers import Call, Receipt
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream
from gpuflow.targets.cuda_sim.recording import current

sys.path.insert(0, str(Path(__file__).parents[1]))
from late_gpu import LateApi

# As in nccl.h.
CODES = {
    "INT8": 0,
    "UINT8": 1,
    "INT32": 2,
    "UINT32": 3,
    "INT64": 4,
    "UINT64": 5,
    "FLOAT16": 6,
    "FLOAT32": 7,
    "FLOAT64": 8,
    "BFLOAT16": 9,
}
SHORT_FLOATS = (CODES["FLOAT16"], CODES["BFLOAT16"])
OPERATIONS = {"SUM": 0, "MAX": 2, "MIN": 3}
COMPUTE = 1  # the first stream that a driver makes
TIMEOUT = 20.0


def wait():
    """Do what the compute stream of this thread's device has; the side stream's work only where
    the compute stream waits for it."""
    current.device.synchronize(COMPUTE)


class FakeApi(LateApi):
    """A late GPU whose arrays are the fake CuPy's."""

    @property
    def xp(self):
        return FakeCupy

    def view(self, data):
        return super().view(data).view(DevicePointer)

    def visit(self):
        self.activate()  # CUDA knows one current device


class DevicePointer(np.ndarray):
    """A NumPy array with what CuPy's arrays have. NumPy works at once, and so waits first."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self):
        wait()
        return np.array(self)

    def astype(self, dtype, copy=True):
        if not copy and self.dtype == dtype:
            return self
        wait()
        out = FakeCupy.empty(self.shape, np.dtype(dtype))
        out.view(np.ndarray)[...] = np.asarray(self).astype(dtype)
        return out

    def __setitem__(self, index, value):
        wait()
        super().__setitem__(index, value)


class Place:
    """Memory of CuPy's pool: dropped, it is used for something else, in the compute stream."""

    def __init__(self, count):
        raw = np.empty(max(count, 1), np.uint8)
        self.__array_interface__ = raw.__array_interface__
        later = current.device.queues[COMPUTE]
        weakref.finalize(self, lambda: later.append(lambda: raw.fill(0xCD)))


def device(array):
    """A copy in the fake CuPy's memory."""
    array = np.asarray(array)
    out = FakeCupy.empty(array.shape, array.dtype)
    out.view(np.ndarray)[...] = array
    return out


class _Rest(type):
    """NumPy's functions, which work at once."""

    def __getattr__(cls, name):
        def call(*args, **options):
            wait()
            return getattr(np, name)(*args, **options)

        return call


class FakeCupy(metaclass=_Rest):
    """CuPy; its arrays lie in memory that its pool hands out again."""

    @staticmethod
    def empty(shape, dtype):
        dtype = np.dtype(dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        memory = np.asarray(Place(count))[:count]
        return memory.view(dtype).reshape(shape).view(DevicePointer)

    @staticmethod
    def zeros(shape, dtype):
        return device(np.zeros(shape, dtype))

    @staticmethod
    def asarray(array):
        return array if isinstance(array, DevicePointer) else device(array)

    @staticmethod
    def asnumpy(array):
        return array.get()

    @staticmethod
    def ascontiguousarray(array):
        if isinstance(array, DevicePointer):
            if array.flags.c_contiguous:
                return array
            wait()
        return device(np.ascontiguousarray(array))


class NcclError(RuntimeError):
    """NCCL's."""


class FakeNccl:
    """The module; between groupStart and groupEnd the sends and receives of a thread are kept."""

    NcclError = NcclError

    def __init__(self):
        self.local = threading.local()
        self.done = []  # what ran, in order
        self.made = []  # communicators
        for names in (CODES, OPERATIONS):
            for name, code in names.items():
                setattr(self, f"NCCL_{name}", code)

    def groupStart(self):
        assert getattr(self.local, "kept", None) is None
        self.local.kept = []

    def groupEnd(self):
        kept, self.local.kept = self.local.kept, None
        if not kept:
            return
        comm, stream = kept[0][:2]
        assert all(one[:2] == (comm, stream) for one in kept)
        sends = [(peer, view) for *_, kind, peer, view in kept if kind == "send"]
        receipts = [(peer, view) for *_, kind, peer, view in kept if kind == "recv"]
        comm.give("group", stream, lambda: comm.swap(sends, receipts))


def memory(address, count, code):
    """What lies at an address; a bad count or address would be noticed by the suite."""
    name = next(name for name, known in CODES.items() if known == code).lower()
    dtype = np.dtype(name)
    if count == 0:
        return np.empty(0, dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


def in_turn(rows):
    """The sum of rows in their dtype, which each addition rounds to, as around a ring."""
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    assert total.dtype == rows.dtype
    return total


class FakeComm:
    """An NcclCommunicator over one of ours; what cannot end keeps the stream busy until ``abort``.

    Attributes:
        error: what NCCL says to every call.
        background: what it says when it is asked for errors in the background.
        aborted: set by ``abort``.
        destroyed: set by ``destroy``.
    """

    def __init__(self, nccl, communicator):
        self.nccl, self.under, self.error, self.background = nccl, communicator, None, None
        self.stream = None  # that it was last given work for
        self.aborted, self.destroyed = threading.Event(), threading.Event()
        nccl.made.append(self)

    def check_async_error(self):
        assert not self.is_gone(), "NCCL has let go of its memory"
        if self.background is not None:
            raise self.background

    def abort(self):
        self.aborted.set()
        links = getattr(self.under, "_links", None)
        meeting = getattr(self.under, "_meeting", None)
        for group in (links, meeting):
            if group is not None:
                group.fail("aborted")

    def is_gone(self):
        return self.aborted.is_set() or self.destroyed.is_set()

    def destroy(self):
        assert not self.is_gone(), "NCCL has let go of its memory"
        self.destroyed.set()

    def rank_id(self):
        return self.under.rank

    def size(self):
        return self.under.size

    def give(self, name, stream, work):
        """Do it when the stream comes to it."""
        assert COMPUTE < stream <= current.device._streams
        self.stream = stream
        if self.error is not None or self.is_gone():
            raise NcclError(self.error or "NCCL_ERROR_INVALID_ARGUMENT: invalid argument")

        def run():
            try:
                if not self.aborted.is_set():
                    work()
            except CommunicationError:
                assert self.aborted.wait(TIMEOUT), "nobody ends what waits forever"
            self.nccl.done.append(name)

        current.device.queues[stream].append(run)

    def rows(self, view):
        """The data of all ranks."""
        return self.under.all_gather(view)

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        name = next(name for name, code in OPERATIONS.items() if code == op).lower()

        def work():
            view = memory(sendbuf, count, datatype)
            if name == "sum" and datatype in SHORT_FLOATS:
                total = in_turn(self.rows(view))
            else:
                total = self.under.all_reduce(view, name)
            memory(recvbuf, count, datatype)[...] = total

        self.give("allReduce", stream, work)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        def work():
            rows = self.under.all_gather(memory(sendbuf, count, datatype))
            memory(recvbuf, count * self.size(), datatype)[...] = rows.reshape(-1)

        self.give("allGather", stream, work)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        assert op == OPERATIONS["SUM"]

        def work():
            rows = memory(sendbuf, recvcount * self.size(), datatype)
            rows = rows.reshape(self.size(), recvcount)
            if datatype in SHORT_FLOATS:
                part = in_turn(self.under.all_to_all(rows))
            else:
                part = self.under.reduce_scatter(rows)
            memory(recvbuf, recvcount, datatype)[...] = part

        self.give("reduceScatter", stream, work)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        def work():
            sent = self.under.broadcast(memory(sendbuff, count, datatype), root)
            memory(recvbuff, count, datatype)[...] = sent

        self.give("broadcast", stream, work)

    def send(self, sendbuf, count, datatype, peer, stream):
        view = memory(sendbuf, count, datatype).view(np.uint8)
        self.nccl.local.kept.append((self, stream, "send", peer, view))

    def recv(self, recvbuf, count, datatype, peer, stream):
        view = memory(recvbuf, count, datatype).view(np.uint8)
        self.nccl.local.kept.append((self, stream, "recv", peer, view))

    def swap(self, sends, receipts):
        """The sends and receives of a group, over sockets."""
        rank, ranks = self.rank_id(), self.under._members
        to_self = [view for peer, view in sends if peer == rank]
        for target, view in zip([t for p, t in receipts if p == rank], to_self, strict=True):
            target[:] = view
        self.under._links.exchange(
            Call("permute", 0, 0),
            [(ranks[peer], memoryview(view)) for peer, view in sends if peer != rank],
            [Receipt(ranks[peer], memoryview(view)) for peer, view in receipts if peer != rank],
        )

    def commSplit(self, color, key):
        try:
            colors = self.under.all_gather(np.array([color, key]))
        except CommunicationError as error:
            raise NcclError("NCCL_ERROR_INTERNAL_ERROR") from error
        keyed = sorted((int(k), rank) for rank, (c, k) in enumerate(colors) if c == color)
        mine = tuple(rank for _, rank in keyed)
        rest = [(r,) for r in range(self.size()) if r not in mine]
        return self.part((mine, *rest))

    def part(self, groups):
        return FakeComm(self.nccl, self.under.split(groups))


class ThreadComm(FakeComm):
    """One of several in a process; ``boxes`` has what one rank of a group sent to another.

    To destroy it waits until all ranks do: one thread alone cannot destroy all of them.
    """

    def __init__(self, nccl, communicator, boxes):
        super().__init__(nccl, communicator)
        self.boxes = boxes

    def destroy(self):
        assert not current.device.queues[self.stream], "something is under way"
        with suppress(CommunicationError):
            self.under.barrier()
        super().destroy()

    def swap(self, sends, receipts):
        group, rank = self.under.name, self.rank_id()
        for peer, view in sends:
            self.boxes[group, rank, peer].put(view.copy())
        for peer, target in receipts:
            target[:] = self.boxes[group, peer, rank].get(timeout=TIMEOUT)

    def part(self, groups):
        return ThreadComm(self.nccl, self.under.split(groups), self.boxes)


def fake_cupy():
    """CuPy with NCCL, for the GPUs of one process."""
    nccl, device_now, groups = FakeNccl(), [], {}
    nccl.numbers = []  # of the devices of communicators

    @contextmanager
    def use(number):
        device_now.append(number)
        yield
        device_now.pop()

    def connect(size, unique, rank):
        assert nccl.local.kept is not None, "outside a group the first waits for the second"
        if unique not in groups:
            groups[unique] = Meeting(size, TIMEOUT), defaultdict(queue.SimpleQueue)
        meeting, boxes = groups[unique]
        nccl.numbers.append(device_now[-1])
        return ThreadComm(nccl, LoopbackCommunicator(meeting, rank), boxes)

    nccl.NcclCommunicator = connect
    nccl.get_unique_id = lambda: bytes([len(groups)] * 128)
    return SimpleNamespace(
        cuda=SimpleNamespace(nccl=nccl, Device=use),
        empty=FakeCupy.empty,
        zeros=FakeCupy.zeros,
        ascontiguousarray=FakeCupy.ascontiguousarray,
    )


class Waiting:
    """The same collectives, for callers who look at results at once."""

    def __init__(self, inner):
        self.inner, self.groups = inner, {}
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name

    def split(self, groups):
        if groups not in self.groups:
            self.groups[groups] = Waiting(self.inner.split(groups))
        return self.groups[groups]

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        def call(*args):
            result = method(*args)
            wait()
            return result

        return call


def late_device():
    """A device for streams alone, the current one."""
    api = FakeApi()
    api.activate()
    assert api.stream() == COMPUTE
    return SimpleNamespace(
        driver=SimpleNamespace(api=api, compute=COMPUTE, side_work=[], broken=None)
    )


def main():
    rank, size, port = map(int, sys.argv[1:4])
    distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=TIMEOUT)
    under = FakeComm(nccl := FakeNccl(), distributed.world().inner)
    comm = NcclCommunicator(under, nccl, FakeCupy, SideStream(late_device()))
    check_all(Waiting(comm), device, rounds=True)
    print(f"NcclCommunicator {rank} of {size} passed")


if __name__ == "__main__":
    main()
