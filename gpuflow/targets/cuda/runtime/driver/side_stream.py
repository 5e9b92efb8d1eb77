"""A stream for work that runs concurrently with a GPU's compute stream, such as collectives.

Only events order its work relative to kernels; the host does not wait.

Tests: tests/parallel/test_nccl_streams.py, tests/parallel/test_nccl_profile.py.
"""

from __future__ import annotations

import threading
from typing import Any, cast

from gpuflow.base.cached import cached_property
from gpuflow.base.recording import Recording, state
from gpuflow.base.records import record
from gpuflow.runtime.device import Device
from gpuflow.targets.cuda.runtime.driver.api import DeviceEvent
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice


@record(frozen=False, eq=False)
class SideWork:
    """Profiler record of work on a side stream.

    Attributes:
        recording: the recording during which the work started.
        name, details: name and details in the profile.
        start_event, end_event: timed events before and after the work; ``end_event`` is None until
            all of the work is enqueued.
        mark: an event without a time after the work, which ``SideStream.mark`` returned.
    """

    recording: Recording
    name: str
    details: dict[str, Any]
    start_event: DeviceEvent
    end_event: DeviceEvent = None
    mark: DeviceEvent = None


class SideStream:
    """A stream of a device, created at first use.

    Args:
        device: the device; its driver must be a ``GpuDevice``.

    Attributes:
        lock: to be held while several calls enqueue the work of one operation, and during calls of
            a library that allows one thread per device.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._address: int | None = None
        self.lock = threading.RLock()

    def __str__(self) -> str:
        return str(self._device)

    @cached_property
    def _driver(self) -> GpuDevice:
        return cast(GpuDevice, self._device.driver)  # marks the device as used

    @property
    def address(self) -> int:
        """The stream's handle."""
        if self._address is None:
            with self.lock:
                if self._address is None:
                    self._driver.api.activate()
                    self._address = self._driver.api.stream()
        return self._address

    def follow(self) -> DeviceEvent:
        """Let later work of this stream wait for the current work of the compute stream.

        Returns:
            The event for which it waits.
        """
        driver = self._driver
        event = driver.api.event(driver.compute)
        driver.api.wait_event(self.address, event)
        return event

    def mark(self, work: SideWork | None = None) -> DeviceEvent:
        """Record an event after the current work of this stream; it ends ``work`` if given.

        ``work`` must be from ``begin_work``, and end once.
        """
        api = self._driver.api
        if work is not None:
            work.end_event = api.timed_event(self.address)
        event = api.event(self.address)
        if work is not None:
            work.mark = event
            self._driver.side_work.append(work)  # step_timer.py writes it to the profile
        return event

    def is_done(self, mark: DeviceEvent) -> bool:
        """Whether an event has completed."""
        return self._driver.api.is_done(mark)

    def join(self, mark: DeviceEvent) -> None:
        """Let later work of the compute stream wait for an event of this stream."""
        self._driver.api.wait_event(self._driver.compute, mark)

    def synchronize(self) -> None:
        """Wait until all enqueued work of this stream is done."""
        self._driver.api.synchronize(self.address)

    def visit(self) -> None:
        """Make the device current for a thread that only queries events."""
        self._driver.api.visit()

    # --- failures ---

    def fail(self, reason: str) -> None:
        """Make waits for the device raise an error: its results are invalid.

        Any thread may call it.
        """
        self._driver.broken = reason

    def recover(self) -> None:
        """Allow waits for the device again."""
        self._driver.broken = None

    # --- traces ---

    def begin_work(self, name: str, details: dict[str, Any]) -> SideWork | None:
        """Start a profiler record of work on the stream; None while nothing records."""
        if state.recording is None:
            return None
        started = self._driver.api.timed_event(self.address)
        return SideWork(state.recording, name, details, started)
