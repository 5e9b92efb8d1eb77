"""Lets the tests of ops import the helpers beside them; a stand-in for CuPy."""

import sys
from pathlib import Path

import pytest
from stand_in_cupy import StandIn

from gpuflow.ops.linalg import solve

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy's module and bindings; ops get its ``xp`` by hand."""
    stand_in = StandIn()
    for name, module in stand_in.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(solve, "_load_cupy_linalg", stand_in.cupy_linalg)
    return stand_in
