"""The sweep beside JAX: its table is complete, its cells run, and what is wrong or slow is said."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

PERF = Path(__file__).resolve().parents[2] / "perf"
MODULES = ("cells", "operands", "report", "values")


@pytest.fixture
def perf(monkeypatch):
    """The sweep's modules by their names without ``sweep_``, as it finds them itself."""
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    before = set(sys.modules)
    named = {name: importlib.import_module(f"sweep_{name}") for name in MODULES}
    yield types.SimpleNamespace(sweep=importlib.import_module("sweep"), **named)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(PERF)):
            del sys.modules[name]


@pytest.fixture
def children(perf, tmp_path):
    """Two processes of gpuflow, one of which stands for JAX."""
    compare = importlib.import_module("compare")
    started = [
        compare.Child("gpuflow", sys.executable, perf.sweep.BENCH_FILE, str(tmp_path))
        for _ in range(2)
    ]
    started[1].framework = "jax"
    yield started
    for child in started:
        child.close()


def test_every_public_function_is_timed_or_has_a_reason(perf):
    functions = perf.cells.public_functions()
    assert perf.cells.unlisted(functions) == []
    assert perf.cells.unlisted({"lax.made_up": ["lax.made_up", "lax.other"]}) == ["lax.made_up"]
    assert perf.cells.unlisted({"lax.made_up": ["lax.made_up", "lax.sin"]}) == []


def test_cells_are_about_functions_that_are_there(perf):
    names = {name for group in perf.cells.public_functions().values() for name in group}
    assert {cell.function for cell in perf.cells.CELLS} <= names
    assert len({cell.name for cell in perf.cells.CELLS}) == len(perf.cells.CELLS)
    untimed = " ".join(importlib.import_module("sweep_further_calls").NOT_TIMED.values()).split()
    assert set(untimed) <= names


CHOSEN = [
    "jit jnp.matmul(rows, square) n=100 float32",
    "eager jnp.where(bools, x, y) n=10000 bool",
    "eager jnp.sum(rows, axis=1) n=10000 transposed",
    "grad lax.sort(x) n=10000 float32",
    "grad lax.top_k(x, 10) n=10000 float32",
    "eager linalg.qr(tall) n=100 float32",
    "jit random.key(7) n=100 float32",
    "eager jnp.unique(ints) n=100 float32",
]


def test_cells_are_built_compared_and_timed(perf, children):
    cells = {cell.name: cell for cell in perf.cells.CELLS}
    for name in CHOSEN:
        outcome = perf.sweep.measure(cells[name], children, rounds=1, limit=100.0)
        assert outcome.failures == {} and outcome.wrong == "", outcome
        assert all(0 < seconds < 10 for seconds in outcome.clock.values())
        assert set(outcome.clock) == set(outcome.processors) == {"gpuflow", "jax"}
        assert min(outcome.ratios()) > 0 and perf.report.Outcome(**vars(outcome)) == outcome


def test_layouts_are_views_of_the_same_shape_in_the_program(perf):
    """Each layout gives the function what it would have been given, in its own order in memory."""
    gpuflow = importlib.import_module("gpuflow")
    section = perf.operands.Section("jnp.sum(rows, axis=1)", variants=("transposed", "strided"))
    for variant, stored in (("transposed", (100, 100)), ("strided", (100, 200))):
        cell = perf.cells.Cell(section, "jnp.sum(rows, axis=1)", "eager", 10_000, variant)
        operand = perf.operands.operand("rows", 10_000, variant)
        assert operand.shape == stored and operand.dtype == np.float32
        view = operand.T if variant == "transposed" else operand[:, ::2]
        expected = view.astype(np.float64).sum(axis=1)
        np.testing.assert_allclose(cell.make(gpuflow, gpuflow.numpy)(), expected, atol=1e-4)


def test_an_answer_that_does_not_come_ends_the_process(perf, children):
    cell = perf.cells.CELLS[0]
    outcome = perf.sweep.measure(cell, children[:1], rounds=1, limit=0.001)
    assert outcome.failures == {"gpuflow": "no answer within 0.001 s"}
    assert children[0].dead and not children[1].dead


