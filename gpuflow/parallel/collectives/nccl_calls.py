"""Pending NCCL calls: the records of ``nccl_watch.py``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Any, Protocol

from gpuflow.base.records import record
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream


class Communicates(Protocol):
    """Interface of ``cupy.cuda.nccl.NcclCommunicator`` that the watch needs."""

    def check_async_error(self) -> None:
        """Raise an asynchronous error of NCCL."""
        ...

    def abort(self) -> None:
        """Abort everything that is pending."""
        ...

    def destroy(self) -> None:
        """Free it; nothing is pending. It may wait for the other ranks to do the same."""
        ...


@record(eq=False)
class Signs:
    """Information about other ranks besides NCCL.

    Attributes:
        failure: why no collective can end any more, with the rank; None while all is well.
        behind: the rank that has started fewer collectives than this process, and their number.
        verdict: seconds in which ``failure`` is known, once NCCL reports an error.
    """

    failure: Callable[[], str | None] = lambda: None
    behind: Callable[[int], tuple[int, int] | None] = lambda count: None
    verdict: float = 0.0


@record(frozen=False, eq=False)
class Call:
    """A collective that a GPU was given.

    Attributes:
        side: the stream it runs in.
        operation: "all_reduce" and so on.
        number: of this stream's collectives, from 1.
        location: "rank 1 of 4 (processes)".
        entered: when the host called NCCL.
        ready: an event in front of it; None until it is known.
        mark: an event after it; None while the host is inside of NCCL.
        waits: since when it is known to run.
    """

    side: SideStream
    operation: str
    number: int
    location: str
    entered: float
    ready: Any = None
    mark: Any = None
    waits: float | None = None

    def __str__(self) -> str:
        return f"{self.operation} number {self.number}"


@record(frozen=False, eq=False)
class Queue:
    """The pending calls of one GPU, in order."""

    calls: deque[Call] = field(default_factory=deque)
    count: int = 0


def drop_finished(calls: deque[Call], side: SideStream) -> None:
    """Forget calls from the front that have ended."""
    while calls:
        first = calls[0]
        if first.mark is None or not side.is_done(first.mark):
            return
        with suppress(ValueError):  # another thread has done it
            calls.remove(first)


def waiting_since(call: Call, now: float) -> float | None:
    """The time since which a call waits for other ranks; None while its GPU is busy."""
    if call.mark is None:
        return call.entered
    if call.waits is None and call.side.is_done(call.ready):
        call.waits = now
    return call.waits


def message(reason: str, call: Call | None) -> str:
    if call is None:
        return (
            f"[nccl] all GPUs must run the program; got {reason}. "
            "Fix: look for the first error of that rank."
        )
    return (
        f"[{call.operation}] all ranks must reach {call}; got {reason} on {call.location}. Fix: "
        "look for the first error of that rank, or print its stack (gpuflow launch --watchdog); "
        "GPUFLOW_COLLECTIVE_TIMEOUT sets a longer limit."
    )
