"""``LoopbackCommunicator``: collectives between threads of one process, through host memory.

It serves the simulated GPU, whose memories NumPy can read. Real GPUs use NCCL.

Tests: tests/parallel/test_loopback.py, tests/parallel/test_mismatches.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import Groups, Immediate, Pairs
from gpuflow.parallel.collectives.checked import shortened
from gpuflow.parallel.collectives.combine import combine, contiguous


class Meeting:
    """Rendezvous of the threads of a group, to exchange data.

    Args:
        size: number of threads.
        timeout: seconds that a thread waits for the others.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self._slots: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self._inner: dict[tuple[int, ...], Meeting] = {}
        self.reason = ""

    def exchange(self, rank: int, call: str, data: Any, use: Callable[[list[Any]], Any]) -> Any:
        """Apply ``use`` to the data of all ranks.

        No thread returns before all have used the data, so no thread can change them meanwhile.

        Args:
            rank: the rank of the calling thread.
            call: a description of the collective, which must be equal on all ranks.
            data: the data of this rank.
            use: from the data of all ranks to the result.

        Raises:
            CommunicationError: if a thread has ended, calls another collective, or is late.
        """
        self._slots[rank] = call, data
        self._wait(rank, call)
        slots = list(self._slots)
        other = next((k for k, (name, _) in enumerate(slots) if name != slots[0][0]), None)
        if other is not None:
            raise CommunicationError(
                f"[{call.split()[0]}] all devices must call the same collectives in the same "
                f"order; got {slots[0][0]} on number 0 and {slots[other][0]} on number {other}. "
                "Fix: let no device skip or reorder a collective."
            )
        result = use([one for _, one in slots])
        self._wait(rank, call)
        return result

    def _wait(self, rank: int, call: str) -> None:
        try:
            self._barrier.wait(self.timeout)
        except threading.BrokenBarrierError:
            reason = self.reason or f"not all came within {self.timeout:g} s"
            raise CommunicationError(
                f"[{call.split()[0]}] all devices must reach {call}; got no meeting on number "
                f"{rank}: {reason}. Fix: look for the first error of the others."
            ) from None

    def fail(self, reason: str) -> None:
        """End all current and later waits with an error."""
        self.reason = self.reason or reason
        self._barrier.abort()
        for inner in list(self._inner.values()):
            inner.fail(reason)

    def of(self, members: tuple[int, ...]) -> Meeting:
        """The meeting of a subgroup; all its members get the same object."""
        with self._lock:
            meeting = self._inner.get(members)
            if meeting is None:
                meeting = self._inner[members] = Meeting(len(members), self.timeout)
            return meeting


class LoopbackCommunicator(Immediate):
    """Collectives of the threads of one process; data are NumPy arrays.

    Args:
        meeting: the state shared by the threads: a Meeting, or a MultiprocessMeeting of several
            processes.
        rank: the rank of this thread.
        name: name of the communicator, for messages.
    """

    def __init__(self, meeting: Any, rank: int, name: str = "devices") -> None:
        self.rank, self.size, self.name = rank, meeting.size, name
        self._meeting, self._number = meeting, 0
        self._groups: dict[Groups, LoopbackCommunicator] = {}

    def _exchange(self, operation: str, data: Any, use: Callable[[list[Any]], Any]) -> Any:
        self._number += 1
        array = None if data is None else contiguous(data)
        about = "" if array is None else f" of {array.dtype.name}{list(array.shape)}"
        call = f"{operation} number {self._number}{about}"
        return self._meeting.exchange(self.rank, call, array, use)

    def all_reduce(self, data: Any, op: str, out: Any = None) -> np.ndarray:
        def use(operands: list[np.ndarray]) -> np.ndarray:
            return combine(operands, op, operands[0].dtype)

        total = self._exchange(f"all_reduce ({op})", data, use)
        if out is None:
            return total
        out[...] = total  # only now: ``out`` may be the operand of another thread
        return out

    def all_gather(self, data: Any) -> np.ndarray:
        return self._exchange("all_gather", data, np.stack)

    def reduce_scatter(self, data: Any) -> np.ndarray:
        def use(operands: list[np.ndarray]) -> np.ndarray:
            slices = [operand[self.rank] for operand in operands]
            return combine(slices, "sum", slices[0].dtype).reshape(operands[0].shape[1:])

        return self._exchange("reduce_scatter", data, use)

    def all_to_all(self, data: Any) -> np.ndarray:
        return self._exchange(
            "all_to_all",
            data,
            lambda operands: np.stack([operand[self.rank] for operand in operands]),
        )

    def permute(self, data: Any, pairs: Pairs) -> np.ndarray:
        def use(operands: list[np.ndarray]) -> np.ndarray:
            sources = [source for source, target in pairs if target == self.rank]
            return operands[sources[0]].copy() if sources else np.zeros_like(operands[self.rank])

        return self._exchange(f"permute ({shortened(pairs)})", data, use)

    def broadcast(self, data: Any, root: int) -> np.ndarray:
        call = f"broadcast (from {root})"
        return self._exchange(call, data, lambda operands: operands[root].copy())

    def barrier(self) -> None:
        self._exchange("barrier", None, lambda operands: None)

    def split(self, groups: Groups) -> LoopbackCommunicator:
        communicator = self._groups.get(groups)
        if communicator is None:
            (ranks,) = [tuple(group) for group in groups if self.rank in group]
            communicator = LoopbackCommunicator(
                self._meeting.of(ranks), ranks.index(self.rank), f"{self.name} {ranks}"
            )
            self._groups[groups] = communicator
        return communicator
