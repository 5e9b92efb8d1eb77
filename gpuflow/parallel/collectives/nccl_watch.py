"""NCCL watchdog: aborts collectives whose other ranks are gone, late, or have failed.

Without it, a GPU that waits for another one would block its stream, and the host would wait for the
GPU without any information. A thread monitors pending operations. It aborts all communicators if
NCCL reports an error, another process has ended, or a collective has waited too long. That releases
the streams, and threads that wait for the GPU get an error that names the rank.

Source: NVIDIA, NCCL user guide: fault tolerance; ncclCommGetAsyncError, ncclCommAbort.

Tests: tests/parallel/test_nccl_watch.py.
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
_FREE = 0.5  # seconds to wait for a thread that uses a communicator, before aborting it anyway
_IN_PROGRESS = 7  # ncclInProgress
_MAX_UNCHECKED = 256  # pending calls of a stream, after which completed ones are removed


class Watch:
    """The watchdog of communicators of this process that were connected together.

    Args:
        timeout: seconds that a running collective may wait for other ranks.
        signs: information about other ranks, besides NCCL.
    """

    def __init__(self, timeout: float = 300.0, signs: Signs | None = None) -> None:
        self.timeout, self._signs = timeout, signs or Signs()
        self._queues: dict[SideStream, Queue] = {}
        self._comms: list[tuple[SideStream, Communicates]] = []
        # One thread per communicator to abort or destroy it, and one that ends the process if they
        # hang. They are started in advance.
        self._enders: list[SpareThread] = []
        self._terminator: SpareThread | None = None
        self._lock = threading.Lock()
        # Held while NCCL is queried for errors: a communicator must not be freed meanwhile.
        self._querying = threading.Lock()
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
            self._terminator = self._terminator or SpareThread("gpuflow-nccl-end")
            # Before the communicator: if another thread aborts meanwhile, each one needs an ender.
            self._enders.append(SpareThread("gpuflow-nccl-end"))
            self._comms.append((side, comm))

    @property
    def calls(self) -> int:
        """Number of collectives launched on the GPUs of this process."""
        return sum(queue.count for queue in self._queues.values())

    @property
    def is_stopped(self) -> bool:
        """Whether the communicators were destroyed."""
        return self._is_stopped

    def check(self) -> None:
        """Raise the error that aborted the communicators.

        Raises:
            CommunicationError: if they were aborted or destroyed.
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
        """Record the start of an NCCL call. The caller must set its ``mark``, or ``leave`` it.

        Args:
            side: the stream that it runs in.
            operation: name of the call.
            location: the rank, for messages.
            is_collective: whether it counts as a collective of this GPU.

        Raises:
            CommunicationError: if the communicators were aborted.
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
        """Remove a call that has returned or failed."""
        with suppress(ValueError):
            self._queues[call.side].calls.remove(call)

    @contextmanager
    def pending_call(
        self, side: SideStream, operation: str, location: str, is_collective: bool = True
    ) -> Iterator[None]:
        """Context of a call that blocks the host until all ranks have called it."""
        call = self.enter(side, operation, location, is_collective)
        try:
            yield
        finally:
            self.leave(call)
        self.check()  # NCCL does not report that the watchdog aborted the call

    def explained(self, error: BaseException) -> str:
        """The text of an NCCL error, with the rank that has failed if it is known."""
        self.check()
        reason = self._verdict()
        return f"{error}" if reason is None else f"{reason} ({error})"

    # --- the monitoring thread ---

    def _start(self) -> None:
        with self._lock:
            self._wake.set()
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(
                    target=self._run, name="gpuflow-nccl-watch", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        with suppress(RuntimeError):  # a kernel failed: the device runs nothing any more
            self._keep_looking()

    def _keep_looking(self) -> None:
        while not self._is_stopped and self._error is None:
            if not self._look():
                self._wake.clear()
                if not self._look():  # no call started before the event was cleared
                    self._wake.wait()
                    continue
                self._wake.set()
            time.sleep(_LOOK)

    def _look(self) -> bool:
        """Check pending operations; abort if one is late or failed. Returns whether any is left."""
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
        """The first asynchronous error of NCCL, or None."""
        for _, comm in list(self._comms):
            try:
                with self._querying:
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
        """Wait a moment for the reason with the failed rank, which rank 0 sends."""
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
        """Describe the GPU of this process that has fewer collectives than that of ``call``."""
        counts = {side: queue.count for side, queue in self._queues.items()}
        slow = min(counts, key=lambda side: counts[side])
        if counts[slow] == counts[call.side]:
            return None
        return f"only {counts[slow]} collectives on {slow}"

    # --- abort and destruction ---

    def fail(self, reason: str, call: Call | None = None) -> None:
        """Abort all communicators. Only the first call has an effect.

        Args:
            reason: the cause, with the rank.
            call: a collective that cannot end, for the message.
        """
        with self._lock:
            if self._error is not None or self._is_stopped:
                return
            self._error = message(reason, call)
        for side in list(self._queues):
            side.fail(self._error)  # before streams are released: waiting threads then check it
        self._wake.set()
        self._abort()

    def _abort(self) -> None:
        """Release the streams; end the process if that does not succeed.

        Each communicator is aborted in a thread: up to NCCL 2.23, aborting one waits for the others
        of the machine.
        """
        with self._querying:  # wait until no thread queries a communicator
            calls = [partial(_abort, *pair) for pair in self._comms]
        until = time.monotonic() + GRACE_SECONDS
        threads = self._run_until(calls, until)
        if threading.current_thread() is self._thread:
            self._end_if_stuck(threads, until)
        elif self._terminator is not None:
            # Called by the thread of a failing GPU, which must go on to raise its error.
            self._terminator.begin(partial(self._end_if_stuck, threads, until))

    def _run_until(self, calls: Sequence[Callable[[], None]], until: float) -> list[SpareThread]:
        """Run functions in the ender threads, and wait until the time ``until`` (monotonic)."""
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
        """Whether any thread is inside an NCCL call."""
        return any(call.mark is None for queue in self._queues.values() for call in queue.calls)

    def stop(self, failed: bool = False) -> None:
        """Destroy the communicators. Arrays computed before an error can be read afterwards.

        Args:
            failed: whether pending operations are aborted instead of awaited.
        """
        if self._is_stopped:
            return
        if failed:
            self.fail("an error of this process")
        for side, queue in list(self._queues.items()):
            if queue.calls and self._error is None:  # other ranks need our data
                with suppress(RuntimeError):
                    side.synchronize()
        self._is_stopped = True
        self._wake.set()
        if self._error is None:
            self._destroy()
        for thread in (*self._enders, self._terminator):
            if thread is not None:
                thread.drop()
        for side in self._queues:
            side.recover()

    def _destroy(self) -> None:
        """Free the communicators, which must have no pending calls.

        Destroying one may wait for its other ranks, so each GPU has a thread. All ranks destroy
        from newest to oldest, so that they have the same order.
        """
        with self._querying:
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
    """The text of an NCCL error; None if the code only means that NCCL is in progress.

    CuPy raises a KeyError for codes that it has no name for. In CuPy 13 that is 6 (an error of
    another rank); 7 means that NCCL is in progress.
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
    """Abort a communicator, even if its lock is not free: then an NCCL call does not return."""
    is_free = side.lock.acquire(timeout=_FREE)
    try:
        with suppress(RuntimeError, KeyError):
            comm.abort()
    finally:
        if is_free:
            side.lock.release()
