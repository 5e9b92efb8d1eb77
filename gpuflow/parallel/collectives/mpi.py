"""``MpiCommunicator``: collectives over MPI (mpi4py) for CPU processes on one or more machines.

Arrays are passed to MPI as memory, never pickled. MPI computes sums of dtypes that it supports.
16-bit floats are summed as float32. NumPy computes maxima and minima, because it propagates nan.

Tests: tests/parallel/test_communicators.py.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuflow.base.errors import CommunicationError
from gpuflow.base.installation import pip_install
from gpuflow.base.records import record
from gpuflow.core.communicator import Groups, Immediate, Pairs
from gpuflow.parallel.collectives.checked import compare, shortened
from gpuflow.parallel.collectives.combine import (
    OPERATIONS,
    bytes_of,
    combine,
    contiguous,
    empty,
    finished,
    output_for,
    working_dtype,
)

# Characters of NumPy dtypes that MPI can sum.
_KNOWN = frozenset("bhilqBHILQfdFD")


def load_mpi() -> Any:
    """Import ``mpi4py.MPI``.

    Raises:
        CommunicationError: if mpi4py is not installed, or finds no MPI.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise CommunicationError(
            f"[distributed] processes of mpiexec need mpi4py; got: {error}. "
            f"Fix: {pip_install('mpi')}, or give initialize a coordinator_address."
        ) from error
    return MPI


