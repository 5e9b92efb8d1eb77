"""Cache of CUDA graphs for consecutive launches of a plan, by the addresses that they use.

A replay enqueues many launches for the host's cost of one. Recordings contain addresses, so they
are cached by the tuple of addresses. A training step that donates its state uses one or two tuples.
If addresses keep changing:

- kernels with changed addresses get new parameters in an existing recording;
- small operands of library calls are copied to and from memory at a fixed address, as parameters
  of libraries are unknown.

All other parameters of a launch are constant. Segment tables are updated before a replay.

Tests: tests/targets/cuda/test_gpu_graphs.py, tests/targets/cuda/test_cuda_driver.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.targets.cuda.runtime.driver.api import LibraryWork, RecordedWork
from gpuflow.targets.cuda.runtime.driver.launch import AlignedCall, BoundLaunch
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# All of these values but the alignment are guesses: nothing was measured on a GPU.
# perf/gpu_graph_costs.py prints better values for the costs of a GPU.
LEAST_LAUNCHES = 4  # least number of launches worth recording
_UNRECORDED_CALLS = 2  # first calls that are not recorded, while modules load and libraries set up
_MAX_CACHED = 4  # recordings
_WORTH_CHANGING = 2  # a change costs as much as a launch: change at most every second launch
# The first recordings are unconditional; each further one requires so many replays.
_FREE_RECORDINGS, _REPLAYS_PER_RECORDING = 16, 16
_MAX_MISSES = 32  # consecutive misses, after which nothing more is recorded
_MAX_COPIED_BYTES = 1 << 20  # of an operand that may be copied
_ALIGNMENT_BYTES = 16  # copies keep addresses modulo it, which selects the variant of a kernel
_BYTE = np.dtype(np.uint8)


def may_record() -> bool:
    """Whether settings allow recordings: GPUFLOW_CUDA_GRAPHS, and not GPUFLOW_CHECK."""
    environment = config.environment
    return environment.cuda_graphs and not environment.check


class CallArgument(NamedTuple):
    """An argument of a recordable call, which is an address.

    Attributes:
        address_index: index among the addresses of ``RecordedLaunches``; None: it is fixed.
        fixed: the fixed address; 0 if ``address_index`` is not None.
    """

    address_index: int | None
    fixed: int


@record(eq=False)
class RecordableCall:
    """A launch, or a library call that only launches kernels.

    Attributes:
        run: a ``BoundLaunch`` of ``launch.py``, or a function of addresses and a stream.
        arguments: the address arguments of ``run``.
    """

    run: Callable[..., Any]
    arguments: tuple[CallArgument, ...]

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
        return not isinstance(self.run, AlignedCall) or self.run.is_aligned(
            self.arguments_at(addresses)
        )

    def arguments_at(self, addresses: Sequence[int]) -> list[int]:
        """The arguments of the call for these addresses of ``RecordedLaunches``."""
        return [
            fixed if address_index is None else addresses[address_index]
            for address_index, fixed in self.arguments
        ]

    def bind_addresses(self, addresses: Sequence[int]) -> Callable[[], Any] | LibraryWork:
        """The call for these addresses, ready for ``GpuApi.record``; updates its table."""
        run = self.run
        if isinstance(run, BoundLaunch):
            return run.bind_addresses(*self.arguments_at(addresses))
        return LibraryWork(partial(run, *self.arguments_at(addresses)))


@record
class BufferAccess:
    """The use of the buffer at an address, by all recorded calls.

    Attributes:
        count: size in bytes.
        is_only_read: whether no call writes it; a copy before a replay suffices then.
        is_filled: whether the first call that uses it writes all of it; a copy after a replay
            suffices then.
    """

    count: int
    is_only_read: bool = False
    is_filled: bool = False


class RecordedLaunches:
    """Consecutive launches as a function of addresses, which records and replays them.

    Not thread-safe: as its driver, it runs in one arena, which one program at a time uses.

    Args:
        device: the device that runs them, which must be the current one in a call.
        launches: function of the addresses that runs all calls without a recording.
        calls: the same calls, one by one.
        accesses: use of the buffer at each address.
    """

    def __init__(
        self,
        device: GpuDevice,
        launches: Callable[..., Any],
        calls: Sequence[RecordableCall],
        accesses: Sequence[BufferAccess],
    ) -> None:
        self._device, self._api, self._stream = device, device.api, device.compute
        self._launches, self._calls, self._accesses = launches, calls, accesses
        self._cached: OrderedDict[tuple[int, ...], RecordedWork] = OrderedDict()
        self._last: tuple[int, ...] | None = None  # addresses in segment tables
        self._unrecorded = self._recordings = self._replays = self._misses = 0
        self._tables = [call for call in calls if call.has_table]
        # By address index: calls with that address in their parameters, as indices of ``calls``.
        self._calls_at: dict[int, set[int]] = {}
        # By address index: fixed memory of copied operands.
        self._copies: dict[int, DeviceArray] = {}
        for index, call in enumerate(calls):
            for address_index, _ in call.arguments if not call.has_table else ():
                if address_index is not None:
                    self._calls_at.setdefault(address_index, set()).add(index)

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
        for address_index, memory in self._copies.items():
            addresses[address_index] = (
                memory.address + call_addresses[address_index] % _ALIGNMENT_BYTES
            )
        return tuple(addresses)

    def _copy(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...], before: bool
    ) -> None:
        """Copy operands to fixed memory before a replay, or results from there after it."""
        for address_index in self._copies:
            access = self._accesses[address_index]
            if access.is_only_read is before:
                external, internal = call_addresses[address_index], addresses[address_index]
                target, source = (internal, external) if before else (external, internal)
                self._api.copy_within(target, source, access.count, self._stream)

    def _fill_tables(self, addresses: tuple[int, ...]) -> None:
        """Update all segment tables, which recordings of all addresses share."""
        for call in self._tables:
            call.bind_addresses(addresses)

    def _recording_after_miss(
        self, call_addresses: tuple[int, ...], addresses: tuple[int, ...]
    ) -> tuple[tuple[int, ...], RecordedWork | None]:
        """Get a recording after a miss: change one, or record.

        Returns:
            The addresses of the recording, in which copies may replace operands, and the recording.
            None: run the launches without one.
        """
        if self._unrecorded < _UNRECORDED_CALLS:
            self._unrecorded += 1
            return addresses, None
        self._misses += 1
        if self._misses > _MAX_MISSES:
            return addresses, None
        replay = None
        if len(self._cached) == _MAX_CACHED or self._copies:  # addresses keep changing
            replay = self._change_recording(addresses)
        if replay is None and len(self._cached) == _MAX_CACHED and self._start_copying(addresses):
            addresses = self._stable_addresses(call_addresses)
        if replay is None:
            replay = self._record(addresses)
        if replay is not None:
            self._cached[addresses] = replay
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return addresses, replay

    def _record(self, addresses: tuple[int, ...]) -> RecordedWork | None:
        """A new recording; None if there are too many for the number of replays."""
        if not all(call.may_record(addresses) for call in self._calls):
            return None
        if self._recordings >= _FREE_RECORDINGS + self._replays // _REPLAYS_PER_RECORDING:
            return None
        self._recordings += 1
        work = [call.bind_addresses(addresses) for call in self._calls]
        return self._api.record(self._stream, work)

    def _calls_with(self, address_indices: Sequence[int]) -> set[int]:
        """Indices of the calls with any of these addresses in their parameters."""
        calls: set[int] = set()
        return calls.union(*(self._calls_at.get(index, ()) for index in address_indices))

    def _may_change(self, calls: set[int], copies: int) -> bool:
        """Whether these calls are kernels, and changing them and copying are cheap enough."""
        is_cheap = _WORTH_CHANGING * (len(calls) + copies) <= len(self._calls)
        return is_cheap and all(self._calls[index].is_kernel for index in calls)

    def _change_recording(self, addresses: tuple[int, ...]) -> RecordedWork | None:
        """Change the least recently used suitable recording to new addresses, if there is one."""
        for before in self._cached:
            calls = self._calls_with(_differing(before, addresses))
            if self._may_change(calls, len(self._copies)):
                break
        else:
            return None
        recorded = self._cached.pop(before)
        for index in sorted(calls):
            launch = self._calls[index].bind_addresses(addresses)
            assert not isinstance(launch, LibraryWork)
            if not recorded.change_launch(index, launch):
                return None
        self._fill_tables(addresses)
        self._misses = 0  # as changes keep up with new addresses
        return recorded

    def _start_copying(self, addresses: tuple[int, ...]) -> bool:
        """Decide to copy operands whose addresses keep changing; False if that does not help."""
        differing = _differing(next(iter(self._cached)), addresses)
        new = [k for k in differing if k not in self._copies and self._may_copy(k)]
        other_calls = self._calls_with([k for k in differing if k not in new])
        if not self._may_change(other_calls, len(self._copies) + len(new)):
            return False
        try:
            counts = [self._accesses[k].count + _ALIGNMENT_BYTES for k in new]
            copies = [self._device.empty((count,), _BYTE) for count in counts]
        except MemoryError:
            return False
        self._copies.update(zip(new, copies, strict=True))
        self._cached.clear()  # recorded with addresses that will not recur
        return bool(new)

    def _may_copy(self, address_index: int) -> bool:
        """Whether copying an operand is possible and worthwhile.

        It must be small, and only read, or written completely first. Several calls use it, or a
        library call, whose parameters cannot change.
        """
        access, calls = self._accesses[address_index], self._calls_at.get(address_index, set())
        if access.count > _MAX_COPIED_BYTES or not (access.is_only_read or access.is_filled):
            return False
        return len(calls) > 1 or not all(self._calls[index].is_kernel for index in calls)


def _differing(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """The indices at which addresses differ."""
    pairs = zip(before, after, strict=True)
    return [index for index, (old, new) in enumerate(pairs) if old != new]
