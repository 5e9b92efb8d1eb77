"""``MultiprocessMeeting``: exchange between threads of several processes, equally many in each.

The threads of a process meet, and the first one exchanges data for all of them. Processes therefore
have one collective at a time, in the order of the program. All threads take part in each collective
of any subgroup, since all run the same program. Every collective gathers all data: this serves the
simulated GPU; real GPUs use NCCL.

Tests: tests/parallel/test_loopback.py, tests/parallel/test_mismatches.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.core.communicator import Communicator
from gpuflow.parallel.collectives.checked import compare
from gpuflow.parallel.collectives.loopback import Meeting

_NOTHING = np.empty(0, np.uint8)


class MultiprocessMeeting:
    """A meeting of threads of several processes; see ``loopback.Meeting``.

    Args:
        world: the communicator of the processes; one thread uses it.
        local_meeting: the meeting of this process's threads.
        members: the threads of the group, by process-major index over all processes; None means
            all.
    """

    def __init__(
        self, world: Communicator, local_meeting: Meeting, members: Sequence[int] | None = None
    ) -> None:
        everyone = range(world.size * local_meeting.size)
        self.members = tuple(everyone if members is None else members)
        self.size = len(self.members)
        self._world, self._local = world, local_meeting

    def exchange(self, rank: int, call: str, data: Any, use: Callable[[list[Any]], Any]) -> Any:
        """Apply ``use`` to the data of all members; see ``loopback.Meeting.exchange``.

        Raises:
            CommunicationError: if a thread has ended, calls another collective, or is late.
        """
        inner_rank = self.members[rank] % self._local.size
        array = _NOTHING if data is None else data

        def between(operands: list[Any]) -> Any:
            if inner_rank != 0:
                return None
            compare(self._world, call)  # all_gather alone would not detect different collectives
            return self._world.all_gather(np.stack(operands))

        gathered = self._local.exchange(inner_rank, call, array, between)
        rows = self._local.exchange(inner_rank, call, gathered, lambda operands: operands[0])
        rows = rows.reshape((self._world.size * self._local.size, *array.shape))
        # Slices: indexing a row of rank 0 would give a scalar instead of an array.
        return use([rows[k : k + 1].reshape(array.shape) for k in self.members])

    def of(self, members: Sequence[int]) -> MultiprocessMeeting:
        """The meeting of a subgroup."""
        return MultiprocessMeeting(self._world, self._local, [self.members[k] for k in members])
