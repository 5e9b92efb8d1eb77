"""perf/house.py counts what is there, and a cold call passes the forms that it knows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "perf"))

import house
from house_child import times_back

ROOT = house.HERE.parent
MADE_UP = {
    "gpuflow/core/lowering/steps.py": "class Library:\n    pass\n",
    "gpuflow/compiler/__init__.py": "",
    "gpuflow/compiler/cpu_made_up.py": (
        '"""Two\nlines."""\n\n# Why.\nfound = own = 1  # code\n'
        "def f(rule) -> Any:\n    return isinstance(rule, int | lowering.Library)\n"
    ),
    "gpuflow/compiler/cache/disk.py": 'memoized(kernel, ("turned", 1), make)\n',
    "gpuflow/runtime/disk.py": "memoized(kernel, make, make)\nisinstance(x, int)\n",
    "gpuflow/targets/cpu/runtime/native/pool.ll": "; made\n",
    "gpuflow/targets/cpu/printer.py": "",
    "gpuflow/targets/cuda/printer.py": "",
    "gpuflow/compiler/disk.py": "",
    "gpuflow/numpy/linalg.py": "",
    "gpuflow/lax/linalg.py": "",
}


@pytest.fixture
def source(tmp_path):
    for name, text in MADE_UP.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return house.read_source(tmp_path)


def test_lines_are_counted_by_kind(source):
    assert source.lines == {"code": 8, "docstrings": 2, "comments": 1, "blank": 1, "LLVM": 1}


def test_names_and_keys_are_counted(source):
    assert source.empty_names == {"found": 1, "own": 1}
    assert source.returns_any == ["gpuflow/compiler/cpu_made_up.py:6 f"]
    assert source.text_keys == ["gpuflow/compiler/cache/disk.py:1"]
    assert source.lowering_checks == {"gpuflow/compiler/cpu_made_up.py": 1}


def test_rooms_and_names_of_files_are_compared(source):
    assert source.rooms["gpuflow/compiler"] == 3 and not source.full_rooms
    assert source.prefixed == ["gpuflow/compiler/cpu_made_up.py"]
    # Printers of two targets are the same thing twice, and names of the surface are JAX's.
    assert sorted(source.twins) == [
        "disk.py: gpuflow/compiler, gpuflow/runtime",
        "disk.py: gpuflow/compiler/cache, gpuflow/compiler",
    ]


def test_a_cold_call_passes_all_forms():
    """A form that is gone leaves house.FORMS; one whose maker was renamed gets the new name."""
    calls = house.Calls(house.measured(ROOT, "passed"), [3.0, 1.0, 2.0], [1.0], [2.0])
    assert calls.forms == list(house.FORMS)
    assert calls.passed["functions"] > calls.passed["files"] > calls.passed["rooms"] > 1
    assert house.call_rows(calls)["ms of that call, median (least)"] == "2 (1)"


def test_binding_is_timed():
    costs = house.measured(ROOT, "binding")
    assert 0 < costs["again"] <= costs["new"] < 1e4


def test_each_tree_has_a_column():
    text = house.table(["before", "after"], [{"files": "2"}, {"files": "1"}])
    assert text.splitlines() == ["| | before | after |", "| --- | --- | --- |", "| files | 2 | 1 |"]


def test_times_back_counts_returns_only():
    assert times_back([]) == 0 and times_back("aabbc") == 0
    assert times_back("abab") == 2 and times_back("abcb") == 1
