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
from gpuflow.targets.cuda.runtime.driver.launch import AlignedCall, BoundLaunch
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# All of these values but the alignment are guesses: nothing was measured on a GPU.
# perf/gpu_graph_costs.py prints better values for the costs of a GPU.
LEAST_LAUNCHES = 4
_PLAIN_CALLS = 2  # modules are loaded and libraries set up by then
_MOST_CACHED = 4
_WORTH_CHANGING = 2  # a launch costs about as much as a change: at most every second one changes
# Recordings that are made unconditionally; each later one requires so many replays.
_MOST_RECORDINGS, _REPLAYS_FOR_ONE = 16, 16
_MOST_MISSES = 32  # in a row; then only cached recordings are replayed
_MOST_COPIED = 1 << 20  # bytes of an operand
_ALIGNED = 16  # a copy is a multiple of it where the operand is: kernels have variants for that
_BYTE = np.dtype(np.uint8)


def may_record() -> bool:
    """Whether settings allow recordings of launches."""
    environment = config.environment
    return environment.cuda_graphs and not environment.check


@record(eq=False)
class Call:
    """One kernel, or a call of a library that only launches some.

    Attributes:
        run: a ``BoundLaunch``, or a function of addresses and of the stream, as in ``LibraryWork``.
        arguments: for each, its index among all addresses and 0, or None and a scalar.
    """

    run: Callable[..., Any]
    arguments: tuple[tuple[int | None, int], ...]

    @property
    def is_kernel(self) -> bool:
        """Whether it is one launch of ours, whose parameters are known."""
        return isinstance(self.run, BoundLaunch)

    @property
    def has_table(self) -> bool:
        """Whether addresses go through a table in device memory."""
        return isinstance(self.run, BoundLaunch) and self.run.has_table

    def may_record(self, addresses: Sequence[int]) -> bool:
        """Whether it can be recorded: not if launches of ours replace a library."""
        return not isinstance(self.run, AlignedCall) or self.run.is_aligned(self.at(addresses))

    def at(self, addresses: Sequence[int]) -> list[int]:
        """The arguments."""
        return [number if at is None else addresses[at] for at, number in self.arguments]

    def prepared(self, addresses: Sequence[int]) -> Callable[[], Any] | LibraryWork:
        """The call without arguments; a table is up to date."""
        run = self.run
        if isinstance(run, BoundLaunch):
            return run.prepared(*self.at(addresses))
        return LibraryWork(partial(run, *self.at(addresses)))


