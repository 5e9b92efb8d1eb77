"""CUDA graphs: launches of a plan, recorded once for each set of addresses and replayed.

A replay gives the GPU many launches for the host's price of one. What is recorded holds addresses,
so it is found again by the addresses that its launches use: a training step that donates its
state meets one set or two. Where they keep changing, and few of the launches use those that did,
the launches of the recording that was not used longest get new parameters. Everything else that
launches hold is fixed: parameters are copied when they are recorded, and tables of segments are
brought up to date before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.runtime.gpu_api import GpuApi, Recorded
from gpuflow.runtime.gpu_launch import Launch

LEAST_LAUNCHES = 4
_PLAIN_CALLS = 2  # modules are loaded and libraries set up by then
_KEPT = 4
_MOST_MISSES = 32  # without as many replays, addresses do not come again
_WORTH_CHANGING = 2  # a launch costs about as much as a change: at most every second one changes


def may_record() -> bool:
    """Whether the user lets us record launches."""
    environment = config.environment
    return environment.cuda_graphs and not environment.check


@record(eq=False)
class Call:
    """One kernel, or a call of a library that only launches some.

    Attributes:
        run: a ``Launch``, or a function of addresses.
        places: for each argument its position among the addresses of the whole; None and a number.
    """

    run: Callable[..., Any]
    places: tuple[tuple[int | None, int], ...]

    @property
    def is_kernel(self) -> bool:
        """Whether it is one launch of ours, whose parameters are known."""
        return isinstance(self.run, Launch)

    @property
    def has_table(self) -> bool:
        """Whether addresses go through a table in device memory."""
        return isinstance(self.run, Launch) and self.run.has_table

    def at(self, addresses: Sequence[int]) -> list[int]:
        """The arguments."""
        return [number if at is None else addresses[at] for at, number in self.places]

    def prepared(self, addresses: Sequence[int]) -> Callable[[], Any]:
        """The call without arguments; a table is up to date."""
        run = self.run
        if isinstance(run, Launch):
            return run.prepared(*self.at(addresses))
        return partial(run, *self.at(addresses))


class RecordedLaunches:
    """Launches as a function of addresses.

    Args:
        api: of the device.
        stream: that the launches run on.
        launches: a function of the addresses that runs the calls.
        calls: the same, one by one.
    """

    def __init__(
        self, api: GpuApi, stream: int, launches: Callable[..., Any], calls: Sequence[Call]
    ) -> None:
        self._api, self._stream = api, stream
        self._launches, self._calls = launches, calls
        self._known: OrderedDict[tuple[int, ...], Recorded] = OrderedDict()
        self._last: tuple[int, ...] | None = None
        self._plain = self._misses = self._replays = 0
        self._tables = [call for call in calls if call.has_table]
        self._users: dict[int, set[int]] = {}  # calls that hold an address, by its position
        for number, call in enumerate(calls):
            for at, _ in call.places if not call.has_table else ():
                if at is not None:
                    self._users.setdefault(at, set()).add(number)

    def __call__(self, *addresses: int) -> None:
        replay = self._known.get(addresses)
        if replay is None:
            replay = self._replay_of(addresses)
            if replay is None:
                self._launches(*addresses)
                self._last = addresses
                return
        elif self._last != addresses:
            self._fill_tables(addresses)
            self._known.move_to_end(addresses)
        self._last = addresses
        self._replays += 1
        replay()

    def _fill_tables(self, addresses: tuple[int, ...]) -> None:
        for call in self._tables:
            call.prepared(addresses)

    def _replay_of(self, addresses: tuple[int, ...]) -> Recorded | None:
        """What replays the launches for new addresses; None: launch them."""
        if self._plain < _PLAIN_CALLS:
            self._plain += 1
            return None
        replay = self._changed(addresses) if len(self._known) == _KEPT else None
        if replay is None:
            if self._misses > _MOST_MISSES + self._replays:
                return None
            self._misses += 1
            work = [call.prepared(addresses) for call in self._calls]
            replay = self._api.record(self._stream, work)
        if replay is not None:
            self._known[addresses] = replay
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return replay

    def _changed(self, addresses: tuple[int, ...]) -> Recorded | None:
        """The recording that was not used longest, with parameters for new addresses."""
        before, recorded = next(iter(self._known.items()))
        users: set[int] = set()
        for at, (old, new) in enumerate(zip(before, addresses, strict=True)):
            if old != new:
                users |= self._users.get(at, set())
        calls = self._calls
        too_many = _WORTH_CHANGING * len(users) > len(calls)
        if too_many or not all(calls[number].is_kernel for number in users):
            return None
        del self._known[before]
        for number in sorted(users):
            if not recorded.change(number, calls[number].prepared(addresses)):
                return None
        self._fill_tables(addresses)
        return recorded
