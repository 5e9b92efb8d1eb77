"""CUDA graphs: the launches of a plan, recorded once for each set of addresses and replayed.

A replay gives the GPU many launches for the host's price of one. What is recorded holds addresses,
so it is found again by the addresses of inputs and outputs: a training step that donates its
state meets one set or two. Everything else that launches hold is fixed: parameters are copied when
they are recorded, and tables of segments are brought up to date before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from gpuflow.base.config import config
from gpuflow.runtime.gpu_api import GpuApi

LEAST_LAUNCHES = 4
_PLAIN_CALLS = 2  # modules are loaded and libraries set up by then
_KEPT = 4
_MOST_MISSES = 32  # without as many replays, addresses do not come again

Launches = Callable[..., None]


def may_record(count: int) -> bool:
    """Whether a plan of so many launches is worth recording, and the user lets us."""
    environment = config.environment
    return count >= LEAST_LAUNCHES and environment.cuda_graphs and not environment.check


class RecordedLaunches:
    """Launches as a function of addresses.

    Args:
        api: of the device.
        stream: that the launches run on.
        launches: a function of the addresses.
        tables: the same, which only brings tables up to date.
    """

    def __init__(
        self, api: GpuApi, stream: int, launches: Launches, tables: Launches
    ) -> None:
        self._api, self._stream = api, stream
        self._launches, self._tables = launches, tables
        self._known: OrderedDict[tuple[int, ...], Callable[[], Any]] = OrderedDict()
        self._last: tuple[int, ...] | None = None
        self._plain = self._misses = self._replays = 0

    def __call__(self, *addresses: int) -> None:
        replay = self._known.get(addresses)
        if replay is None:
            replay = self._record(addresses)
            if replay is None:
                self._launches(*addresses)
                self._last = addresses
                return
        elif self._last != addresses:
            self._tables(*addresses)
            self._known.move_to_end(addresses)
        self._last = addresses
        self._replays += 1
        replay()

    def _record(self, addresses: tuple[int, ...]) -> Callable[[], Any] | None:
        """What replays the launches for new addresses; None: launch them."""
        if self._plain < _PLAIN_CALLS:
            self._plain += 1
            return None
        if self._misses > _MOST_MISSES + self._replays:
            return None
        self._misses += 1
        self._tables(*addresses)
        replay = self._api.record(self._stream, lambda: self._launches(*addresses))
        if replay is not None:
            self._known[addresses] = replay
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return replay
