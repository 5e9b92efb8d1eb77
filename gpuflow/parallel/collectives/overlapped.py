"""``OverlappedCommunicator``: asynchronous sums in a thread, which overlap with computation.

Communicators that share connections share the thread. Asynchronous operations run in the order in
which they were started. Any other collective waits until all of them are done. All ranks therefore
have the same order of transfers, which is the order of the program.

Tests: tests/parallel/test_overlap.py.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from gpuflow.base.recording import span
from gpuflow.base.records import record
from gpuflow.core.communicator import Communicator, Groups, Pairs, watch


@record(frozen=False, eq=False)
class _Sum:
    """A started sum: its operands, the event of its completion, and its error, if any."""

    communicator: Communicator
    data: Any
    op: str
    out: Any
    done: threading.Event
    thread: int
    error: BaseException | None = None


class Worker:
    """The thread of asynchronous sums; the first sum starts it."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Sum | None] = queue.SimpleQueue()
        self._begun: dict[int, _Sum] = {}
        self._last: _Sum | None = None
        self._thread: threading.Thread | None = None

    def begin(self, communicator: Communicator, data: Any, op: str, out: Any) -> None:
        """Queue a sum into ``out``, which identifies it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpuflow-sums", daemon=True)
            self._thread.start()
            watch(self)
        pending = _Sum(communicator, data, op, out, threading.Event(), threading.get_ident())
        self._begun[out.ctypes.data] = self._last = pending
        self._waiting.put(pending)

    def end(self, out: Any) -> None:
        """Wait for the sum into ``out``.

        Raises:
            Exception: the error of the operation.
        """
        pending = self._begun.pop(out.ctypes.data)
        if not pending.done.is_set():
            with span("collectives", "wait", bytes=out.nbytes):
                pending.done.wait()
        if pending.error is not None:
            raise pending.error

    def drain(self) -> None:
        """Wait for all started sums."""
        if self._last is not None:
            self._last.done.wait()
            self._last = None

    def settle(self) -> None:
        """Wait for all started sums, and drop those that this thread's program did not end."""
        self.drain()
        thread = threading.get_ident()
        for address, pending in list(self._begun.items()):
            if pending.thread == thread:
                self._begun.pop(address, None)

    def stop(self) -> None:
        """End the thread after all started sums."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread = None

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            if item is None:
                return
            try:
                with span("collectives", "all_reduce", bytes=item.data.nbytes):
                    item.communicator.all_reduce(item.data, item.op, item.out)
            except BaseException as error:  # ``end`` raises it
                item.error = error
            item.done.set()
            del item  # an idle thread must not keep arrays alive


class OverlappedCommunicator:
    """A wrapper that adds asynchronous sums, by ``begin`` and ``end``.

    Args:
        inner: the communicator that runs the collectives.
        beside: whether sums run in the thread; otherwise ``begin`` runs them synchronously.
        worker: the thread for the connections of ``inner``.
    """

    def __init__(
        self, inner: Communicator, beside: bool = True, worker: Worker | None = None
    ) -> None:
        self.inner, self.beside, self.worker = inner, beside, worker or Worker()
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self._groups: dict[Groups, OverlappedCommunicator] = {}

    def _drained(self) -> Communicator:
        """The inner communicator, after all asynchronous sums are done."""
        self.worker.drain()
        return self.inner

    def begin(self, data: Any, op: str, out: Any) -> None:
        if self.beside:
            self.worker.begin(self.inner, data, op, out)
        else:
            self.inner.all_reduce(data, op, out)

    def end(self, out: Any) -> None:
        if self.beside:
            self.worker.end(out)

    def all_reduce(self, data: Any, op: str, out: Any = None) -> Any:
        return self._drained().all_reduce(data, op, out)

    def all_gather(self, data: Any) -> Any:
        return self._drained().all_gather(data)

    def reduce_scatter(self, data: Any) -> Any:
        return self._drained().reduce_scatter(data)

    def all_to_all(self, data: Any) -> Any:
        return self._drained().all_to_all(data)

    def permute(self, data: Any, pairs: Pairs) -> Any:
        return self._drained().permute(data, pairs)

    def broadcast(self, data: Any, root: int) -> Any:
        return self._drained().broadcast(data, root)

    def barrier(self) -> None:
        self._drained().barrier()

    def split(self, groups: Groups) -> OverlappedCommunicator:
        communicator = self._groups.get(groups)
        if communicator is None:
            # Splitting is collective in MPI, so asynchronous sums must be done.
            communicator = OverlappedCommunicator(
                self._drained().split(groups), self.beside, self.worker
            )
            self._groups[groups] = communicator
        return communicator
