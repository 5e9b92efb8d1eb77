"""Collectives over NCCL, through ``cupy.cuda.nccl``: a process or a thread for each GPU.

Calls go to CuPy's current stream, which is the driver's while a program runs: they return at once,
and are ordered with the kernels before and behind them. Names and signatures are those of CuPy 14
with NCCL 2.32. The tests run this file against a library that stands for NCCL; it has not met a GPU
yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import Communicator, Groups, Immediate, Pairs

# NCCL's names of dtypes that it adds and compares; others are moved as bytes.
_NAMES = {
    "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "uint32": "UINT32", "int64": "INT64",
    "uint64": "UINT64", "float32": "FLOAT32", "float64": "FLOAT64",
}  # fmt: skip
# What others are while they are combined. Sums of 16-bit floats are made in float32.
_WIDER = {
    "bool": "uint8", "int16": "int32", "uint16": "uint32", "float16": "float32",
    "bfloat16": "float32",
}  # fmt: skip


def load_cupy() -> Any:
    """CuPy with NCCL.

    Raises:
        CommunicationError: CuPy or NCCL is not installed.
    """
    try:
        import cupy
        import cupy.cuda.nccl
    except ImportError as error:
        raise CommunicationError(
            f"[nccl] several GPUs need CuPy and NCCL; got: {error}. "
            'Fix: pip install "gpuflow[cuda13]" nvidia-nccl-cu13.'
        ) from error
    if not cupy.cuda.nccl.available:
        raise CommunicationError(
            "[nccl] NCCL must be installed; got CuPy without it. Fix: pip install nvidia-nccl-cu13."
        )
    return cupy


def connect_nccl(world: Communicator) -> NcclCommunicator:
    """The communicator of the current GPUs of all processes, which first agree over ``world``."""
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    own = nccl.get_unique_id()
    is_bytes = isinstance(own, bytes)  # a tuple of ints before CuPy 14
    numbers = np.frombuffer(own, np.int8) if is_bytes else np.array(own, np.int8)
    numbers = world.broadcast(numbers, 0)
    unique = numbers.tobytes() if is_bytes else tuple(numbers.tolist())
    comm = nccl.NcclCommunicator(world.size, unique, world.rank)
    return NcclCommunicator(
        comm, nccl, cupy, lambda: cupy.cuda.get_current_stream().ptr, world.name
    )


def connect_gpus(numbers: Sequence[int]) -> list[NcclCommunicator]:
    """A communicator for each of this process's GPUs; each is to be used by a thread of its own."""
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    return [
        NcclCommunicator(comm, nccl, cupy, lambda: cupy.cuda.get_current_stream().ptr, "devices")
        for comm in nccl.NcclCommunicator.initAll(list(numbers))
    ]


