"""Cache of CUDA graphs for consecutive launches of a plan, by the addresses that they use.

A replay enqueues many launches for the host's cost of one. Recordings contain addresses, so they
are cached by the tuple of addresses. A training step that donates its state uses one or two tuples.
If addresses keep changing:

- kernels with changed addresses get new parameters in an existing recording;
- small operands of library calls are copied to and from memory at a fixed address, as parameters
  of libraries are unknown.

All other parameters of a launch are constant. Segment tables are updated before a replay.
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
LEAST_LAUNCHES = 4  # least number of launches worth recording
_PLAIN_CALLS = 2  # first calls that are not recorded, while modules load and libraries set up
_MOST_CACHED = 4  # recordings
_WORTH_CHANGING = 2  # a change costs as much as a launch: change at most every second launch
# Recordings that are unconditional; each further one requires so many replays.
_MOST_RECORDINGS, _REPLAYS_FOR_ONE = 16, 16
_MOST_MISSES = 32  # consecutive misses, after which nothing more is recorded
_MOST_COPIED = 1 << 20  # bytes of an operand that may be copied
_ALIGNED = 16  # copies keep addresses modulo this, which selects the variant of a kernel
_BYTE = np.dtype(np.uint8)


def may_record() -> bool:
    """Whether settings allow recordings: GPUFLOW_CUDA_GRAPHS, and not GPUFLOW_CHECK."""
    environment = config.environment
    return environment.cuda_graphs and not environment.check


@record(eq=False)
class Call:
    """A launch, or a library call that only launches kernels.

    Attributes:
        run: a ``BoundLaunch`` of ``launch.py``, or a function of addresses and a stream.
        arguments: per argument, (index among the addresses of ``RecordedLaunches``, 0), or (None,
            fixed address).
    """

    run: Callable[..., Any]
    arguments: tuple[tuple[int | None, int], ...]

    @property
    def is_kernel(self) -> bool:
        """Whether it is one launch of ours, whose parameters can change."""
        return isinstance(self.run, BoundLaunch)

    @property
    def has_table(self) -> bool:
        """Whether addresses are in a segment table in device memory, not in parameters."""
        return isinstance(self.run, BoundLaunch) and self.run.has_table

    def may_record(self, addresses: Sequence[int]) -> bool:
        """Whether the call can be recorded: not if launches of ours replace the library's."""
        return not isinstance(self.run, AlignedCall) or self.run.is_aligned(self.at(addresses))

    def at(self, addresses: Sequence[int]) -> list[int]:
        """The arguments of the call for these addresses."""
        return [number if at is None else addresses[at] for at, number in self.arguments]

    def prepared(self, addresses: Sequence[int]) -> Callable[[], Any] | LibraryWork:
        """The call for these addresses, ready for ``GpuApi.record``; updates its table."""
        run = self.run
        if isinstance(run, BoundLaunch):
            return run.prepared(*self.at(addresses))
        return LibraryWork(partial(run, *self.at(addresses)))


@record
class BufferUse:
    """The use of the buffer at an address, by all recorded calls.

    Attributes:
        count: size in bytes.
        is_read: whether it is only read; a copy before a replay suffices then.
        is_filled: whether the first call that uses it writes all of it; a copy after a replay
            suffices then.
    """

    count: int
    is_read: bool = False
    is_filled: bool = False


