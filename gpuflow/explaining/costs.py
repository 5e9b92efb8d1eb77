"""Costs of each step of a plan: bytes, operations, and time, predicted or measured.

Tests: tests/explaining/test_explanation.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gpuflow.api.devices import default_device, device_put
from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.base.tables import Table, scaled
from gpuflow.base.util import SourceLocation
from gpuflow.compiler.explain import eqns_of
from gpuflow.compiler.planning.plan import (
    CallStep,
    Plan,
    ProgramStep,
    Step,
    flops_of,
    traffic_bytes,
)
from gpuflow.control.jit_function import JitFunction
from gpuflow.control.jit_options import JitOptions
from gpuflow.core.communication import Communication
from gpuflow.explaining.topology import Topology
from gpuflow.timing import format_seconds, three_digits

_MAX_CHARACTERS = 44  # of a name in a table


class Rates(Protocol):
    """Peak rates of a device, which predict the times of steps."""

    @property
    def bytes_per_second(self) -> float:
        """That a copy of a large array reads and writes."""
        ...

    def step_seconds(self, plan: Plan, step: Step) -> float:
        """The predicted time of a step of a plan."""
        ...


@record
class Ceilings:
    """Peak rates of a device, as measured in this process.

    Attributes:
        bytes_per_second: that a copy of a large array reads and writes.
        flops_per_second: of a product of float32 matrices.
    """

    bytes_per_second: float
    flops_per_second: float

    def step_seconds(self, plan: Plan, step: Step) -> float:
        """The larger of the minimum times of a step's bytes and of its operations."""
        if isinstance(step, ProgramStep):
            return _program_seconds(self, step)
        moving = traffic_bytes(plan, step) / self.bytes_per_second
        return max(moving, flops_of(step) / self.flops_per_second)


@record
class TopologyRates:
    """The rates of a device of a Topology, and of its links."""

    topology: Topology

    @property
    def bytes_per_second(self) -> float:
        """The memory bandwidth."""
        return self.topology.memory_bandwidth

    def step_seconds(self, plan: Plan, step: Step) -> float:
        """The time of a collective, or as ``Ceilings.step_seconds``."""
        if isinstance(step, ProgramStep):
            return _program_seconds(self, step)
        communication = communication_of(step)
        if communication is not None:
            return 0.0 if communication.phase == "end" else self.topology.seconds(communication)
        moving = traffic_bytes(plan, step) / self.bytes_per_second
        is_narrow = isinstance(step, CallStep) and all(
            operand.aval.dtype.itemsize <= 2 for operand in step.operands[:2]
        )
        rate = self.topology.flops if is_narrow else self.topology.float32_flops
        return max(moving, flops_of(step) / rate)


def _program_seconds(rates: Rates, step: ProgramStep) -> float:
    totals = [
        sum(rates.step_seconds(inner.plan, inner_step) for inner_step in inner.plan.steps)
        for inner in step.programs
    ]
    return step.eqn.primitive.lower.inner(step.eqn).total(totals)


def communication_of(step: Step) -> Communication | None:
    """The messages of a step; None if it is not a collective over several memories."""
    if not isinstance(step, CallStep):
        return None
    rule = step.eqn.primitive.placement.communication
    return None if rule is None else rule([x.aval for x in step.operands], step.eqn.params)


@record
class StepCost:
    """A step of a plan and its costs.

    Attributes:
        number: of the step in the plan, from 1.
        name: of the kernel, or of the call.
        kind: "kernel", "library", "host", "copy" or "program".
        seconds: that it takes.
        is_measured: whether it took them, or is predicted to.
        share: of the time of all steps, 0 to 1.
        bytes: that it reads and writes; each array once.
        flops: floating-point operations, one for each scalar function and element.
        lines: the source lines of its equations, the most frequent first.
        rates: of the device.
    """

    number: int
    name: str
    kind: str
    seconds: float
    is_measured: bool
    share: float
    bytes: int
    flops: int
    lines: tuple[SourceLocation, ...]
    rates: Rates

    @property
    def line(self) -> SourceLocation | None:
        """The source line of most of its equations."""
        return self.lines[0] if self.lines else None

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes over measured time; None: it is predicted."""
        return self.bytes / self.seconds if self.is_measured and self.seconds else None

    @property
    def copy_share(self) -> float | None:
        """``bytes_per_second`` over that of a copy; above 1 if the arrays are in a cache."""
        rate = self.bytes_per_second
        return None if rate is None else rate / self.rates.bytes_per_second

    @property
    def flops_per_second(self) -> float | None:
        """FLOP over measured time; None: it is predicted."""
        return self.flops / self.seconds if self.is_measured and self.seconds else None


def step_costs(plan: Plan, seconds: Sequence[float] | None, rates: Rates) -> tuple[StepCost, ...]:
    """The costs of all steps, in the order in which they run.

    Args:
        plan: the plan.
        seconds: measured ones for each step; None: they are predicted.
        rates: of the device.
    """
    is_measured = seconds is not None
    if seconds is None:
        seconds = [rates.step_seconds(plan, step) for step in plan.steps]
    total = sum(seconds) or 1.0
    return tuple(
        StepCost(
            number,
            step.name,
            step.kind,
            took,
            is_measured,
            took / total,
            traffic_bytes(plan, step),
            flops_of(step),
            origins_of(step),
            rates,
        )
        for number, (step, took) in enumerate(zip(plan.steps, seconds, strict=True), 1)
    )


def origins_of(step: Step) -> tuple[SourceLocation, ...]:
    """The source lines of a step's equations, those of its inner programs included."""
    counts: Counter[SourceLocation] = Counter()
    _count_origins(step, counts)
    return tuple(origin for origin, _ in counts.most_common())


