"""The planted faults still fit the tree: each text occurs once, and tests are where they were."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

PERF = Path(__file__).resolve().parents[2] / "perf"
if not (PERF.parent / "gpuflow").is_dir():
    pytest.skip("no checkout", allow_module_level=True)
sys.path.insert(0, str(PERF))
try:
    planted_faults = importlib.import_module("planted_faults")
finally:
    sys.path.remove(str(PERF))

FAULTS = planted_faults.FAULTS


def test_twenty_faults_over_all_parts():
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 20
    assert {fault.area for fault in FAULTS} == {
        "ops",
        "derivatives",
        "batching",
        "random",
        "collectives",
        "fusion",
        "schedules",
        "CPU emitters",
        "CUDA emitters",
        "runtime",
        "checkpoints",
        "as_jax",
    }


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_text(fault):
    text = (planted_faults.ROOT / fault.path).read_text()
    assert text.count(fault.old) == 1, f"{fault.path} has changed: write the fault again"
    changed = ast.parse(text.replace(fault.old, fault.new))
    assert ast.dump(changed) != ast.dump(ast.parse(text))
    assert all((planted_faults.ROOT / test).exists() for test in fault.tests)


def test_the_sample_of_a_simulated_gpu_is_of_folders():
    fault = FAULTS[0]
    named = planted_faults.Fault(
        "",
        "",
        fault.path,
        fault.old,
        fault.new,
        ("tests/ops/test_sorting.py", "tests/ops", "tests/test_random.py"),
    )
    assert named.folders == ["tests/ops", "tests/test_random.py"]


def test_the_table_counts_what_was_found():
    outcomes = [
        planted_faults.Outcome(FAULTS[0], "tests/a.py::test_b", "default", 3.2),
        planted_faults.Outcome(FAULTS[1], None, "both", 70.0),
    ]
    lines = list(planted_faults.table(outcomes))
    assert lines[2] == "| argmax of zeros | ops | yes | `tests/a.py::test_b` | default | 3 |"
    assert lines[3] == "| cummax of ties | derivatives | **no** |  | both | 70 |"
    assert lines[-1] == "1 of 2 found"
