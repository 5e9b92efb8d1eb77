"""The harness's rows with fresh processes, own makers and checked results."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

PERF = Path(__file__).resolve().parents[2] / "perf"

BENCH_FILE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {perf!r})
from workload import ProcessWorkload, Workload

def wrong(result):
    raise ValueError(f"wrong sum: {{result}}")

def count_starts(jax, jnp):
    path = Path(os.environ["MADE_UP_FOLDER"]) / "count"
    path.parent.mkdir(parents=True, exist_ok=True)
    before = int(path.read_text()) if path.exists() else 0
    path.write_text(str(before + 1))
    return 1e6 * before

def fails(jax, jnp):
    raise RuntimeError("not today")

def make(jax, jnp):
    return lambda: jax.__name__

def make_own(jax, jnp):
    return lambda: "numpy's own"

def check(result):
    if result != "numpy's own":
        raise ValueError(f"wrong name: {{result}}")

CACHE = {{"MADE_UP_FOLDER": "{{cache}}"}}
WORKLOADS = [
    Workload("wrong", lambda jax, jnp: lambda: 3, 1.0, check=wrong),
    Workload("own maker", make, makers={{"numpy": make_own}}, check=check),
    Workload("for JAX only", make, rivals=("jax",)),
]
PROCESS_WORKLOADS = [
    ProcessWorkload("cold", count_starts, 1.0, None, "MB", False, False, CACHE, 2),
    ProcessWorkload("warm", count_starts, {{"numpy": 1.0}}, None, "MB", False, True, CACHE, 2),
    ProcessWorkload("from start", lambda jax, jnp: None, {{"jax": 1}}, None, "ms", True, samples=1),
    ProcessWorkload("fails", fails, 1.0, samples=2),
]
"""


@pytest.fixture
def compare(monkeypatch):
    # perf/ holds scripts, whose folder Python puts on the path when it runs one.
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    before = set(sys.modules)
    yield importlib.import_module("compare")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(PERF)):
            del sys.modules[name]


@pytest.fixture
def bench_file(tmp_path):
    path = tmp_path / "bench_made_up.py"
    path.write_text(BENCH_FILE.format(perf=str(PERF)))
    return path


def test_fresh_processes(compare, bench_file):
    """Cold samples always find an empty folder; warm ones one that was used before."""
    bench = compare.load_file(bench_file, "made_up")
    pythons = {"gpuflow": sys.executable, "numpy": sys.executable}
    rows = {
        r.name: r for r in compare.measure_processes(bench.PROCESS_WORKLOADS, pythons, bench_file)
    }
    assert rows["cold"].samples == {"gpuflow": [0.0, 0.0], "numpy": [0.0, 0.0]}
    assert rows["warm"].samples == {"gpuflow": [1e6, 2e6], "numpy": [1e6, 2e6]}
    assert rows["warm"].limit("numpy") == 1.0 and rows["warm"].limit("jax") is None
    assert rows["warm"].verdict("numpy") == "PASS"
    assert all(0.0 < s[0] < 100.0 for s in rows["from start"].samples.values())
    assert rows["from start"].verdict("numpy") == ""
    assert rows["fails"].verdict("numpy") == "FAILED gpuflow: RuntimeError: not today"
    report = importlib.import_module("report")
    assert report.cell(rows["warm"], "numpy") == "1.5 MB ± 0.5"


def test_wrong_results_fail_their_rows(compare, bench_file, tmp_path):
    child = compare.Child("numpy", sys.executable, bench_file, str(tmp_path))
    with pytest.raises(compare.ChildError, match="ValueError: wrong sum: 3"):
        child.ask("prepare", "wrong")
    child.ask("prepare", "own maker")
    child.close()


def test_rows_are_not_shown_to_rivals_that_do_not_run_them(compare, bench_file):
    bench = compare.load_file(bench_file, "made_up")
    report = importlib.import_module("report")
    item = bench.WORKLOADS[-1]
    row = compare.Row(item.name, item.target, rivals=item.rivals)
    assert not row.takes("numpy") and row.takes("jax") and row.takes("gpuflow")
    text = report.report("made up", [row], [], {}, ["numpy", "jax"], "today")
    assert text.count("for JAX only") == 1 and "| numpy |" not in text


def test_gradients_are_compared_with_differences(compare):
    reference = importlib.import_module("reference")
    models = importlib.import_module("models")
    library = importlib.import_module("numpy_library").numpy_library()
    generator = np.random.default_rng(0)
    params = {"w": generator.standard_normal((3, 4)), "b": generator.standard_normal(4)}
    x, wanted = generator.standard_normal((5, 3)), generator.standard_normal((5, 4))

    def loss(params):
        return float(models.squared_error(library, np, x @ params["w"] + params["b"], wanted))

    error = 2 * (x @ params["w"] + params["b"] - wanted) / wanted.size
    gradients = {"w": x.T @ error, "b": error.sum(0)}
    reference.check_gradients(loss, params, gradients)
    gradients["w"][0, 0] += 0.1
    with pytest.raises(ValueError, match=r"wrong gradient \(3, 4\)"):
        reference.check_gradients(loss, params, gradients)


def test_close_arrays(compare):
    reference = importlib.import_module("reference")
    reference.check_close("sum", [1.0, 2.0], [1.0, 2.1], 0.1)
    for got in ([1.0, 3.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="wrong sum"):
            reference.check_close("sum", got, [1.0, 2.0], 0.1)
    with pytest.raises(ValueError, match=r"shape \(1,\) instead of \(2,\)"):
        reference.check_close("sum", [1.0], [1.0, 2.0], 0.1)