@record
class BufferUse:
    """The use of the buffer at an address, which may differ in each call.

    Attributes:
        count: bytes.
        is_read: whether no call writes it, so that a copy before a replay suffices.
        is_filled: whether the first call that uses it writes all of it; it is copied after.
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
        buffers: the use of the buffer at each address.
    """

    def __init__(
        self,
        device: GpuDevice,
        launches: Callable[..., Any],
        calls: Sequence[Call],
        buffers: Sequence[BufferUse],
    ) -> None:
        self._device, self._api, self._stream = device, device.api, device.compute
        self._launches, self._calls, self._buffers = launches, calls, buffers
        self._cached: OrderedDict[tuple[int, ...], Recorded] = OrderedDict()
        self._last: tuple[int, ...] | None = None
        self._plain = self._recordings = self._replays = self._misses = 0
        self._tables = [call for call in calls if call.has_table]
        self._users: dict[int, set[int]] = {}  # calls that hold an address, by its index
        self._copies: dict[int, DeviceArray] = {}  # memory at fixed addresses, by index
        for index, call in enumerate(calls):
            for at, _ in call.arguments if not call.has_table else ():
                if at is not None:
                    self._users.setdefault(at, set()).add(index)

    def __call__(self, *call_addresses: int) -> None:
        addresses = self._staying(call_addresses) if self._copies else call_addresses
        replay = self._cached.get(addresses)
        if replay is not None:
            self._replays += 1
            self._misses = 0
            if self._last != addresses:
                self._fill_tables(addresses)
                self._cached.move_to_end(addresses)
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
            buffer = self._buffers[at]
            if buffer.is_read is before:
                external, internal = call_addresses[at], addresses[at]
                ends = (internal, external) if before else (external, internal)
                self._api.copy_within(*ends, buffer.count, self._stream)

    def _fill_tables(self, addresses: tuple[int, ...]) -> None:
        for call in self._tables:
            call.prepared(addresses)

    def _replay_of(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Recorded | None]:
        """The addresses and the replay for new addresses; None: launch without one."""
        if self._plain < _PLAIN_CALLS:
            self._plain += 1
            return addresses, None
        self._misses += 1
        if self._misses > _MOST_MISSES:
            return addresses, None
        replay = None
        if len(self._cached) == _MOST_CACHED or self._copies:  # addresses do not recur
            replay = self._changed(addresses)
        if replay is None and len(self._cached) == _MOST_CACHED and self._copies_instead(addresses):
            addresses = self._staying(call_addresses)
        if replay is None:
            replay = self._recorded(addresses)
        if replay is not None:
            self._cached[addresses] = replay
            if len(self._cached) > _MOST_CACHED:
                self._cached.popitem(last=False)
        return addresses, replay

    def _recorded(self, addresses: tuple[int, ...]) -> Recorded | None:
        """A new recording, unless too many were made without replays."""
        if not all(call.may_record(addresses) for call in self._calls):
            return None
        if self._recordings >= _MOST_RECORDINGS + self._replays // _REPLAYS_FOR_ONE:
            return None
        self._recordings += 1
        work = [call.prepared(addresses) for call in self._calls]
        return self._api.record(self._stream, work)

    def _users_of(self, positions: Sequence[int]) -> set[int]:
        return {index for at in positions for index in self._users.get(at, ())}

    def _may_change(self, users: set[int], copies: int) -> bool:
        """Whether these calls can get new addresses, and changes and copies are cheap enough."""
        few = _WORTH_CHANGING * (len(users) + copies) <= len(self._calls)
        return few and all(self._calls[index].is_kernel for index in users)

    def _changed(self, addresses: tuple[int, ...]) -> Recorded | None:
        """A recording with parameters for new addresses.

        Of those that can be changed, it is the least recently used.
        """
        for before in self._cached:
            users = self._users_of(_differing(before, addresses))
            if self._may_change(users, len(self._copies)):
                break
        else:
            return None
        recorded = self._cached.pop(before)
        for index in sorted(users):
            launch = self._calls[index].prepared(addresses)
            assert not isinstance(launch, LibraryWork)
            if not recorded.change(index, launch):
                return None
        self._fill_tables(addresses)
        self._misses = 0  # changed recordings serve new addresses, too
        return recorded

    def _copies_instead(self, addresses: tuple[int, ...]) -> bool:
        """Copy operands whose addresses keep changing to fixed memory; False if impossible."""
        positions = _differing(next(iter(self._cached)), addresses)
        new = [at for at in positions if at not in self._copies and self._is_copied(at)]
        others = self._users_of([at for at in positions if at not in new])
        if not self._may_change(others, len(self._copies) + len(new)):
            return False
        try:
            counts = [self._buffers[at].count + _ALIGNED for at in new]
            copies = [self._device.empty((count,), _BYTE) for count in counts]
        except MemoryError:
            return False
        self._copies.update(zip(new, copies, strict=True))
        self._cached.clear()  # their addresses do not recur
        return bool(new)

    def _is_copied(self, at: int) -> bool:
        """Whether to copy an operand: small, read or written completely, with several users."""
        buffer, users = self._buffers[at], self._users.get(at, set())
        if buffer.count > _MOST_COPIED or not (buffer.is_read or buffer.is_filled):
            return False
        return len(users) > 1 or not all(self._calls[index].is_kernel for index in users)


def _differing(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The indices at which addresses differ."""
    pairs = zip(before, after, strict=True)
    return [at for at, (old, new) in enumerate(pairs) if old != new]
