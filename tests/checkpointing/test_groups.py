"""Several processes save their parts of one checkpoint, which one process can read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from group_program import X
from process_groups import run_group

from gpuflow import checkpointing
from gpuflow.checkpointing import multiprocess as together
from gpuflow.checkpointing import saving
from gpuflow.errors import CheckpointError

PROGRAM = Path(__file__).with_name("group_program.py")


def test_two_processes(tmp_path):
    ended = run_group(PROGRAM, 2, str(tmp_path), GPUFLOW_CPU_DEVICES="2")
    for rank, one in enumerate(ended):
        assert one.status == 0 and f"rank {rank} of 2 passed" in one.output, one.output
    got = checkpointing.restore(tmp_path / "c")
    np.testing.assert_array_equal(got["rows"], X + 3)
    np.testing.assert_array_equal(got["columns"], X * 3)
    np.testing.assert_array_equal(checkpointing.restore(tmp_path / "alone")["x"], X)
    content = json.loads((tmp_path / "c" / "tree.json").read_text())["content"]
    assert len(content["files"]) == 2
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert names == sorted([*content["files"], "tree.json"])
    # The rows of each process are in its own file; what all have is there once.
    of_files = {
        path: sorted(piece["file"] for piece in leaf.get("pieces", []))
        for path, leaf in zip(content["paths"], content["leaves"], strict=True)
    }
    assert of_files == {
        "['columns']": [0, 0],
        "['host']": [0],
        "['rows']": [0, 1],
        "['step']": [],
        "['whole']": [0],
    }
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "step_00000003",
        "step_00000004",
    ]


def test_parts_that_are_not_the_whole_are_refused():
    saved = {"kind": "array", "dtype": "float32", "shape": [8, 4]}
    half, other = {"bounds": [[0, 4], [0, 4]]}, {"bounds": [[4, 8], [0, 4]]}
    said = r"\[save\] the processes' parts must .*got 16 elements of float32\[8,4\] at \['x'\]\. F"
    with pytest.raises(CheckpointError, match=said):
        saving._check_whole("['x']", {**saved, "pieces": [half]})
    with pytest.raises(CheckpointError, match="must be the whole array; got 32 elements"):
        saving._check_whole("['x']", {**saved, "pieces": [half, half]})
    saving._check_whole("['x']", {**saved, "pieces": [other, half]})


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "_PATIENCE", 0.05)
    said = r"\[save\] all processes must .*got nothing of process 1 in 0\.05 s\. Fix: remove"
    with pytest.raises(CheckpointError, match=said):
        together._wait(tmp_path, "token", lambda: False, "process 1")