def _count_origins(step: Step, counts: Counter[SourceLocation]) -> None:
    counts.update(eqn.source for eqn in eqns_of(step) if eqn.source is not None)
    if isinstance(step, ProgramStep):
        for inner in step.programs:
            for inner_step in inner.plan.steps:
                _count_origins(inner_step, counts)


def short_origin(origin: SourceLocation | None) -> str:
    """A source line as text, without the folder of its file."""
    if origin is None:
        return ""
    return f"{origin.file.rpartition('/')[2]}:{origin.line} ({origin.function})"


def cost_table(costs: Sequence[StepCost], top: int | None, title: str) -> Table:
    """The steps that take longest; rates only where times are measured."""
    longest = sorted(costs, key=lambda cost: -cost.seconds)[:top]
    is_measured = any(cost.is_measured for cost in costs)
    rates = ("GB/s", "of a copy", "GFLOP/s") if is_measured else ("FLOP",)
    rows = []
    for cost in longest:
        first = (
            f"{cost.number}. {_shortened(cost.name)}",
            format_seconds(cost.seconds),
            f"{cost.share:.1%}",
            scaled(cost.bytes, "B"),
        )
        last = _rates(cost) if is_measured else (scaled(cost.flops, "FLOP"),)
        rows.append((*first, *last, short_origin(cost.line)))
    label = "measured" if is_measured else "predicted"
    columns = ("step", label, "share", "bytes", *rates, "line")
    return Table(title, columns, tuple(rows), (0, len(columns) - 1))


def _rates(cost: StepCost) -> tuple[str, ...]:
    moved, share, computed = cost.bytes_per_second, cost.copy_share, cost.flops_per_second
    if moved is None or share is None or computed is None:
        return "", "", ""
    return three_digits(moved / 1e9), share_text(share), three_digits(computed / 1e9)


def share_text(share: float) -> str:
    """The share of a copy's bandwidth; faster than memory is only a cache."""
    return "cached" if share > 1 else f"{share:.0%}"


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_CHARACTERS else f"{name[: _MAX_CHARACTERS - 3]}..."


# --- ceilings -----------------------------------------------------------------------------------

_ENOUGH = 3e-3  # seconds: a call that takes longer is not all overhead
_RUNS = 4


@lru_cache(128)
def ceilings_of(device: Any) -> Ceilings:
    """Return the peak rates of a device.

    Cost: a tenth of a second or two, once for each device of a process. Sizes grow until a call
    takes long enough, so that a simulated device ends early.
    """
    with default_device(device):
        copy = _best_rate(lambda x: -x, [1 << k for k in (14, 19, 24)], _copied_bytes)
        product = _best_rate(lambda x: x @ x, [1 << k for k in (5, 9)], _product_flops)
    return Ceilings(copy, product)


def _copied_bytes(size: int) -> tuple[np.ndarray, float]:
    return np.zeros(size, np.float32), 8.0 * size


def _product_flops(size: int) -> tuple[np.ndarray, float]:
    return np.zeros((size, size), np.float32), 2.0 * size**3


def _best_rate(
    function: Callable[[Any], Any],
    sizes: Sequence[int],
    operand: Callable[[int], tuple[np.ndarray, float]],
) -> float:
    """The work of a second, at the last size that was tried."""
    jitted, rate = JitFunction(function, JitOptions()), 1.0
    for size in sizes:
        value, work = operand(size)
        x = device_put(value)
        jitted(x).block_until_ready()
        seconds = min(_timed(jitted, x) for _ in range(_RUNS))
        rate = work / max(seconds, 1e-9)
        if seconds > _ENOUGH:
            break
    return rate


def _timed(function: Any, x: Any) -> float:
    start = time.perf_counter()
    function(x).block_until_ready()
    return time.perf_counter() - start
