"""What a benchmark file defines: workloads for every framework, checks for gpuflow alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """One row of a comparison.

    Attributes:
        name: the row's label.
        make: from (jax-like module, numpy-like module) to a function of no arguments that does
            the work once and returns what has to be waited for. Written once for all frameworks.
        target: the largest allowed ratio of gpuflow's time to the rival's; None: none is set.
    """

    name: str
    make: Callable[[Any, Any], Callable[[], Any]]
    target: float | None = None


@dataclass(frozen=True)
class Check:
    """One measured property of gpuflow: `measured` must be at most `target`."""

    name: str
    target: float
    measured: float
    unit: str = ""
    note: str = ""


@dataclass(frozen=True)
class CheckGroup:
    """Checks that one fresh process measures, with a kernel cache folder of its own.

    Attributes:
        name: for messages when the process fails.
        measure: from (gpuflow, gpuflow.numpy) to the checks.
        processes: how often the process is run on the same cache folder; the last one counts.
    """

    name: str
    measure: Callable[[Any, Any], list[Check]]
    processes: int = 1
