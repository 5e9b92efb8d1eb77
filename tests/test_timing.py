"""The timing harness: what it waits for, what it reports, what it refuses."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

import gpuflow.timing as timing_module
from gpuflow.timing import (
    Timing,
    block_until_ready,
    format_seconds,
    summarize,
    three_digits,
    timeit,
)


class Pending:
    """A result that is ready once it has been waited for."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.waited = 0

    def block_until_ready(self) -> Pending:
        time.sleep(self.seconds)
        self.waited += 1
        return self


@dataclass
class Pair:
    first: Pending
    second: Pending


def test_waits_for_every_leaf_of_any_tree():
    leaves = [Pending() for _ in range(6)]
    tree = {
        "a": leaves[0],
        "b": [leaves[1], (leaves[2], None, 3.0)],
        "c": Pair(leaves[3], leaves[4]),
    }
    assert block_until_ready(tree) is tree
    block_until_ready(leaves[5])
    assert [leaf.waited for leaf in leaves] == [1] * 6


def test_a_dataclass_type_is_a_leaf():
    assert block_until_ready([Pair]) == [Pair]


def test_times_the_wait_and_not_the_call():
    timing = timeit(lambda: Pending(0.003), runs=3)
    # sleep() never returns early, so this bound has no tolerance.
    assert timing.median >= 0.003
    assert timing.runs == 3


def test_passes_arguments_and_warms_up():
    seen = []
    timing = timeit(lambda x, y: seen.append((x, y)) or time.sleep(1e-3), 1, 2, runs=5)
    assert set(seen) == {(1, 2)}
    assert len(seen) > timing.runs == 5


def test_short_functions_are_timed_in_groups(monkeypatch):
    """By a clock that every call moves on by a microsecond: no sample is shorter than twenty."""
    now = [0.0]

    def call() -> None:
        now[0] += 1e-6

    monkeypatch.setattr(timing_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    timing = timeit(call, runs=3)
    assert timing.median == pytest.approx(1e-6)
    judged = timing_module.WARM_UP_CALLS + 5
    assert round(now[0] / 1e-6) == judged + 3 * 20


def test_number_of_runs_follows_the_time_given():
    timing = timeit(time.sleep, 1e-3, seconds=0.03)
    assert 5 <= timing.runs <= 30


def test_median_and_spread():
    timing = summarize([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.median, timing.spread, timing.runs) == (3.0, 2.0, 5)
    assert summarize([2.0]) == Timing(2.0, 0.0, 1)
    with pytest.raises(ValueError, match=r"\[timeit\] there must be a sample"):
        summarize([])


class Compiled:
    """A function with a plan, as jit makes them."""

    def __init__(self, costs: object) -> None:
        self.costs = costs

    def __call__(self, x: float) -> float:
        return x

    def lower(self, x: float) -> Compiled:
        assert x == 1.0
        return self

    def compile(self) -> Compiled:
        return self

    def cost_analysis(self) -> object:
        if isinstance(self.costs, Exception):
            raise self.costs
        return self.costs


def test_bytes_and_flops_come_from_the_plan():
    timing = timeit(Compiled({"bytes accessed": 8.0, "flops": 2.0}), 1.0, runs=2)
    assert (timing.bytes, timing.flops) == (8.0, 2.0)
    assert "GB/s" in str(timing) and "GFLOP/s" in str(timing)


@pytest.mark.parametrize("costs", [None, [], {}, RuntimeError("no plan")], ids=repr)
def test_a_function_without_costs_is_timed_all_the_same(costs):
    timing = timeit(Compiled(costs), 1.0, runs=2)
    assert (timing.bytes, timing.flops) == (None, None)
    assert "GB/s" not in str(timing)


def test_text():
    assert str(Timing(1.5e-3, 2e-5, 7)) == "1.5 ms ± 20 us (7 runs)"
    assert repr(Timing(1.5e-3, 2e-5, 7)) == "Timing(1.5 ms ± 20 us (7 runs))"
    assert str(Timing(2e-3, 0.0, 1, bytes=4e6)) == "2 ms ± 0 ns (1 runs), 2 GB/s"
    texts = [format_seconds(s) for s in (2.0, 0.25, 1e-3, 2.5e-6, 3e-8)]
    assert texts == ["2 s", "250 ms", "1 ms", "2.5 us", "30 ns"]


def test_no_text_has_an_exponent():
    """A table showed 2.87e-05 GB/s, and 1e+03 us where 1 ms is next."""
    texts = [format_seconds(s) for s in (0.9996e-3, 0.99996, 12345.6, 4e-14, 0.0)]
    assert texts == ["1 ms", "1 s", "12,346 s", "<0.001 ns", "0 ns"]
    numbers = [three_digits(x) for x in (2.87e-5, 1.234e-3, 0.0, 1.25, 999.7, 989_400.0)]
    assert numbers == ["<0.001", "0.00123", "0", "1.25", "1,000", "989,400"]
    for power in range(-20, 16):
        for digits in (1.0, 1.2345, 9.9949, 9.9951, 9.99999):
            value = digits * 10.0**power
            assert "e" not in format_seconds(value) + three_digits(value)
            assert "e" not in str(Timing(value, value, 1, bytes=1.0, flops=1e9)).replace("±", "")


def test_errors():
    with pytest.raises(TypeError, match=r"first argument must be a function; got float.*timeit\(f"):
        timeit(1.0)
    with pytest.raises(ValueError, match="runs must be at least 1; got 0"):
        timeit(len, [], runs=0)
    for seconds in (float("inf"), float("nan"), -1):
        with pytest.raises(ValueError, match=rf"\[timeit\] seconds must be finite.*{seconds}.*Fix"):
            timeit(len, [], seconds=seconds)
