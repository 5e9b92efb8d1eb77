"""``NcclCommunicator``: collectives over NCCL (``cupy.cuda.nccl``), one process or thread per GPU.

Collectives run in a side stream, concurrently with the compute stream, and calls return
immediately. A collective waits for previous computations. Later computations wait for the
collective; for an asynchronous one, only those after its ``end`` do.

Callers must keep CuPy's current stream equal to the driver's, as while a program runs: arrays are
allocated and converted there. Only one thread at a time may use the communicators of a device,
hence the stream's lock. ``nccl_watch.py`` aborts collectives that would never end. Names are those
of CuPy 14 with NCCL 2.32. The tests run this against a fake NCCL, not on GPUs.

Source: NVIDIA, NCCL user guide: thread safety; using multiple communicators concurrently.

Tests: tests/parallel/test_nccl_streams.py, tests/parallel/test_nccl_watch.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record
from gpuflow.core.communicator import Groups, Pairs, watch
from gpuflow.parallel.collectives.nccl_calls import Call
from gpuflow.parallel.collectives.nccl_watch import Watch
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream

# NCCL's names of dtypes that it can reduce. Data of other dtypes are transferred as bytes.
_NAMES = {
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "uint32": "UINT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
}
# Wider dtypes, in which dtypes that NCCL lacks are reduced.
_WIDER = {"bool": "uint8", "int16": "int32", "uint16": "uint32"}


@contextmanager
def named(
    nccl: Any, operation: str, what: str, explained: Callable[[Exception], str] = str
) -> Iterator[None]:
    """Convert NCCL's errors to CommunicationErrors with the operation and text of ``explained``."""
    try:
        yield
    except nccl.NcclError as error:
        raise CommunicationError(
            f"[{operation}] NCCL must {what}; got {explained(error)}. Fix: look for the first "
            "error of the other ranks; NCCL_DEBUG=WARN prints details."
        ) from error


@record(frozen=False, eq=False)
class _Sum:
    """A pending all-reduce.

    Its arrays must live until the compute stream waits for ``mark``: the allocator reuses memory in
    the order of that stream.

    Attributes:
        array: the operand.
        working: the input of NCCL: the operand, or a copy in a wider dtype.
        result: the output of NCCL: ``out``, or an array in the wider dtype.
        out: the caller's output buffer, or None.
        mark: a CUDA event after it in the side stream.
        thread: id of the thread that started it.
    """

    array: Any
    working: Any
    result: Any
    out: Any
    mark: Any
    thread: int