def test_results_that_differ(perf):
    differ = perf.values.array_difference
    ones = np.ones(5, np.float32)
    assert differ(ones, ones * np.float32(1 + 1e-6), "float32") == ""
    assert differ(ones, np.array([1, 1, 1.01, 1, 1], np.float32), "float32").startswith("1 of 5")
    assert differ(ones, np.array([1, np.nan, 1, 1, 1], np.float32), "float32").startswith("1 of 5")
    assert differ(ones * np.nan, ones * np.nan, "float32") == ""
    assert differ(ones * np.inf, -ones * np.inf, "float32").startswith("5 of 5 differ, at (0,)")
    assert differ(ones, ones[:4], "float32") == "shape (5,), not (4,)"
    assert differ(np.arange(3), np.array([0, 1, 3]), "int32").endswith("at (2,): 2, not 3")
    half = np.ones(5, ml_dtypes.bfloat16).astype(np.float32)
    assert differ(half, half * np.float32(1.01), "bfloat16") == ""
    assert differ(half, half * np.float32(1.2), "bfloat16")


def outcome(perf, name, ours, **further):
    made = perf.report.Outcome(f"eager {name}", name, "eager", 100, "float32", **further)
    for framework, seconds in (("gpuflow", ours), ("jax", 1.0)):
        made.add(framework, (2 * seconds, seconds))
        made.add(framework, (3 * seconds, seconds))
    return made


def test_what_was_above_the_limit_is_timed_again(perf, tmp_path):
    path = tmp_path / "results.jsonl"
    slow, fast = outcome(perf, "jnp.f(x)", 3.0), outcome(perf, "jnp.g(x)", 0.5)
    failed = outcome(perf, "jnp.h(x)", 0.5, failures={"jax": "it is made up"})
    later = outcome(perf, "jnp.f(x)", 1.0)
    later.add("jax", (0.5, 0.8))
    lines = [{"commit": "made up"}, *map(vars, (slow, fast, failed))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = perf.sweep.stored_outcomes(path)
    for is_again, wanted in ((True, "fh"), (False, "")):
        options = types.SimpleNamespace(again=is_again, threads=1)
        names = [
            name for name in "fgh" if perf.sweep.is_wanted(known[f"eager jnp.{name}(x)"], options)
        ]
        assert "".join(names) == wanted and perf.sweep.is_wanted(None, options) != is_again
    with path.open("a") as file:
        file.write(json.dumps(vars(later)) + "\n")
    again = perf.sweep.stored_outcomes(path)["eager jnp.f(x)"]
    assert again.processors == {"gpuflow": 1.0, "jax": 0.8}
    assert again.clock == {"gpuflow": 2.0, "jax": 0.5}


def test_report(perf, monkeypatch):
    good = [outcome(perf, f"jnp.f{k}(x)", 0.5) for k in range(98)]
    slow, wrong = outcome(perf, "jnp.g(x)", 3.0), outcome(perf, "jnp.h(x)", 0.4, wrong="all")
    assert slow.clock == {"gpuflow": 6.0, "jax": 2.0} and slow.ratio(1) == slow.ratio(2) == 3.0
    assert perf.report.misses([*good, wrong], 1) == ["1 cells: wrong"]
    assert perf.report.misses([*good, slow], 1) == ["1 cells are above 2 without a reason"]
    shares = perf.report.misses([*good[:9], outcome(perf, "jnp.g(x)", 1.5)], 1)
    assert shares == ["10.0 % of cells are above 1.1; at most 2 %"]
    monkeypatch.setitem(perf.report.REASONS, "eager jnp.g(x)", "it is made up")
    text = perf.report.report_text([*good, slow, wrong], 100, ["lax.made_up"], 1)
    assert "| eager | 100 | 0.51 | 99.0 % | 0.0 % | 0.0 % | 0.0 % | 1.0 % | 3.00 |" in text
    assert "3.00 (clock 3.00; 6e+06 us, jax 2e+06 us) eager jnp.g(x) because it is made up" in text
    assert "eager jnp.h(x) WRONG all" in text and "MISS 1 cells: wrong" in text
    assert "neither timed nor under a reason: lax.made_up" in text
    assert perf.report.misses([outcome(perf, "jnp.f(x)", 0.7)], 1) == [
        "eager calls: mean 0.70; at most 0.6"
    ]
