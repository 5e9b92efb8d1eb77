"""Values, dtypes, weak types and shapes of jnp expressions, as stored from JAX 0.10."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import gpuflow.numpy as jnp
from gpuflow import Array, nn

DATA = Path(__file__).parents[1] / "data"
STORED = json.loads((DATA / "numpy_values.json").read_text())
# Relative to the largest result: a few units in the last place, since the libraries' exp, log
# and sums round differently; a 16-bit result may be off by one unit.
TOLERANCE = {"float32": 4e-6, "complex64": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.fixture(scope="module")
def space():
    names = {"jnp": jnp, "np": np, "nn": nn}
    for name, text in STORED["operands"].items():
        names[name] = eval(text, dict(names))
    return names


def check(got, want):
    if isinstance(want, list):
        assert isinstance(got, tuple | list) and len(got) == len(want)
        for one, stored in zip(got, want, strict=True):
            check(one, stored)
        return
    if isinstance(want, str):
        assert str(got) == want
        return
    assert isinstance(got, Array)
    assert got.dtype.name == want["dtype"]
    assert list(got.shape) == want["shape"]
    # Weak bools mean nothing: JAX marks some comparisons so, and we do not.
    assert got.dtype == bool or got.weak_type == want["weak"]
    kind = complex if got.dtype.kind == "c" else float
    expected = np.array([kind(v) for v in want["values"]]).reshape(got.shape)
    actual = np.asarray(got).astype(expected.dtype)
    if got.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(actual, expected)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = finite.max(initial=0.0)
    tolerance = TOLERANCE[got.dtype.name]
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=0.1 * tolerance * scale)


@pytest.mark.parametrize("expression", list(STORED["values"]))
def test_expression(expression, space):
    check(eval(expression, dict(space)), STORED["values"][expression])
