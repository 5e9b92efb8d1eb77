"""Unmodified libraries on top of JAX find under gpuflow.as_jax what they find on JAX.

Each runs in a process of its own. Those that are not installed are skipped; run.py prints a table
of all.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("libraries_run", Path(__file__).parent / "run.py")
assert _SPEC is not None and _SPEC.loader is not None
runner = importlib.util.module_from_spec(_SPEC)
sys.modules["libraries_run"] = runner
_SPEC.loader.exec_module(runner)

STORED = runner.stored_results()


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(library, id=library.name, marks=pytest.mark.jax_libraries(*library.modules))
        for library in runner.LIBRARIES
    ],
)
def test_a_program_finds_what_it_finds_on_jax(library):
    output, error = runner.run(library, "float32", on_gpuflow=True)
    assert not error
    far = runner.differences(output["results"], STORED[library.program]["float32"])
    assert far and all(d <= runner.TOLERANCES["float32"] for d in far.values()), far


def test_differences_are_found():
    stored = {"a": [1.0, 200.0], "b": [0.0], "c": [1.0, float("nan")]}
    far = runner.differences({"a": [1.0, 202.0], "b": [float("nan")], "c": [1.0]}, stored)
    assert far == {"a": pytest.approx(0.01), "b": float("inf"), "c": float("inf")}
    assert set(runner.differences(stored, stored).values()) == {0.0}


def test_parts_in_float32_are_parts_of_their_programs():
    for library in runner.LIBRARIES:
        assert set(library.single) <= set(STORED[library.program]["float32"])
        for part in library.single:
            assert runner.tolerance(library, part, "float64") == runner.TOLERANCES["float32"]
        assert runner.tolerance(library, "another", "float64") == runner.TOLERANCES["float64"]


def test_every_program_has_stored_results_and_a_library():
    programs = {path.stem for path in (Path(__file__).parent / "programs").glob("*.py")}
    assert programs - {"common"} == {library.program for library in runner.LIBRARIES}
    assert set(STORED) <= programs
