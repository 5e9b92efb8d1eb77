"""What a benchmark file defines: workloads for every framework, checks for gpuflow alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# The largest allowed ratio of gpuflow's time to a rival's: for every rival, or for those named.
Target = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Workload:
    """One row of a comparison.

    Attributes:
        name: the row's label.
        make: from (jax-like module, numpy-like module) to a function of no arguments that does
            the work once and returns what has to be waited for. Written once for all frameworks.
        target: the largest allowed ratio.
        rivals: who can run it; None: everybody.
        makers: `make` for frameworks that need their own; PyTorch is given as both modules.
        check: raises ValueError if the first result is wrong.
        compared: from (jax-like module, result) to what all frameworks have to agree on.
    """

    name: str
    make: Callable[[Any, Any], Callable[[], Any]]
    target: Target = None
    rivals: tuple[str, ...] | None = None
    makers: Mapping[str, Callable[[Any, Any], Callable[[], Any]]] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    compared: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class ProcessWorkload:
    """One row of a comparison that needs a fresh process for every sample.

    Attributes:
        name: the row's label.
        measure: from (jax-like module, numpy-like module) to the figure in base units: seconds or
            bytes. What it returns is ignored if the parent process takes the time.
        target: the largest allowed ratio.
        rivals: who can run it; None: everybody.
        unit: what the table shows: "ms" or "MB".
        from_start: the figure is the time from the start of the interpreter to the answer.
        warm: an earlier process has filled the cache folder; otherwise it is empty.
        environment: further variables; `{cache}` stands for the cache folder.
        samples: processes per framework.
    """

    name: str
    measure: Callable[[Any, Any], float | None]
    target: Target = None
    rivals: tuple[str, ...] | None = None
    unit: str = "ms"
    from_start: bool = False
    warm: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    samples: int = 5


@dataclass(frozen=True)
class Check:
    """One measured property of gpuflow: `measured` must be at most `target`.

    `skipped` says why it was not measured here, which is no failure; empty where it was.
    """

    name: str
    target: float
    measured: float
    unit: str = ""
    note: str = ""
    skipped: str = ""


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