class RecordedLaunches:
    """Consecutive launches as a function of addresses, which records and replays them.

    Args:
        device: the device that runs them.
        launches: function of the addresses that runs all calls without a recording.
        calls: the same calls, one by one.
        buffers: use of the buffer at each address.
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
        self._users: dict[int, set[int]] = {}  # calls with an address in parameters, by its index
        self._copies: dict[int, DeviceArray] = {}  # fixed memory of copied operands, by index
        for index, call in enumerate(calls):
            for at, _ in call.arguments if not call.has_table else ():
                if at is not None:
                    self._users.setdefault(at, set()).add(index)

    def __call__(self, *call_addresses: int) -> None:
        addresses = self._stable_addresses(call_addresses) if self._copies else call_addresses
        replay = self._cached.get(addresses)
        if replay is not None:
            self._replays += 1
            self._misses = 0
            if self._last != addresses:
                self._fill_tables(addresses)
                self._cached.move_to_end(addresses)
        else:
            addresses, replay = self._recording_after_miss(call_addresses, addresses)
            if replay is None:
                self._launches(*call_addresses)
                self._last = None  # tables have the addresses of this call
                return
        self._last = addresses
        if self._copies:
            self._copy(call_addresses, addresses, before=True)
            replay()
            self._copy(call_addresses, addresses, before=False)
        else:
            replay()

    def _stable_addresses(self, call_addresses: tuple[int, ...]) -> tuple[int, ...]:
        """The addresses to run with: those of copies for copied operands."""
        addresses = list(call_addresses)
        for at, memory in self._copies.items():
            addresses[at] = memory.address + call_addresses[at] % _ALIGNED
        return tuple(addresses)

    def _copy(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...], before: bool
    ) -> None:
        """Copy operands to fixed memory before a replay, or results from there after it."""
        for at in self._copies:
            buffer = self._buffers[at]
            if buffer.is_read is before:
                external, internal = call_addresses[at], addresses[at]
                ends = (internal, external) if before else (external, internal)
                self._api.copy_within(*ends, buffer.count, self._stream)

    def _fill_tables(self, addresses: tuple[int, ...]) -> None:
        for call in self._tables:
            call.prepared(addresses)

    def _recording_after_miss(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Recorded | None]:
        """Get a recording after a miss: change one, or record.

        Returns:
            The addresses of the recording, in which copies may replace operands, and the recording.
            None: run the launches without one.
        """
        if self._plain < _PLAIN_CALLS:
            self._plain += 1
            return addresses, None
        self._misses += 1
        if self._misses > _MOST_MISSES:
            return addresses, None
        replay = None
        if len(self._cached) == _MOST_CACHED or self._copies:  # addresses keep changing
            replay = self._changed(addresses)
        if replay is None and len(self._cached) == _MOST_CACHED and self._start_copying(addresses):
            addresses = self._stable_addresses(call_addresses)
        if replay is None:
            replay = self._recorded(addresses)
        if replay is not None:
            self._cached[addresses] = replay
            if len(self._cached) > _MOST_CACHED:
                self._cached.popitem(last=False)
        return addresses, replay

    def _recorded(self, addresses: tuple[int, ...]) -> Recorded | None:
        """A new recording; None if there are too many for the number of replays."""
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
        """Whether these calls are kernels, and changing them and copying are cheap enough."""
        few = _WORTH_CHANGING * (len(users) + copies) <= len(self._calls)
        return few and all(self._calls[index].is_kernel for index in users)

    def _changed(self, addresses: tuple[int, ...]) -> Recorded | None:
        """Change the least recently used suitable recording to new addresses, if there is one."""
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
        self._misses = 0  # as changes keep up with new addresses
        return recorded

    def _start_copying(self, addresses: tuple[int, ...]) -> bool:
        """Decide to copy operands whose addresses keep changing; False if that does not help."""
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
        self._cached.clear()  # recorded with addresses that will not recur
        return bool(new)

    def _is_copied(self, at: int) -> bool:
        """Whether copying an operand is possible and worthwhile.

        It must be small, and only read, or written completely first. Several calls use it, or a
        library call, whose parameters cannot change.
        """
        buffer, users = self._buffers[at], self._users.get(at, set())
        if buffer.count > _MOST_COPIED or not (buffer.is_read or buffer.is_filled):
            return False
        return len(users) > 1 or not all(self._calls[index].is_kernel for index in users)


def _differing(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The indices at which addresses differ."""
    pairs = zip(before, after, strict=True)
    return [at for at, (old, new) in enumerate(pairs) if old != new]
