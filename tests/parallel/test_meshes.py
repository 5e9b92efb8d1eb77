"""Meshes, specs, shardings and contexts against stored JAX results."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest
from mesh_space import described, space_of
from together import together
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

STORED = json.loads((Path(__file__).parents[1] / "data" / "mesh_values.json").read_text())


@together(size=25)
@pytest.mark.parametrize("line", STORED)
def test_as_in_jax(line):
    expected, space = STORED[line], space_of(gf, jnp, lax)
    if isinstance(expected, dict) and "error" in expected:
        with pytest.raises(getattr(builtins, expected["error"])):
            eval(line, space)
        return
    result = described(eval(line, space), gf)
    if isinstance(expected, dict):
        # Stored with 7 digits; sums of up to 32 float32 terms in another order.
        values = pytest.approx(expected["values"], rel=2e-6)
        assert result == {**expected, "values": values}
    else:
        assert result == expected
