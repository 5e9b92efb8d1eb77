"""Meetings of threads of several processes, each process with the same number of threads.

Threads of one process meet, and the first one exchanges data for all of them, so that processes see
one collective at a time, in the order of the program. All threads take part in each collective of
any group, since all run one program. Everything is gathered, whatever the collective needs: this
serves the simulator, as data of real GPUs go over NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.core.communicator import Communicator
from gpuflow.parallel.collectives.checked import compare
from gpuflow.parallel.collectives.loopback import Meeting

_NOTHING = np.empty(0, np.uint8)


class JoinedMeeting:
    """A meeting of threads of several processes; see ``loopback.Meeting``.

    Args:
        world: of the processes; used by one thread.
        inside: the meeting of this process's threads.
        members: the threads that it is of, by their numbers in all processes, row-major; None: all.
    """

    def __init__(
        self, world: Communicator, inside: Meeting, members: Sequence[int] | None = None
    ) -> None:
        everyone = range(world.size * inside.size)
        self.members = tuple(everyone if members is None else members)
        self.size = len(self.members)
        self._world, self._inside = world, inside

    def exchange(self, rank: int, call: str, data: Any, use: Callable[[list[Any]], Any]) -> Any:
        """``use`` of the data of all members, which nobody changes.

        Raises:
            CommunicationError: somebody ended, does something else, or does not come.
        """
        inner_rank = self.members[rank] % self._inside.size
        array = _NOTHING if data is None else data

        def between(parts: list[Any]) -> Any:
            if inner_rank != 0:
                return None
            compare(self._world, call)  # the processes gather, whatever their threads do
            return self._world.all_gather(np.stack(parts))

        gathered = self._inside.exchange(inner_rank, call, array, between)
        rows = self._inside.exchange(inner_rank, call, gathered, lambda parts: parts[0])
        rows = rows.reshape((self._world.size * self._inside.size, *array.shape))
        # Slices: an element would be no array.
        return use([rows[k : k + 1].reshape(array.shape) for k in self.members])

    def of(self, members: Sequence[int]) -> JoinedMeeting:
        """The meeting of some of them."""
        return JoinedMeeting(self._world, self._inside, [self.members[k] for k in members])
