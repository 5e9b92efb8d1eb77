"""The programs of docs/examples do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def spectral_radius():
    return load("spectral_radius")


def test_the_spectral_radius_is_learned(spectral_radius):
    """All 3,000 steps; the best constant would leave 0.40."""
    losses = spectral_radius.train()
    assert losses[0] > 3.0
    assert np.mean(losses[-100:]) < 0.15
    # Single batches scatter; the last thousand all stay below the target.
    assert max(losses[-1000:]) < 0.45


def test_radii_are_those_of_numpy(spectral_radius):
    matrices, radii = spectral_radius.batch(gf.random.PRNGKey(5))
    assert matrices.shape == (64, 2, 2) and radii.shape == (64,)
    expected = np.abs(np.linalg.eigvals(np.asarray(matrices, np.complex128))).max(-1)
    np.testing.assert_allclose(radii, expected, rtol=1e-5)


def test_the_example_runs_from_the_command_line():
    run = subprocess.run(
        [sys.executable, EXAMPLES / "spectral_radius.py", "20"],
        capture_output=True, text=True, check=True, cwd=EXAMPLES.parents[1],
    )  # fmt: skip
    assert run.stdout.startswith("steps    0 to   20: loss ")