class NcclCommunicator(Immediate):
    """Collectives of one GPU per process or thread; data are CuPy arrays.

    Args:
        comm: a ``cupy.cuda.nccl.NcclCommunicator``.
        nccl: the module ``cupy.cuda.nccl``.
        xp: CuPy.
        stream: the address of the stream to use now.
        name: for messages.
    """

    def __init__(
        self, comm: Any, nccl: Any, xp: Any, stream: Callable[[], int], name: str = "processes"
    ) -> None:
        self.rank, self.size, self.name = comm.rank_id(), comm.size(), name
        self._comm, self._nccl, self._xp, self._stream = comm, nccl, xp, stream
        self._groups: dict[Groups, NcclCommunicator] = {}

    def _contiguous(self, data: Any) -> Any:
        return self._xp.ascontiguousarray(data).reshape(data.shape)

    def _code(self, name: str) -> int:
        return getattr(self._nccl, f"NCCL_{name}")

    def _bytes(self, array: Any) -> tuple[int, int]:
        """A count and a dtype by which NCCL moves an array."""
        return array.nbytes, self._code("UINT8")

    def _working(self, array: Any, op: str) -> tuple[Any, int, int]:
        """An array that NCCL can combine, its count of numbers, and their dtype.

        Raises:
            CommunicationError: complex numbers have no maximum.
        """
        name = array.dtype.name
        if name in _WIDER:
            array = array.astype(_WIDER[name])
        elif dtypes.is_complex(array.dtype):
            if op != "sum":
                raise CommunicationError(
                    f"[p{op}] NCCL compares real numbers only; got {name}. Fix: use abs(x)."
                )
            real = "FLOAT32" if array.dtype.itemsize == 8 else "FLOAT64"
            return array, 2 * array.size, self._code(real)
        if array.dtype.name not in _NAMES:
            raise CommunicationError(
                f"[nccl] NCCL must know the dtype; got {name}. Fix: convert with x.astype(...)."
            )
        return array, array.size, self._code(_NAMES[array.dtype.name])

    def _finished(self, result: Any, like: Any, out: Any) -> Any:
        found = result.astype(like.dtype, copy=False)
        if out is None:
            return found
        if found is not out:
            out[...] = found
        return out

    def all_reduce(self, data: Any, op: str, out: Any = None) -> Any:
        array = self._contiguous(data)
        working, count, kind = self._working(array, op)
        result: Any = out
        if out is None or out.dtype != working.dtype or not out.flags.c_contiguous:
            result = self._xp.empty(working.shape, working.dtype)
        code = self._code(op.upper())
        self._comm.allReduce(working.data.ptr, result.data.ptr, count, kind, code, self._stream())
        return self._finished(result, array, out)

    def all_gather(self, data: Any) -> Any:
        array = self._contiguous(data)
        result = self._xp.empty((self.size, *array.shape), array.dtype)
        count, kind = self._bytes(array)
        self._comm.allGather(array.data.ptr, result.data.ptr, count, kind, self._stream())
        return result

    def reduce_scatter(self, data: Any) -> Any:
        array = self._contiguous(data)
        working, count, kind = self._working(array, "sum")
        result = self._xp.empty(working.shape[1:], working.dtype)
        self._comm.reduceScatter(
            working.data.ptr, result.data.ptr, count // self.size, kind, self._code("SUM"),
            self._stream(),
        )  # fmt: skip
        return self._finished(result, array, None)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Sends and receives inside of it are one call, so that they cannot wait for each other."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def all_to_all(self, data: Any) -> Any:
        array = self._contiguous(data)
        result = self._xp.empty(array.shape, array.dtype)
        share, kind = prod(array.shape[1:]) * array.dtype.itemsize, self._code("UINT8")
        with self._together():
            for peer in range(self.size):
                at = peer * share
                self._comm.send(array.data.ptr + at, share, kind, peer, self._stream())
                self._comm.recv(result.data.ptr + at, share, kind, peer, self._stream())
        return result

    def permute(self, data: Any, pairs: Pairs) -> Any:
        array = self._contiguous(data)
        result = self._xp.zeros(array.shape, array.dtype)
        count, kind = self._bytes(array)
        with self._together():
            for source, target in pairs:
                if source == self.rank:
                    self._comm.send(array.data.ptr, count, kind, target, self._stream())
                if target == self.rank:
                    self._comm.recv(result.data.ptr, count, kind, source, self._stream())
        return result

    def broadcast(self, data: Any, root: int) -> Any:
        array = self._contiguous(data)
        result = self._xp.empty(array.shape, array.dtype)
        count, kind = self._bytes(array)
        self._comm.broadcast(array.data.ptr, result.data.ptr, count, kind, root, self._stream())
        return result

    def barrier(self) -> None:
        total = self.all_reduce(self._xp.zeros(1, np.float32), "sum")
        float(total[0])  # waits for the stream

    def split(self, groups: Groups) -> NcclCommunicator:
        found = self._groups.get(groups)
        if found is None:
            (color,) = [k for k, group in enumerate(groups) if self.rank in group]
            comm = self._comm.commSplit(color, groups[color].index(self.rank))
            found = NcclCommunicator(
                comm, self._nccl, self._xp, self._stream, f"{self.name} {groups[color]}"
            )
            self._groups[groups] = found
        return found
