"""What varies in shard_map, and the derivatives that follow from it, against stored JAX results."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import numpy as np
import pytest
from together import together
from varying_programs import programs
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

STORED = json.loads((Path(__file__).parents[1] / "data" / "varying_values.json").read_text())


@pytest.fixture(scope="module")
def made():
    return {}


@together(by=lambda name: name.partition(":")[0], size=25)
@pytest.mark.parametrize("name", STORED)
def test_as_in_jax(name, made):
    if not made:
        made.update(programs(gf, jnp, lax))
    program, expected = made[name], STORED[name]
    if isinstance(expected, dict):
        with pytest.raises(getattr(builtins, expected["error"])):
            program()
        return
    leaves = gf.tree.leaves(program())
    assert len(leaves) == len(expected)
    for leaf, want in zip(leaves, expected, strict=True):
        if not isinstance(want, dict):
            assert leaf == want, (leaf, expected)
            continue
        host = np.asarray(leaf)
        assert (host.dtype.name, list(host.shape)) == (want["dtype"], want["shape"])
        # Stored with 7 digits; sums of up to 64 float32 terms in another order.
        np.testing.assert_allclose(
            host.reshape(-1).astype(np.float64), want["values"], rtol=2e-5, atol=2e-5
        )
