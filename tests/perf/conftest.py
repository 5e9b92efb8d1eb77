"""The modules of the GPU acceptance, which are scripts beside each other."""

import sys
import types
from pathlib import Path

import pytest

PERF = Path(__file__).resolve().parents[2] / "perf"
PARTS = (
    "acceptance", "bandwidth_rows", "ceilings", "checks", "child", "environment", "faults",
    "frameworks",
    "further_rows", "goals", "graph_costs", "kernel_rows", "loop_rows", "models", "parts",
    "planned", "prepare", "processes", "race", "records", "report", "rows",
)  # fmt: skip


@pytest.fixture
def perf(monkeypatch):
    """The script's modules by their names without ``gpu_``, as it finds them itself."""
    monkeypatch.setattr(sys, "path", [str(PERF), *sys.path])
    yield types.SimpleNamespace(**{name: __import__(f"gpu_{name}") for name in PARTS})
    for name in ("prebuild", *(f"gpu_{name}" for name in PARTS)):
        sys.modules.pop(name, None)
