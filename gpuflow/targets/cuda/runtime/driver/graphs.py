"""CUDA graphs: launches of a plan, recorded for a few sets of addresses, and replayed.

A replay gives the GPU many launches for the host's cost of one. Recorded work contains addresses,
so it is looked up by the addresses of its launches: a training step that donates its state uses one
set or two. If they keep changing, kernels with changed addresses get new parameters. A library's
parameters are unknown, so small operands of its calls are copied to and from memory at a fixed
address. Everything else in launches is fixed: parameters are copied when they are recorded, and
tables of segments are updated before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.targets.cuda.runtime.driver.api import LibraryWork, Recorded
from gpuflow.targets.cuda.runtime.driver.launch import AlignedCall, Launch
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# All of these numbers but the alignment are guesses: nothing was measured on a GPU. What a GPU's
# costs say that they should be, perf/gpu_graph_costs.py prints.
LEAST_LAUNCHES = 4
_PLAIN_CALLS = 2  # modules are loaded and libraries set up by then
_KEPT = 4
_WORTH_CHANGING = 2  # a launch costs about as much as a change: at most every second one changes
# Recordings that are made at once; each later one has to be earned by so many replays.
_MOST_RECORDINGS, _REPLAYS_FOR_ONE = 16, 16
_MOST_MISSES = 32  # in a row; then only what is known already is replayed
_MOST_COPIED = 1 << 20  # bytes of an operand
_ALIGNED = 16  # a copy is a multiple of it where the operand is: kernels have variants for that
_BYTE = np.dtype(np.uint8)


def may_record() -> bool:
    """Whether the user lets us record launches."""
    environment = config.environment
    return environment.cuda_graphs and not environment.check


@record(eq=False)
class Call:
    """One kernel, or a call of a library that only launches some.

    Attributes:
        run: a ``Launch``, or a function of addresses and of the stream, as in ``LibraryWork``.
        places: for each argument its index among the addresses of the whole; None and a number.
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

    def may_record(self, addresses: Sequence[int]) -> bool:
        """Whether it can be recorded: not if launches of ours replace a library."""
        return not isinstance(self.run, AlignedCall) or self.run.is_aligned(self.at(addresses))

    def at(self, addresses: Sequence[int]) -> list[int]:
        """The arguments."""
        return [number if at is None else addresses[at] for at, number in self.places]

    def prepared(self, addresses: Sequence[int]) -> Callable[[], Any] | LibraryWork:
        """The call without arguments; a table is up to date."""
        run = self.run
        if isinstance(run, Launch):
            return run.prepared(*self.at(addresses))
        return LibraryWork(partial(run, *self.at(addresses)))


@record
class Place:
    """Contents at an address that may differ in each call.

    Attributes:
        count: bytes.
        is_read: nobody writes there, so that a copy made before will do.
        is_filled: the first call that touches it writes all of it; a copy is made after.
    """

    count: int
    is_read: bool = False
    is_filled: bool = False


