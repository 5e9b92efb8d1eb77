"""Records of pending NCCL calls, for the watchdog (``nccl_watch.py``).

Tests: tests/parallel/test_nccl_watch.py.
"""

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
        """Abort all pending operations."""
        ...

    def destroy(self) -> None:
        """Free the communicator, which must be idle. May wait for other ranks to do the same."""
        ...


@record(eq=False)
class Signs:
    """Sources of information about other ranks, besides NCCL.

    Attributes:
        failure: returns why no collective can end, with the rank; None if no rank has failed.
        behind: from this process's number of collectives to the rank that has started the fewest,
            and that number; None if no rank has fewer.
        verdict: seconds to wait for ``failure`` after an error of NCCL.
    """

    failure: Callable[[], str | None] = lambda: None
    behind: Callable[[int], tuple[int, int] | None] = lambda count: None
    verdict: float = 0.0


@record(frozen=False, eq=False)
class Call:
    """A collective that was launched on a GPU.

    Attributes:
        side: the stream that it runs in.
        operation: name of the collective, such as "all_reduce".
        number: ordinal among this stream's collectives, from 1.
        location: the rank, such as "rank 1 of 4 (processes)".
        entered: time at which the host called NCCL.
        ready: event before it in the stream; None until it is recorded.
        mark: event after it; None while the host is inside NCCL.
        waits: time at which the watchdog found that it runs, so waits for other ranks.
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
    """Remove completed calls from the front."""
    while calls:
        first = calls[0]
        if first.mark is None or not side.is_done(first.mark):
            return
        with suppress(ValueError):  # another thread has removed it
            calls.remove(first)


def waiting_since(call: Call, now: float) -> float | None:
    """The time since which a call waits for other ranks; None while earlier work delays it."""
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
