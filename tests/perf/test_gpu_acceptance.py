"""The acceptance script for GPUs: its structure, without running what it measures."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

PERF = Path(__file__).resolve().parents[2] / "perf"
HANGS = """
import time
print('{"row": "a"}', flush=True)
print('{bad', flush=True)
time.sleep(60)
"""


@pytest.fixture
def modules(monkeypatch):
    """The script's modules, as it finds them itself."""
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    import gpu_acceptance
    import gpu_report
    import gpu_rows

    yield gpu_acceptance, gpu_report, gpu_rows
    for name in ("gpu_acceptance", "gpu_report", "gpu_rows", "gpu_models"):
        sys.modules.pop(name, None)


def test_sections_fit_their_limits_and_begin_with_what_tells_most(modules):
    acceptance, _, _ = modules
    names = [section.name for section in acceptance.sections("cuda", False, 8)]
    first = ["doctor", "programs", "op sweep", "demo", "ceilings", "tests", "times: gpuflow"]
    assert names[: len(first)] == first
    tiny = acceptance.sections("cuda_sim", True, 1)
    assert not any("demo" in section.name or "jax" in section.name for section in tiny)
    assert acceptance.marked_files() and "test_cuda_device" in "".join(acceptance.marked_files())


def test_a_section_that_hangs_or_fails_leaves_what_it_printed(modules, tmp_path):
    acceptance, _, _ = modules
    code = HANGS
    hung = acceptance.run(acceptance.Section("hangs", ["-c", code], 3), 100, tmp_path)
    assert hung["status"] is None and hung["records"] == [{"row": "a"}]
    code = "import sys; print('no'); sys.exit(3)"
    failed = acceptance.run(acceptance.Section("fails", ["-c", code], 30), 100, tmp_path)
    assert failed["status"] == 3 and failed["tail"] == "no\n"


def test_the_report_of_a_run_with_gaps(modules):
    _, report, rows = modules
    row = next(row for row in rows.all_rows() if row.name == "chain float32")
    ours = {"row": row.name, "seconds": 1e-3, "size": row.full, "check": [1.0, 2.0]}
    theirs = {"row": row.name, "seconds": 2e-3, "size": row.full, "check": [1.0, 2.5]}
    sections = [
        {"name": "programs", "status": 1, "seconds": 1.0, "records": [
            {"program": "rows", "passed": True, "cpu": {"difference": 1e-7, "bits_equal": False}},
            {"program": "full", "passed": False, "error": "a | b"},
            {"host_calls": {"sort(f2)": "TypeError"}},
        ]},
        {"name": "ceilings", "status": 0, "seconds": 1.0, "records": [
            {"ceiling": "copy", "bytes": 8, "per_second": 4.0e12}, {"ceiling": "x", "error": "no"},
        ]},
        {"name": "times: gpuflow", "status": None, "seconds": 1.0, "records": [
            {"row": "version", "version": "1"}, ours, {"row": "full sum", "error": "boom"},
        ]},
        {"name": "times: jax", "status": 0, "seconds": 1.0, "records": [theirs]},
    ]  # fmt: skip
    text = report.markdown(
        {"date": "today", "platform": "cuda", "tiny": False, "sections": sections}
    )
    assert "| copy | 4000.0 GB/s |" in text and "killed at its limit" in text
    assert "2.000 ms (0.50x) RESULTS DIFFER" in text and "failed: boom" in text
    share = 2 * 4 * row.full / 1e-3 / 4.0e12
    assert f"({100 * share:.0f} % of a copy)" in text and "FAILED a / b" in text


def test_rows_make_their_inputs(modules):
    _, _, rows = modules
    found = rows.all_rows()
    assert len({row.name for row in found}) == len(found) > 20
    for row in found:
        made = row.inputs(np.random.default_rng(0), row.tiny)
        assert all(isinstance(array, np.ndarray) for array, _ in made)
        assert json.dumps([list(array.shape) for array, _ in made])
