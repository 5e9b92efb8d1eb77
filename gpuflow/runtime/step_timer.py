"""Profiler instrumentation of drivers: statements that time each step.

A driver that is printed without an active recording has no such statements, hence no overhead. When
a recording starts or ends, arenas get new generations, so that every driver is printed again.

Tests: tests/explaining/test_explanation.py, tests/test_profiler.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuflow.base.recording import clock, state
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Plan,
    Step,
    flops_of,
    traffic_bytes,
)
from gpuflow.core.jaxpr import Eqn
from gpuflow.runtime.program_text import DriverText

MAX_SOURCES = 3  # source lines shown in a viewer; the detail ``lines`` has all


class StepTimer:
    """Prints code that times each step of a driver.

    The caller prints a step after ``begin``, and calls ``end`` after the last step.

    Args:
        plan: the plan of the driver.
        text: the driver's text.
        wait: waits until the device is done; for platforms with asynchronous launches.

    Attributes:
        active: whether a recording is active. Steps must then run one by one.
    """

    def __init__(self, plan: Plan, text: DriverText, wait: Callable[[], Any] | None = None) -> None:
        self.active = state.recording is not None
        self._plan, self._text, self._wait = plan, text, wait
        self._step: Step | None = None

    def begin(self, step: Step) -> None:
        """Print the start of a step, after the end of the previous one."""
        self.end()
        if self.active:
            self._step = step
            self._text.statement(f"begun = {self._text.constant('clock', clock)}()")

    def end(self) -> None:
        """Print the end of the current step, if there is one."""
        if self._step is None:
            return
        details = details_of(self._plan, self._step)
        note = partial(_note, self._step, details)
        if self._wait is not None:
            self._text.statement(f"{self._text.constant('wait', self._wait)}()")
        self._text.statement(f"{self._text.constant('note', note)}(begun)")
        self._step = None


def _note(step: Step, details: dict[str, Any], start: int) -> None:
    recording = state.recording
    if recording is not None:
        recording.add(row_of(step), step.name, start, details, step)


def row_of(step: Step) -> str:
    """The row of a trace viewer that shows a step."""
    if isinstance(step, KernelStep):
        return "kernels"
    if isinstance(step, CopyStep):
        return "copies"
    if isinstance(step, CallStep):
        return "host functions" if step.kind == "host" else "libraries"
    return "loops"


def details_of(plan: Plan, step: Step) -> dict[str, Any]:
    """Trace details of a step: operations, work, memory and source line."""
    eqns: tuple[Eqn, ...] = ()
    if isinstance(step, KernelStep):
        eqns = step.eqns
    elif not isinstance(step, CopyStep):
        eqns = (step.eqn,)
    sources = list(dict.fromkeys(str(eqn.source) for eqn in eqns if eqn.source))
    details: dict[str, Any] = {"bytes": traffic_bytes(plan, step), "flops": flops_of(step)}
    if eqns:
        details["ops"] = " ".join(eqn.primitive.name for eqn in eqns)
    if sources:
        details["source"] = ", ".join(sources[:MAX_SOURCES])
        details["lines"] = sources
    return details
