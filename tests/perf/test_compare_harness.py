"""The side-by-side harness, on a made-up benchmark with plain NumPy as the rival."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).resolve().parents[2] / "perf"

BENCH_FILE = """
import os, sys
sys.path.insert(0, {perf!r})
from workload import Check, CheckGroup, Workload

def quick(jax, jnp):
    print("noise on stdout must not disturb the answers")
    assert "OPENBLAS_CORETYPE" not in os.environ
    return lambda: 1

def dies(jax, jnp):
    sys.stderr.write("last words\\n")
    sys.stderr.flush()
    os._exit(3)

def only_numpy(jax, jnp):
    if jax.__name__ == "numpy":
        return lambda: 1
    raise RuntimeError("not here")

def only_ours(jax, jnp):
    if jax.__name__ != "numpy":
        return lambda: 1
    raise RuntimeError("rival cannot\\nsecond line")

WORKLOADS = [
    Workload("quick", quick, 1000.0),
    Workload("too slow", quick, 1e-9),
    Workload("without target", quick),
    Workload("only numpy", only_numpy, 1.0),
    Workload("only ours", only_ours, 1.0),
]
DYING = Workload("dies", dies, 1.0)

def counts(jax, jnp):
    path = os.path.join(os.environ["GPUFLOW_CACHE_DIR"], "count")
    before = int(open(path).read()) if os.path.exists(path) else 0
    open(path, "w").write(str(before + 1))
    return [Check("runs before", 1, before), Check("too many", 0, 2.5, "ms", "a note")]

def breaks(jax, jnp):
    raise RuntimeError("broken")

CHECKS = [CheckGroup("counts", counts, processes=2), CheckGroup("breaks", breaks)]
"""


@pytest.fixture
def compare(monkeypatch):
    # perf/ holds scripts, whose folder Python puts on the path when it runs one.
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    module = importlib.import_module("compare")
    yield module
    for name in ("compare", "child", "workload"):
        sys.modules.pop(name, None)


@pytest.fixture
def bench_file(tmp_path):
    path = tmp_path / "bench_made_up.py"
    path.write_text(BENCH_FILE.format(perf=str(PERF)))
    return path


@pytest.fixture
def output(compare, bench_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setattr(sys.modules["child"], "SAMPLE_SECONDS", 0.001)
    folder = tmp_path / "results"
    arguments = [str(bench_file), "--rivals", "numpy", "--rounds", "2", "--restarts", "1"]
    status = compare.main([*arguments, "--results", str(folder)])
    printed = capsys.readouterr().out
    (stored,) = folder.iterdir()
    assert stored.name.startswith("made_up-") and stored.read_text() == printed
    return status, printed


def lines_of(text: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in rows}


def test_whole_run(output):
    status, text = output
    assert status == 1
    rows = lines_of(text)
    assert rows["quick"][-1] == "PASS" and "ms ±" in rows["quick"][0]
    assert rows["too slow"][-1] == "MISS"
    assert rows["without target"][-1] == "-"  # and no verdict behind it
    assert rows["only numpy"][-1] == "FAILED gpuflow: RuntimeError: not here"
    assert rows["only ours"][-1] == "FAILED numpy: RuntimeError: rival cannot"
    assert rows["only ours"][1] == "FAILED"
    assert rows["runs before"] == ["1", "1", "PASS"]
    assert rows["too many"] == ["2.5 ms (a note)", "0 ms", "MISS"]
    assert rows["breaks"][-1] == "FAILED RuntimeError: broken"
    for word in ("processor", "cores", "commit", "numpy", "gpuflow"):
        assert word in text


def test_a_process_that_dies_fails_its_rows(compare, bench_file, tmp_path):
    bench_file.write_text(bench_file.read_text() + "\nWORKLOADS = [DYING, WORKLOADS[0]]\n")
    child = compare.Child("numpy", sys.executable, bench_file, str(tmp_path))
    with pytest.raises(compare.ChildError, match="ended with status 3: last words"):
        child.ask("prepare", "dies")
    with pytest.raises(compare.ChildError, match="ended with status 3"):
        child.ask("prepare", "quick")
    child.close()


def test_an_interpreter_that_is_not_there(compare, bench_file, tmp_path):
    child = compare.Child("jax", str(tmp_path / "no-python"), bench_file, str(tmp_path))
    with pytest.raises(compare.ChildError, match="could not start jax: No such file"):
        child.ask("hello")
    child.close()


def test_a_framework_that_is_not_there(compare, bench_file, tmp_path):
    child = compare.Child("no_such_framework", sys.executable, bench_file, str(tmp_path))
    with pytest.raises(compare.ChildError, match="ModuleNotFoundError"):
        child.ask("hello")
    child.close()


def test_unknown_request(compare, bench_file, tmp_path):
    child = compare.Child("numpy", sys.executable, bench_file, str(tmp_path))
    with pytest.raises(compare.ChildError, match="unknown request 'fly'"):
        child.ask("fly")
    child.close()


class ScriptedChild:
    """Answers with given figures, and writes down the order in which it was asked."""

    def __init__(self, framework, seconds, journal):
        self.framework, self.seconds, self.journal = framework, iter(seconds), journal

    def ask(self, kind, name=""):
        self.journal.append((kind, self.framework))
        return next(self.seconds) if kind == "run" else 0.0


def test_rounds_are_interleaved_and_ratios_are_by_round(compare):
    journal: list[tuple[str, str]] = []
    children = {
        "gpuflow": ScriptedChild("gpuflow", [1.0, 2.0, 3.0], journal),
        "numpy": ScriptedChild("numpy", [2.0, 2.0, 2.0], journal),
    }
    row = compare.Row("made up", 1.0)
    compare.measure_row(row, children, 3)
    order = [framework for kind, framework in journal if kind == "run"]
    assert order == ["gpuflow", "numpy", "numpy", "gpuflow", "gpuflow", "numpy"]
    assert row.ratios("numpy") == [0.5, 1.0, 1.5]
    assert statistics.median(row.ratios("numpy")) == 1.0
    assert row.verdict("numpy") == "PASS"
    assert compare.Row("made up", 0.9, row.samples).verdict("numpy") == "MISS"


def test_a_failure_in_a_late_round_fails_the_row(compare):
    row = compare.Row("made up", 1.0, {"gpuflow": [1.0], "numpy": [1.0, 1.0]}, {"gpuflow": "died"})
    assert row.verdict("numpy") == "FAILED gpuflow: died"
    assert row.ratios("numpy") == []


def test_requests_are_single_json_lines(compare, bench_file, tmp_path):
    """A name with a newline must not become two requests."""
    assert "\n" not in json.dumps({"kind": "run", "name": "a\nb"})
    child = compare.Child("numpy", sys.executable, bench_file, str(tmp_path))
    with pytest.raises(compare.ChildError, match="KeyError"):
        child.ask("prepare", "a\nb")
    assert child.ask("hello")["framework"] == "numpy"
    child.close()


def test_slice_benchmark_states_the_sizes_it_promises(compare):
    bench = compare.load_file(PERF / "bench_slice.py", "bench_slice_under_test")
    sizes = bench.batch_sizes()
    assert len(sizes) == len(set(sizes)) == 50
    assert {1, 2, 17} <= set(sizes)
    assert sizes == bench.batch_sizes() and sizes != sorted(sizes)
