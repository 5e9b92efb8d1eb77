"""Measure the time of each step of a plan, by the events of profiler traces.

Tests: tests/explaining/test_explanation.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.api.devices import block_until_ready, device_put
from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.recording import Recording, state
from gpuflow.compiler.planning.plan import Plan
from gpuflow.control.stages import ShapeDtypeStruct
from gpuflow.numpy.filled import zeros
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.execute import Executable
from gpuflow.runtime.memory import arenas

_RUNS = 7
_LONG = 2.0  # seconds: if all runs take longer, there are fewer


def with_values(arguments: Any) -> Any:
    """A tree of arguments with zeros for its ShapeDtypeStructs."""

    def value(leaf: Any) -> Any:
        return zeros(leaf.shape, leaf.dtype) if isinstance(leaf, ShapeDtypeStruct) else leaf

    return tree.tree_map(value, arguments)


def step_seconds(
    executable: Executable, plan: Plan, operands: Sequence[Any], device: Device
) -> tuple[float, ...]:
    """The median time of each step over some runs of a program.

    Args:
        executable: the program; it runs with all its effects.
        plan: of the program.
        device: that the plan is for; operands of other platforms are copied there.
        operands: the arguments; donated ones are copied.

    Raises:
        RuntimeError: a trace of the profiler is being recorded.
    """
    check(
        state.recording is None,
        lambda: (
            "[explain] steps are timed as in a trace, of which one can be taken at a time; got "
            "measure=True inside of one. Fix: call it outside, or leave measure out."
        ),
        RuntimeError,
    )
    operands = [_on(device, operand) for operand in operands]
    recording = state.recording = Recording()
    arenas.renew()
    runs: list[list[float]] = []
    try:
        started = time.perf_counter()
        for number in range(_RUNS + 1):
            begin = len(recording.events)
            block_until_ready(executable(_fresh(executable, operands)))
            # Steps of programs inside of these are others.
            times = {id(event.step): event.duration / 1e9 for event in recording.events[begin:]}
            runs.append([times[id(step)] for step in plan.steps])
            if number and time.perf_counter() - started > _LONG:
                break
    finally:
        state.recording = None
        arenas.renew()
    # In the first run drivers are printed, and memory is touched for the first time.
    return tuple(float(np.median(times)) for times in zip(*runs[1:], strict=True))


def _on(device: Device, operand: Any) -> Any:
    elsewhere = type(operand) is Array and operand.device.platform != device.platform
    return device_put(operand, device) if elsewhere else operand


def _fresh(executable: Executable, operands: Sequence[Any]) -> list[Any]:
    copies = list(operands)
    for k in executable.donated:
        if type(copies[k]) is Array:
            array = copies[k]
            copies[k] = Array(array.device.driver.copy(array.data), array.aval, array.device)
    return copies
