"""Profile the steps of a GPU program by timed events around each step.

The host waits for the device before the first step and after the last one, not between steps.
Collectives on a concurrent stream have separate rows. As in ``runtime/step_timer.py``, only
drivers that are printed during a recording have these statements.

Tests: tests/targets/cuda/test_gpu_step_timer.py, tests/parallel/test_nccl_profile.py.
"""

from __future__ import annotations

import threading
from typing import Any

from gpuflow.base.recording import Event, Recording, clock, state
from gpuflow.compiler.planning.plan import Plan, Step
from gpuflow.runtime.program_text import DriverText
from gpuflow.runtime.step_timer import details_of, row_of
from gpuflow.targets.cuda.runtime.driver.api import DeviceEvent
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice
from gpuflow.targets.cuda.runtime.program.driver_statements import DriverStatements

_Row = tuple[Step, dict[str, Any]]  # a step, and its details for the profile


class Timeline:
    """Times the steps of one driver, whose statements call it.

    Args:
        device: the device that runs them.
        rows: the steps, each with details for the profile.
    """

    def __init__(self, device: GpuDevice, rows: list[_Row]) -> None:
        self._device, self._rows = device, rows
        # Index of a row, and the events before and after its step.
        self._events: list[tuple[int, DeviceEvent, DeviceEvent]] = []
        self._origin: DeviceEvent = None
        self._step_start: DeviceEvent = None
        self._started = 0

    def start(self) -> None:
        """Start the timeline before the first step."""
        self._device.synchronize()
        self._events.clear()
        self._origin, self._started = self._event(), clock()

    def begin(self) -> None:
        """Record an event before a step."""
        self._step_start = self._event()

    def end(self, index: int) -> None:
        """Record an event after the step of row ``index``."""
        self._events.append((index, self._step_start, self._event()))

    def finish(self) -> None:
        """Finish after the last step: wait for the device and write the rows of the profile."""
        self._device.synchronize()
        recording = state.recording
        if recording is None:
            return
        between, thread = self._device.api.nanoseconds, threading.get_ident()
        for index, start_event, end_event in self._events:
            step, details = self._rows[index]
            start = self._started + between(self._origin, start_event)
            duration = between(start_event, end_event)
            recording.events.append(
                Event(row_of(step), step.name, start, duration, thread, details, step)
            )
        self._write_side_work(recording, thread)

    def _write_side_work(self, recording: Recording, thread: int) -> None:
        """Write rows of concurrent work; an enclosing program writes what is unfinished."""
        api, unfinished = self._device.api, []
        pending, self._device.side_work = self._device.side_work, []
        for work in pending:
            if work.recording is not recording:
                continue  # its recording has ended
            if not api.is_done(work.mark):
                unfinished.append(work)
                continue
            start = self._started + api.nanoseconds(self._origin, work.start_event)
            duration = api.nanoseconds(work.start_event, work.end_event)
            event = Event("collectives", work.name, start, duration, thread, work.details)
            recording.events.append(event)
        self._device.side_work += unfinished

    def _event(self) -> DeviceEvent:
        return self._device.api.timed_event(self._device.compute)


class GpuStepTimer:
    """Prints statements that time each step of a driver.

    Args:
        plan: the plan of the driver.
        text: the text of the driver.
        driver_statements: receives the statements.
        device: the device that runs them.

    Attributes:
        active: whether the profiler records; if not, nothing is printed.
    """

    def __init__(
        self, plan: Plan, text: DriverText, driver_statements: DriverStatements, device: GpuDevice
    ) -> None:
        self.active = state.recording is not None
        self._plan, self._driver_statements, self._rows = plan, driver_statements, []
        self._open = False
        if self.active:
            self._name = text.constant("times", Timeline(device, self._rows))
            driver_statements.statement(f"{self._name}.start()")

    def begin(self, step: Any) -> None:
        """Print the end of the previous step, and the start of ``step``."""
        if not self.active:
            return
        self._end_step()
        self._rows.append((step, details_of(self._plan, step)))
        self._driver_statements.statement(f"{self._name}.begin()")
        self._open = True

    def end(self) -> None:
        """Print the end of the last step."""
        if self.active:
            self._end_step()
            self._driver_statements.statement(f"{self._name}.finish()")

    def _end_step(self) -> None:
        if self._open:
            self._driver_statements.statement(f"{self._name}.end({len(self._rows) - 1})")
            self._open = False