class RecordedLaunches:
    """Launches as a function of addresses.

    Args:
        device: that they run on.
        launches: a function of the addresses that runs the calls.
        calls: the same, one by one.
        places: the contents at the addresses.
    """

    def __init__(
        self, device: GpuDevice, launches: Callable[..., Any], calls: Sequence[Call],
        places: Sequence[Place],
    ) -> None:  # fmt: skip
        self._device, self._api, self._stream = device, device.api, device.compute
        self._launches, self._calls, self._places = launches, calls, places
        self._known: OrderedDict[tuple[int, ...], Recorded] = OrderedDict()
        self._last: tuple[int, ...] | None = None
        self._plain = self._recordings = self._replays = self._misses = 0
        self._tables = [call for call in calls if call.has_table]
        self._users: dict[int, set[int]] = {}  # calls that hold an address, by its position
        self._copies: dict[int, DeviceArray] = {}  # memory that stays, by position
        for number, call in enumerate(calls):
            for at, _ in call.places if not call.has_table else ():
                if at is not None:
                    self._users.setdefault(at, set()).add(number)

    def __call__(self, *call_addresses: int) -> None:
        addresses = self._staying(call_addresses) if self._copies else call_addresses
        replay = self._known.get(addresses)
        if replay is not None:
            self._replays += 1
            self._misses = 0
            if self._last != addresses:
                self._fill_tables(addresses)
                self._known.move_to_end(addresses)
        else:
            addresses, replay = self._replay_of(call_addresses, addresses)
            if replay is None:
                self._launches(*call_addresses)
                self._last = None  # tables hold the call's addresses
                return
        self._last = addresses
        if self._copies:
            self._copy(call_addresses, addresses, before=True)
            replay()
            self._copy(call_addresses, addresses, before=False)
        else:
            replay()

    def _staying(self, call_addresses: tuple[int, ...]) -> tuple[int, ...]:
        """The addresses, with copied operands replaced by their copies."""
        addresses = list(call_addresses)
        for at, memory in self._copies.items():
            addresses[at] = memory.address + call_addresses[at] % _ALIGNED
        return tuple(addresses)

    def _copy(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...], before: bool
    ) -> None:
        """Copy operands before a replay, or results after it."""
        for at in self._copies:
            place = self._places[at]
            if place.is_read is before:
                outside, inside = call_addresses[at], addresses[at]
                ends = (inside, outside) if before else (outside, inside)
                self._api.copy_inside(*ends, place.count, self._stream)

    def _fill_tables(self, addresses: tuple[int, ...]) -> None:
        for call in self._tables:
            call.prepared(addresses)

    def _replay_of(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Recorded | None]:
        """The replay of the launches for new addresses, and its parameters; None: launch them."""
        if self._plain < _PLAIN_CALLS:
            self._plain += 1
            return addresses, None
        self._misses += 1
        if self._misses > _MOST_MISSES:
            return addresses, None
        replay = None
        if len(self._known) == _KEPT or self._copies:  # addresses do not come again
            replay = self._changed(addresses)
        if replay is None and len(self._known) == _KEPT and self._copies_instead(addresses):
            addresses = self._staying(call_addresses)
        if replay is None:
            replay = self._recorded(addresses)
        if replay is not None:
            self._known[addresses] = replay
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return addresses, replay

    def _recorded(self, addresses: tuple[int, ...]) -> Recorded | None:
        """A new recording, if there were not too many that nobody replayed."""
        if not all(call.may_record(addresses) for call in self._calls):
            return None
        if self._recordings >= _MOST_RECORDINGS + self._replays // _REPLAYS_FOR_ONE:
            return None
        self._recordings += 1
        work = [call.prepared(addresses) for call in self._calls]
        return self._api.record(self._stream, work)

    def _users_of(self, places: Sequence[int]) -> set[int]:
        return {number for at in places for number in self._users.get(at, ())}

    def _may_change(self, users: set[int], copies: int) -> bool:
        """Whether calls can be told other addresses, and with so many copies little is to do."""
        few = _WORTH_CHANGING * (len(users) + copies) <= len(self._calls)
        return few and all(self._calls[number].is_kernel for number in users)

    def _changed(self, addresses: tuple[int, ...]) -> Recorded | None:
        """A recording with parameters for new addresses.

        Of those that can have them it is the one that was not used longest.
        """
        for before in self._known:
            users = self._users_of(_differing(before, addresses))
            if self._may_change(users, len(self._copies)):
                break
        else:
            return None
        recorded = self._known.pop(before)
        for number in sorted(users):
            launch = self._calls[number].prepared(addresses)
            assert not isinstance(launch, LibraryWork)
            if not recorded.change(number, launch):
                return None
        self._fill_tables(addresses)
        self._misses = 0  # what can be changed need not come again
        return recorded

    def _copies_instead(self, addresses: tuple[int, ...]) -> bool:
        """Give operands whose addresses keep changing memory that stays; False: it cannot be."""
        places = _differing(next(iter(self._known)), addresses)
        new = [at for at in places if at not in self._copies and self._is_copied(at)]
        others = self._users_of([at for at in places if at not in new])
        if not self._may_change(others, len(self._copies) + len(new)):
            return False
        try:
            copies = [self._device.empty((self._places[at].count + _ALIGNED,), _BYTE) for at in new]
        except MemoryError:
            return False
        self._copies.update(zip(new, copies, strict=True))
        self._known.clear()  # their addresses do not come again
        return bool(new)

    def _is_copied(self, at: int) -> bool:
        """Whether an operand is small, and read or written as a whole; one change is no dearer."""
        place, users = self._places[at], self._users.get(at, set())
        if place.count > _MOST_COPIED or not (place.is_read or place.is_filled):
            return False
        return len(users) > 1 or not all(self._calls[number].is_kernel for number in users)


def _differing(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The positions at which addresses differ."""
    pairs = zip(before, after, strict=True)
    return [at for at, (old, new) in enumerate(pairs) if old != new]
