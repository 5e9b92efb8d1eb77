"""The bench of loops at small sizes: references agree with gpuflow, and refuse what is wrong."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as gnp

PERF = Path(__file__).resolve().parents[2] / "perf"
MODULES = (
    "bench_loops",
    "loops_bodies",
    "loops_lanes",
    "loops_steps",
    "ode",
    "reference",
    "report",
    "workload",
)


@pytest.fixture
def load(monkeypatch):
    """Imports a script of perf/ by its name."""
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


SMALL = {
    "mandelbrot": lambda lanes, steps: lanes.mandelbrot_row(24),
    "fori_loop": lambda lanes, steps: lanes.rk4_row(20, 30, by_scan=False),
    "scan": lambda lanes, steps: lanes.rk4_row(20, 30, by_scan=True),
    "adaptive": lambda lanes, steps: lanes.adaptive_row(20, 0.02),
    "newton": lambda lanes, steps: lanes.newton_row(50, 20),
    "gradient": lambda lanes, steps: lanes.gradient_row(5, 6),
    "envelope": lambda lanes, steps: lanes.envelope_row(4, 30),
    "logistic": lambda lanes, steps: steps.logistic_row(50),
    "leapfrog": lambda lanes, steps: steps.leapfrog_row(20),
    "updates": lambda lanes, steps: steps.updates_row(100, 30),
}


@pytest.mark.parametrize("name", SMALL)
def test_results_are_compared(load, name):
    check_row(SMALL[name](load("loops_lanes"), load("loops_steps")))


@pytest.mark.parametrize("number", range(8))
def test_results_of_bodies_are_compared(load, number):
    check_row(load("loops_bodies").ROWS[number])


def check_row(row):
    """The program's result is right, and each of its parts is looked at."""
    result = gpuflow.tree.map(np.asarray, row.make(gpuflow, gnp)())
    row.check(result)
    leaves, treedef = gpuflow.tree.flatten(result)
    for k, leaf in enumerate(leaves):
        # Counts may be off by one step, and a few of the points by any number of them.
        wrong = leaf * 3 + 7 if leaf.dtype.kind == "i" else leaf * np.float32(1.01)
        spoiled = gpuflow.tree.unflatten(treedef, [*leaves[:k], wrong, *leaves[k + 1 :]])
        with pytest.raises(ValueError, match="wrong"):
            row.check(spoiled)


def test_all_rows_have_limits(load):
    bench = load("bench_loops")
    limits = [row.target["jax"] for row in bench.WORKLOADS]
    assert limits == [0.08, 0.08, 0.08, 0.05, 0.05, 0.2, 0.2, 0.5, 0.5, 0.5, 1.1,
                      0.5, 0.5, 1.5, 1.0, 1.1, 1.0, 1.1, 0.5]  # fmt: skip
    assert all(row.rivals == ("jax",) and row.check for row in bench.WORKLOADS)
    assert len({item.name for item in [*bench.WORKLOADS, *bench.CHECKS]}) == 21


def test_the_same_loop_in_c(load, tmp_path):
    steps, report = load("loops_steps"), load("report")
    try:
        steps.c_logistic(str(tmp_path))
    except steps.NoCompiler as error:
        pytest.skip(str(error))
    (check,) = steps.beside_c(1000).measure(gpuflow, gnp)
    assert check.measured > 0 and check.target == 1.2 and not check.skipped
    assert report.check_verdict(vars(check)) in ("PASS", "MISS")


def test_without_a_compiler_the_comparison_is_skipped(load, monkeypatch):
    steps, report = load("loops_steps"), load("report")
    monkeypatch.setattr(steps.shutil, "which", lambda name: None)
    (check,) = steps.beside_c(1000).measure(gpuflow, gnp)
    assert math.isnan(check.measured)
    assert report.check_verdict(vars(check)) == "skipped: no cc"
    assert report.check_line(vars(check)).endswith("| - | 1.2 x | skipped: no cc |")
