"""Timing of functions that return before their work is done.

Standard library only: the benchmarks load this very file together with a rival framework, so that
both sides are measured by the same code.

Tests: tests/test_timing.py.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpuflow.core.argument_kinds import explained

WARM_UP_CALLS = 2
MINIMUM_RUNS = 5
MAXIMUM_RUNS = 1000
# A sample shorter than this is made of several calls, for the clock itself costs some 50 ns.
MIN_SAMPLE = 20e-6


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call; bytes and FLOPs per call where the plan of the function is known."""

    median: float
    spread: float
    runs: int
    bytes: float | None = None
    flops: float | None = None

    def __repr__(self) -> str:
        return f"Timing({self})"

    def __str__(self) -> str:
        text = f"{format_seconds(self.median)} ± {format_seconds(self.spread)} ({self.runs} runs)"
        if self.bytes is not None and self.median > 0:
            text += f", {three_digits(self.bytes / self.median / 1e9)} GB/s"
        if self.flops is not None and self.median > 0:
            text += f", {three_digits(self.flops / self.median / 1e9)} GFLOP/s"
        return text


def three_digits(value: float) -> str:
    """A number of at least 0 without an exponent: ``0.0123``, ``1.25``, ``12,346``, ``<0.001``."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def format_seconds(seconds: float) -> str:
    """Three digits and the unit that fits: `1.25 ms`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * scale:  # less would show as 1,000 of the next
            return f"{three_digits(seconds / scale)} {unit}"
    return f"{three_digits(seconds / 1e-9)} ns"


def block_until_ready(tree: Any) -> Any:
    """Waits for every leaf of `tree` that can be waited for, of whatever framework; returns it."""
    for leaf in _leaves(tree):
        wait = getattr(leaf, "block_until_ready", None)
        if callable(wait):
            wait()
    return tree


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        children = list(tree.values())
    elif isinstance(tree, (list, tuple)):
        children = list(tree)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        if hasattr(tree, "block_until_ready"):
            children = None
        else:
            children = [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    else:
        children = None
    if children is None:
        yield tree
        return
    for child in children:
        yield from _leaves(child)


def summarize(
    samples: list[float], bytes: float | None = None, flops: float | None = None
) -> Timing:
    """Median and interquartile range of `samples`, in seconds.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("[timeit] there must be a sample; got none. Fix: measure at least once.")
    if len(samples) == 1:
        return Timing(samples[0], 0.0, 1, bytes, flops)
    low, middle, high = map(float, np.quantile(samples, (0.25, 0.5, 0.75)))
    return Timing(middle, high - low, len(samples), bytes, flops)


def plan_costs(function: Any, args: tuple[Any, ...]) -> dict[str, float]:
    """`cost_analysis()` of the compiled function (`flops`, `bytes accessed`); empty if unknown.

    A function without a plan is timed all the same, so nothing that goes wrong here is an error.
    """
    if not hasattr(function, "lower"):
        return {}
    try:
        costs = function.lower(*args).compile().cost_analysis()
    except Exception:
        return {}
    return costs if isinstance(costs, dict) else {}


@explained
def timeit(
    function: Callable[..., Any],
    *args: Any,
    runs: int | None = None,
    seconds: float = 0.5,
) -> Timing:
    """Time `function(*args)` until its results are ready, after a warm-up.

    Do not pass arguments that the function donates: they can be used once. Instead, time a function
    without arguments that keeps its state.

    Args:
        function: the function to time; a jitted one also reports bytes and FLOPs of its plan.
        *args: arguments of the function.
        runs: number of samples; by default as many as fit into `seconds`, 5 to 1000.
        seconds: approximate duration of the measurement, in seconds.

    Returns:
        Timing: median and interquartile range in seconds per call.

    Raises:
        TypeError: if `function` is not callable.
        ValueError: if `runs` is less than 1, or `seconds` is negative or not finite.

    Example:
        >>> timing = gf.timeit(gf.jit(lambda x: x + 1), jnp.ones(3), runs=5, seconds=0.01)
        >>> timing.runs
        5
    """
    if not callable(function):
        raise TypeError(
            f"[timeit] the first argument must be a function; got {type(function).__name__}. "
            "Fix: timeit(f, x), not timeit(f(x))."
        )
    if runs is not None and runs < 1:
        raise ValueError(f"[timeit] runs must be at least 1; got {runs}. Fix: leave it out.")
    if not 0 <= seconds < math.inf:
        raise ValueError(
            f"[timeit] seconds must be finite and at least 0; got {seconds}. Fix: seconds=0.5."
        )

    for _ in range(WARM_UP_CALLS):
        block_until_ready(function(*args))
    estimate = max(_sample(function, args, 1), 1e-9)
    if estimate < MIN_SAMPLE * 100:
        # One pause of the machine must not make a short function look long.
        estimate = max(min(estimate, *[_sample(function, args, 1) for _ in range(4)]), 1e-9)
    calls = max(1, round(MIN_SAMPLE / estimate))
    if runs is None:
        requested = int(seconds / (estimate * calls))
        runs = min(max(requested, MINIMUM_RUNS), MAXIMUM_RUNS)
    samples = [_sample(function, args, calls) for _ in range(runs)]
    costs = plan_costs(function, args)
    return summarize(samples, costs.get("bytes accessed"), costs.get("flops"))


def _sample(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        block_until_ready(function(*args))
    return (time.perf_counter() - start) / calls
