"""Exchange between threads of several processes, each with the same number of threads.

Threads of one process meet, and the first one exchanges data for all of them, so that processes see
one collective at a time, in the order of the program. All threads take part in each collective of
any group, since all run one program. Every collective gathers everything: this serves the
simulator, as data of real GPUs go over NCCL.
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
        world: of the processes; used by one thread.
        local_meeting: the meeting of this process's threads.
        members: its threads, by their index in all processes, row-major; None: all.
    """

    def __init__(
        self, world: Communicator, local_meeting: Meeting, members: Sequence[int] | None = None
    ) -> None:
        everyone = range(world.size * local_meeting.size)
        self.members = tuple(everyone if members is None else members)
        self.size = len(self.members)
        self._world, self._local = world, local_meeting

    def exchange(self, rank: int, call: str, data: Any, use: Callable[[list[Any]], Any]) -> Any:
        """``use`` of the data of all members, which do not change.

        Raises:
            CommunicationError: a thread ended, calls something else, or is late.
        """
        inner_rank = self.members[rank] % self._local.size
        array = _NOTHING if data is None else data

        def between(operands: list[Any]) -> Any:
            if inner_rank != 0:
                return None
            compare(self._world, call)  # the processes gather, whatever their threads do
            return self._world.all_gather(np.stack(operands))

        gathered = self._local.exchange(inner_rank, call, array, between)
        rows = self._local.exchange(inner_rank, call, gathered, lambda operands: operands[0])
        rows = rows.reshape((self._world.size * self._local.size, *array.shape))
        # Slices: an element would be no array.
        return use([rows[k : k + 1].reshape(array.shape) for k in self.members])

    def of(self, members: Sequence[int]) -> MultiprocessMeeting:
        """The meeting of some of them."""
        return MultiprocessMeeting(self._world, self._local, [self.members[k] for k in members])
