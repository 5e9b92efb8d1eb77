"""A library with the functions of ``cupy.cuda.nccl`` that works on host memory, over sockets.

It sees what NCCL would see, addresses, counts and codes, and so tests what parallel/nccl.py makes
of arrays; started as ``fake_nccl.py rank size port`` it runs the suite of all communicators.
"""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
from communicator_suite import check_all

from gpuflow.parallel import distributed
from gpuflow.parallel.links import Call, Receipt
from gpuflow.parallel.nccl import NcclCommunicator

# As in nccl.h.
CODES = {
    "INT8": 0, "UINT8": 1, "INT32": 2, "UINT32": 3, "INT64": 4, "UINT64": 5, "FLOAT32": 7,
    "FLOAT64": 8,
}  # fmt: skip
OPERATIONS = {"SUM": 0, "MAX": 2, "MIN": 3}
STREAM = 4711


class DevicePointer(np.ndarray):
    """A NumPy array with the attribute by which CuPy's arrays give their address."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def device(array):
    return np.asarray(array).view(DevicePointer)


class FakeCupy:
    """The functions of CuPy that parallel/nccl.py calls."""

    empty = staticmethod(lambda shape, dtype: device(np.empty(shape, dtype)))
    zeros = staticmethod(lambda shape, dtype: device(np.zeros(shape, dtype)))
    ascontiguousarray = staticmethod(lambda array: device(np.ascontiguousarray(array)))


class FakeNccl:
    """The module; between groupStart and groupEnd sends and receives are collected."""

    def __init__(self):
        self.collected = None
        self.links = None
        for names in (CODES, OPERATIONS):
            for name, code in names.items():
                setattr(self, f"NCCL_{name}", code)

    def groupStart(self):
        assert self.collected is None
        self.collected = ([], [])

    def groupEnd(self):
        sends, receipts = self.collected
        self.collected = None
        own = distributed.world().rank
        to_self = [view for peer, view in sends if peer == own]
        for target, view in zip([r for r in receipts if r.peer == own], to_self, strict=True):
            target.target[:] = view
        self.links.exchange(
            Call("permute", 0, 0), [item for item in sends if item[0] != own],
            [item for item in receipts if item.peer != own],
        )  # fmt: skip


def memory(address, count, code):
    """What lies at an address; a bad count or address would be noticed by the suite."""
    name = next(name for name, known in CODES.items() if known == code).lower()
    dtype = np.dtype(name)
    if count == 0:
        return np.empty(0, dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


class FakeComm:
    """An NcclCommunicator."""

    def __init__(self, nccl, communicator):
        self.nccl, self.under = nccl, communicator

    def rank_id(self):
        return self.under.rank

    def size(self):
        return self.under.size

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        assert stream == STREAM
        name = next(name for name, code in OPERATIONS.items() if code == op).lower()
        total = self.under.all_reduce(memory(sendbuf, count, datatype), name)
        memory(recvbuf, count, datatype)[...] = total

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        assert stream == STREAM
        rows = self.under.all_gather(memory(sendbuf, count, datatype))
        memory(recvbuf, count * self.size(), datatype)[...] = rows.reshape(-1)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        assert stream == STREAM and op == OPERATIONS["SUM"]
        rows = memory(sendbuf, recvcount * self.size(), datatype).reshape(self.size(), recvcount)
        memory(recvbuf, recvcount, datatype)[...] = self.under.reduce_scatter(rows)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        assert stream == STREAM
        sent = self.under.broadcast(memory(sendbuff, count, datatype), root)
        memory(recvbuff, count, datatype)[...] = sent

    def send(self, sendbuf, count, datatype, peer, stream):
        assert stream == STREAM
        view = memoryview(memory(sendbuf, count, datatype).view(np.uint8))
        self.nccl.collected[0].append((self.under._members[peer], view))

    def recv(self, recvbuf, count, datatype, peer, stream):
        assert stream == STREAM
        view = memoryview(memory(recvbuf, count, datatype).view(np.uint8))
        self.nccl.collected[1].append(Receipt(self.under._members[peer], view))

    def commSplit(self, color, key):
        colors = self.under.all_gather(np.array([color, key]))
        keyed = sorted((int(k), rank) for rank, (c, k) in enumerate(colors) if c == color)
        mine = tuple(rank for _, rank in keyed)
        rest = [(r,) for r in range(self.size()) if r not in mine]
        return FakeComm(self.nccl, self.under.split((mine, *rest)))


def main():
    rank, size, port = map(int, sys.argv[1:4])
    distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=20)
    nccl = FakeNccl()
    nccl.links = distributed._state.links
    under = FakeComm(nccl, distributed.world().inner)
    comm = NcclCommunicator(under, nccl, FakeCupy, lambda: STREAM)
    check_all(comm, device)
    print(f"NcclCommunicator {rank} of {size} passed")


if __name__ == "__main__":
    main()