class MpiCommunicator(Immediate):
    """Collectives of the processes of an MPI communicator; data are NumPy arrays.

    Args:
        comm: an mpi4py communicator.
        timeout: seconds after which a call that does not return aborts the job. MPI cannot cancel
            a call, so a watchdog thread measures it.
        name: name of the communicator, for messages.
    """

    def __init__(self, comm: Any, timeout: float = 300.0, name: str = "processes") -> None:
        self.rank, self.size, self.name = comm.rank, comm.size, name
        self.calls = 0
        self._comm = comm
        self._mpi = load_mpi()
        self._watch = _Watch(self._mpi.COMM_WORLD, timeout)
        self._groups: dict[Groups, MpiCommunicator] = {}

    @property
    def here(self) -> int:
        """Number of processes on this machine; collective over all processes."""
        near = self._comm.Split_type(self._mpi.COMM_TYPE_SHARED)
        count = near.size
        near.Free()
        return count

    @contextmanager
    def _watched(
        self, operation: str, data: np.ndarray | None = None, how: str = ""
    ) -> Iterator[None]:
        self.calls += 1
        name = f"{operation} number {self.calls}"
        self._watch.begin(name)
        try:
            of = "" if data is None else f" of {data.dtype.name}{list(data.shape)}"
            self._agree(f"{name}{how and f' ({how})'}{of}")
            yield
        finally:
            self._watch.end()

    def _agree(self, text: str) -> None:
        """Compare pending operations of the ranks: MPI does not check them, and sums any data.

        Raises:
            CommunicationError: if two ranks have different operations. All ranks raise.
        """
        checksums = self._gathered(np.array([zlib.crc32(text.encode())], np.uint32))
        if (checksums != checksums[0]).any():
            compare(_Texts(self.name, self._gathered), text)

    def _gathered(self, array: np.ndarray) -> np.ndarray:
        rows = empty((self.size, *array.shape), array.dtype)
        self._comm.Allgather(self._bytes(array), self._even(rows))
        return rows

    def _bytes(self, array: np.ndarray) -> list[Any]:
        return [bytes_of(array), array.nbytes, self._mpi.BYTE]

    def all_reduce(self, data: Any, op: str, out: np.ndarray | None = None) -> np.ndarray:
        array = contiguous(data)
        working = array.astype(working_dtype(array.dtype), copy=False)
        result = output_for(working, out)
        with self._watched("all_reduce", array, op):
            if op == "sum" and working.dtype.char in _KNOWN:
                self._comm.Allreduce(working, result, self._mpi.SUM)
            else:
                self._reduce_here(working, result, op)
        return finished(result, array.dtype, out)

    def _reduce_here(self, local: np.ndarray, result: np.ndarray, op: str) -> None:
        """All-reduce with NumPy: MPI exchanges chunks, each rank reduces one, all gather them."""
        flat, out = local.reshape(-1), result.reshape(-1)
        share = -(-flat.size // self.size)
        padded = empty((self.size, share), flat.dtype)
        padded.reshape(-1)[: flat.size] = flat
        padded.reshape(-1)[flat.size :] = 0
        received = empty(padded.shape, flat.dtype)
        self._comm.Alltoall(self._even(padded), self._even(received))
        total = received[0]
        for row in received[1:]:
            OPERATIONS[op](total, row, out=total)
        gathered = empty(padded.shape, flat.dtype)
        self._comm.Allgather(self._bytes(total), self._even(gathered))
        out[...] = gathered.reshape(-1)[: flat.size]

    def _even(self, array: np.ndarray) -> list[Any]:
        """The MPI buffer of an array ``[size, ...]`` with one row per rank, as bytes."""
        return [bytes_of(array), array.nbytes // self.size, self._mpi.BYTE]

    def all_gather(self, data: Any) -> np.ndarray:
        array = contiguous(data)
        with self._watched("all_gather", array):
            return self._gathered(array)

    def reduce_scatter(self, data: Any) -> np.ndarray:
        array = contiguous(data)
        received = empty(array.shape, array.dtype)
        with self._watched("reduce_scatter", array):
            self._comm.Alltoall(self._even(array), self._even(received))
        return combine(received, "sum", array.dtype)

    def all_to_all(self, data: Any) -> np.ndarray:
        array = contiguous(data)
        result = empty(array.shape, array.dtype)
        with self._watched("all_to_all", array):
            self._comm.Alltoall(self._even(array), self._even(result))
        return result

    def permute(self, data: Any, pairs: Pairs) -> np.ndarray:
        array = contiguous(data)
        result = np.zeros_like(array)
        requests = []
        with self._watched("permute", array, shortened(pairs)):
            for source, target in pairs:
                if target == self.rank:
                    requests.append(self._comm.Irecv(self._bytes(result), source))
                if source == self.rank:
                    requests.append(self._comm.Isend(self._bytes(array), target))
            self._mpi.Request.Waitall(requests)
        return result

    def broadcast(self, data: Any, root: int) -> np.ndarray:
        result = contiguous(data).copy()
        with self._watched("broadcast", result, f"from {root}"):
            self._comm.Bcast(self._bytes(result), root)
        return result

    def barrier(self) -> None:
        with self._watched("barrier"):
            self._comm.Barrier()

    def split(self, groups: Groups) -> MpiCommunicator:
        communicator = self._groups.get(groups)
        if communicator is None:
            (color,) = [k for k, group in enumerate(groups) if self.rank in group]
            with self._watched("split"):
                comm = self._comm.Split(color, groups[color].index(self.rank))
            name = f"{self.name} {groups[color]}"
            communicator = MpiCommunicator(comm, self._watch.timeout, name)
            self._groups[groups] = communicator
        return communicator


@record
class _Texts:
    """The part of a communicator that ``compare`` needs."""

    name: str
    all_gather: Callable[[np.ndarray], np.ndarray]


class _Watch:
    """Watchdog: aborts the job if a call takes too long."""

    def __init__(self, world: Any, timeout: float) -> None:
        self.timeout = timeout
        self._world = world
        self._current: tuple[str, float] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, what: str) -> None:
        self._current = what, time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpuflow-mpi", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._current = None

    def _run(self) -> None:
        while True:
            time.sleep(min(1.0, self.timeout / 4))
            current = self._current
            if current is not None and time.monotonic() - current[1] > self.timeout:
                print(
                    f"[{current[0].split()[0]}] all ranks must reach {current[0]}; rank "
                    f"{self._world.rank} has waited for {self.timeout:g} s. Fix: find out why the "
                    "other ranks do not reach it.",
                    file=sys.stderr,
                    flush=True,
                )
                self._world.Abort(1)
