"""Indices that lie outside: values and derivatives as stored from JAX 0.10, in every mode.

A read of ``x[index]`` outside takes the nearest element and gives it no gradient; with
``mode="clip"`` it does. The cases are those of tests/data/out_of_range_cases.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax

DATA = Path(__file__).parents[1] / "data"
sys.path.insert(0, str(DATA))
import out_of_range_cases  # noqa: E402

STORED = json.loads((DATA / "out_of_range.json").read_text())
CASES = out_of_range_cases.cases(jnp, lax)


@together(size=38)
@pytest.mark.parametrize("name", STORED)
def test_as_jax(name):
    got = out_of_range_cases.outcomes(CASES[name], gpuflow, jnp)
    for way, want in STORED[name].items():
        if isinstance(want, str):
            assert got[way] == want, way
            continue
        shape, numbers = got[way]
        assert shape == want[0], way
        # Small integers: exact.
        np.testing.assert_array_equal(
            np.array(numbers, float), np.array(want[1], float), err_msg=way
        )


def test_all_cases_are_stored():
    assert set(CASES) == set(STORED)


@pytest.mark.parametrize("mode", [None, "fill", "clip", "wrap"])
def test_nothing_to_take(mode):
    for x, axis in ((np.zeros(0), None), (np.zeros((3, 0)), 1)):
        with pytest.raises(IndexError, match="an axis without elements has nothing to take"):
            jnp.take(x, np.array([0]), axis=axis, mode=mode)
        assert jnp.take(x, np.zeros((0,), int), axis=axis, mode=mode).size == 0
    assert jnp.take(np.zeros((3, 0)), np.array([0]), axis=0, mode=mode).shape == (1, 0)


def test_take_refuses_other_modes():
    with pytest.raises(ValueError, match="mode must be 'fill', 'clip' or 'wrap'"):
        jnp.take(np.ones(2), np.array([0]), mode="promise_in_bounds")