class NcclCommunicator:
    """Collectives of one GPU per process or thread; data are CuPy arrays.

    Subgroups use the same stream. NCCL requires that communicators run in the same order on all
    GPUs, and one stream keeps the order of the program.

    Args:
        comm: a ``cupy.cuda.nccl.NcclCommunicator``.
        nccl: the module ``cupy.cuda.nccl``.
        xp: CuPy.
        side: the stream of collectives.
        name: name of the communicator, for messages.
        watch: the watchdog; communicators that were connected together share it.
    """

    def __init__(
        self,
        comm: Any,
        nccl: Any,
        xp: Any,
        side: SideStream,
        name: str = "processes",
        watch: Watch | None = None,
    ) -> None:
        self.rank, self.size, self.name = comm.rank_id(), comm.size(), name
        self.watch = watch or Watch()
        self.watch.add(side, comm)
        self._comm, self._nccl, self._xp, self._side = comm, nccl, xp, side
        self._location = f"rank {self.rank} of {self.size} ({name})"
        self._groups: dict[Groups, NcclCommunicator] = {}
        self._started: dict[int, _Sum] = {}  # by the address of the result
        self._is_watched = False

    @contextmanager
    def _after_compute(self, operation: str, count: int) -> Iterator[Call]:
        """Context for NCCL calls that start after all previous computations.

        Args:
            operation: name of the collective.
            count: size of the operand in bytes, for traces.
        """
        side, watch = self._side, self.watch
        with side.lock:
            call = watch.enter(side, operation, self._location)
            try:
                call.ready = side.follow()
                work = side.begin_work(operation, {"bytes": count, "axis": self.name})
                what = f"run {operation} on {self._location}"
                with named(self._nccl, operation, what, watch.explained):
                    yield call
                watch.check()  # NCCL does not report that the watchdog aborted the call
                mark = side.mark(work)
            except BaseException:
                watch.leave(call)
                raise
            call.mark = mark

    @contextmanager
    def _in_order(self, operation: str, count: int) -> Iterator[int]:
        """As ``_after_compute``; later computations wait for the calls. Yields the stream."""
        with self._after_compute(operation, count) as call:
            yield self._side.address
        self._side.join(call.mark)

    def _contiguous(self, data: Any) -> Any:
        return self._xp.ascontiguousarray(data).reshape(data.shape)

    def _code(self, name: str) -> int:
        return getattr(self._nccl, f"NCCL_{name}")

    def _bytes(self, array: Any) -> tuple[int, int]:
        """The count and dtype with which NCCL transfers an array: bytes."""
        return array.nbytes, self._code("UINT8")

    def _working(self, array: Any, op: str) -> tuple[Any, int, int]:
        """An array that NCCL can reduce, its number of elements, and their NCCL dtype.

        Complex arrays are summed as twice as many real elements.

        Raises:
            CommunicationError: if NCCL lacks the dtype, or for a maximum of complex numbers.
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
        converted = result.astype(like.dtype, copy=False)
        if out is None:
            return converted
        if converted is not out:
            out[...] = converted
        return out

    def _start_sum(self, data: Any, op: str, out: Any) -> _Sum:
        """Start an all-reduce; no stream waits for it yet."""
        array = self._contiguous(data)
        working, count, kind = self._working(array, op)
        result: Any = out
        if out is None or out.dtype != working.dtype or not out.flags.c_contiguous:
            result = self._xp.empty(working.shape, working.dtype)
        code = self._code(op.upper())
        source, target, stream = working.data.ptr, result.data.ptr, self._side.address
        with self._after_compute("all_reduce", array.nbytes) as call:
            self._comm.allReduce(source, target, count, kind, code, stream)
        return _Sum(array, working, result, out, call.mark, threading.get_ident())

    def _finish_sum(self, pending: _Sum) -> Any:
        """Make the compute stream wait for an all-reduce, and return its result."""
        self._side.join(pending.mark)
        return self._finished(pending.result, pending.array, pending.out)

    def all_reduce(self, data: Any, op: str, out: Any = None) -> Any:
        return self._finish_sum(self._start_sum(data, op, out))

    def begin(self, data: Any, op: str, out: Any) -> None:
        if not self._is_watched:
            self._is_watched = True
            watch(self)
        self._started[out.data.ptr] = self._start_sum(data, op, out)

    def end(self, out: Any) -> None:
        pending = self._started.pop(out.data.ptr, None)
        if pending is None:
            raise CommunicationError(
                "[all_reduce] end() must follow begin() of the same array; got "
                f"{out.dtype.name}{list(out.shape)} without begin ({self.name}). Fix: call "
                "begin(data, op, out) first, and end(out) once."
            )
        self._finish_sum(pending)

    def settle(self) -> None:
        """Make the compute stream wait for collectives that this thread's program did not end."""
        thread = threading.get_ident()
        for address, pending in list(self._started.items()):
            if pending.thread == thread:
                del self._started[address]
                with suppress(RuntimeError):  # a kernel failed: the device runs nothing any more
                    self._side.join(pending.mark)

    def all_gather(self, data: Any) -> Any:
        array = self._contiguous(data)
        result = self._xp.empty((self.size, *array.shape), array.dtype)
        count, kind = self._bytes(array)
        with self._in_order("all_gather", array.nbytes) as stream:
            self._comm.allGather(array.data.ptr, result.data.ptr, count, kind, stream)
        return result

    def reduce_scatter(self, data: Any) -> Any:
        array = self._contiguous(data)
        working, count, kind = self._working(array, "sum")
        result = self._xp.empty(working.shape[1:], working.dtype)
        with self._in_order("reduce_scatter", array.nbytes) as stream:
            self._comm.reduceScatter(
                working.data.ptr,
                result.data.ptr,
                count // self.size,
                kind,
                self._code("SUM"),
                stream,
            )
        return self._finished(result, array, None)

    @contextmanager
    def _grouped(self) -> Iterator[None]:
        """Fuse sends and receives into one NCCL call, so that they cannot deadlock."""
        self._nccl.groupStart()
        try:
            yield
        finally:
            self._nccl.groupEnd()

    def all_to_all(self, data: Any) -> Any:
        array = self._contiguous(data)
        result = self._xp.empty(array.shape, array.dtype)
        share, kind = prod(array.shape[1:]) * array.dtype.itemsize, self._code("UINT8")
        with self._in_order("all_to_all", array.nbytes) as stream, self._grouped():
            for peer in range(self.size):
                at = peer * share
                self._comm.send(array.data.ptr + at, share, kind, peer, stream)
                self._comm.recv(result.data.ptr + at, share, kind, peer, stream)
        return result

    def permute(self, data: Any, pairs: Pairs) -> Any:
        array = self._contiguous(data)
        result = self._xp.zeros(array.shape, array.dtype)
        count, kind = self._bytes(array)
        with self._in_order("permute", array.nbytes) as stream, self._grouped():
            for source, target in pairs:
                if source == self.rank:
                    self._comm.send(array.data.ptr, count, kind, target, stream)
                if target == self.rank:
                    self._comm.recv(result.data.ptr, count, kind, source, stream)
        return result

    def broadcast(self, data: Any, root: int) -> Any:
        array = self._contiguous(data)
        result = self._xp.empty(array.shape, array.dtype)
        count, kind = self._bytes(array)
        with self._in_order("broadcast", array.nbytes) as stream:
            self._comm.broadcast(array.data.ptr, result.data.ptr, count, kind, root, stream)
        return result

    def barrier(self) -> None:
        self.all_reduce(self._xp.zeros(1, np.float32), "sum")
        self._side.synchronize()
        self.check()

    def check(self) -> None:
        """Check, after a wait for the GPU, that its collectives were not aborted.

        Raises:
            CommunicationError: if they were.
        """
        self.watch.check()

    def split(self, groups: Groups) -> NcclCommunicator:
        with self._side.lock:
            communicator = self._groups.get(groups)
            if communicator is None:
                communicator = self._groups[groups] = self._split(groups)
        return communicator

    def _split(self, groups: Groups) -> NcclCommunicator:
        (color,) = [k for k, group in enumerate(groups) if self.rank in group]
        what = f"split {self.name} into {groups}"
        with (
            self.watch.pending_call(self._side, "split", self._location),
            named(self._nccl, "split", what, self.watch.explained),
        ):
            self._side.synchronize()  # with pending collectives, commSplit may never return
            comm = self._comm.commSplit(color, groups[color].index(self.rank))
        name = f"{self.name} {groups[color]}"
        return NcclCommunicator(comm, self._nccl, self._xp, self._side, name, self.watch)
