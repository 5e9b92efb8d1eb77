"""Watchdog of NCCL: aborts collectives whose ranks are gone, late, or have failed.

A GPU that waits for another one keeps its stream busy, and the host that waits for the GPU gets no
information. A thread monitors pending operations. When NCCL reports an error, another process has
ended, or a collective has waited for too long, it aborts all communicators. That releases the
streams, and threads that wait for the GPU get an error that names the rank.

Source: NVIDIA, NCCL user guide: fault tolerance; ncclCommGetAsyncError, ncclCommAbort.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from gpuflow.base.errors import CommunicationError
from gpuflow.base.spare_threads import SpareThread
from gpuflow.base.util import warn
from gpuflow.parallel.collectives.nccl_calls import (
    Call,
    Communicates,
    Queue,
    Signs,
    drop_finished,
    message,
    waiting_since,
)
from gpuflow.parallel.processes.heartbeats import FAILED_STATUS, GRACE_SECONDS
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream

_LOOK = 0.1  # seconds between checks of pending calls
_FREE = 0.5  # seconds to wait until no thread uses a communicator
_IN_PROGRESS = 7  # ncclInProgress
_MAX_UNCHECKED = 256  # calls whose ends are not asked for before another one is made


class Watch:
    """Watches all communicators of this process that were connected at once.

    Args:
        timeout: seconds for which a collective that runs waits for the others.
        signs: information about other ranks besides NCCL.
    """

    def __init__(self, timeout: float = 300.0, signs: Signs | None = None) -> None:
        self.timeout, self._signs = timeout, signs or Signs()
        self._queues: dict[SideStream, Queue] = {}
        self._comms: list[tuple[SideStream, Communicates]] = []
        # A thread for the end of each communicator, and one that ends the process if they hang.
        self._enders: list[SpareThread] = []
        self._last: SpareThread | None = None
        self._lock = threading.Lock()
        # Held while NCCL is asked for errors: a communicator must not be freed meanwhile.
        self._asking = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: str | None = None
        self._is_stopped = False

    # --- calls of communicators ---

    def add(self, side: SideStream, comm: Communicates | None = None) -> None:
        """Monitor pending operations of a stream, and a communicator of NCCL."""
        if side not in self._queues:
            self._queues[side] = Queue()
        if comm is not None:
            self._last = self._last or SpareThread("gpuflow-nccl-end")
            # First: another thread may fail meanwhile, and needs one for each communicator.
            self._enders.append(SpareThread("gpuflow-nccl-end"))
            self._comms.append((side, comm))

    @property
    def calls(self) -> int:
        """Number of collectives that the GPUs of this process were given."""
        return sum(queue.count for queue in self._queues.values())

    @property
    def is_stopped(self) -> bool:
        """Whether the communicators are gone."""
        return self._is_stopped

    def check(self) -> None:
        """Raise the error that aborted the communicators.

        Raises:
            CommunicationError: they were aborted, or destroyed.
        """
        if self._error is not None:
            raise CommunicationError(self._error)
        if self._is_stopped:
            raise CommunicationError(
                "[nccl] collectives must be called before the group is left; got one after it. "
                "Fix: call distributed.shutdown() last, or distributed.initialize() again."
            )

    def enter(
        self, side: SideStream, operation: str, location: str, is_collective: bool = True
    ) -> Call:
        """Begin a call of NCCL; set its ``mark`` after it, or ``leave`` it.

        Args:
            side: the stream it runs in.
            operation: its name.
            place: the rank, for messages.
            is_collective: whether it counts as a collective of this GPU.

        Raises:
            CommunicationError: the communicators were aborted.
        """
        self.check()
        queue = self._queues[side]
        queue.count += is_collective
        call = Call(side, operation, queue.count, location, time.monotonic())
        if len(queue.calls) >= _MAX_UNCHECKED:
            drop_finished(queue.calls, side)
        queue.calls.append(call)
        if not self._wake.is_set():
            self._start()
        return call

    def leave(self, call: Call) -> None:
        """Remove a call that is over, or has failed."""
        with suppress(ValueError):
            self._queues[call.side].calls.remove(call)

    @contextmanager
    def pending_call(
        self, side: SideStream, operation: str, location: str, is_collective: bool = True
    ) -> Iterator[None]:
        """Context of a call that returns when all ranks have made it."""
        call = self.enter(side, operation, location, is_collective)
        try:
            yield
        finally:
            self.leave(call)
        self.check()  # it may have been aborted, which NCCL does not say

    def explained(self, error: BaseException) -> str:
        """An error of NCCL, with the rank that is known to have failed."""
        self.check()
        reason = self._verdict()
        return f"{error}" if reason is None else f"{reason} ({error})"

    # --- the thread ---

    def _start(self) -> None:
        with self._lock:
            self._wake.set()
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(
                    target=self._run, name="gpuflow-nccl-watch", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        with suppress(RuntimeError):  # a kernel failed: nothing runs on the device any more
            self._keep_looking()

    def _keep_looking(self) -> None:
        while not self._is_stopped and self._error is None:
            if not self._look():
                self._wake.clear()
                if not self._look():  # nothing came between
                    self._wake.wait()
                    continue
                self._wake.set()
            time.sleep(_LOOK)

    def _look(self) -> bool:
        """Check pending operations; returns whether there are any."""
        now, pending = time.monotonic(), None
        for side, queue in list(self._queues.items()):
            side.visit()
            drop_finished(queue.calls, side)
            first = queue.calls[0] if queue.calls else None
            if first is None:
                continue
            pending = first
            since = waiting_since(first, now)
            if since is not None and now - since > self.timeout:
                self.fail(self._late(first), first)
                return False
        if pending is None:
            return False
        reason = self._signs.failure() or self._asynchronous()
        if reason is not None:
            self.fail(reason, pending)
            return False
        return True

    def _asynchronous(self) -> str | None:
        """Asynchronous errors of NCCL."""
        for _, comm in list(self._comms):
            try:
                with self._asking:
                    if self._error is not None or self._is_stopped:
                        return None
                    comm.check_async_error()
            except (RuntimeError, KeyError) as error:
                text = _text_of(error)
                if text is not None:
                    reason = self._verdict()
                    return f"NCCL reports {text}" if reason is None else f"{reason} ({text})"
        return None

    def _verdict(self) -> str | None:
        """The reason with the failed rank, which rank 0 may send a moment later."""
        until = time.monotonic() + self._signs.verdict
        while (reason := self._signs.failure()) is None and time.monotonic() < until:
            time.sleep(0.02)
        return reason

    def _late(self, call: Call) -> str:
        """Describe the rank or GPU that a call waits for."""
        behind = self._signs.behind(self.calls)
        if behind is not None:
            rank, count = behind
            who = f"nothing from rank {rank}, which has begun {count} collectives of {self.calls},"
        else:
            who = self._slow_device(call) or "no end of it"
        return f"{who} for {self.timeout:g} s"

    def _slow_device(self, call: Call) -> str | None:
        """A GPU of this process that was given fewer collectives than another one."""
        counts = {side: queue.count for side, queue in self._queues.items()}
        slow = min(counts, key=lambda side: counts[side])
        if counts[slow] == counts[call.side]:
            return None
        return f"only {counts[slow]} collectives on {slow}"

    # --- the end ---

    def fail(self, reason: str, call: Call | None = None) -> None:
        """Abort all communicators; the first reason holds.

        Args:
            reason: the event, with the rank.
            call: a collective that cannot end.
        """
        with self._lock:
            if self._error is not None or self._is_stopped:
                return
            self._error = message(reason, call)
        for side in list(self._queues):
            side.fail(self._error)  # before the streams go on: waiting threads check it
        self._wake.set()
        self._abort()

    def _abort(self) -> None:
        """Release the streams; end the process if that does not work.

        Each communicator has a thread: NCCL up to 2.23 lets one wait for the others of the machine.
        """
        with self._asking:  # until no thread queries a communicator
            calls = [partial(_abort, *pair) for pair in self._comms]
        until = time.monotonic() + GRACE_SECONDS
        threads = self._run_until(calls, until)
        if threading.current_thread() is self._thread:
            self._end_if_stuck(threads, until)
        elif self._last is not None:  # of a GPU that failed by itself, whose error is to be seen
            self._last.begin(partial(self._end_if_stuck, threads, until))

    def _run_until(self, calls: Sequence[Callable[[], None]], until: float) -> list[SpareThread]:
        """Run functions in the enders, and wait until a time of ``time.monotonic()``."""
        threads = self._enders[: len(calls)]
        for thread, call in zip(threads, calls, strict=True):
            thread.begin(call)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return threads

    def _end_if_stuck(self, threads: Sequence[SpareThread], until: float) -> None:
        while time.monotonic() < until and not self._is_stopped:
            if not any(thread.is_alive() for thread in threads) and not self._inside():
                return
            time.sleep(_LOOK)
        if self._is_stopped:
            return
        print(
            f"{self._error}\nNCCL does not let go of it: the process ends.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(FAILED_STATUS)

    def _inside(self) -> bool:
        """Whether a thread has not returned from NCCL."""
        return any(call.mark is None for queue in self._queues.values() for call in queue.calls)

    def stop(self, failed: bool = False) -> None:
        """Destroy the communicators, and let arrays be read that were computed before an error.

        Args:
            failed: whether pending operations are aborted instead of awaited.
        """
        if self._is_stopped:
            return
        if failed:
            self.fail("an error of this process")
        for side, queue in list(self._queues.items()):
            if queue.calls and self._error is None:  # other ranks need our part of it
                with suppress(RuntimeError):
                    side.synchronize()
        self._is_stopped = True
        self._wake.set()
        if self._error is None:
            self._destroy()
        for thread in (*self._enders, self._last):
            if thread is not None:
                thread.drop()
        for side in self._queues:
            side.recover()

    def _destroy(self) -> None:
        """Free the communicators, which have no pending calls.

        To destroy one may wait for its other ranks, so each GPU has a thread. All ranks go from
        the newest to the oldest, an order that they share.
        """
        with self._asking:
            comms = list(reversed(self._comms))
        calls = [
            partial(_destroy, side, [comm for at, comm in comms if at is side])
            for side in dict.fromkeys(side for side, _ in comms)
        ]
        threads = self._run_until(calls, time.monotonic() + GRACE_SECONDS)
        if any(thread.is_alive() for thread in threads):
            warn(
                f"[nccl] communicators must be freed within {GRACE_SECONDS:g} s; got a longer "
                "wait. Fix: let all ranks leave the group; NCCL_DEBUG=INFO prints details."
            )


def _text_of(error: Exception) -> str | None:
    """The text of an NCCL error; None if there is none.

    CuPy raises a KeyError for the codes that it has no name for: 6, in CuPy 13, is an error of
    another rank, and 7 says that NCCL is not ready yet.
    """
    if isinstance(error, KeyError):
        code, text = error.args[0], "an error of another rank"
    else:
        code, text = getattr(error, "status", None), str(error)
    return None if code == _IN_PROGRESS else text


def _destroy(side: SideStream, comms: Sequence[Communicates]) -> None:
    with side.lock:
        side.visit()
        for comm in comms:
            with suppress(RuntimeError, KeyError):
                comm.destroy()


def _abort(side: SideStream, comm: Communicates) -> None:
    """Abort a communicator, which is in use only if a call of NCCL does not return."""
    is_free = side.lock.acquire(timeout=_FREE)
    try:
        with suppress(RuntimeError, KeyError):
            comm.abort()
    finally:
        if is_free:
            side.lock.release()
